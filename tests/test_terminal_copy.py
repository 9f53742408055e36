"""The clipboard of a real terminal, which only the bytes that it gets can show."""

import re
from base64 import b64decode

import pytest
from support.terminal import Start, idle, quit, send

pytest_plugins = ["support.terminal"]


def test_copy_sends_the_last_reply_to_the_clipboard(start: Start) -> None:
    screen = idle(start())
    send(screen, "half a line").until("✓ done")
    send(idle(screen), "/copy").until("Sent to the clipboard: 17 characters.")
    quit(screen)
    [copied] = re.findall(rb"\x1b\]52;c;([A-Za-z0-9+/=]*)\x07", screen.raw)
    assert b64decode(copied) == b"Done: half a line"


@pytest.mark.parametrize("terminal", ["dumb", "linux"])
def test_a_terminal_that_would_show_the_sequence_gets_none(start: Start, terminal: str) -> None:
    screen = start(env={"TERM": terminal}).until("Type a task")
    send(screen, "half a line").until("✓ done")
    send(screen, "/copy").until("no clipboard that chain can reach")
    send(screen, "/quit")
    assert screen.wait() == 0
    assert b"\x1b]52" not in screen.raw
