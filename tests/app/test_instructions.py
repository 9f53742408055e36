"""The project's instructions: which files are read, what is left out, and that no run hangs on them or fails."""

from __future__ import annotations

import os
import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from support import settings
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.app import instructions
from chain.app.instructions import INSTRUCTIONS_HEAD, MAX_ALL, MAX_EACH, REST_LEFT_OUT, read_instructions
from chain.app.open import open_chain
from chain.app.replay import read_recorded, replay
from chain.chain import Chain
from chain.journal.reading import Reading
from chain.messages import Text, ToolCall, Usage, assistant
from chain.model import Delta, Reply, Request
from chain.session.restored_state import events_of_journal
from chain.session.store import FileStore
from chain.tools.paths import open_below
from chain.tools.tool import Tool, ToolContext, tool

NAMES = ("AGENTS.md", "CLAUDE.md")


@pytest.fixture
def top(tmp_path: Path) -> Path:
    """A repository with a folder in a folder, in a folder that is none of it."""
    (tmp_path / "top/.git").mkdir(parents=True)
    (tmp_path / "top/deep/er").mkdir(parents=True)
    return tmp_path / "top"


def write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


# ------------------------------------------------------------------------------------------------ which files are read


def test_the_general_come_first_each_under_its_path(top: Path) -> None:
    own = top.parent / "config"
    write(own / "AGENTS.md", "Be brief.\n")
    write(top / "AGENTS.md", "Use make.\n")
    write(top / "deep/CLAUDE.md", "No network.\n")
    write(top / "deep/er/AGENTS.md", "Test first.\n\nThen write.\n")
    write(top / "deep/er/CLAUDE.md", "Not read.")
    write(top.parent / "AGENTS.md", "Of another.")
    write(top / "docs/AGENTS.md", "Beside the way.")
    read = read_instructions(top / "deep/er", NAMES, own)
    assert read.files == (str(own / "AGENTS.md"), "../../AGENTS.md", "../CLAUDE.md", "AGENTS.md")
    assert read.text.split("\n\n", 1) == [
        INSTRUCTIONS_HEAD,
        f"[Instructions: {own}/AGENTS.md]\nBe brief.\n\n[Instructions: ../../AGENTS.md]\nUse make.\n\n"
        "[Instructions: ../CLAUDE.md]\nNo network.\n\n[Instructions: AGENTS.md]\nTest first.\n\nThen write.",
    ]
    assert read.faults == ()


def test_in_no_repository_only_the_workspace_counts(tmp_path: Path) -> None:
    write(tmp_path / "AGENTS.md", "Above.")
    write(tmp_path / "work/AGENTS.md", "Here.")
    assert read_instructions(tmp_path / "work", NAMES).files == ("AGENTS.md",)
    assert "Above." not in read_instructions(tmp_path / "work", NAMES).text


def test_a_worktree_is_a_repository(tmp_path: Path) -> None:
    write(tmp_path / "tree/.git", "gitdir: /elsewhere\n")
    write(tmp_path / "tree/AGENTS.md", "Use make.")
    (tmp_path / "tree/src").mkdir()
    assert read_instructions(tmp_path / "tree/src", NAMES).files == ("../AGENTS.md",)


def test_the_names_decide_and_without_names_nothing_is_read(top: Path) -> None:
    own = top.parent / "config"
    for name in ("AGENTS.md", "CLAUDE.md", "RULES"):
        write(own / name, f"Own {name}.")
        write(top / name, f"Of {name}.")
    assert read_instructions(top, (), own) == read_instructions(top / "deep", ("NONE",))
    read = read_instructions(top, ("RULES", "AGENTS.md"), own)
    assert read.files == (str(own / "AGENTS.md"), "RULES"), "beside the user's own there may be keys"


def test_where_there_are_none_nothing_is_told(top: Path) -> None:
    assert read_instructions(top, NAMES, top / "config").text == ""
    write(top / "AGENTS.md", "\ufeff \n")
    read = read_instructions(top, NAMES)
    assert (read.text, read.files, read.faults) == ("", (), ())


# ----------------------------------------------------------------------------------------- links, and other kinds


def test_a_link_within_the_repository_is_followed_and_a_file_is_read_once(top: Path) -> None:
    write(top / "docs/rules.md", "Use make.")
    (top / "AGENTS.md").symlink_to("docs/rules.md")
    (top / "deep/CLAUDE.md").symlink_to("../AGENTS.md")
    read = read_instructions(top / "deep", NAMES)
    assert (read.files, read.faults, read.text.count("Use make.")) == (("../AGENTS.md",), (), 1)


def test_the_user_s_own_may_be_a_link_to_anywhere(top: Path) -> None:
    write(top.parent / "dotfiles/agents", "Be brief.")
    (top.parent / "config").mkdir()
    (top.parent / "config/AGENTS.md").symlink_to(top.parent / "dotfiles/agents")
    assert "Be brief." in read_instructions(top, NAMES, top.parent / "config").text


SECRET = "A key."


def linked(file: Path, to: str, target: str = "") -> None:
    """Make a file a link, and write a secret to where it leads."""
    if target:
        write(file.parent / target, SECRET)
    file.symlink_to(to)


def linked_folder(file: Path) -> None:
    write(file.parent.parent / "outside/rules.md", SECRET)
    (file.parent / "rules").symlink_to(file.parent.parent / "outside")
    file.symlink_to("rules/rules.md")


def circle(file: Path) -> None:
    file.symlink_to("CLAUDE.md")
    (file.parent / "CLAUDE.md").symlink_to("AGENTS.md")


def unreadable(file: Path) -> None:
    write(file, SECRET)
    file.chmod(0)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda file: linked(file, "../secret", "../secret"), "a link that leads out of the repository"),
        (linked_folder, "a link that leads out of the repository"),
        (lambda file: linked(file, "/dev/zero"), "a link that leads out of the repository"),
        (lambda file: linked(file, ".git/config", ".git/config"), "a link into .git"),
        (lambda file: linked(file, "nowhere"), "a broken link"),
        (circle, "Too many levels of symbolic links"),
        (Path.mkdir, "only files are read"),
        (os.mkfifo, "only files are read"),
        (lambda file: file.write_bytes(f"Grüße. {SECRET}".encode("latin-1")), "not UTF-8"),
        (lambda file: file.write_bytes(f"{SECRET} ü".encode()[:-1]), "not UTF-8"),
        (lambda file: file.write_bytes(f"{SECRET}\0\0".encode()), "is not text"),
        pytest.param(
            *(unreadable, "Permission denied"),
            marks=pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything"),
        ),
    ],
)
def test_what_is_no_file_of_the_repository_is_left_out_with_a_sentence(
    top: Path, make: Callable[[Path], object], why: str
) -> None:
    make(top / "AGENTS.md")
    write(top / "deep/AGENTS.md", "Test first.")
    read = read_instructions(top / "deep", NAMES)
    assert read.files == ("AGENTS.md",)
    assert SECRET not in read.text
    (fault,) = read.faults
    assert fault.startswith("../AGENTS.md is left out of the project instructions: it ")
    assert why in fault


def test_a_name_that_is_not_meant_for_a_line_stays_on_it(top: Path) -> None:
    write(top / "a\n[Instructions: x]\x1b[2J/AGENTS.md", "Here.")
    read = read_instructions(top / "a\n[Instructions: x]\x1b[2J", (*NAMES,))
    assert read.files == ("AGENTS.md",)
    write(top / "b\n/x/AGENTS.md", "Here.")
    write(top / "b\n/AGENTS.md", "Above.")
    (top / "b\n/.git").mkdir()
    assert "\n" not in "".join(read_instructions(top / "b\n/x", NAMES).files)


# ------------------------------------------------------------------------------------------------------------- bounds


def test_of_a_huge_file_the_beginning_is_told(top: Path) -> None:
    write(top / "AGENTS.md", "Use make.\n" * (MAX_EACH // 8))
    os.truncate(top / "AGENTS.md", 100 * 1024 * 1024)
    read = read_instructions(top, NAMES)
    assert len(read.text.encode()) < MAX_EACH + 1_000
    assert read.text.endswith(f"\nUse make.\n{REST_LEFT_OUT}"), "only whole rows"
    (fault,) = read.faults
    assert "32,768 bytes of 104,857,600" in fault
    assert "32 KiB" in fault


@pytest.mark.parametrize("before", range(4))
def test_a_character_at_the_bound_is_no_fault(top: Path, before: int) -> None:
    write(top / "AGENTS.md", "x" * before + "𝄞" * MAX_EACH)
    read = read_instructions(top, NAMES)
    assert read.files == ("AGENTS.md",)
    assert read.text.removesuffix(f"\n{REST_LEFT_OUT}").endswith("𝄞")


def test_a_file_of_just_the_most_is_whole(top: Path) -> None:
    write(top / "AGENTS.md", "x" * MAX_EACH)
    read = read_instructions(top, NAMES)
    assert read.faults == ()
    assert read.text.endswith("x" * MAX_EACH)


def test_all_together_have_a_bound_too(top: Path) -> None:
    here, size = top, 30 * 1024
    for _ in range(5):
        write(here / "AGENTS.md", "x" * size)
        here = here / "on"
    read = read_instructions(here.parent, NAMES)
    assert len(read.files) == 4
    assert read.text.count("x" * 100) * 100 <= MAX_ALL
    last, none = read.faults
    assert f"the first {MAX_ALL - 3 * size:,} bytes of {size:,}" in last
    assert f"nothing of {size:,}" in none


# ------------------------------------------------------------------------------------------------------ in a session


class Briefed:
    """Does what a run's script says, then answers; keeps the system prompts of its requests."""

    name = "briefed"

    def __init__(self, *calls: str) -> None:
        self.systems: list[str] = []
        self._calls = list(calls)

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        self.systems.append(request.system)
        await trio.lowlevel.checkpoint()
        if self._calls and self._calls[0] in {tool.name for tool in request.tools}:
            call = ToolCall(f"c{len(self.systems)}", self._calls.pop(0), {"task": "Look."})
            return Reply(assistant([call]), "tool_use", Usage())
        return Reply(assistant([Text("Done.")]), "end_turn", Usage())

    async def aclose(self) -> None: ...

    async def prepare(self) -> None: ...


@asynccontextmanager
async def opened(
    model: Briefed, workspace: Path, state: Path, *, resume: str = "", reads: bool = True, tools: Iterable[Tool] = ()
) -> AsyncIterator[tuple[Chain, list[str]]]:
    """A chain, and the notices that it has told."""
    notices: list[str] = []

    def hear(event: events.Event) -> None:
        if isinstance(event, events.Notice):
            notices.append(event.message)

    async with open_chain(
        settings(agents=True),
        workspace=workspace,
        state=state,
        model=model,
        resume=resume,
        instructions=reads,
        tools=tools,
    ) as chain:
        chain.listen(hear)
        yield chain, notices


async def run(chain: Chain) -> None:
    assert chain.submit("Go").what == "started"
    await chain.wait_idle()


def check_replays(state: Path, id: str, tools: Iterable[Tool] = ()) -> None:
    found = replay(settings(agents=True), read_recorded(FileStore(state), id), tools=tools)
    assert found.is_same, found.rows


def told_of(model: Briefed) -> list[str]:
    """The instructions in each request."""
    return [system.rpartition(f"{INSTRUCTIONS_HEAD}\n\n")[2] for system in model.systems]


async def test_they_come_after_our_prompt_and_children_get_them_too(top: Path, tmp_path: Path) -> None:
    write(top / "AGENTS.md", "Use make.")
    model = Briefed("explore")
    async with opened(model, top, tmp_path) as (chain, notices):
        assert chain.state.instructions.files == ("AGENTS.md",)
        await run(chain)
        assert notices == [], "the opening has told them"
    block = "[Instructions: AGENTS.md]\nUse make."
    assert told_of(model) == [block] * 3
    main, child, _ = model.systems
    assert main == f"You are a test.\n\n{INSTRUCTIONS_HEAD}\n\n{block}"
    assert not child.startswith("You are a test.")
    check_replays(tmp_path, chain.session_id)


async def test_a_change_waits_for_the_next_run_which_says_so(top: Path, tmp_path: Path) -> None:
    @tool
    async def rewrite(ctx: ToolContext, task: str) -> str:
        """Change the instructions in the middle of a run."""
        write(top / "AGENTS.md", "Use ninja.")
        return "Rewritten."

    write(top / "AGENTS.md", "Use make.")
    model = Briefed("rewrite", "explore")
    async with opened(model, top, tmp_path, tools=[rewrite]) as (chain, notices):
        await run(chain)
        assert notices == []
        await run(chain)
        assert notices == ["Project instructions changed: AGENTS.md."]
        await run(chain)
        assert len(notices) == 1
        (top / "AGENTS.md").unlink()
        await run(chain)
        assert notices[1:] == ["Project instructions changed: there are none now."]
    make, ninja = (f"[Instructions: AGENTS.md]\nUse {what}." for what in ("make", "ninja"))
    assert told_of(model) == [make] * 4 + [ninja] * 2 + ["You are a test."]
    kept = [
        event.message
        for event in events_of_journal(Reading(read_recorded(FileStore(tmp_path), chain.session_id)))
        if event.type == "notice"
    ]
    assert kept == ["Project instructions: AGENTS.md.", *notices], "who reads the session again is told as well"
    check_replays(tmp_path, chain.session_id, [rewrite])


async def test_a_fault_is_a_notice_and_the_run_goes_on(top: Path, tmp_path: Path) -> None:
    model = Briefed()
    async with opened(model, top, tmp_path) as (chain, notices):
        await run(chain)
        assert notices == []
        os.mkfifo(top / "AGENTS.md")
        await run(chain)
        await run(chain)
        assert chain.runs.last_status == "done"
        assert len(notices) == 1, "it is told once"
        assert notices[0].startswith("AGENTS.md is left out of the project instructions: ")
    assert model.systems == ["You are a test."] * 3
    check_replays(tmp_path, chain.session_id)


async def test_a_resumed_session_has_those_of_today(top: Path, tmp_path: Path) -> None:
    model, id = Briefed(), ""
    for text in ("Use make.", "Use ninja.", "Use ninja."):
        write(top / "AGENTS.md", text)
        async with opened(model, top, tmp_path, resume=id) as (chain, notices):
            id = chain.session_id
            await run(chain)
            assert notices == []
    async with opened(model, top, tmp_path, resume=id, reads=False) as (chain, _):
        await run(chain)
    make, ninja = (f"[Instructions: AGENTS.md]\nUse {what}." for what in ("make", "ninja"))
    assert told_of(model) == [make, ninja, ninja, "You are a test."]
    rows = read_recorded(FileStore(tmp_path), id)
    assert sum(b'"type":"instructions"' in row for row in rows) == 3, "only changes are recorded"
    check_replays(tmp_path, id)


# -------------------------------------------------------------------------------------------------- a disk that hangs


@pytest.fixture
def hanging(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """A disk that does not answer once this is set; at the end it does."""
    hangs, answers = threading.Event(), threading.Event()

    def open_slowly(root: str, parts: list[str]) -> int:
        if hangs.is_set():
            answers.wait()
        return open_below(root, parts)

    monkeypatch.setattr(instructions, "open_below", open_slowly)
    yield hangs
    answers.set()


async def test_a_disk_that_hangs_holds_a_run_up_for_a_moment(
    top: Path, tmp_path: Path, hanging: threading.Event, autojump_clock: MockClock
) -> None:
    write(top / "AGENTS.md", "Use make.")
    model = Briefed()
    autojump_clock.autojump_threshold = float("inf")  # a thread that reads does not count as at work
    async with opened(model, top, tmp_path) as (chain, notices):
        hanging.set()
        for _ in range(3):  # more often than there are threads
            chain.submit("Go")
            await wait_all_tasks_blocked()
            autojump_clock.jump(instructions.READ_S)
            await chain.wait_idle()
        assert chain.runs.last_status == "done"
        assert notices == ["The project instructions could not be read within 2 s, so they are as before."]
    assert told_of(model) == ["[Instructions: AGENTS.md]\nUse make."] * 3
    hanging.clear()
    check_replays(tmp_path, chain.session_id)


@pytest.mark.parametrize(("act", "status"), [("stop", "cancelled"), ("interrupt", "interrupted")])
async def test_a_user_need_not_wait_for_it(
    top: Path, tmp_path: Path, hanging: threading.Event, autojump_clock: MockClock, act: str, status: str
) -> None:
    write(top / "AGENTS.md", "Use make.")
    model = Briefed()
    autojump_clock.autojump_threshold = float("inf")
    async with opened(model, top, tmp_path) as (chain, notices):
        hanging.set()
        began = trio.current_time()
        chain.submit("Go")
        await wait_all_tasks_blocked()
        if act == "stop":
            assert chain.submit("stop").what == "stopping"
        else:
            assert chain.interrupt()
        await chain.wait_idle()
        assert (chain.runs.last_status, trio.current_time()) == (status, began)
        assert notices == []
    assert model.systems == [], "nothing was asked"
    hanging.clear()
    check_replays(tmp_path, chain.session_id)


async def test_lines_that_come_meanwhile_enter_before_the_first_call(
    top: Path, tmp_path: Path, hanging: threading.Event, autojump_clock: MockClock
) -> None:
    write(top / "AGENTS.md", "Use make.")
    model = Briefed()
    autojump_clock.autojump_threshold = float("inf")
    async with opened(model, top, tmp_path) as (chain, _):
        hanging.set()
        chain.submit("Go")
        await wait_all_tasks_blocked()
        assert chain.submit("and look at this").what == "queued"
        assert chain.submit("!!now this").what == "queued"
        autojump_clock.jump(instructions.READ_S)
        await chain.wait_idle()
        points = {receipt.text: receipt.point for receipt in chain.lines.receipts}
        assert points == {"Go": "start", "and look at this": "A", "!!now this": "A"}
    assert len(model.systems) == 1
    hanging.clear()
    check_replays(tmp_path, chain.session_id)
