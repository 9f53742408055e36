"""The tools that change files: what they change, what they refuse, and that a refusal changes nothing."""

from __future__ import annotations

import dataclasses
import os
import socket
from collections.abc import Callable
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any

import pytest
import trio
from support import check_invariants, open_session, settings
from support.sockets import bind
from support.steered import Steered

from chain import events
from chain.app.toolbox import configured_tools, tool_groups
from chain.errors import ToolError
from chain.messages import ToolCall
from chain.plan import Plan
from chain.text.hunks import FileDiff, Hunk
from chain.tools import calling, edit, files
from chain.tools.edit import edit_tools
from chain.tools.files import read_file, search_files
from chain.tools.paths import MAX_WHOLE
from chain.tools.replace import replace
from chain.tools.seen import KnownFileVersions
from chain.tools.tool import Preview, ToolContext, tool

TOOLS = write_file, edit_file = edit_tools()


class Agent:
    """What one agent does with its tools; agents that share a ``KnownFileVersions`` are of one session."""

    def __init__(self, workspace: Path, seen: KnownFileVersions | None = None) -> None:
        self.workspace = workspace
        self.context = ToolContext(workspace, Plan(), "call_1", Steered(), print, seen or KnownFileVersions())

    async def read(self, path: str = "docs/a.txt", **input: Any) -> str:
        return (await read_file.run(self.context, {"path": path, **input})).text

    async def write(self, path: str, content: str) -> str:
        return (await write_file.run(self.context, {"path": path, "content": content})).text

    async def edit(self, old: str, new: str, path: str = "docs/a.txt", **input: Any) -> str:
        call = {"path": path, "old_string": old, "new_string": new, **input}
        return (await edit_file.run(self.context, call)).text

    async def preview(self, using: Any, **input: Any) -> Preview | None:
        return await calling.preview(using, ToolCall("t1", using.name, input), self.context, calling.ToolLimits())


def everything(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Every file and folder below, with what tells whether anybody touched it."""
    return {
        str(p.relative_to(root)): (p.lstat().st_mode, p.lstat().st_ino, p.read_bytes() if p.is_file() else b"")
        for p in sorted(root.rglob("*"))
    }


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "work/docs").mkdir(parents=True)
    (tmp_path / "work/docs/a.txt").write_text("alpha\nbeta\ngamma\n")
    (tmp_path / "secret.txt").write_text("outside\n")
    return tmp_path / "work"


@pytest.fixture
def agent(workspace: Path) -> Agent:
    return Agent(workspace)


# --------------------------------------------------------------------------------------------------- what they change


async def test_an_edit_replaces_its_text_and_says_how_much(agent: Agent) -> None:
    await agent.read()
    assert await agent.edit("beta\n", "two\nthree\n") == "Changed docs/a.txt +2 −1."
    assert (agent.workspace / "docs/a.txt").read_text() == "alpha\ntwo\nthree\ngamma\n"


async def test_its_summary_is_how_much_changed(agent: Agent) -> None:
    new = {"path": "new", "content": "one\n"}
    assert (await write_file.run(agent.context, new)).summary == ("+1 −0",)
    assert (await write_file.run(agent.context, new)).summary == ("has this content already",)


async def test_everywhere_if_asked(agent: Agent) -> None:
    await agent.read()
    assert await agent.edit("a\n", "A\n", replace_all=True) == "Changed docs/a.txt +3 −3."
    assert (agent.workspace / "docs/a.txt").read_text() == "alphA\nbetA\ngammA\n"


async def test_a_file_is_written_whole_and_a_new_one_with_its_folders(agent: Agent) -> None:
    await agent.read()
    assert await agent.write("docs/a.txt", "alpha\n") == "Changed docs/a.txt +0 −2."
    assert await agent.write("notes/2026/may.md", "# May\n") == "Created notes/2026/may.md +1 −0."
    assert (agent.workspace / "notes/2026/may.md").read_text() == "# May\n"
    assert await agent.write("empty", "") == "Created empty +0 −0."


async def test_ends_of_line_mark_and_mode_are_kept_on_the_disk(agent: Agent) -> None:
    file = agent.workspace / "docs/a.txt"
    file.write_bytes(b"\xef\xbb\xbfa\r\nb\r\nlast")
    file.chmod(0o750)
    await agent.read()
    await agent.edit("a\nb", "c\nd\ne")
    assert file.read_bytes() == b"\xef\xbb\xbfc\r\nd\r\ne\r\nlast"
    assert file.stat().st_mode & 0o777 == 0o750
    await agent.write("docs/a.txt", "x\ny\n")
    assert file.read_bytes() == b"\xef\xbb\xbfx\r\ny\r\n"
    assert file.stat().st_mode & 0o777 == 0o750


async def test_a_link_that_stays_inside_stays_a_link(agent: Agent) -> None:
    (agent.workspace / "short").symlink_to("docs/a.txt")
    await agent.read("docs/a.txt")
    assert await agent.edit("beta", "two", "short") == "Changed docs/a.txt +1 −1."
    assert (agent.workspace / "short").is_symlink()
    assert (agent.workspace / "docs/a.txt").read_text() == "alpha\ntwo\ngamma\n"


async def test_the_content_that_is_there_already_is_not_written(agent: Agent) -> None:
    await agent.read()
    before = everything(agent.workspace)
    assert await agent.write("docs/a.txt", "alpha\nbeta\ngamma\n") == "docs/a.txt has this content already."
    assert everything(agent.workspace) == before


# ------------------------------------------------------------------------------------------------------ what was seen


async def test_a_file_that_was_not_read_is_not_changed(agent: Agent) -> None:
    before = everything(agent.workspace)
    await search_files.run(agent.context, {"pattern": "beta"})
    for act in (agent.edit("beta", "two"), agent.write("docs/a.txt", "two\n")):
        with pytest.raises(ToolError, match=r"docs/a\.txt exists and was not read yet; read it first\."):
            await act
    assert everything(agent.workspace) == before


async def test_a_file_that_was_changed_since_is_read_again_first(agent: Agent) -> None:
    await agent.read()
    (agent.workspace / "docs/a.txt").write_text("alpha\nbeta\ntheirs\n")
    for act in (agent.edit("beta", "two"), agent.write("docs/a.txt", "two\n")):
        with pytest.raises(ToolError, match=r"docs/a\.txt was changed since it was read or written last; read it agai"):
            await act
    assert (agent.workspace / "docs/a.txt").read_text() == "alpha\nbeta\ntheirs\n"
    await agent.read()
    await agent.edit("beta", "two")


async def test_a_file_that_only_looks_younger_may_be_changed(agent: Agent) -> None:
    await agent.read()
    os.utime(agent.workspace / "docs/a.txt")
    await agent.edit("beta", "two")


async def test_what_was_written_is_known_and_a_part_that_was_read_counts(agent: Agent) -> None:
    await agent.write("new.txt", "one\ntwo\n")
    await agent.edit("one", "1", "new.txt")
    await agent.edit("two", "2", "new.txt")
    await agent.read(offset=2, limit=1)
    await agent.edit("alpha", "a")


async def test_what_any_agent_of_the_session_has_read_counts(workspace: Path) -> None:
    seen = KnownFileVersions()
    main, child, stranger = Agent(workspace, seen), Agent(workspace, seen), Agent(workspace)
    await child.read()
    await main.edit("beta", "two")
    await child.edit("two", "three")
    with pytest.raises(ToolError, match="was not read yet"):
        await stranger.edit("three", "four")


async def test_of_several_that_edit_at_the_same_time_nothing_is_lost(agent: Agent) -> None:
    words = [f"word{n}" for n in range(20)]
    await agent.write("words.txt", "\n".join(words))
    async with trio.open_nursery() as nursery:
        for word in words:
            nursery.start_soon(agent.edit, f"{word}\n" if word != words[-1] else word, f"<{word}>\n", "words.txt")
    text = (agent.workspace / "words.txt").read_text()
    assert text.split() == [f"<{word}>" for word in words]


async def test_a_part_of_a_file_too_large_to_be_read_whole_does_not_count(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_WHOLE", 10)
    await agent.read(offset=1, limit=1)
    with pytest.raises(ToolError, match="was not read yet"):
        await agent.edit("beta", "two")


# ------------------------------------------------------------------------------------------------- what they refuse

PATHS: dict[str, tuple[str, str]] = {
    "up": ("../secret.txt", "must not contain .."),
    "a link out": ("out", "leads out of the workspace"),
    "a folder that leads out": ("away/secret.txt", "leads out of the workspace"),
    "a new file behind a folder that leads out": ("away/new.txt", "leads out of the workspace"),
    "a broken link": ("gone", "gone is a broken link"),
    "behind a broken link": ("gone/x", "gone is a broken link"),
    "a folder": ("docs", "docs is a folder; only files can be written"),
    "the workspace": (".", ". is a folder"),
    "a part is a file": ("docs/a.txt/x", "a part of this path is a file"),
    "a pipe": ("pipe", "pipe"),
    "a socket": ("socket", "socket"),
    "too long": ("x" * 300, "File name too long"),
    "binary": ("data.bin", "data.bin is a binary file"),
    "not UTF-8": ("latin.txt", "latin.txt is not UTF-8 (see line 2)"),
    "too large": ("large.txt", f"more than the {MAX_WHOLE:,} that can be edited"),
}


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("name", PATHS)
@pytest.mark.parametrize("using", ["write", "edit"])
async def test_what_cannot_be_changed_is_told_in_a_sentence_and_stays(agent: Agent, using: str, name: str) -> None:
    root = agent.workspace
    (root / "out").symlink_to("../secret.txt")
    (root / "away").symlink_to("..")
    (root / "gone").symlink_to("nothing")
    os.mkfifo(root / "pipe")
    (root / "data.bin").write_bytes(b"a\0b")
    (root / "latin.txt").write_bytes(b"a\ngr\xfc\xdfe\n")
    with (root / "large.txt").open("w") as file:
        file.truncate(MAX_WHOLE + 1)
    with socket.socket(socket.AF_UNIX) as made:
        bind(made, root / "socket")
        before = everything(root.parent)
        path, says = PATHS[name]
        act = agent.write(path, "x\n") if using == "write" else agent.edit("a", "b", path)
        with pytest.raises(ToolError) as caught:
            await act
        assert says in str(caught.value)
        assert "\n" not in str(caught.value)
        assert everything(root.parent) == before


EDITS: dict[str, tuple[dict[str, Any], str]] = {
    "not there": ({"old": "Beta", "new": "x"}, "old_string is not in docs/a.txt"),
    "no such file": ({"old": "a", "new": "x", "path": "docs/b.txt"}, "There is no docs/b.txt; did you mean docs/a.txt"),
    "too large": ({"old": "beta", "new": "x" * MAX_WHOLE}, f"more than the {MAX_WHOLE:,} of a text file"),
}


@pytest.mark.parametrize("name", EDITS)
async def test_an_edit_that_does_not_fit_is_told_in_a_sentence_and_nothing_changes(agent: Agent, name: str) -> None:
    await agent.read()
    before = everything(agent.workspace)
    input, says = EDITS[name]
    with pytest.raises(ToolError) as caught:
        await agent.edit(**input)
    assert says in str(caught.value)
    assert everything(agent.workspace) == before


@pytest.mark.parametrize(
    ("path", "content", "says"),
    [
        ("new/", "x", "new/ is the name of a folder"),
        ("new", "x\0", "NUL"),
        ("new/new", "x" * (MAX_WHOLE + 1), "would have"),
    ],
)
async def test_a_new_file_that_cannot_be_is_not_begun(agent: Agent, path: str, content: str, says: str) -> None:
    before = everything(agent.workspace)
    with pytest.raises(ToolError, match=says):
        await agent.write(path, content)
    assert everything(agent.workspace) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
async def test_a_file_that_is_not_to_be_written_is_not_replaced(agent: Agent) -> None:
    (agent.workspace / "docs/a.txt").chmod(0o444)
    await agent.read()
    with pytest.raises(ToolError, match="cannot be written: Permission denied"):
        await agent.edit("beta", "two")


# ---------------------------------------------------------------------------------------- what happens in the meantime


def meanwhile(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], object]) -> None:
    """Let something happen in the thread, after all was checked and before the file is replaced."""

    def replace_then(*args: Any) -> None:
        *others, check = args

        def checked() -> None:
            happens()
            check()

        replace(*others, checked)

    monkeypatch.setattr(edit, "replace", replace_then)


@pytest.mark.parametrize("path", ["docs/a.txt", "docs/new.txt"])
async def test_what_comes_between_is_not_overwritten(agent: Agent, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    await agent.read()
    meanwhile(monkeypatch, lambda: (agent.workspace / path).write_text("theirs\n"))
    with pytest.raises(ToolError, match="was changed by another program just now; read it again"):
        await agent.write(path, "ours\n")
    assert (agent.workspace / path).read_text() == "theirs\n"
    assert not list(agent.workspace.rglob(".chain-*"))


async def test_an_interrupt_before_the_step_that_counts_leaves_the_old_file(
    agent: Agent, monkeypatch: pytest.MonkeyPatch
) -> None:
    await agent.read()
    before = everything(agent.workspace)
    with trio.CancelScope() as scope:
        meanwhile(monkeypatch, lambda: trio.from_thread.run_sync(scope.cancel))
        await agent.edit("beta", "two")
    assert scope.cancelled_caught
    assert everything(agent.workspace) == before


async def test_an_interrupt_after_it_leaves_the_new_one_and_it_is_known(agent: Agent) -> None:
    await agent.read()
    with trio.CancelScope() as scope:
        assert (await agent.edit("beta", "two")).startswith("Changed")
        scope.cancel()
    await agent.edit("two", "three")


async def test_a_full_disk_is_told_and_changes_nothing(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    def full() -> None:
        raise OSError(28, "No space left on device")

    await agent.read()
    before = everything(agent.workspace)
    meanwhile(monkeypatch, full)
    with pytest.raises(ToolError) as caught:
        await agent.edit("beta", "two")
    assert str(caught.value) == "docs/a.txt cannot be written: No space left on device. Nothing was changed."
    assert everything(agent.workspace) == before


# --------------------------------------------------------------------------------------------------------- in a chain


async def test_in_a_chain_an_allowed_edit_follows_a_read() -> None:
    rules = """
rules:
  - {when: {step: 1}, tools: [{name: edit_file, input: {path: system.yaml, old_string: a test, new_string: no test}}]}
  - {when: {step: 2}, tools: [{name: read_file, input: {path: system.yaml}}]}
  - {when: {step: 3}, tools: [{name: edit_file, input: {path: system.yaml, old_string: a test, new_string: no test}}]}
  - {when: {step: 4}, tools: [{name: write_file, input: {path: new.txt, content: x}}]}
  - {text: Done.}
"""
    use = settings(allow="edit_file")
    assert use.file is not None
    async with open_session(rules, tools=[*files.TOOLS, *TOOLS], use=use) as session:
        await session.run("Do the task")
        unread, read, edited, not_allowed = (e.text for e in session.of(events.ToolResult))
        assert unread == "system.yaml exists and was not read yet; read it first."
        assert read.startswith("system.yaml: 1 line,")
        assert edited == "Changed system.yaml +1 −1."
        assert "allow it with --allow write_file" in not_allowed
        assert "You are no test." in (use.file.parent / "system.yaml").read_text()
        check_invariants(session)


async def test_what_makes_things_happen_is_not_covered_by_an_allowance_that_does_not_name_it() -> None:
    paths = [".git/hooks/pre-commit", "AGENTS.md", "config.yaml", "system.yaml", "rules.yaml", "docs/a.md"]
    use = settings(allow="write_file")
    calls = ", ".join(f"{{name: write_file, input: {{path: {path}, content: x}}}}" for path in paths)
    reads = ", ".join(f"{{name: read_file, input: {{path: {path}}}}}" for path in paths[2:5])
    rules = (
        f"rules: [{{when: {{step: 1}}, tools: [{reads}]}}, {{when: {{step: 2}}, tools: [{calls}]}}, {{text: Done.}}]"
    )
    async with open_session(rules, tools=[*files.TOOLS, *tool_groups(use)["edit"]], use=use) as session:
        await session.run("Do the task")
        *refused, done = [e.text for e in session.of(events.ToolResult) if e.name == "write_file"]
        assert done == "Created docs/a.md +1 −0."
        for path, text in zip(paths, refused, strict=False):
            assert text.endswith(f"no one is available to approve it; allow it with --allow 'write_file({path})'.")


def test_a_chain_gets_both_by_the_name_of_their_group() -> None:
    chosen = dataclasses.replace(settings().chain(), tools=("edit", "plan_list"))
    *both, other = configured_tools(settings(), chosen, (), tool_groups(settings()))
    assert [each.name for each in (*both, other)] == ["write_file", "edit_file", "plan_list"]
    assert all(each.needs_approval and not each.read_only for each in both)


# ------------------------------------------------------------------------------------------------------- the preview


async def test_the_preview_is_the_difference_and_changes_nothing(agent: Agent) -> None:
    await agent.read()
    before = everything(agent.workspace)
    found = await agent.preview(edit_file, path="docs/a.txt", old_string="beta", new_string="two")
    assert found is not None
    assert found.diff is not None
    assert found.diff.text == "docs/a.txt +1 −1\n@@ -1,3 +1,3 @@\n alpha\n-beta\n+two\n gamma"
    assert found.subject == "docs/a.txt"
    assert everything(agent.workspace) == before
    assert await agent.edit("beta", "two") == f"Changed {found.diff.head}."


async def test_the_preview_of_a_new_file_makes_neither_it_nor_its_folders(agent: Agent) -> None:
    found = await agent.preview(write_file, path="x/y.txt", content="one\n")
    assert found is not None
    assert (found.diff, found.subject) == (FileDiff("x/y.txt", (Hunk(0, 1, ("+one",)),)), "x/y.txt")
    assert not (agent.workspace / "x").exists()


async def test_a_preview_is_equal_as_long_as_what_was_shown_holds(agent: Agent) -> None:
    async def shown() -> Preview | None:
        return await agent.preview(write_file, path="docs/a.txt", content="x\n")

    await agent.read()
    first = await shown()
    assert await shown() == first
    (agent.workspace / "docs/a.txt").write_text("theirs\n")
    await agent.read()
    assert await shown() != first
    (agent.workspace / "docs/a.txt").unlink()
    assert await shown() not in (first, None)


async def test_the_subject_is_where_a_link_leads(agent: Agent) -> None:
    """So that a pattern for one folder does not allow what is in another."""
    (agent.workspace / "src").mkdir()
    (agent.workspace / "src/b.txt").write_text("b\n")
    (agent.workspace / "docs/link").symlink_to("../src/b.txt")
    await agent.read("docs/link")
    found = await agent.preview(write_file, path="docs/link", content="x\n")
    assert found is not None
    assert found.subject == "src/b.txt"
    assert found.diff is not None
    assert found.diff.path == "src/b.txt"


async def test_what_changes_nothing_needs_no_approval_and_what_fails_says_why(agent: Agent) -> None:
    await agent.read()
    assert await agent.preview(write_file, path="docs/a.txt", content="alpha\nbeta\ngamma\n") is None
    with pytest.raises(ToolError, match="old_string is not in"):
        await agent.preview(edit_file, path="docs/a.txt", old_string="delta", new_string="two")
    with pytest.raises(ToolError, match="does not fit its schema"):
        await agent.preview(edit_file, path="docs/a.txt")


async def test_a_tool_without_a_preview_has_none_and_one_that_is_broken_is_told(agent: Agent) -> None:
    async def broken(ctx: ToolContext) -> Preview | None:
        raise ZeroDivisionError("by design")

    @tool(needs_approval=True, preview=broken)
    async def probe(ctx: ToolContext) -> str:
        """Do this."""
        return ""

    assert await agent.preview(read_file, path="docs/a.txt") is None
    with pytest.raises(ToolError, match="probe failed: ZeroDivisionError: by design"):
        await agent.preview(probe)


async def test_what_was_approved_is_what_is_done_also_if_the_file_becomes_another_in_that_moment(agent: Agent) -> None:
    await agent.read()
    shown = await agent.preview(edit_file, path="docs/a.txt", old_string="beta", new_string="two")
    agent.context = replaced(agent.context, approved=shown)
    # Another agent of the session writes the file, so that it is known and not as it was shown.
    other = Agent(agent.workspace, agent.context.seen)
    await other.edit("gamma", "delta")
    with pytest.raises(ToolError, match="was changed after it was shown"):
        await agent.edit("beta", "two")
    assert (agent.workspace / "docs/a.txt").read_text() == "alpha\nbeta\ndelta\n"


@pytest.mark.parametrize("case", ["a new file", "nothing to change"])
async def test_a_link_that_is_swapped_after_the_preview_leads_nowhere_else(agent: Agent, case: str) -> None:
    root = agent.workspace
    (root / "other").mkdir()
    (root / "link").symlink_to("docs")
    (root / "docs/same").write_text("same")
    (root / "other/same").write_text("other")
    await agent.read("docs/same")
    await agent.read("other/same")
    name, content = ("link/new", "x") if case == "a new file" else ("link/same", "same")
    shown = await agent.preview(write_file, path=name, content=content)
    assert (shown is None) == (case == "nothing to change")
    agent.context = replaced(agent.context, approved=shown)
    (root / "link").unlink()
    (root / "link").symlink_to("other")
    with pytest.raises(ToolError, match="was changed after it was shown"):
        await agent.write(name, content)
    assert not (root / "other/new").exists()
    assert (root / "other/same").read_text() == "other"
