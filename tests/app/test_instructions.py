"""The project instructions (AGENTS.md): which files are read, what is left out, and how a session uses them."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from support.sessions import RecordingModel, make_settings
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.app import instructions
from chain.app.instructions import INSTRUCTIONS_HEAD, KIB, MAX_ALL, MAX_EACH, REST_LEFT_OUT, read_instructions
from chain.app.open import open_chain
from chain.app.replay import read_recorded, replay
from chain.chain import Chain
from chain.journal.reading import Reading
from chain.journal.records import InstructionsRead
from chain.providers.scripted.scripted_model import ScriptedModel
from chain.session.restored_state import events_of_journal
from chain.session.store import FileStore
from chain.tools.paths import open_below
from chain.tools.tool import Tool, ToolContext, tool

NAMES = ("AGENTS.md", "CLAUDE.md")


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A repository with the folder ``deep/er``. The folder above it is not in a repository."""
    (tmp_path / "top/.git").mkdir(parents=True)
    (tmp_path / "top/deep/er").mkdir(parents=True)
    return tmp_path / "top"


@pytest.fixture
def own(tmp_path: Path) -> Path:
    """The folder of the user's configuration, which does not exist yet."""
    return tmp_path / "config"


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


# Which files are read


def test_general_instructions_come_first(top: Path, own: Path) -> None:
    write(own / "AGENTS.md", "Be brief.\n")
    write(top / "AGENTS.md", "Use make.\n")
    write(top / "deep/CLAUDE.md", "No network.\n")
    write(top / "deep/er/AGENTS.md", "Test first.\n\nThen write.\n")
    write(top / "deep/er/CLAUDE.md", "Not read.")
    write(top.parent / "AGENTS.md", "Outside the repository.")
    write(top / "docs/AGENTS.md", "In another folder.")
    read = read_instructions(top / "deep/er", NAMES, own)
    assert read.files == (str(own / "AGENTS.md"), "../../AGENTS.md", "../CLAUDE.md", "AGENTS.md")
    assert read.text.split("\n\n", 1) == [
        INSTRUCTIONS_HEAD,
        f"[Instructions: {own}/AGENTS.md]\nBe brief.\n\n[Instructions: ../../AGENTS.md]\nUse make.\n\n"
        "[Instructions: ../CLAUDE.md]\nNo network.\n\n[Instructions: AGENTS.md]\nTest first.\n\nThen write.",
    ]
    assert read.faults == ()


def test_folders_above_are_read_only_in_a_repository(tmp_path: Path) -> None:
    write(tmp_path / "tree/AGENTS.md", "Above.")
    (tmp_path / "tree/src").mkdir()
    assert read_instructions(tmp_path / "tree/src", NAMES).files == ()
    write(tmp_path / "tree/.git", "gitdir: /elsewhere\n")  # as in a worktree
    assert read_instructions(tmp_path / "tree/src", NAMES).files == ("../AGENTS.md",)


def test_the_configured_names_decide(top: Path, own: Path) -> None:
    assert read_instructions(top, NAMES, own) == InstructionsRead("", (), ())
    for name in (*NAMES, "RULES"):
        write(own / name, f"Own {name}.")
        write(top / name, f"Of {name}.")
    assert read_instructions(top, (), own) == read_instructions(top, ("NONE",)) == InstructionsRead("", (), ())
    read = read_instructions(top, ("RULES", "AGENTS.md"), own)
    assert read.files == (str(own / "AGENTS.md"), "RULES"), "other files of the user's folder may contain keys"


def test_links_within_the_repository_are_followed(top: Path, own: Path) -> None:
    write(top.parent / "dotfiles/agents", "Be brief.")
    own.mkdir()
    (own / "AGENTS.md").symlink_to(top.parent / "dotfiles/agents")
    write(top / "docs/rules.md", "Use make.")
    (top / "AGENTS.md").symlink_to("docs/rules.md")
    (top / "deep/CLAUDE.md").symlink_to("../AGENTS.md")
    read = read_instructions(top / "deep", NAMES, own)
    assert read.files == (str(own / "AGENTS.md"), "../AGENTS.md"), "a link of the user's own may lead anywhere"
    assert (read.faults, read.text.count("Use make.")) == ((), 1)


SECRET = "A key."


def link(file: Path, to: str, secret: str = "") -> None:
    """Make a file a link. If ``secret`` is a path, relative to its folder, write a secret there."""
    if secret:
        write(file.parent / secret, SECRET)
    file.symlink_to(to)


def link_folder(file: Path) -> None:
    (file.parent / "rules").symlink_to(file.parent.parent / "outside")
    link(file, "rules/rules.md", "../outside/rules.md")


def deny(file: Path) -> None:
    write(file, SECRET)
    file.chmod(0)


UNUSABLE: dict[str, tuple[Callable[[Path], object], str]] = {
    "a link upwards": (lambda file: link(file, "../secret", "../secret"), "a link that leads out of the repository"),
    "through a linked folder": (link_folder, "a link that leads out of the repository"),
    "a device": (lambda file: link(file, "/dev/zero"), "a link that leads out of the repository"),
    "a link into .git": (lambda file: link(file, ".git/config", ".git/config"), "a link into .git"),
    "a broken link": (lambda file: link(file, "nowhere"), "a broken link"),
    "a link to itself": (lambda file: link(file, "AGENTS.md"), "Too many levels of symbolic links"),
    "a folder": (Path.mkdir, "only files are read"),
    "a pipe": (os.mkfifo, "only files are read"),
    "another encoding": (lambda file: file.write_bytes(f"Grüße. {SECRET}".encode("latin-1")), "not UTF-8"),
    "a character cut off": (lambda file: file.write_bytes(f"{SECRET} ü".encode()[:-1]), "not UTF-8"),
    "null bytes": (lambda file: file.write_bytes(f"{SECRET}\0\0".encode()), "is not text"),
}
if os.geteuid() != 0:  # the superuser may read everything
    UNUSABLE["no permission"] = (deny, "Permission denied")


@pytest.mark.parametrize(("make", "why"), UNUSABLE.values(), ids=UNUSABLE)
def test_an_unusable_file_is_skipped_with_a_notice(top: Path, make: Callable[[Path], object], why: str) -> None:
    make(top / "AGENTS.md")
    write(top / "deep/AGENTS.md", "Test first.")
    read = read_instructions(top / "deep", NAMES)
    assert read.files == ("AGENTS.md",)
    assert SECRET not in read.text
    (fault,) = read.faults
    assert fault.startswith("../AGENTS.md is left out of the project instructions: it ")
    assert why in fault


def test_a_newline_in_a_path_is_escaped(top: Path) -> None:
    write(top / "b\n/x/AGENTS.md", "Here.")
    write(top / "b\n/AGENTS.md", "Above.")
    (top / "b\n/.git").mkdir()
    files = read_instructions(top / "b\n/x", NAMES).files
    assert len(files) == 2
    assert "\n" not in "".join(files)


# Limits


def test_a_huge_file_is_truncated(top: Path) -> None:
    write(top / "AGENTS.md", "Use make.\n" * MAX_EACH)
    os.truncate(top / "AGENTS.md", 104_857_600)
    read = read_instructions(top, NAMES)
    assert len(read.text.encode()) < MAX_EACH + 1_000, "the file up to its limit, and the headings"
    assert read.text.endswith(f"\nUse make.\n{REST_LEFT_OUT}"), "only complete rows"
    (fault,) = read.faults
    assert "has only its first 32,768 of 104,857,600 bytes in" in fault
    assert "32 KiB" in fault


@pytest.mark.parametrize("shift", range(4))
def test_a_character_is_not_divided_at_the_limit(top: Path, shift: int) -> None:
    write(top / "AGENTS.md", "x" * shift + "𝄞" * MAX_EACH)  # the character has four bytes
    assert read_instructions(top, NAMES).text.endswith(f"𝄞\n{REST_LEFT_OUT}")


def test_a_file_at_the_limit_is_complete(top: Path) -> None:
    byte_order_mark = "\ufeff"
    text = "x" * (MAX_EACH - len(byte_order_mark.encode()))
    write(top / "AGENTS.md", byte_order_mark + text)
    complete = read_instructions(top, NAMES)
    assert complete.faults == ()
    assert complete.text.endswith(f"\n{text}")


def test_all_files_together_are_limited(top: Path) -> None:
    size, folders = 30 * KIB, [top, top / "a", top / "a/b", top / "a/b/c", top / "a/b/c/d"]
    for folder in folders:
        write(folder / "AGENTS.md", "x" * size)
    read = read_instructions(folders[-1], NAMES)
    assert read.files == ("../../../../AGENTS.md", "../../../AGENTS.md", "../../AGENTS.md", "../AGENTS.md")
    hundreds = read.text.count("x" * 100)  # the headings have single ones
    assert hundreds * 100 <= MAX_ALL
    rest = MAX_ALL - 3 * size  # three files fit, and a part of the fourth
    fourth, fifth = read.faults
    assert f"has only its first {rest:,} of {size:,} bytes in" in fourth
    assert f"({size:,} bytes) is left out of" in fifth


# In a session


RULES = """
rules:
  - {when: {user: '^explore$', step: 1}, tools: [{name: explore, input: {task: Look.}}]}
  - {when: {user: '^rewrite$', step: 1}, tools: [{name: rewrite, input: {}}]}
  - {text: Done.}
"""


def new_model() -> RecordingModel:
    return RecordingModel(ScriptedModel.parse(RULES))


def instructions_in(model: RecordingModel) -> list[str]:
    """Return the instructions in each request, or its whole system prompt if there are none."""
    return [request.system.rpartition(f"{INSTRUCTIONS_HEAD}\n\n")[2] for request in model.requests]


def block(tool_name: str) -> str:
    return f"[Instructions: AGENTS.md]\nUse {tool_name}."


@asynccontextmanager
async def open_project(
    model: RecordingModel, workspace: Path, state: Path, *, tools: Sequence[Tool] = (), **more: Any
) -> AsyncIterator[tuple[Chain, list[str]]]:
    """Yield a chain and the list of its notices. On exit, check that a replay computes the same requests."""
    notices: list[str] = []

    def listen(event: events.Event) -> None:
        if isinstance(event, events.Notice):
            notices.append(event.message)

    settings = make_settings(agents=True)
    async with open_chain(
        settings, workspace=workspace, state=state, model=model, tools=tools, **{"instructions": True, **more}
    ) as chain:
        chain.listen(listen)
        yield chain, notices
    comparison = replay(settings, read_recorded(FileStore(state), chain.session_id), tools=tools)
    assert comparison.is_same, comparison.rows


async def run(chain: Chain, query: str = "Go") -> None:
    assert chain.submit(query).what == "started"
    await chain.wait_idle()


async def test_every_agent_gets_the_instructions(top: Path, tmp_path: Path) -> None:
    write(top / "AGENTS.md", "Use make.")
    model = new_model()
    async with open_project(model, top, tmp_path) as (chain, notices):
        assert chain.state.instructions.files == ("AGENTS.md",)
        await run(chain, "explore")
        assert notices == [], "they were named at the start"
    assert instructions_in(model) == [block("make")] * 3
    main, child, _ = (request.system for request in model.requests)
    assert main == f"You are a test.\n\n{INSTRUCTIONS_HEAD}\n\n{block('make')}"
    assert not child.startswith("You are a test.")


async def test_a_change_takes_effect_with_the_next_run(top: Path, tmp_path: Path) -> None:
    @tool
    async def rewrite(ctx: ToolContext) -> str:
        """Change the instructions in the middle of a run."""
        write(top / "AGENTS.md", "Use ninja.")
        return "Rewritten."

    write(top / "AGENTS.md", "Use make.")
    model = new_model()
    async with open_project(model, top, tmp_path, tools=[rewrite]) as (chain, notices):
        await run(chain, "rewrite")
        assert notices == []
        for query in ("explore", "Go"):
            await run(chain, query)
            assert notices == ["Project instructions changed: AGENTS.md."]
        (top / "AGENTS.md").unlink()
        await run(chain)
    assert notices == ["Project instructions changed: AGENTS.md.", "Project instructions changed: there are none now."]
    # "rewrite" and "Go" have one agent, "explore" has three requests: of the main agent, its child, and again of main.
    rewrite_run, explore_and_go, last_run = [block("make")] * 2, [block("ninja")] * 4, ["You are a test."]
    assert instructions_in(model) == rewrite_run + explore_and_go + last_run
    recorded = events_of_journal(Reading(read_recorded(FileStore(tmp_path), chain.session_id)))
    messages = [event.message for event in recorded if event.type == "notice"]
    assert messages == ["Project instructions: AGENTS.md.", *notices]


async def test_an_unusable_file_fails_no_run(top: Path, tmp_path: Path) -> None:
    model = new_model()
    async with open_project(model, top, tmp_path) as (chain, notices):
        os.mkfifo(top / "AGENTS.md")
        for _ in range(2):
            await run(chain)
            assert chain.runs.last_status == "done"
        (notice,) = notices
        assert notice.startswith("AGENTS.md is left out of the project instructions: ")
    assert instructions_in(model) == ["You are a test."] * 2


async def test_a_resumed_session_rereads_the_files(top: Path, tmp_path: Path) -> None:
    model, id = new_model(), ""
    for text in ("Use make.", "Use ninja.", "Use ninja."):
        write(top / "AGENTS.md", text)
        async with open_project(model, top, tmp_path, resume=id) as (chain, notices):
            id = chain.session_id
            await run(chain)
            assert notices == []
    async with open_project(model, top, tmp_path, resume=id, instructions=False) as (chain, _):
        await run(chain)
    assert instructions_in(model) == [block("make"), block("ninja"), block("ninja"), "You are a test."]
    rows = read_recorded(FileStore(tmp_path), id)
    assert sum(b'"type":"instructions"' in row for row in rows) == 3, "make, ninja, none: only changes are recorded"


# A disk that hangs


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A disk that hangs while this is set, until the end of the test."""
    hangs, answers = threading.Event(), threading.Event()

    def open_slowly(root: str, parts: list[str]) -> int:
        if hangs.is_set():
            answers.wait()
        return open_below(root, parts)

    monkeypatch.setattr(instructions, "open_below", open_slowly)
    yield hangs
    answers.set()


@asynccontextmanager
async def open_on_hanging_disk(
    top: Path, state: Path, hanging: threading.Event, clock: MockClock
) -> AsyncIterator[tuple[Chain, list[str], RecordingModel]]:
    """Open a chain that has read its instructions, and let the disk hang inside the block."""
    write(top / "AGENTS.md", "Use make.")
    model = new_model()
    clock.autojump_threshold = float("inf")  # the clock would jump while a thread still reads
    async with open_project(model, top, state) as (chain, notices):
        hanging.set()
        yield chain, notices, model
        hanging.clear()


RUNS = 3
"""More than ``instructions`` has threads, so that the last run finds them all hanging."""


async def test_a_hanging_disk_delays_a_run_briefly(
    top: Path, tmp_path: Path, hanging: threading.Event, autojump_clock: MockClock
) -> None:
    async with open_on_hanging_disk(top, tmp_path, hanging, autojump_clock) as (chain, notices, model):
        for _ in range(RUNS):
            chain.submit("Go")
            await wait_all_tasks_blocked()
            assert chain.submit("and look at this").what == "queued"
            assert chain.submit("!!now this").what == "queued"
            autojump_clock.jump(instructions.READ_S)
            await chain.wait_idle()
        assert chain.runs.last_status == "done"
        assert instructions_in(model) == [block("make")] * RUNS
        late = "The project instructions could not be read within 2 s, so the previous ones are used."
        assert [notice for notice in notices if "instructions" in notice] == [late], "one notice for all runs"
        assert [receipt.point for receipt in chain.lines.receipts] == ["start", "A", "A"] * RUNS, "A is after the query"


@pytest.mark.parametrize(("act", "status"), [("stop", "cancelled"), ("interrupt", "interrupted")])
async def test_a_run_ends_while_the_disk_hangs(
    top: Path, tmp_path: Path, hanging: threading.Event, autojump_clock: MockClock, act: str, status: str
) -> None:
    async with open_on_hanging_disk(top, tmp_path, hanging, autojump_clock) as (chain, notices, model):
        for _ in range(RUNS):
            chain.submit("Go")
            await wait_all_tasks_blocked()
            if act == "stop":
                assert chain.submit("stop").what == "stopping"
            else:
                assert chain.interrupt()
            await chain.wait_idle()
        assert chain.runs.last_status == status
        assert instructions_in(model) == [], "no request was sent"
        assert (trio.current_time(), notices) == (0, [])
