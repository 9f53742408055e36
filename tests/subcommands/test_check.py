"""``chain check``: values with their sources, problems at the keys to fix, a verdict, and no secrets."""

import os
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest
import trio

from chain.config.load import Settings, load_settings
from chain.session.store import FileStore
from chain.tools.processes.probe import probe
from cli.subcommands.check import check as check_configuration
from cli.subcommands.check import check_servers, check_service

check = partial(check_configuration, is_verbose=True)
"""``chain check -v``, which shows the values that are defaults too."""

KEY = {"ANTHROPIC_API_KEY": "sk-secret"}

CONFIG = """\
models:
  definitions:
    offline: {script: rules.yaml}
chains:
  default:
    system_prompt: system.yaml
    interruption_prompt: handler.yaml
    max_iterations: 7
"""
CHANGED_KEYS = [
    "models.definitions.offline.script",
    *(f"chains.default.{key}" for key in ("system_prompt", "interruption_prompt", "max_iterations")),
]
"""The keys that CONFIG sets, in the order of ``check``."""
AGENTS = """\
agents:
  max_depth: 2
  explore: {tools: [files]}
  reviewer:
    description: "Reads a change,\\n then
      judges"
    prompt: reviewer.yaml
    max_iterations: 15
"""
"""Follows CONFIG, so it begins on line 9."""


def with_model(text: str) -> str:
    """Return the configuration with another definition, on line 3."""
    return CONFIG.replace("    offline:", f"    {text}\n    offline:")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with the files of a configuration without problems."""
    (tmp_path / "rules.yaml").write_text("rules: []\n")
    (tmp_path / "system.yaml").write_text("messages: [{role: system, content: Be brief.}]\n")
    (tmp_path / "handler.yaml").write_text("messages: [{role: system, content: Go on.}]\n")
    (tmp_path / "reviewer.yaml").write_text(
        "messages: [{role: system, content: Review.}]\ninterruption_prompt: kind.yaml\n"
    )
    (tmp_path / "kind.yaml").write_text("messages: [{role: user, content: Go on.}]\n")
    return tmp_path


def load(
    folder: Path, text: str = CONFIG, environ: Mapping[str, str] = KEY, *, is_named: bool = True, **flags: object
) -> Settings:
    """Load a configuration, as the file of --config or as the one that is found in the folder."""
    (folder / "config.yaml").write_text(text)
    config = Path("config.yaml") if is_named else None
    return load_settings(config=config, environ={"HOME": str(folder), **environ}, cwd=folder, flags=flags)


def problems(rows: list[str]) -> list[str]:
    return [row.removeprefix("problem: ") for row in rows if row.startswith("problem: ")]


def rows_after(rows: list[str], row: str) -> list[str]:
    return rows[rows.index(row) + 1 :]


def verdict(rows: list[str]) -> str:
    return rows[-1]


def different_keys(rows: list[str]) -> list[str]:
    """Return the keys in the first group of rows, whose values differ from the defaults."""
    _, group, *_ = "\n".join(rows).split("\n\n")
    _, *values = group.splitlines()
    return [row.partition(":")[0] for row in values if not row.startswith((" ", "problem"))]


# Values


def test_values_are_shown_with_their_sources(folder: Path) -> None:
    environ = {**KEY, "CHAIN_ALLOW": "shell", "CHAIN_STATE": "redis://me:hush@db/3"}
    rows, is_good = check(load(folder, CONFIG + AGENTS, environ, model="offline"))
    assert is_good, problems(rows)
    for row in (
        f"config: {folder / 'config.yaml'}",
        "models.default: offline  (flag --model)",
        "chains.default.max_iterations: 7  (config.yaml:8)",
        "chains.default.tools: todo, files, edit, shell, ask, agents, research, mcp  (default)",
        "tools.allow: shell  (CHAIN_ALLOW)",
        "  shell: every call of shell, without asking",
        f"models.definitions.offline.script: {folder / 'rules.yaml'}  (config.yaml:3)",
        "state: redis://db/3  (CHAIN_STATE)",
        "agents.max_depth: 2  (config.yaml:10)",
        "agents.explore.description: not set  (default)",
        "agents.reviewer.description: Reads a change, then judges  (config.yaml:13)",
        f"agents.reviewer.prompt: {folder / 'reviewer.yaml'}  (config.yaml:15)",
    ):
        assert row in rows
    assert "hush" not in "\n".join(rows)


def test_a_secret_is_only_said_to_be_set(folder: Path) -> None:
    text = with_model(
        "mine: {provider: anthropic, model: m, api_key: sk-secret, extra_headers: {Authorization: sk-secret},"
        " base_url: 'https://me:sk-secret@e.example/v1', extra_body: {token: sk-secret}}"
    )
    environ = {"ANTHROPIC_BASE_URL": "https://gateway.example", "ANTHROPIC_AUTH_TOKEN": "sk-secret"}
    rows, is_good = check(load(folder, text, environ))
    assert is_good, problems(rows)
    assert "sk-secret" not in "\n".join(rows)
    for row in (
        "models.definitions.mine.api_key: set  (config.yaml:3)",
        "models.definitions.mine.extra_headers: set  (config.yaml:3)",
        "models.definitions.mine.base_url: https://e.example/v1  (config.yaml:3)",
        "models.definitions.claude.api_key: set  (default, ANTHROPIC_AUTH_TOKEN)",
        "models.definitions.claude.base_url: https://gateway.example  (ANTHROPIC_BASE_URL)",
    ):
        assert row in rows
    assert "models.definitions.claude.base_url" in different_keys(rows)


UNTRUSTED = {
    "models.definitions.claude.model": with_model("claude: {model: '${PASSWORD}'}"),
    "agents.r.prompt": f"{CONFIG}agents: {{r: {{description: x, prompt: outside.yaml}}}}\n",
}


@pytest.mark.parametrize(("key", "text"), UNTRUSTED.items(), ids=UNTRUSTED)
def test_an_untrusted_file_is_not_shown(folder: Path, key: str, text: str) -> None:
    (folder / "outside.yaml").write_text("interruption_prompt: ~/../hunter2.yaml\n")
    rows, is_good = check(load(folder, text, {**KEY, "PASSWORD": "hunter2"}, is_named=False))
    assert not is_good
    assert verdict(rows).startswith("1 problem: ")
    assert key in verdict(rows)
    assert "--config" in verdict(rows)
    assert "hunter2" not in "\n".join(rows)


def test_differences_come_first(folder: Path) -> None:
    rows, is_good = check(load(folder, CONFIG + AGENTS, {**KEY, "CHAIN_MAX_ITERATIONS": "7"}))
    assert is_good
    reviewer = [f"agents.reviewer.{key}" for key in ("description", "prompt", "tools", "model", "max_iterations")]
    agents = ["agents.max_depth", "agents.explore.tools", *reviewer]
    assert different_keys(rows) == [*CHANGED_KEYS, *agents]
    rows, _ = check(load_settings(config=None, environ={"HOME": str(folder), **KEY}, cwd=folder.parent))
    assert [row for row in rows if row == "Defaults:" or row.startswith("Different")] == ["Defaults:"]


def test_a_written_default_does_not_differ(folder: Path) -> None:
    rows, _ = check(load(folder, "chains: {default: {max_iterations: 100, timeout_s: 5}}\n"))
    assert different_keys(rows) == ["chains.default.timeout_s"]
    assert "chains.default.max_iterations: 100  (config.yaml:1)" in rows


def test_defaults_are_only_counted_without_v(folder: Path) -> None:
    (folder / "handler.yaml").unlink()
    rows, is_good = check_configuration(load(folder), workspace=folder)
    assert not is_good
    assert different_keys(rows) == CHANGED_KEYS
    assert not any(row.startswith("models.definitions.claude.") for row in rows)
    (hidden,) = [row for row in rows if row.endswith(" default values not shown; chain check -v shows all")]
    number, *_ = hidden.split()
    assert int(number) > 40, "most keys have a default value"
    all_rows, _ = check(load(folder), workspace=folder)
    assert len(all_rows) > len(rows)
    (problem,) = problems(rows)
    assert verdict(rows) == verdict(all_rows) == f"1 problem: {problem}"


def test_project_instructions_are_listed(folder: Path) -> None:
    work, default_row = folder / "repo/src", "instructions: AGENTS.md, CLAUDE.md  (default)"
    (folder / "repo/.git").mkdir(parents=True)
    work.mkdir()
    (folder / "repo/CLAUDE.md").write_text("Use make.")
    (folder / ".config/chain").mkdir(parents=True)
    (folder / ".config/chain/AGENTS.md").write_text("Be brief.")
    assert default_row not in check_configuration(load(folder), workspace=work)[0]
    os.mkfifo(work / "AGENTS.md")
    for is_verbose in (True, False):
        rows, is_good = check_configuration(load(folder), workspace=work, is_verbose=is_verbose)
        assert is_good, "a run continues without the file"
        own, project, note, *_ = rows_after(rows, default_row)
        assert own == f"  read here: {folder}/.config/chain/AGENTS.md"
        assert project == "  read here: ../CLAUDE.md"
        assert note.startswith("  note: AGENTS.md is left out of the project instructions: ")
    rows, _ = check(load(folder, f"{CONFIG}instructions: []\n"), workspace=work)
    assert "instructions: none  (" in "\n".join(rows)
    assert "read here" not in "\n".join(rows)


def test_missing_protections_are_listed(folder: Path) -> None:
    rows, is_good = check(load(folder, f"{CONFIG}tools: {{shell: {{sandbox: off}}}}\n"))
    assert is_good
    assert [row for row in rows_after(rows, "tools.shell.sandbox: off  (config.yaml:9)") if "not protected" in row] == [
        "  not protected: a command can write wherever you can, and read the keys in this program's environment",
        "  not protected: a command can use the network",
        "  not protected: a command can make your other programs act for it through their Unix sockets",
        "  not protected: a command can send signals to your other processes, and set their limits and priorities",
        "  not protected: a command can use your terminals and other devices, and so read what you type",
    ]
    rows, _ = check(load(folder, f"{CONFIG}tools: {{shell: {{network: true}}}}\n"))
    assert "  not protected: a command can use the network" in rows


@pytest.mark.skipif(not probe().writes, reason="this machine cannot refuse writes")
def test_files_of_chain_are_protected(folder: Path) -> None:
    home = {**KEY, "XDG_CONFIG_HOME": str(folder / "config"), "XDG_STATE_HOME": str(folder / "state")}
    rows, is_good = check(load(folder, environ=home), workspace=folder)
    assert is_good
    assert (
        "  a command cannot change config.yaml, config/chain, state/chain, which chain uses outside the sandbox. So it "
        "cannot create, move or delete files directly in the workspace, config, state; let it use another folder, or "
        "see chain help sandbox"
    ) in rows
    strict = f"{CONFIG}tools: {{shell: {{sandbox: strict, writable: [config/chain]}}}}\n"
    rows, is_good = check(load(folder, strict, environ=home), workspace=folder)
    assert not is_good
    (problem,) = problems(rows)
    assert "a command can change chain's own files" in problem


# Problems


@pytest.mark.parametrize(
    ("text", "environ", "key", "words"),
    [
        (CONFIG, {}, "models.definitions.claude.api_key", "no API key: set ANTHROPIC_API_KEY or use --model offline"),
        (with_model("other: {provider: anthropic, model: '${NONE}'}"), KEY, None, "NONE is not set"),
        (
            with_model("claude: {model: another}") + "    budget: {max_cost_usd: 1}\n",
            KEY,
            "chains.default.budget.max_cost_usd",
            "config.yaml:10: chains.default.budget.max_cost_usd: a cost limit needs a price",
        ),
        (CONFIG + "    tools: [filse]\n", KEY, "chains.default.tools", "did you mean files?"),
        (
            CONFIG,
            {**KEY, "CHAIN_ALLOW": "edit_file(~/x)"},
            None,
            "CHAIN_ALLOW: edit_file(~/x) can never allow anything: "
            "paths are relative to the workspace, or absolute in an added directory",
        ),
        (
            f"{CONFIG}tools: {{research: {{hosts: ['https://example.org/']}}}}\n",
            KEY,
            "tools.research.hosts",
            "config.yaml:9: tools.research.hosts[0]: 'https://example.org/' can never allow anything: "
            "a host is a name such as example.org, without https:// and without a path or port",
        ),
        (CONFIG + AGENTS.replace("[files]", "['${NONE}']"), KEY, None, "agents.explore.tools[0]: the environment"),
        (CONFIG + AGENTS.replace("[files]", "[filse]"), KEY, "agents.explore.tools", "did you mean files?"),
        (CONFIG + AGENTS.replace("max_depth: 2", "max_depth: ${NONE}"), KEY, None, "agents.max_depth"),
    ],  # no key: its value cannot be read, so it has no row
)
def test_a_problem_is_shown_at_its_key(
    folder: Path, text: str, environ: Mapping[str, str], key: str | None, words: str
) -> None:
    rows, is_good = check(load(folder, text, environ))
    assert not is_good
    (problem,) = problems(rows)
    assert words in problem
    assert verdict(rows) == f"1 problem: {problem}"
    if key is not None:
        (row,) = [row for row in rows if row.startswith(f"{key}: ")]
        assert rows_after(rows, row)[0] == f"problem: {problem}"
    assert any(row.startswith("models.definitions.claude.model: ") for row in rows), "everything else is shown"


def test_an_unneeded_key_is_no_problem(folder: Path) -> None:
    rows, is_good = check(load(folder, environ={}, model="offline"))
    assert is_good, problems(rows)
    assert "models.definitions.claude.api_key: not set  (default, ANTHROPIC_API_KEY)" in rows
    text = CONFIG.replace("    max_it", "    model: offline\n    max_it") + "  other: {model: claude}\n"
    rows, is_good = check(load(folder, text, {}))
    assert is_good, problems(rows)


def test_a_price_allows_a_cost_limit(folder: Path) -> None:
    model = with_model("claude: {model: another, api_key: x, price: {input: 3, output: 15}}")
    rows, is_good = check(load(folder, f"{model}    budget: {{max_cost_usd: 1}}\n", {}))
    assert is_good, problems(rows)
    price = "models.definitions.claude.price: input 3, output 15, cache_read 0.3, cache_write 3.75  (config.yaml:3)"
    assert price in rows


@pytest.mark.parametrize(
    ("name", "text", "place", "words"),
    [
        ("rules.yaml", "rules:\n  - when: {query: '['}\n    text: x\n", "rules.yaml:2: ", "rules[0].when.query: "),
        ("rules.yaml", "name: n\n", "rules.yaml:1: ", "there is no list of rules"),
        ("rules.yaml", None, "config.yaml:4: ", "rules.yaml cannot be read: No such file"),
        ("other.yaml", "rules: 3\n", "other.yaml:1: ", "rules: expected a list, found 3"),
        ("system.yaml", "messages:\n  - {role: user, content: x}\n", "system.yaml:2: ", "role: expected one of system"),
        ("system.yaml", None, "config.yaml:7: ", "system.yaml cannot be read: No such file"),
        ("handler.yaml", "messages:\n  - role: user\n    content: ${mesage}\n", "handler.yaml:3: ", "mesage"),
        ("handler.yaml", None, "handler.yaml: ", "config.yaml:8 names it"),
        ("reviewer.yaml", "\ninterruption_promt: handler.yaml\n", "reviewer.yaml:2: ", "did you mean interruption_"),
        ("reviewer.yaml", None, "config.yaml:17: ", "agents.reviewer.prompt: "),
        ("kind.yaml", "messages:\n  - role: user\n    content: ${mesage}\n", "kind.yaml:3: ", "mesage"),
        ("kind.yaml", None, "kind.yaml: ", "reviewer.yaml:2 names it"),
    ],  # no text: the file is missing
)
def test_every_file_is_read_as_in_a_run(folder: Path, name: str, text: str | None, place: str, words: str) -> None:
    (folder / "other.yaml").write_text("rules: []\n")
    if text is None:
        (folder / name).unlink()
    else:
        (folder / name).write_text(text)
    config = with_model("other: {provider: scripted, script: other.yaml}") + "  review: {}\n" + AGENTS
    rows, is_good = check(load(folder, config))
    assert not is_good
    (problem,) = problems(rows)
    assert problem.startswith(f"{folder}/{place}")
    assert words in problem


def test_several_problems_are_counted(folder: Path) -> None:
    for name in ("rules.yaml", "system.yaml", "handler.yaml"):
        (folder / name).write_text("nonsense: 1\n")
    rows, is_good = check(load(folder, CONFIG + "  other: {interruption_prompt: handler.yaml}\n"))
    assert not is_good
    files = [problem.partition(":")[0].removeprefix(f"{folder}/") for problem in problems(rows)]
    assert files == ["rules.yaml", "system.yaml", "handler.yaml"], "a problem that chains share is shown once"
    places = "models.definitions.offline.script, chains.default.system_prompt, chains.default.interruption_prompt"
    assert verdict(rows) == f"3 problems: fix them above, at {places}"


def test_every_allowance_is_explained_or_a_problem(folder: Path) -> None:
    allow = "shell,no_such_tool,edit_file(docs/*),read_file(x)"
    rows, is_good = check(load(folder, environ={**KEY, "CHAIN_ALLOW": allow}))
    assert not is_good
    head = "tools.allow: shell, no_such_tool, edit_file(docs/*), read_file(x)  (CHAIN_ALLOW)"
    shell, edit, unknown, useless, *_ = rows_after(rows, head)
    assert shell.startswith("  shell:")
    assert edit.startswith("  edit_file(docs/*):")
    assert unknown.startswith("problem: ")
    assert "there is no tool 'no_such_tool'" in unknown
    assert useless.startswith("problem: ")
    assert useless.endswith("read_file(x) can never allow anything: read_file takes no pattern")
    assert verdict(rows) == "2 problems: fix them above, at tools.allow"


def test_an_unusable_store_is_a_problem(folder: Path) -> None:
    (folder / "state").write_text("not a folder")
    rows, is_good = check(load(folder), FileStore(folder / "state"))
    assert not is_good
    (problem,) = problems(rows)
    assert "sessions cannot be stored here" in problem
    assert verdict(rows) == f"1 problem: {problem}"


# The service and the servers


async def list_no_models(stream: trio.SocketStream) -> None:
    """Answer a request like a service that does not list its models."""
    await stream.receive_some()
    body = b'{"error": {"type": "not_found_error", "message": "File Not Found"}}'
    await stream.send_all(
        b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: %d\r\n\r\n" % len(body) + body
    )


async def test_the_service_is_asked_for_the_model(folder: Path) -> None:
    async def check_at(port: int) -> tuple[str, bool]:
        address = f"http://127.0.0.1:{port}"
        text = with_model(f"mine: {{provider: anthropic, model: m, base_url: '{address}'}}")
        (row,), is_good = await check_service(load(folder, text, model="mine"))
        return row.replace(address, "URL"), is_good

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, list_no_models, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        row, is_good = await check_at(port)
        nursery.cancel_scope.cancel()
    assert row.startswith("All is well: ")
    assert row.endswith("could not be checked: URL does not list its models")
    assert is_good
    row, is_good = await check_at(port)  # nothing listens at the port now
    assert row.startswith("1 problem: ")
    assert "cannot be reached" in row
    assert not is_good
    (row,), is_good = await check_service(load(folder, model="offline"))
    assert row.startswith("All is well: ")
    assert is_good


async def test_the_servers_of_the_workspace_are_started(folder: Path) -> None:
    work = folder / "work"
    work.mkdir()
    (work / ".mcp.json").write_text('{"mcpServers": {"near": {"command": "/no/such/program"}}}')
    rows, faults = await check_servers(load(folder), work, folder / "state", ["near"])
    assert "mcp.near: not available" in rows
    assert list(faults) == ["mcp.near"]


async def test_no_server_starts_in_a_missing_workspace(folder: Path) -> None:
    settings = load(folder, f"{CONFIG}mcp: {{own: {{command: touch, args: ['{folder}/started']}}}}\n")
    rows, faults = await check_servers(settings, folder / "none", folder / "state", [])
    assert "the workspace is not a folder" in rows[-1]
    assert faults
    assert not (folder / "started").exists()


def test_servers_start_without_a_key(folder: Path) -> None:
    def start_servers() -> tuple[list[str], dict[str, list[str]]]:
        return ["mcp.near: not available", "problem: it ended"], {"mcp.near": ["it ended"]}

    rows, is_good = check(load(folder, environ={}), start_servers=start_servers)
    assert not is_good
    assert problems(rows) == ["no API key: set ANTHROPIC_API_KEY or use --model offline", "it ended"]
    assert verdict(rows) == "2 problems: fix them above, at models.definitions.claude.api_key, mcp.near"
    (folder / "system.yaml").unlink()
    rows, _ = check(load(folder), start_servers=start_servers)
    assert len(problems(rows)) == 1, "without valid prompts, no server is started"
