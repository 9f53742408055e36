"""A terminal without an editor."""

import os

import trio

from cli.screen.dumb import open_plain
from cli.screen.protocol import Acceptance


class Listener:
    """A session that records lines until the line ``end``."""

    awaits_input = True

    def __init__(self) -> None:
        self.accepted: list[str] = []
        self.ended = trio.Event()

    async def wait_ready(self) -> None: ...

    def accept(self, text: str, *, question_id: str = "", again: bool = False) -> Acceptance:
        self.accepted.append(text)
        if text == "end":
            self.ended.set()
        return "accepted"


async def test_blank_lines_typed_ahead_are_ignored(keys: int) -> None:
    listener = Listener()
    os.write(keys, b"\nuse B\n \nus")  # the end of this line follows later
    async with open_plain(b"\ruse A\r") as screen:  # keys that were read before
        screen.listen(listener)  # type: ignore[arg-type]
        os.write(keys, b"e C\n\nend\n")
        await listener.ended.wait()
    assert listener.accepted == ["use A", "use B", "use C", "", "end"]
