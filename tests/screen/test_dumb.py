"""A terminal without an editor."""

from __future__ import annotations

import os

import trio

from cli.screen.dumb import open_plain
from cli.screen.protocol import Acceptance


class Listener:
    """A session that remembers what it was sent until it was sent an end."""

    awaits_input = True

    def __init__(self) -> None:
        self.accepted: list[str] = []
        self.ended = trio.Event()

    async def ready(self) -> None: ...

    def accept(self, text: str, *, at: str = "", again: bool = False) -> Acceptance:
        self.accepted.append(text)
        if text == "end":
            self.ended.set()
        return "accepted"


async def test_an_enter_before_anything_is_shown_does_not_send_what_waits_from_before(keys: int) -> None:
    listener = Listener()
    os.write(keys, b"\nuse B\n \nus")
    async with open_plain(b"\ruse A\r") as screen:
        screen.listen(listener)  # type: ignore[arg-type]
        os.write(keys, b"e C\n\nend\n")
        await listener.ended.wait()
    assert listener.accepted == ["use A", "use B", "use C", "", "end"]
