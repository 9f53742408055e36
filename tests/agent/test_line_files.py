"""Files that lines name, at the safe point: in the message of the line, on its receipt, and in a replay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support import Session, checked_session, settings
from support.gates import Gates, begin, finish

from chain import events
from chain.agent.window import WindowUsage, view_of
from chain.messages import Message, Text

ONE_TOOL = """
rules:
  - {when: {interruption: shorter}, text: Noted.}
  - {when: {step: 1}, text: Looking., tools: [{name: gate, input: {at: a}}]}
  - {text: The answer.}
"""


@pytest.fixture
def workspace() -> Iterator[Path]:
    """The folder in which the sessions of these tests work."""
    folder = settings().file
    assert folder is not None
    path = folder.parent / "notes.txt"
    path.write_text("one\ntwo\n")
    yield folder.parent
    path.unlink()


def blocks(session: Session, text: str) -> list[str]:
    """The text blocks of the message that begins so, in the last request."""
    (found,) = [m for m in session.model.requests[-1].messages if m.text.startswith(text)]
    return [block.text for block in found.blocks if isinstance(block, Text)]


def reason(session: Session, id: str) -> str:
    return next(each.reason for each in session.chain.lines.receipts if each.id == id)


async def test_a_query_includes_its_files(workspace: Path) -> None:
    async with checked_session("rules: [{text: Read.}]") as session:
        await session.run("Sum up @notes.txt and @nothing")
        assert blocks(session, "Sum up") == ["Sum up @notes.txt and @nothing", "[File notes.txt, 2 lines]\none\ntwo\n"]
        assert reason(session, "L1") == "with notes.txt (2 lines)"


async def test_files_are_read_at_the_delivery(workspace: Path) -> None:
    gates = Gates()
    async with checked_session(ONE_TOOL, tools=gates.tools) as session:
        await begin(session, gates, "a", "shorter, as in @notes.txt and @../x.txt")
        (workspace / "notes.txt").write_text("three\n")
        await finish(session, gates)
        assert blocks(session, "USER INTERRUPTION")[1:] == ["[File notes.txt, 1 line]\nthree\n"]
        (receipt,) = [e for e in session.of(events.Receipt) if e.state == "delivered" and e.point != "start"]
        assert receipt.reason == "with notes.txt (1 line)"


def test_named_files_do_not_count_as_words() -> None:
    line = Message("user", (Text("look at @a"), Text("[File a, 1 line]\n" + "x" * 3_484)))
    parts = dict(view_of([line], WindowUsage(), None, []).parts)
    assert (parts["user's words"], parts["named files"]) == (3, 1_001)
