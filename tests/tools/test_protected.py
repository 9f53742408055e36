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
from support.examples import some
from support.steered import tool_context

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

REFUSED = """
.venv/bin/python .venv/lib/new.pth src/json.py src/chain_mod/__init__.py
state/chain/trusted home/config.yaml named/own.yaml
srv/server.py srv/helper.py srv/lib/deep.py node_modules/.bin/tool node_modules/tool/index.js
"""
REPORTED = """
named/system.yaml named/compaction.yaml named/handler.yaml named/rules.yaml named/agent.yaml named/of-agent.yaml
NOTES.md AGENTS.md docs/claude.md docs/guide.md docs/.mcp.json config.yaml docs/AGENTS.md
.git/config .git/hooks/pre-commit .git/hooks/linked tracked.sh hooks.d/pre-commit shared.cfg more.cfg
.git/modules/libs/sub/config .git/modules/libs/sub/hooks/post-checkout
nested/.git/hooks/new nested/.git/config bare/hooks/update tree/.git main/.git/worktrees/tree/config.worktree
"""
FREE = "README.md docs/other.md src/chain_mod2.txt nested/file .git/index srv.txt objects/HEAD"

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
    """A workspace that has each of these files."""
    work = tmp_path.resolve() / "work"
    new = {".venv/lib/new.pth", "src/json.py", "nested/.git/hooks/new", "docs/AGENTS.md", "objects/HEAD"}
    for path in (*REFUSED.split(), *REPORTED.split(), *FREE.split(), "objects/refs/keep"):
        (work / path).parent.mkdir(parents=True, exist_ok=True)
        if path not in {*LINKS, *new}:
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
    found = shell_rules(settings).protected
    return dataclasses.replace(found, trusted=(*found.trusted, work / "home"))


async def run_command(guard: Guard, workspace: Path, rules: ShellRules, command: str) -> tuple[str, list[str]]:
    """Run a command, and return its output and the notices."""
    notices = list[str]()
    (tool,) = shell_tools(guard, rules, dict(os.environ))
    output = await tool.run(tool_context(workspace, notice=notices.append), {"command": command})
    assert isinstance(output, ToolOutput)
    return output.text, notices


ALL = [*REFUSED.split(), *REPORTED.split(), *FREE.split()]


FENCED = pytest.mark.skipif(not probe().writes, reason="this machine cannot refuse writes")


@pytest.mark.parametrize(
    ("sandbox", "refused", "free"), [pytest.param("auto", REFUSED, FREE, marks=FENCED), ("off", "", "")]
)
async def test_write_to_protected_file_is_refused_or_reported(
    guard: Guard, work: Path, monkeypatch: pytest.MonkeyPatch, sandbox: Literal["auto", "off"], refused: str, free: str
) -> None:
    monkeypatch.setattr(shell, "INSPECTION_S", 1_000_000)
    monkeypatch.setattr(shell, "MAX_FILES", 1_000_000)
    paths = [*REFUSED.split(), *REPORTED.split(), *free.split()]
    rules = dataclasses.replace(ShellRules(protected=configured(work)), sandbox=sandbox)
    write_all = "\n".join(f"(echo '#' >> {path}) 2> /dev/null && echo '<{path}>'" for path in paths)
    said, (notice,) = await run_command(guard, work, rules, write_all)
    assert [path for path in paths if f"<{path}>" not in said] == refused.split()
    named = notice.split(": ")[0].removeprefix("A command changed ").replace(" and ", ", ").split(", ")
    assert {*named} == {*paths, "CLAUDE.md"} - {*refused.split(), *free.split()}


@pytest.mark.skipif(sys.platform != "linux", reason="the tool is for Linux")
async def test_notice_says_if_the_disk_is_too_slow(
    guard: Guard, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shell, "INSPECTION_S", 0)
    _, (notice,) = await run_command(guard, tmp_path, ShellRules("off"), "true")
    assert notice.startswith("Could not check within ")


@pytest.mark.parametrize("by", ["its own path", "a link"])
def test_allowance_must_name_each_protected_file(work: Path, by: str) -> None:
    protected = configured(work)
    needed = {}
    for n, path in enumerate(some(ALL[:-1])):
        given, real = path, (work / path).resolve()
        if by == "a link":
            (work / f"docs/{n}").symlink_to(work / path)
            given = f"docs/{n}"
        needed[path] = protected.required_name(work, real.relative_to(work).parts, given)
    expected = {path: (work / path).resolve().name for path in needed}
    expected |= {path: ".git" for path in needed if ".git/" in path and not (work / path).is_symlink()}
    expected |= {"tree/.git": ".git", "bare/hooks/update": "bare", **dict.fromkeys(FREE.split()[:-1], "")}
    expected |= {".git/index": ".git"}
    assert needed == {path: expected[path] for path in needed}


NAMES = [
    ("a.git/config", ""),
    ("sub/config.yaml", ""),
    (".GIT/hooks/pre-commit", ".GIT"),
    ("sub/Agents.MD", "Agents.MD"),
    ("new/.mcp.json", ".mcp.json"),
    ("src/new/module.py", "module.py"),
    ("objects/new", ""),
    ("", ""),
]


@pytest.mark.parametrize(("path", "part"), NAMES)
def test_new_file_must_be_named_too(work: Path, path: str, part: str) -> None:
    assert Protected().required_name(work, Path(path).parts, path) == part


REPOSITORIES = [
    ("sub/config sub/HEAD sub/objects/keep sub/refs/keep", "sub"),
    ("sub/objects/keep sub/refs/keep sub/config sub/HEAD", "sub"),
    ("config refs/keep objects/keep head", "head"),
    ("a/b/config a/b/HEAD a/b/commondir", "b"),
]


@pytest.mark.parametrize(("paths", "part"), REPOSITORIES)
def test_file_that_completes_a_repository_must_be_named(tmp_path: Path, paths: str, part: str) -> None:
    root = tmp_path.resolve()
    asked = []
    for path in paths.split():
        asked.append(Protected().required_name(root, Path(path).parts, path))
        write(root, path)
    assert asked == [*[""] * (len(asked) - 1), part]


HERE, OWN = True, False
STARTS = [
    ("python3 server.py", HERE, "server.py helper.py json.py pkg/m.py .venv/bin/python", "docs/a.md"),
    ("python3 -m srv.main", HERE, "srv.py srv/main.py helper.py pkg/m.py json.py", "docs/a.md"),
    ("python3 srv/main.py", OWN, "srv/main.py srv/new.py srv/sub/x.py", "helper.py pkg/m.py"),
    ("./srv/main.py --db data.db", HERE, "srv/main.py srv/x.py", "pkg/m.py docs/a.md"),
    (".venv/bin/python server.py", OWN, ".venv/lib/x.pth server.py", "docs/a.md"),
    ("myenv/bin/tool", OWN, "myenv/lib/x.pth myenv/bin/tool", "helper.py"),
    ("npx -y @scope/tool", HERE, "node_modules/x package.json node_modules/.bin/tool", "docs/a.md pkg/m.py"),
    ("npx -y @scope/tool", OWN, "", "node_modules/x package.json new.py"),
    ("npx -y @scope/files {root}", OWN, "", "package.json docs/a.md new.py"),
    ("uvx mcp-server-git --repository .", HERE, "", "package.json docs/a.md new.py"),
    ("uvx sqlite --db-path data.db", HERE, "", "data.db new.py"),
    ("uv --directory {root} run srv", OWN, "package.json new.py .venv/x", "docs/a.md"),
    ("sh -c 'cd srv && exec node main.js'", HERE, "helper.py new.js srv/main.py", "docs/a.md"),
    ("sh -c 'exec srv/main.py'", OWN, "srv/main.py srv/new", "helper.py"),
    ("/opt/server --root=docs", OWN, "docs/a.md", "helper.py"),
]


def test_the_target_of_a_linked_module_is_protected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "elsewhere.py")
    write(tmp_path, "linking/__init__.py", "")
    (tmp_path / "linking/linked.py").symlink_to("../elsewhere.py")
    package, linked = ModuleType("linking"), ModuleType("linking.linked")
    package.__file__, package.__path__ = str(tmp_path / "linking/__init__.py"), [str(tmp_path / "linking")]
    linked.__file__ = str(tmp_path / "linking/linked.py")
    for module in (package, linked):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    kept = Protected().refused_places([tmp_path]).kept
    assert {str(tmp_path / "linking"), str(tmp_path / "elsewhere.py")} <= kept


@pytest.mark.parametrize(("command", "starts_here", "kept", "free"), STARTS)
def test_code_of_servers_is_protected(tmp_path: Path, command: str, starts_here: bool, kept: str, free: str) -> None:
    root = tmp_path.resolve()
    files = (
        "server.py helper.py srv.py srv/main.py srv/sub/x.py pkg/m.py docs/a.md package.json data.db "
        "myenv/bin/tool myenv/pyvenv.cfg .venv/bin/python node_modules/.bin/tool"
    )
    for path in files.split():
        write(root, path)
    (root / "link").symlink_to("docs")
    launch = Launch(tuple(command.format(root=root).split()), {}, root if starts_here else None)
    refused = Protected(servers=(launch,)).refused_places([root])
    paths = [str(root / path) for path in (*kept.split(), *free.split())]
    is_refused = [is_in(each, refused.kept) or _is_new_in(each, refused.open) for each in paths]
    assert is_refused == [True] * len(kept.split()) + [False] * len(free.split())
    assert str(root) not in refused.kept


def _is_new_in(path: str, folders: frozenset[str]) -> bool:
    return not os.path.lexists(path) and os.path.dirname(path) in folders


def test_environment_of_a_server_names_code(tmp_path: Path) -> None:
    root = tmp_path.resolve()
    write(root, "lib/helper.py")
    launch = Launch(("python3", "-c", "import helper"), {"PYTHONPATH": f"/opt:{root}/lib", "NOTE": f"{root}"})
    assert Protected(servers=(launch,)).refused_places([root]).kept >= {f"{root}/lib"}


def test_server_file_is_trusted_after_an_allowance(tmp_path: Path) -> None:
    write(tmp_path, ".mcp.json", '{"mcpServers": {"git": {"command": "uvx", "args": ["git"]}}}')
    write(tmp_path, "own.yaml", "chains: {}\n")
    settings = load_settings(config=tmp_path / "own.yaml", environ={}, cwd=tmp_path)
    for named in ((), ("git",)):
        servers = servers_of(settings, tmp_path, tmp_path / "state", named).allowed
        trusted = shell_rules(settings, servers=servers).protected.trusted
        assert (tmp_path.resolve() / ".mcp.json" in trusted) == bool(named)


def test_only_a_configuration_given_by_name_is_trusted(tmp_path: Path) -> None:
    write(tmp_path, "config.yaml", "chains: {default: {}}\n")
    for config in (None, tmp_path / "config.yaml"):
        settings = load_settings(config=config, environ={}, cwd=tmp_path)
        protected = shell_rules(settings).protected
        assert (tmp_path / "config.yaml" in protected.trusted) == (config is not None)
        assert tmp_path / "config.yaml" in protected.named()


def test_known_repository_is_checked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "sub/.git/hooks/old")
    protected = Protected()
    before = protected.snapshot(tmp_path, tmp_path, is_fenced=True)
    monkeypatch.setattr("chain.tools.protected.MAX_FOLDERS", 0)
    write(tmp_path, "sub/.git/hooks/new")
    after = protected.snapshot(tmp_path, tmp_path, before, is_fenced=True)
    assert changed_files(before, after) == [str(tmp_path / "sub/.git/hooks/new")]


HOSTILE = {
    "a NUL in a path": "[core]\nhooksPath = a\0b\n[include]\npath = a\0b\n",
    "blank lines": "\n" * 400_000,
    "a deep path": "[core]\nhooksPath = " + "a/" * 200_000,
    "many paths": "[core]\n" + "hooksPath = a\n" * 30_000,
}


@pytest.mark.parametrize("config", HOSTILE.values(), ids=HOSTILE)
def test_git_configuration_is_read_in_bounded_time(tmp_path: Path, config: str) -> None:
    write(tmp_path, ".git/config", config)
    begun = time.process_time()
    assert str(tmp_path / ".git/config") in Protected().snapshot(tmp_path, tmp_path, is_fenced=True)
    assert time.process_time() - begun < 5
