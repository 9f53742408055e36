"""Files that lines name with ``@``: their text in the message of the line, and their mention on its receipt."""

import math
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.checks import checked_session
from support.gates import Gates, finish_run, start_run
from support.sessions import Session, make_settings

from chain.agent.window import FIRST_RATIO, WindowUsage, view_of
from chain.messages import Message, Text

ONE_TOOL = """
rules:
  - {when: {interruption: shorter}, text: Noted.}
  - {when: {step: 1}, text: Looking., tools: [{name: gate, input: {at: a}}]}
  - {text: The answer.}
"""


@pytest.fixture
def workspace() -> Iterator[Path]:
    """Return the workspace of these tests, with a file ``notes.txt``."""
    config = make_settings().file
    assert config is not None
    path = config.parent / "notes.txt"
    path.write_text("one\ntwo\n")
    yield config.parent
    path.unlink()


def blocks(session: Session, start: str) -> list[str]:
    """Return the text blocks of the message that starts with ``start``, in the last request."""
    (message,) = [m for m in session.model.requests[-1].messages if m.text.startswith(start)]
    return [block.text for block in message.blocks if isinstance(block, Text)]


async def test_a_query_includes_its_files(workspace: Path) -> None:
    async with checked_session("rules: [{text: Read.}]") as session:
        await session.run("Sum up @notes.txt and @nothing")
        assert blocks(session, "Sum up") == ["Sum up @notes.txt and @nothing", "[File notes.txt, 2 lines]\none\ntwo\n"]
        (receipt,) = session.chain.lines.receipts
        assert receipt.reason == "with notes.txt (2 lines)"


async def test_files_are_read_at_the_delivery(workspace: Path) -> None:
    gates = Gates()
    async with checked_session(ONE_TOOL, tools=gates.tools) as session:
        await start_run(session, gates, "a", "shorter, as in @notes.txt and @../x.txt")  # the latter is outside
        (workspace / "notes.txt").write_text("three\n")
        await finish_run(session, gates)
        _, file = blocks(session, "USER INTERRUPTION")
        assert file == "[File notes.txt, 1 line]\nthree\n"
        _, receipt = session.chain.lines.receipts
        assert receipt.reason == "with notes.txt (1 line)"


def test_named_files_do_not_count_as_words() -> None:
    words, file = "look at @a", "[File a, 1 line]\n" + "x" * 3_000
    message = Message("user", (Text(words), Text(file)))
    parts = dict(view_of([message], WindowUsage(), window=None, overhead=[]).parts)
    assert parts["user's words"] == math.ceil(len(words) / FIRST_RATIO)
    assert parts["named files"] == math.ceil(len(file) / FIRST_RATIO)
