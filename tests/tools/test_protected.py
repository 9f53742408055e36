"""Protected files, which run or are trusted outside of the sandbox: for commands, allowances and notices."""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from pathlib import Path
from types import ModuleType
from typing import Literal

import pytest
from support.contexts import tool_context
from support.examples import sample_in_short_run

from chain.app.toolbox import shell_rules
from chain.config.allowed_servers import servers_of
from chain.config.load import load_settings
from chain.config.servers import Launch
from chain.tools.processes import shell
from chain.tools.processes.guarded import Guard
from chain.tools.processes.probe import probe
from chain.tools.processes.sandbox import ShellRules
from chain.tools.processes.shell import shell_tools
from chain.tools.protected import Protected, changed_files, is_in
from chain.tools.tool import ToolOutput

REFUSED = [
    *(".venv/bin/python", ".venv/lib/new.pth", "src/json.py", "src/chain_mod/__init__.py"),  # code of this program
    *("state/chain/trusted", "home/config.yaml", "named/own.yaml"),  # settings that chain trusts
    *("srv/server.py", "srv/helper.py", "srv/lib/deep.py"),  # code of the server w
    *("node_modules/.bin/tool", "node_modules/tool/index.js"),  # code of the server n
]
"""Files that a command in the sandbox cannot write."""
REPORTED = [
    # Named by the configuration.
    *("named/system.yaml", "named/compaction.yaml", "named/handler.yaml", "named/rules.yaml", "named/agent.yaml"),
    *("named/of-agent.yaml", "NOTES.md"),
    # Read in any workspace.
    *("config.yaml", "AGENTS.md", "docs/AGENTS.md", "docs/claude.md", "docs/guide.md", "docs/.mcp.json"),
    # Used by git: in a repository, named by its configuration, in a submodule, a bare repository and a worktree.
    *(".git/config", ".git/hooks/pre-commit", ".git/hooks/linked", "nested/.git/hooks/new", "nested/.git/config"),
    *("hooks.d/pre-commit", "tracked.sh", "shared.cfg", "more.cfg"),
    *(".git/modules/libs/sub/config", ".git/modules/libs/sub/hooks/post-checkout", "bare/hooks/update"),
    *("tree/.git", "main/.git/worktrees/tree/config.worktree"),
]
"""Files whose change by a command is reported."""
FREE = ["README.md", "docs/other.md", "src/chain_mod2.txt", "nested/file", ".git/index", "srv.txt", "objects/HEAD"]
"""Files that a command may change without a report. They resemble protected ones, or are next to them."""
NEW = {".venv/lib/new.pth", "src/json.py", "nested/.git/hooks/new", "docs/AGENTS.md", "objects/HEAD"}
"""Those of the files above that do not exist yet."""

LINKS = {
    "CLAUDE.md": "docs/guide.md",
    ".git/hooks/linked": "../../tracked.sh",
    "node_modules/.bin/tool": "../tool/index.js",
}


def write(work: Path, path: str, text: str = "x\n") -> None:
    (work / path).parent.mkdir(parents=True, exist_ok=True)
    (work / path).write_text(text)


@pytest.fixture
def work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a workspace that has all of these files and links except the new ones."""
    work = tmp_path.resolve() / "work"
    for path in (*REFUSED, *REPORTED, *FREE, "objects/refs/keep"):
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        if path not in {*LINKS, *NEW}:
            write(work, path)
    for link, target in LINKS.items():
        (work / link).symlink_to(target)
    for folder in ("bare/objects", "bare/refs"):
        (work / folder).mkdir()
    write(work, "bare/HEAD", "ref: refs/heads/main\n")
    write(work, ".git/config", "[core]\n\thooksPath = hooks.d\n[include] path = ../shared.cfg\n")
    write(work, "shared.cfg", '[includeIf "gitdir:x"]\n  path = "more.cfg" # and so on\n')
    write(work, "tree/.git", "gitdir: ../main/.git/worktrees/tree\n")
    write(work, "main/.git/worktrees/tree/commondir", "../..\n")
    write(work, "named/agent.yaml", "interruption_prompt: of-agent.yaml\n")
    monkeypatch.setattr(sys, "prefix", str(work / ".venv"))
    monkeypatch.syspath_prepend(str(work / "src"))
    loaded = ModuleType("chain_mod")
    loaded.__file__, loaded.__path__ = str(work / "src/chain_mod/__init__.py"), [str(work / "src/chain_mod")]
    monkeypatch.setitem(sys.modules, "chain_mod", loaded)
    return work


def configured(work: Path) -> Protected:
    """Return the protected files of a configuration that names each kind of file."""
    write(
        work,
        "named/own.yaml",
        """
chains: {default: {model: m, system_prompt: system.yaml, interruption_prompt: handler.yaml,
                   compaction_prompt: compaction.yaml}}
instructions: [NOTES.md]
models: {default: m, definitions: {m: {provider: scripted, script: rules.yaml}}}
agents: {reviewer: {description: x, prompt: agent.yaml}}
mcp: {w: {command: python3, args: [srv/server.py]}, n: {command: ../node_modules/.bin/tool, cwd: .}}
""",
    )
    environ = {"XDG_CONFIG_HOME": str(work / "no"), "XDG_STATE_HOME": str(work / "state")}
    settings = load_settings(config=work / "named/own.yaml", environ=environ, cwd=work)
    protected = shell_rules(settings).protected
    # A session also trusts the folder of the user's settings.
    return dataclasses.replace(protected, trusted=(*protected.trusted, work / "home"))


async def run_command(guard: Guard, workspace: Path, rules: ShellRules, command: str) -> tuple[str, str]:
    """Run a command that causes one notice, and return its output and the notice."""
    notices = list[str]()
    (tool,) = shell_tools(guard, rules, dict(os.environ))
    output = await tool.run(tool_context(workspace, notice=notices.append), {"command": command})
    assert isinstance(output, ToolOutput)
    (notice,) = notices
    return output.text, notice


async def write_by_command(
    guard: Guard, work: Path, sandbox: Literal["auto", "off"], paths: list[str]
) -> tuple[list[str], set[str]]:
    """Let a command write to each of these files. Return those that it could write, and those that are reported."""
    rules = ShellRules(sandbox, protected=configured(work))
    command = "\n".join(f"(echo '#' >> {path}) 2> /dev/null && echo '<{path}>'" for path in paths)
    output, notice = await run_command(guard, work, rules, command)
    reported, _, _ = notice.removeprefix("A command changed ").partition(": ")
    return [path for path in paths if f"<{path}>" in output], {*reported.replace(" and ", ", ").split(", ")}


@pytest.fixture
def unlimited_inspection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shell, "INSPECTION_S", 1_000_000)
    monkeypatch.setattr(shell, "MAX_FILES", 1_000_000)


@pytest.mark.skipif(not probe().writes, reason="this machine cannot refuse writes")
@pytest.mark.usefixtures("unlimited_inspection")
async def test_sandbox_refuses_or_reports_writes_to_protected_files(guard: Guard, work: Path) -> None:
    written, reported = await write_by_command(guard, work, "auto", [*REFUSED, *REPORTED, *FREE])
    assert written == [*REPORTED, *FREE]
    assert reported == {*REPORTED, "CLAUDE.md"}  # a link to a changed file


@pytest.mark.usefixtures("unlimited_inspection")
async def test_writes_to_protected_files_without_sandbox_are_reported(guard: Guard, work: Path) -> None:
    written, reported = await write_by_command(guard, work, "off", [*REFUSED, *REPORTED])
    assert written == [*REFUSED, *REPORTED]
    assert reported == {*written, "CLAUDE.md"}  # a link to a changed file


@pytest.mark.skipif(sys.platform != "linux", reason="the tool is for Linux")
async def test_notice_says_if_the_disk_is_too_slow(
    guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "INSPECTION_S", 0)
    _, notice = await run_command(guard, tmp_path, ShellRules("off"), "true")
    assert notice.startswith("Could not check within ")


REQUIRED_NAMES = {
    **{path: Path(path).name for path in [*REFUSED, *REPORTED]},
    **dict.fromkeys(FREE, ""),
    **{path: ".git" for path in [*REFUSED, *REPORTED, *FREE] if ".git" in Path(path).parts},
    "bare/hooks/update": "bare",
    # For a link, the name of the file to which it leads.
    ".git/hooks/linked": "tracked.sh",
    "node_modules/.bin/tool": "index.js",
}
"""For each file, the part of its path that an allowance must contain; empty if the file is not protected."""


@pytest.mark.parametrize("by_link", [False, True], ids=["its own path", "a link"])
def test_allowance_must_name_each_protected_file(work: Path, by_link: bool) -> None:
    protected = configured(work)
    paths = sample_in_short_run(list(REQUIRED_NAMES))
    names = {}
    for n, path in enumerate(paths):
        written_path = path
        if by_link:
            written_path = f"docs/{n}"
            (work / written_path).symlink_to(work / path)
        real_parts = (work / path).resolve().relative_to(work).parts
        names[path] = protected.required_name(work, real_parts, written_path)
    assert names == {path: REQUIRED_NAMES[path] for path in paths}


NAMES_OF_NEW_FILES = {
    "another suffix .git": ("a.git/config", ""),
    "config.yaml not at the top": ("sub/config.yaml", ""),
    ".git in other case": (".GIT/hooks/pre-commit", ".GIT"),
    "instructions in other case": ("sub/Agents.MD", "Agents.MD"),
    "servers of a new folder": ("new/.mcp.json", ".mcp.json"),
    "module in the search path": ("src/new/module.py", "module.py"),
    "incomplete repository": ("objects/new", ""),
    "the workspace itself": ("", ""),
}


@pytest.mark.parametrize(("path", "required_name"), NAMES_OF_NEW_FILES.values(), ids=NAMES_OF_NEW_FILES)
def test_new_protected_file_must_be_named(work: Path, path: str, required_name: str) -> None:
    assert Protected().required_name(work, Path(path).parts, path) == required_name


NEW_REPOSITORIES = {
    "folder refs last": ("sub/config sub/HEAD sub/objects/keep sub/refs/keep", "sub"),
    "HEAD last": ("sub/objects/keep sub/refs/keep sub/config sub/HEAD", "sub"),
    "the workspace, HEAD in other case": ("config refs/keep objects/keep head", "head"),
    "with commondir": ("a/b/config a/b/HEAD a/b/commondir", "b"),
}
"""Files that are written in this order, and the name that is required for the last one."""


@pytest.mark.parametrize(("paths", "required_name"), NEW_REPOSITORIES.values(), ids=NEW_REPOSITORIES)
def test_file_that_completes_a_repository_must_be_named(tmp_path: Path, paths: str, required_name: str) -> None:
    root, protected = tmp_path.resolve(), Protected()
    *first_files, last_file = paths.split()
    for path in first_files:
        assert protected.required_name(root, Path(path).parts, path) == ""
        write(root, path)
    assert protected.required_name(root, Path(last_file).parts, last_file) == required_name


IN_WORKSPACE, ELSEWHERE = True, False
SERVERS = [
    # A program that loads code from the workspace, where people also work: code, packages, and the files at the top.
    ("python3 server.py", IN_WORKSPACE, "server.py helper.py json.py pkg/m.py .venv/bin/python", "docs/a.md"),
    ("python3 -m srv.main", IN_WORKSPACE, "srv.py srv/main.py helper.py pkg/m.py json.py", "docs/a.md"),
    # A script: its folder.
    ("python3 srv/main.py", ELSEWHERE, "srv/main.py srv/new.py srv/sub/x.py", "helper.py pkg/m.py"),
    ("./srv/main.py --db data.db", IN_WORKSPACE, "srv/main.py srv/x.py", "pkg/m.py docs/a.md"),
    # A program in a virtual environment: the environment.
    (".venv/bin/python server.py", ELSEWHERE, ".venv/lib/x.pth server.py", "docs/a.md"),
    ("myenv/bin/tool", ELSEWHERE, "myenv/lib/x.pth myenv/bin/tool", "helper.py"),
    # A runner of packages: what it finds where it starts. Its arguments are data.
    ("npx -y @scope/tool", IN_WORKSPACE, "node_modules/x package.json node_modules/.bin/tool", "docs/a.md pkg/m.py"),
    ("npx -y @scope/tool", ELSEWHERE, "", "node_modules/x package.json new.py"),
    ("npx -y @scope/files WORKSPACE", ELSEWHERE, "", "package.json docs/a.md new.py"),
    ("uvx mcp-server-git --repository .", IN_WORKSPACE, "", "package.json docs/a.md new.py"),
    ("uvx sqlite --db-path data.db", IN_WORKSPACE, "", "data.db new.py"),
    # The working directory in an option or a shell command, and a folder in another argument.
    ("uv --directory WORKSPACE run srv", ELSEWHERE, "package.json new.py .venv/x", "docs/a.md"),
    ("sh -c 'cd srv && exec node main.js'", IN_WORKSPACE, "helper.py new.js srv/main.py", "docs/a.md"),
    ("sh -c 'exec srv/main.py'", ELSEWHERE, "srv/main.py srv/new", "helper.py"),
    ("/opt/server --root=docs", ELSEWHERE, "docs/a.md", "helper.py"),
]
"""Commands of servers, the folder in which they start, files that are protected, and files that are not."""


def test_the_target_of_a_linked_module_is_protected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "elsewhere.py")
    write(tmp_path, "linking/__init__.py", "")
    (tmp_path / "linking/linked.py").symlink_to("../elsewhere.py")
    package, linked = ModuleType("linking"), ModuleType("linking.linked")
    package.__file__, package.__path__ = str(tmp_path / "linking/__init__.py"), [str(tmp_path / "linking")]
    linked.__file__ = str(tmp_path / "linking/linked.py")
    for module in (package, linked):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    places = Protected().refused_places([tmp_path]).places
    assert {str(tmp_path / "linking"), str(tmp_path / "elsewhere.py")} <= places


@pytest.mark.parametrize(
    ("command", "starts_in_workspace", "code", "other_files"), SERVERS, ids=[command for command, *_ in SERVERS]
)
def test_code_of_servers_is_protected(
    tmp_path: Path, command: str, starts_in_workspace: bool, code: str, other_files: str
) -> None:
    root = tmp_path.resolve()
    for path in (
        *("server.py", "helper.py", "srv.py", "srv/main.py", "srv/sub/x.py", "pkg/m.py", "docs/a.md", "package.json"),
        *("data.db", "myenv/bin/tool", "myenv/pyvenv.cfg", ".venv/bin/python", "node_modules/.bin/tool"),
    ):
        write(root, path)
    argv = command.replace("WORKSPACE", str(root)).split()
    launch = Launch(tuple(argv), env={}, cwd=root if starts_in_workspace else None)
    refused = Protected(servers=(launch,)).refused_places([root])

    def is_protected(path: str) -> bool:
        file = root / path
        is_new = not os.path.lexists(file)
        return is_in(str(file), refused.places) or (is_new and str(file.parent) in refused.code_folders)

    assert [path for path in code.split() if not is_protected(path)] == []
    assert [path for path in other_files.split() if is_protected(path)] == []
    assert str(root) not in refused.places


def test_environment_of_a_server_names_code(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    write(root, "lib/helper.py")
    launch = Launch(("python3", "-c", "import helper"), {"PYTHONPATH": f"/opt:{root}/lib", "NOTE": f"{root}"})
    assert Protected(servers=(launch,)).refused_places([root]).places >= {f"{root}/lib"}


def test_server_file_is_trusted_after_an_allowance(tmp_path: Path) -> None:
    write(tmp_path, ".mcp.json", '{"mcpServers": {"git": {"command": "uvx", "args": ["git"]}}}')
    write(tmp_path, "own.yaml", "chains: {}\n")
    settings = load_settings(config=tmp_path / "own.yaml", environ={}, cwd=tmp_path)
    for is_allowed in (False, True):
        servers = servers_of(settings, tmp_path, tmp_path / "state", ["git"] if is_allowed else []).allowed
        trusted = shell_rules(settings, servers=servers).protected.trusted
        assert (tmp_path.resolve() / ".mcp.json" in trusted) == is_allowed


def test_only_a_configuration_given_by_name_is_trusted(tmp_path: Path) -> None:
    write(tmp_path, "config.yaml", "chains: {default: {}}\n")
    for config in (None, tmp_path / "config.yaml"):
        settings = load_settings(config=config, environ={}, cwd=tmp_path)
        protected = shell_rules(settings).protected
        assert (tmp_path / "config.yaml" in protected.trusted) == (config is not None)
        assert tmp_path / "config.yaml" in protected.configured_files()


def test_known_repository_is_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "sub/.git/hooks/old")
    protected = Protected()
    before = protected.snapshot(tmp_path, tmp_path, is_fenced=True)
    monkeypatch.setattr("chain.tools.protected.MAX_FOLDERS", 0)  # so a search would not find sub/.git
    write(tmp_path, "sub/.git/hooks/new")
    after = protected.snapshot(tmp_path, tmp_path, before, is_fenced=True)
    assert changed_files(before, after) == [str(tmp_path / "sub/.git/hooks/new")]


HOSTILE_CONFIGURATIONS = {
    "a NUL in a path": "[core]\nhooksPath = a\0b\n[include]\npath = a\0b\n",
    "blank lines": "\n" * 400_000,
    "a deep path": "[core]\nhooksPath = " + "a/" * 200_000,
    "many paths": "[core]\n" + "hooksPath = a\n" * 30_000,
}


@pytest.mark.parametrize("config", HOSTILE_CONFIGURATIONS.values(), ids=HOSTILE_CONFIGURATIONS)
def test_git_configuration_is_read_in_bounded_time(tmp_path: Path, config: str) -> None:
    write(tmp_path, ".git/config", config)
    start = time.process_time()
    assert str(tmp_path / ".git/config") in Protected().snapshot(tmp_path, tmp_path, is_fenced=True)
    assert time.process_time() - start < 5
