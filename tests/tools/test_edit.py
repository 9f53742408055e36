"""The tools that change files: their results, their previews, and that a refused edit changes nothing."""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from dataclasses import replace as with_fields
from pathlib import Path
from typing import Any

import pytest
import trio
from support.checks import check_invariants
from support.contexts import tool_context
from support.models import RandomModel, Step
from support.sessions import make_settings, open_session
from support.sockets import bind

from chain import events
from chain.app.toolbox import tool_groups
from chain.errors import ToolError
from chain.messages import ToolCall
from chain.text.hunks import FileDiff, Hunk
from chain.tools import calling, edit, files
from chain.tools.edit import edit_tools
from chain.tools.file_versions import KnownFileVersions
from chain.tools.files import read_file, search_files
from chain.tools.paths import MAX_WHOLE
from chain.tools.replace import replace
from chain.tools.tool import Preview, ToolOutput

write_file, edit_file = edit_tools()
FILE = "docs/a.txt"


class Agent:
    """An agent with its tools. Agents that share ``known_files`` belong to one session."""

    def __init__(self, workspace: Path, known_files: KnownFileVersions | None = None) -> None:
        self.workspace = workspace
        self.context = tool_context(workspace, known_files=known_files or KnownFileVersions())

    async def read(self, path: str = FILE, **input: Any) -> str:
        return (await read_file.run(self.context, {"path": path, **input})).text

    async def write(self, path: str, content: str) -> ToolOutput:
        return await write_file.run(self.context, {"path": path, "content": content})

    async def edit(self, old: str, new: str, path: str = FILE, **input: Any) -> ToolOutput:
        return await edit_file.run(self.context, {"path": path, "old_string": old, "new_string": new, **input})

    async def preview(self, tool: Any, **input: Any) -> Preview | None:
        return await calling.preview(tool, ToolCall("t1", tool.name, input), self.context, calling.ToolLimits())


def read_tree_with_inodes(root: Path) -> dict[str, tuple[int, int, bytes]]:
    """Return the mode, inode and content of everything in a folder."""
    return {
        str(p.relative_to(root)): (p.lstat().st_mode, p.lstat().st_ino, p.read_bytes() if p.is_file() else b"")
        for p in sorted(root.rglob("*"))
    }


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "work/docs").mkdir(parents=True)
    (tmp_path / "work" / FILE).write_text("alpha\nbeta\ngamma\n")
    (tmp_path / "secret.txt").write_text("outside\n")
    return tmp_path / "work"


@pytest.fixture
async def agent(workspace: Path) -> Agent:
    """Return an agent that has read ``FILE``."""
    agent = Agent(workspace)
    await agent.read()
    return agent


# ------------------------------------------------------------------------------------------------------------- results


async def test_edit_replaces_a_text_and_reports_the_change(agent: Agent) -> None:
    assert await agent.edit("beta\n", "two\nthree\n") == ToolOutput("Changed docs/a.txt +2 −1.", summary=("+2 −1",))
    assert (agent.workspace / FILE).read_text() == "alpha\ntwo\nthree\ngamma\n"


async def test_edit_can_replace_every_occurrence(agent: Agent) -> None:
    assert (await agent.edit("a\n", "A\n", replace_all=True)).text == "Changed docs/a.txt +3 −3."
    assert (agent.workspace / FILE).read_text() == "alphA\nbetA\ngammA\n"


async def test_write_replaces_a_whole_file(agent: Agent) -> None:
    assert (await agent.write(FILE, "alpha\n")).text == "Changed docs/a.txt +0 −2."
    assert (agent.workspace / FILE).read_text() == "alpha\n"


async def test_write_creates_files_with_their_folders(agent: Agent) -> None:
    assert (await agent.write("notes/2026/may.md", "# May\n")).text == "Created notes/2026/may.md +1 −0."
    assert (agent.workspace / "notes/2026/may.md").read_text() == "# May\n"
    assert (await agent.write("empty", "")).text == "Created empty +0 −0."


async def test_write_of_the_same_content_changes_nothing(agent: Agent) -> None:
    before = read_tree_with_inodes(agent.workspace)
    unchanged = ToolOutput("docs/a.txt has this content already.", summary=("has this content already",))
    assert await agent.write(FILE, "alpha\nbeta\ngamma\n") == unchanged
    assert read_tree_with_inodes(agent.workspace) == before


async def test_link_inside_the_workspace_is_followed(agent: Agent) -> None:
    (agent.workspace / "link").symlink_to(FILE)
    assert (await agent.edit("beta", "two", "link")).text == "Changed docs/a.txt +1 −1."
    assert (agent.workspace / "link").is_symlink()
    assert (agent.workspace / FILE).read_text() == "alpha\ntwo\ngamma\n"


async def test_subject_of_a_link_is_its_target(agent: Agent) -> None:
    """Otherwise an allowance for one folder would cover a file in another."""
    (agent.workspace / "link").symlink_to(FILE)
    preview = await agent.preview(edit_file, path="link", old_string="beta", new_string="two")
    assert preview is not None
    assert preview.subject == FILE


# ------------------------------------------------------------------------------------------------------ known versions


async def test_file_that_was_not_read_cannot_be_changed(workspace: Path) -> None:
    agent, before = Agent(workspace), read_tree_with_inodes(workspace)
    await search_files.run(agent.context, {"pattern": "beta"})
    for attempt in (agent.edit("beta", "two"), agent.write(FILE, "two\n")):
        with pytest.raises(ToolError, match=r"docs/a\.txt exists and was not read yet; read it first\."):
            await attempt
    assert read_tree_with_inodes(workspace) == before


async def test_reading_part_of_a_file_is_enough(workspace: Path) -> None:
    agent = Agent(workspace)
    await agent.read(offset=2, limit=1)
    os.utime(workspace / FILE)  # the content counts, not the time
    await agent.edit("alpha", "a")


async def test_file_that_the_agent_wrote_can_be_changed(agent: Agent) -> None:
    await agent.write("new.txt", "one\n")
    await agent.edit("one", "1", "new.txt")


async def test_file_changed_since_must_be_read_again(agent: Agent) -> None:
    (agent.workspace / FILE).write_text("alpha\nbeta\ntheirs\n")
    for attempt in (agent.edit("beta", "two"), agent.write(FILE, "two\n")):
        with pytest.raises(ToolError, match=r"docs/a\.txt has changed since it was last read or written; read it agai"):
            await attempt
    assert (agent.workspace / FILE).read_text() == "alpha\nbeta\ntheirs\n"
    await agent.read()
    await agent.edit("beta", "two")


async def test_agents_of_a_session_share_what_they_read(agent: Agent) -> None:
    other = Agent(agent.workspace, agent.context.known_files)
    await other.edit("beta", "two")
    await agent.edit("two", "three")
    with pytest.raises(ToolError, match="was not read yet"):
        await Agent(agent.workspace).edit("three", "four")


async def test_reading_part_of_a_huge_file_is_insufficient(workspace: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "MAX_WHOLE", 10)  # FILE is larger
    agent = Agent(workspace)
    await agent.read(limit=1)
    with pytest.raises(ToolError, match="was not read yet"):
        await agent.edit("beta", "two")


async def test_concurrent_edits_lose_nothing(agent: Agent) -> None:
    words = [f"word{n}" for n in range(8)]
    await agent.write("words.txt", "\n".join(words))
    async with trio.open_nursery() as nursery:
        for word in words:
            nursery.start_soon(agent.edit, word, f"<{word}>", "words.txt")
    assert (agent.workspace / "words.txt").read_text().split() == [f"<{word}>" for word in words]


# ------------------------------------------------------------------------------------------------------------ refusals

REFUSED_PATHS: dict[str, tuple[str, str]] = {
    "link out": ("out", "leads out of the workspace"),
    "new file in a folder that leads out": ("away/new.txt", "leads out of the workspace"),
    "broken link": ("gone", "gone is a broken link"),
    "folder": ("docs", "docs is a folder; only files can be written"),
    "file in a file": ("docs/a.txt/x", "a part of this path is a file"),
    "pipe": ("pipe", "pipe"),
    "socket": ("socket", "socket"),
    "long name": ("x" * 300, "File name too long"),
    "binary": ("data.bin", "data.bin is a binary file"),
    "not UTF-8": ("latin.txt", "latin.txt is not UTF-8 (see line 2)"),
    "too large": ("large.txt", f"more than the {MAX_WHOLE:,} that can be edited"),
}


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(("path", "reason"), REFUSED_PATHS.values(), ids=REFUSED_PATHS)
@pytest.mark.parametrize("tool", ["write_file", "edit_file"])
async def test_path_that_cannot_be_changed_is_refused(agent: Agent, tool: str, path: str, reason: str) -> None:
    root = agent.workspace
    (root / "out").symlink_to("../secret.txt")
    (root / "away").symlink_to("..")
    (root / "gone").symlink_to("nothing")
    os.mkfifo(root / "pipe")
    (root / "data.bin").write_bytes(b"a\0b")
    (root / "latin.txt").write_bytes(b"a\ngr\xfc\xdfe\n")
    with (root / "large.txt").open("w") as file:
        file.truncate(MAX_WHOLE + 1)
    with socket.socket(socket.AF_UNIX) as listener:
        bind(listener, root / "socket")
        before = read_tree_with_inodes(root.parent)
        with pytest.raises(ToolError) as refusal:
            await (agent.write(path, "x\n") if tool == "write_file" else agent.edit("a", "b", path))
    assert reason in str(refusal.value)
    assert "\n" not in str(refusal.value)
    assert read_tree_with_inodes(root.parent) == before


IMPOSSIBLE_EDITS: dict[str, tuple[Callable[[Agent], Any], str]] = {
    "no such file": (lambda agent: agent.edit("a", "x", "docs/b.txt"), "no docs/b.txt; did you mean docs/a.txt"),
    "edit too large": (lambda agent: agent.edit("beta", "x" * MAX_WHOLE), f"more than the {MAX_WHOLE:,} of a text"),
    "name of a folder": (lambda agent: agent.write("new/", "x"), "new/ is the name of a folder"),
    "new file too large": (lambda agent: agent.write("new/new", "x" * (MAX_WHOLE + 1)), "would have"),
}


@pytest.mark.parametrize(("attempt", "reason"), IMPOSSIBLE_EDITS.values(), ids=IMPOSSIBLE_EDITS)
async def test_impossible_edit_changes_nothing(agent: Agent, attempt: Callable[[Agent], Any], reason: str) -> None:
    before = read_tree_with_inodes(agent.workspace)
    with pytest.raises(ToolError, match=reason):
        await attempt(agent)
    assert read_tree_with_inodes(agent.workspace) == before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everything")
async def test_read_only_file_is_not_replaced(agent: Agent) -> None:
    (agent.workspace / FILE).chmod(0o444)
    with pytest.raises(ToolError, match="cannot be written: Permission denied"):
        await agent.edit("beta", "two")


# ------------------------------------------------------------------------------------------------- concurrent changes


def act_before_replacement(monkeypatch: pytest.MonkeyPatch, act: Callable[[], object]) -> None:
    """Let edits call ``act`` in their thread, just before the last check and the replacement of the file."""

    def replace_after_act(*args: Any) -> None:
        *others, check = args

        def act_and_check() -> None:
            act()
            check()

        replace(*others, act_and_check)

    monkeypatch.setattr(edit, "replace", replace_after_act)


@pytest.mark.parametrize("path", [FILE, "docs/new.txt"], ids=["changed file", "created file"])
async def test_change_of_another_program_is_not_overwritten(
    agent: Agent, monkeypatch: pytest.MonkeyPatch, path: str
) -> None:
    act_before_replacement(monkeypatch, lambda: (agent.workspace / path).write_text("theirs\n"))
    with pytest.raises(ToolError, match="was changed by another program just now; read it again"):
        await agent.write(path, "ours\n")
    assert (agent.workspace / path).read_text() == "theirs\n"
    assert not list(agent.workspace.rglob(".chain-*"))


async def test_interrupt_before_the_replacement_keeps_the_file(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    before = read_tree_with_inodes(agent.workspace)
    with trio.CancelScope() as scope:
        act_before_replacement(monkeypatch, lambda: trio.from_thread.run_sync(scope.cancel))
        await agent.edit("beta", "two")
    assert scope.cancelled_caught
    assert read_tree_with_inodes(agent.workspace) == before


async def test_full_disk_changes_nothing(agent: Agent, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    before = read_tree_with_inodes(agent.workspace)
    act_before_replacement(monkeypatch, fail)
    with pytest.raises(ToolError) as failure:
        await agent.edit("beta", "two")
    assert str(failure.value) == "docs/a.txt cannot be written: No space left on device. Nothing was changed."
    assert read_tree_with_inodes(agent.workspace) == before


# ------------------------------------------------------------------------------------------------------------ previews


async def test_preview_of_an_edit_is_its_diff(agent: Agent) -> None:
    before = read_tree_with_inodes(agent.workspace)
    preview = await agent.preview(edit_file, path=FILE, old_string="beta", new_string="two")
    assert preview is not None
    assert preview.diff is not None
    assert preview.diff.text == "docs/a.txt +1 −1\n@@ -1,3 +1,3 @@\n alpha\n-beta\n+two\n gamma"
    assert preview.subject == FILE
    assert read_tree_with_inodes(agent.workspace) == before


async def test_preview_of_a_new_file_creates_nothing(agent: Agent) -> None:
    before = read_tree_with_inodes(agent.workspace)
    preview = await agent.preview(write_file, path="x/y.txt", content="one\n")
    assert preview is not None
    assert preview.diff == FileDiff("x/y.txt", (Hunk(old=0, new=1, rows=("+one",)),))
    assert preview.subject == "x/y.txt"
    assert read_tree_with_inodes(agent.workspace) == before


async def test_preview_differs_once_the_file_has_changed(agent: Agent) -> None:
    async def preview() -> Preview | None:
        return await agent.preview(write_file, path=FILE, content="x\n")

    first = await preview()
    assert await preview() == first
    (agent.workspace / FILE).write_text("theirs\n")
    await agent.read()
    assert await preview() != first
    (agent.workspace / FILE).unlink()
    assert await preview() not in (first, None)


async def test_call_without_effect_needs_no_approval(agent: Agent) -> None:
    assert await agent.preview(write_file, path=FILE, content="alpha\nbeta\ngamma\n") is None
    assert await agent.preview(read_file, path=FILE) is None


async def test_edit_that_would_fail_has_no_preview(agent: Agent) -> None:
    with pytest.raises(ToolError, match="old_string is not in"):
        await agent.preview(edit_file, path=FILE, old_string="delta", new_string="two")
    with pytest.raises(ToolError, match="does not fit its schema"):
        await agent.preview(edit_file, path=FILE)


async def test_approval_is_valid_only_for_the_shown_version(agent: Agent) -> None:
    preview = await agent.preview(edit_file, path=FILE, old_string="beta", new_string="two")
    # Another agent of the session changes the file, so that its version is known but was not shown.
    await Agent(agent.workspace, agent.context.known_files).edit("gamma", "delta")
    agent.context = with_fields(agent.context, approved=preview)
    with pytest.raises(ToolError, match="was changed after it was shown"):
        await agent.edit("beta", "two")
    assert (agent.workspace / FILE).read_text() == "alpha\nbeta\ndelta\n"


@pytest.mark.parametrize(
    ("path", "content", "is_unchanged"),
    [pytest.param("link/new", "x", False, id="new file"), pytest.param("link/same", "same", True, id="unchanged file")],
)
async def test_link_swapped_after_the_preview_is_refused(
    agent: Agent, path: str, content: str, is_unchanged: bool
) -> None:
    root = agent.workspace
    (root / "other").mkdir()
    (root / "link").symlink_to("docs")
    (root / "docs/same").write_text("same")
    (root / "other/same").write_text("other")
    await agent.read("docs/same")
    await agent.read("other/same")
    preview = await agent.preview(write_file, path=path, content=content)
    assert (preview is None) == is_unchanged
    agent.context = with_fields(agent.context, approved=preview)
    (root / "link").unlink()
    (root / "link").symlink_to("other")
    with pytest.raises(ToolError, match="was changed after it was shown"):
        await agent.write(path, content)
    assert read_tree_with_inodes(root / "other").keys() == {"same"}
    assert (root / "other/same").read_text() == "other"


# ---------------------------------------------------------------------------------------------------------- in a chain


async def test_allowance_must_name_protected_files() -> None:
    settings = make_settings(allow="write_file")
    existing = ["config.yaml", "system.yaml", "rules.yaml"]  # from make_settings; system.yaml says "You are a test."
    protected = [".git/hooks/pre-commit", "AGENTS.md", *existing]
    reads = [ToolCall(f"r{n}", "read_file", {"path": path}) for n, path in enumerate(existing)]
    written = enumerate([*protected, "docs/a.md"])
    writes = [ToolCall(f"w{n}", "write_file", {"path": path, "content": "x"}) for n, path in written]
    edit = ToolCall("e1", "edit_file", {"path": "system.yaml", "old_string": "a test", "new_string": "no test"})
    model = RandomModel([Step((*reads, *writes, edit))])
    async with open_session(model, tools=[*files.TOOLS, *tool_groups(settings)["edit"]], settings=settings) as session:
        await session.run("Do the task")
        results = [event.text for event in session.of(events.ToolResult) if event.name != "read_file"]
        *writes_of_protected, write_of_free, edit_of_protected = results
        for path, result in zip(protected, writes_of_protected, strict=True):
            assert result.endswith(f"no one is available to approve it; allow it with --allow 'write_file({path})'.")
        assert write_of_free == "Created docs/a.md +1 −0."
        assert "allow it with --allow 'edit_file(system.yaml)'" in edit_of_protected
        check_invariants(session)
