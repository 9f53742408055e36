"""`chain check`: values with where they are from, no secret among them, and every problem."""

import os
import socket
from collections.abc import Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from chain.config.load import Settings, load_settings
from chain.session.store import FileStore
from chain.tools.processes.probe import probe
from cli.subcommands.check import check as check_configuration
from cli.subcommands.check import check_servers, check_service

check = partial(check_configuration, is_verbose=True)

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


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder in which all is well."""
    (tmp_path / "rules.yaml").write_text("rules: []\n")
    (tmp_path / "system.yaml").write_text("messages: [{role: system, content: Be brief.}]\n")
    (tmp_path / "handler.yaml").write_text("messages: [{role: system, content: Go on.}]\n")
    return tmp_path


def read(
    folder: Path, text: str = CONFIG, environ: Mapping[str, str] = KEY, *, named: bool = True, **flags: object
) -> Settings:
    (folder / "config.yaml").write_text(text)
    config = Path("config.yaml") if named else None
    return load_settings(config=config, environ={"HOME": str(folder), **environ}, cwd=folder, flags=flags)


def problems(lines: list[str]) -> list[str]:
    return [line.removeprefix("problem: ") for line in lines if line.startswith("problem: ")]


def below(lines: list[str], row: str) -> list[str]:
    """The rows that follow a row."""
    return lines[lines.index(row) + 1 :]


def test_sessions_that_cannot_be_kept_are_a_problem(folder: Path) -> None:
    (folder / "state").write_text("not a folder")
    lines, ok = check(read(folder), FileStore(folder / "state"))
    assert not ok
    (problem,) = problems(lines)
    assert "sessions cannot be stored here" in problem
    assert lines[-1] == f"1 problem: {problem}"


def test_values_are_shown_with_where_they_are_from(folder: Path) -> None:
    lines, _ = check(read(folder, environ={**KEY, "CHAIN_ALLOW": "shell"}, model="offline"))
    assert lines[0] == f"config: {folder / 'config.yaml'}"
    assert "models.default: offline  (flag --model)" in lines
    assert "chains.default.model: offline  (flag --model)" in lines
    assert "chains.default.max_iterations: 7  (config.yaml:8)" in lines
    assert "chains.default.tools: todo, files, edit, shell, ask, agents, research, mcp  (default)" in lines
    assert "chains.default.budget.max_cost_usd: not set  (default)" in lines
    assert "tools.allow: shell  (CHAIN_ALLOW)" in lines
    assert "  shell: every call of shell, without asking" in lines
    assert "tools.shell.sandbox: auto  (default)" in lines
    assert f"models.definitions.offline.script: {folder / 'rules.yaml'}  (config.yaml:3)" in lines


def test_instructions_of_the_project_are_shown_with_what_is_wrong_with_them(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "repo/.git").mkdir(parents=True)
    (folder / "repo/src").mkdir()
    (folder / "repo/CLAUDE.md").write_text("Use make.")
    os.mkfifo(folder / "repo/src/AGENTS.md")
    (folder / ".config/chain").mkdir(parents=True)
    (folder / ".config/chain/AGENTS.md").write_text("Be brief.")
    monkeypatch.chdir(folder / "repo/src")
    lines, ok = check(read(folder))
    assert ok, "a run goes on without it as well"
    own, project, note, *_ = below(lines, "instructions: AGENTS.md, CLAUDE.md  (default)")
    assert own == f"  read here: {folder}/.config/chain/AGENTS.md"
    assert project == "  read here: ../CLAUDE.md"
    assert note.startswith("  note: AGENTS.md is left out of the project instructions: ")
    lines, _ = check(read(folder, f"{CONFIG}instructions: []\n"))
    assert "instructions: none  (" in "\n".join(lines)
    assert "read here" not in "\n".join(lines)


def test_secrets_are_only_said_to_be_set(folder: Path) -> None:
    mine = (
        "    mine: {provider: anthropic, model: m, api_key: sk-secret, extra_headers: {Authorization: sk-secret},"
        " base_url: 'https://me:sk-secret@e.example/v1', extra_body: {token: sk-secret}}\n"
    )
    text = CONFIG.replace("    offline:", f"{mine}    offline:")
    lines, ok = check(read(folder, text))
    assert ok
    assert "sk-secret" not in "\n".join(lines)
    assert "models.definitions.mine.api_key: set  (config.yaml:3)" in lines
    assert "models.definitions.mine.extra_headers: set  (config.yaml:3)" in lines
    assert "models.definitions.mine.base_url: https://e.example/v1  (config.yaml:3)" in lines
    assert "models.definitions.claude.api_key: set  (default, ANTHROPIC_API_KEY)" in lines


def test_a_missing_key_is_a_problem_of_the_model_that_would_run(folder: Path) -> None:
    lines, ok = check(read(folder, environ={}))
    assert not ok
    assert problems(lines) == ["no API key: set ANTHROPIC_API_KEY or use --model offline"]
    assert "models.definitions.claude.api_key: not set  (default, ANTHROPIC_API_KEY)" in lines
    assert check(read(folder, environ={}, model="offline"))[1]
    other_uses_it = CONFIG.replace("    max_it", "    model: offline\n    max_it") + "  other: {model: claude}\n"
    lines, ok = check(read(folder, other_uses_it, environ={}))
    assert ok, problems(lines)


@pytest.mark.parametrize(("name", "named_at"), [("rules.yaml", 3), ("system.yaml", 6), ("handler.yaml", 7)])
def test_a_prompt_that_is_missing_or_broken_is_a_problem(folder: Path, name: str, named_at: int) -> None:
    (folder / name).write_text("a: [\n")
    lines, ok = check(read(folder))
    assert not ok
    assert problems(lines) == [f"{folder / name}:2: " + problems(lines)[0].split(": ", 1)[1]]
    (folder / name).unlink()
    lines, ok = check(read(folder))
    assert not ok
    (problem,) = problems(lines)
    assert f"{folder / name}" in problem
    assert "cannot be read: No such file or directory" in problem
    assert f"config.yaml:{named_at}" in problem


@pytest.mark.parametrize(
    ("name", "text", "line", "words"),
    [
        ("rules.yaml", "rules:\n  - when: {query: '['}\n    text: x\n", 2, "rules[0].when.query: "),
        ("rules.yaml", "name: n\n", 1, "there is no list of rules"),
        ("system.yaml", "messages:\n  - {role: user, content: x}\n", 2, "role: expected one of system"),
        ("handler.yaml", "messages:\n  - role: user\n    content: ${mesage}\n", 3, "mesage"),
    ],
)
def test_files_are_checked_as_they_will_be_read(folder: Path, name: str, text: str, line: int, words: str) -> None:
    (folder / name).write_text(text)
    lines, ok = check(read(folder))
    assert not ok
    (problem,) = problems(lines)
    assert problem.startswith(f"{folder / name}:{line}: ")
    assert words in problem


def test_every_broken_file_is_told_in_one_go(folder: Path) -> None:
    names = ["rules.yaml", "system.yaml", "handler.yaml"]
    for name in names:
        (folder / name).write_text("nonsense: 1\n")
    lines, ok = check(read(folder))
    assert not ok
    assert [Path(problem.split(":")[0]).name for problem in problems(lines)] == names


def test_the_rule_file_of_a_model_that_no_chain_uses_is_checked_too(folder: Path) -> None:
    (folder / "other.yaml").write_text("rules: 3\n")
    text = CONFIG.replace("    offline:", "    other: {provider: scripted, script: other.yaml}\n    offline:")
    lines, ok = check(read(folder, text))
    assert not ok
    assert problems(lines) == [f"{folder / 'other.yaml'}:1: rules: expected a list, found 3"]


def test_a_missing_variable_is_a_problem_also_of_a_model_that_no_chain_uses(folder: Path) -> None:
    text = CONFIG.replace("    offline:", "    other: {provider: anthropic, model: '${NONE_SUCH}'}\n    offline:")
    lines, ok = check(read(folder, text))
    assert not ok
    assert "NONE_SUCH is not set" in problems(lines)[0]
    assert any(line.startswith("models.definitions.claude.model: ") for line in lines)


def test_a_cost_limit_without_a_price_is_a_problem(folder: Path) -> None:
    unpriced = CONFIG.replace("    offline:", "    claude: {model: another}\n    offline:")
    text = unpriced + "    budget: {max_cost_usd: 1}\n"
    lines, ok = check(read(folder, text))
    assert not ok
    assert "chains.default.budget.max_cost_usd: a cost limit needs a price" in problems(lines)[0]
    priced = text.replace("another}", "another, price: {input: 3, output: 15}}")
    lines, ok = check(read(folder, priced))
    assert ok
    assert any("input 3, output 15, cache_read 0.3" in line for line in lines)


def test_nothing_of_an_untrusted_file_is_shown(folder: Path) -> None:
    text = CONFIG.replace("    offline:", "    claude: {model: '${PASSWORD}'}\n    offline:")
    settings = read(folder, text, {**KEY, "PASSWORD": "hunter2"}, named=False)
    lines, ok = check(settings)
    assert not ok
    assert lines[-1].startswith("1 problem: ")
    assert "models.definitions.claude.model" in lines[-1]
    assert "--config" in lines[-1]
    assert "hunter2" not in "\n".join(lines)


class Server(BaseHTTPRequestHandler):
    """A server of models that says nothing about them."""

    def do_GET(self) -> None:
        body = b'{"error": {"type": "not_found_error", "message": "File Not Found"}}'
        self.send_response(404)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Be quiet."""


async def test_a_server_that_does_not_list_its_models_is_no_problem(folder: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        address = f"http://127.0.0.1:{server.server_address[1]}"
        text = CONFIG.replace(
            "    offline:", f"    mine: {{provider: anthropic, model: m, base_url: '{address}'}}\n    offline:"
        )
        rows, is_good = await check_service(read(folder, text, model="mine"))
        server.shutdown()
        thread.join()
    assert is_good
    (verdict,) = rows
    assert verdict.startswith("All is well: ")
    assert verdict.endswith(f"could not be checked: {address} does not list its models")


async def test_where_no_service_is_asked_all_is_well(folder: Path) -> None:
    (verdict,), is_good = await check_service(read(folder, model="offline"))
    assert verdict.startswith("All is well: ")
    assert is_good


async def test_a_service_that_is_not_there_is_the_one_problem(folder: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        text = CONFIG.replace(
            "    offline:", f"    mine: {{provider: anthropic, model: m, base_url: '{address}'}}\n    offline:"
        )
        (verdict,), is_good = await check_service(read(folder, text, model="mine"))
    assert verdict.startswith("1 problem: ")
    assert "cannot be reached" in verdict
    assert not is_good


def test_what_fences_commands_in_is_said_and_what_does_not(folder: Path) -> None:
    shown, ok = check(read(folder, f"{CONFIG}tools: {{shell: {{sandbox: off}}}}\n"))
    assert ok
    assert below(shown, "tools.shell.sandbox: off  (config.yaml:9)")[:5] == [
        "  not protected: a command can write wherever you can, and read the keys in this program's environment",
        "  not protected: a command can use the network",
        "  not protected: a command can have your other programs act for it, by their Unix sockets",
        "  not protected: a command can send signals to your other processes, and set their limits and priorities",
        "  not protected: a command can use your terminals and other devices, and so read what you type",
    ]
    shown, _ = check(read(folder, f"{CONFIG}tools: {{shell: {{network: true}}}}\n"))
    assert "  not protected: a command can use the network" in shown


@pytest.mark.skipif(not probe().writes, reason="this machine cannot refuse writes")
def test_what_of_this_program_a_command_may_write_is_said(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    home = {**KEY, "XDG_CONFIG_HOME": str(folder / "config"), "XDG_STATE_HOME": str(folder / "state")}
    shown, ok = check(read(folder, environ=home))
    assert ok
    assert (
        "  a command cannot change config.yaml, config/chain, state/chain, which chain uses outside the sandbox. So it "
        "cannot create, move or delete files directly in the workspace, config, state; let it use another folder, or "
        "see chain help sandbox"
    ) in shown
    strict = f"{CONFIG}tools: {{shell: {{sandbox: strict, writable: [config/chain]}}}}\n"
    shown, ok = check(read(folder, strict, environ=home))
    assert not ok
    assert "a command can change this program" in problems(shown)[0]


def test_an_allowance_that_could_never_allow_anything_is_a_problem(folder: Path) -> None:
    rows, ok = check(read(folder, environ={**KEY, "CHAIN_ALLOW": "edit_file(~/x)"}))
    assert not ok
    assert problems(rows) == [
        "CHAIN_ALLOW: edit_file(~/x) can never allow anything: "
        "paths are relative to the workspace, or absolute in an added directory"
    ]
    rows, ok = check(read(folder, environ={**KEY, "CHAIN_ALLOW": "read_file(x)"}))
    assert problems(rows) == ["CHAIN_ALLOW: read_file(x) can never allow anything: read_file takes no pattern"]

    rows, ok = check(read(folder, f"{CONFIG}tools: {{research: {{hosts: ['https://example.org/']}}}}\n"))
    assert not ok
    assert below(rows, "tools.research.hosts: https://example.org/  (config.yaml:9)")[0] == (
        f"problem: {folder / 'config.yaml'}:9: tools.research.hosts[0]: 'https://example.org/' can never allow "
        "anything: a host is a name such as example.org, without https:// and without a path or port"
    )


def test_every_allowance_is_explained_or_is_a_problem_and_never_both(folder: Path) -> None:
    rows, ok = check(read(folder, environ={**KEY, "CHAIN_ALLOW": "shell,no_such_tool,edit_file(docs/*),read_file(x)"}))
    assert not ok
    shown = below(rows, "tools.allow: shell, no_such_tool, edit_file(docs/*), read_file(x)  (CHAIN_ALLOW)")[:4]
    assert [row.split(":")[0] for row in shown] == ["  shell", "  edit_file(docs/*)", "problem", "problem"]
    assert "there is no tool 'no_such_tool'" in shown[2]
    assert rows[-1] == "2 problems: fix them above, at tools.allow"


def test_a_problem_stands_below_the_value_that_is_to_be_mended(folder: Path) -> None:
    text = CONFIG.replace("    offline:", "    claude: {model: another}\n    offline:")
    text += "    tools: [filse]\n    budget: {max_cost_usd: 1}\n"
    (folder / "handler.yaml").unlink()
    rows, ok = check(read(folder, text))
    assert not ok
    for row, words in {
        f"chains.default.interruption_prompt: {folder / 'handler.yaml'}  (config.yaml:8)": "No such file",
        "chains.default.tools: filse  (config.yaml:10)": "did you mean files?",
        "chains.default.budget.max_cost_usd: 1.0  (config.yaml:11)": "needs a price",
    }.items():
        first = below(rows, row)[0]
        assert first.startswith("problem: ")
        assert words in first
    places = "chains.default.interruption_prompt, chains.default.tools, chains.default.budget.max_cost_usd"
    assert rows[-1] == f"3 problems: fix them above, at {places}"


def test_a_problem_that_several_chains_share_is_told_once(folder: Path) -> None:
    (folder / "handler.yaml").write_text("nonsense: 1\n")
    rows, ok = check(read(folder, CONFIG + "  other: {interruption_prompt: handler.yaml}\n"))
    assert not ok
    assert len(problems(rows)) == 1
    assert rows[-1].startswith("1 problem: ")


def differing(rows: list[str]) -> list[str]:
    """The keys in the first group of rows."""
    first = "\n".join(rows).split("\n\n")[1].splitlines()[1:]
    return [row.partition(":")[0] for row in first if not row.startswith((" ", "problem"))]


def test_what_differs_from_the_defaults_comes_first(folder: Path) -> None:
    rows, ok = check(read(folder, environ={**KEY, "CHAIN_MAX_ITERATIONS": "7"}))
    assert ok
    paths = ("models.definitions.offline.script", "chains.default.system_prompt", "chains.default.interruption_prompt")
    assert differing(rows) == [*paths, "chains.default.max_iterations"]
    assert any(row.startswith("models.definitions.claude.api_key: set") for row in rows)


def test_a_value_that_is_written_as_the_default_is_does_not_differ(folder: Path) -> None:
    rows, ok = check(read(folder, "chains: {default: {max_iterations: 100, timeout_s: 5}}\n"))
    assert ok
    assert differing(rows) == ["chains.default.timeout_s"]
    assert "chains.default.max_iterations: 100  (config.yaml:1)" in rows


def test_where_all_is_as_the_defaults_are_there_is_one_group(folder: Path) -> None:
    rows, ok = check(load_settings(config=None, environ={"HOME": str(folder), **KEY}, cwd=folder))
    assert ok
    assert [row for row in rows if row == "Defaults:" or row.startswith("Different")] == ["Defaults:"]


def test_without_v_only_differences_problems_and_notes_are_shown(folder: Path) -> None:
    (folder / "handler.yaml").unlink()
    rows, ok = check_configuration(read(folder), workspace=folder)
    assert not ok
    assert differing(rows)[-2:] == ["chains.default.interruption_prompt", "chains.default.max_iterations"]
    assert not any(row.startswith("models.definitions.claude.") for row in rows)
    (hidden,) = [row for row in rows if row.endswith(" default values not shown; chain check -v shows all")]
    everything, _ = check(read(folder), workspace=folder)
    assert int(hidden.split()[0]) > 40
    assert len(everything) > len(rows)
    assert rows[-1] == everything[-1] == f"1 problem: {problems(rows)[0]}"


def test_without_v_a_default_is_shown_with_a_note(folder: Path) -> None:
    (folder / "AGENTS.md").write_bytes(b"\xff")
    rows, ok = check_configuration(read(folder), workspace=folder)
    assert ok
    assert below(rows, "instructions: AGENTS.md, CLAUDE.md  (default)")[0].startswith("  note: AGENTS.md is left out")
    (folder / "AGENTS.md").write_text("Use make.")
    rows, _ = check_configuration(read(folder), workspace=folder)
    assert not any(row.startswith("instructions: ") for row in rows)


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


@pytest.fixture
def reviewing(folder: Path) -> Path:
    """A folder in which all is well, also with a kind of agent."""
    (folder / "reviewer.yaml").write_text(
        "messages: [{role: system, content: Review.}]\ninterruption_prompt: handler.yaml\n"
    )
    return folder


def test_the_values_of_agents_are_shown_with_where_they_are_from(reviewing: Path) -> None:
    rows, ok = check(read(reviewing, CONFIG + AGENTS))
    assert ok, problems(rows)
    for row in (
        "agents.max_depth: 2  (config.yaml:10)",
        "agents.max_running: 8  (default)",
        "agents.explore.tools: files  (config.yaml:11)",
        "agents.explore.description: not set  (default)",
        "agents.plan.tools: not set  (default)",
        "agents.reviewer.description: Reads a change, then judges  (config.yaml:13)",
        f"agents.reviewer.prompt: {reviewing / 'reviewer.yaml'}  (config.yaml:15)",
        "agents.reviewer.model: not set  (default)",
        "agents.reviewer.max_iterations: 15  (config.yaml:16)",
    ):
        assert row in rows
    mine = [key for key in differing(rows) if key.startswith("agents.")]
    reviewer = [f"agents.reviewer.{key}" for key in ("description", "prompt", "tools", "model", "max_iterations")]
    assert mine == ["agents.max_depth", "agents.explore.tools", *reviewer]


@pytest.mark.parametrize(
    ("name", "text", "line", "words"),
    [
        ("reviewer.yaml", "\ninterruption_promt: handler.yaml\n", 2, "did you mean interruption_prompt?"),
        ("kind.yaml", "messages:\n  - role: user\n    content: ${mesage}\n", 3, "mesage"),
        ("kind.yaml", None, None, "reviewer.yaml:2 names it"),
    ],
)
def test_the_files_of_a_kind_are_checked_as_they_will_be_read(
    reviewing: Path, name: str, text: str | None, line: int | None, words: str
) -> None:
    file = reviewing / "reviewer.yaml"
    file.write_text(file.read_text().replace("handler.yaml", "kind.yaml"))
    if text is not None:
        (reviewing / name).write_text(text)
    rows, ok = check(read(reviewing, CONFIG + AGENTS))
    assert not ok
    (problem,) = problems(rows)
    assert problem.startswith(f"{reviewing / name}:{'' if line is None else f'{line}:'} ")
    assert words in problem
    assert below(rows, f"agents.reviewer.prompt: {file}  (config.yaml:15)")[0] == f"problem: {problem}"


def test_a_prompt_of_a_kind_that_is_missing_is_a_problem_where_it_is_named(reviewing: Path) -> None:
    (reviewing / "reviewer.yaml").unlink()
    rows, ok = check(read(reviewing, CONFIG + AGENTS))
    assert not ok
    (problem,) = problems(rows)
    assert problem.startswith(f"{reviewing / 'config.yaml'}:15: agents.reviewer.prompt: ")
    assert "No such file" in problem


def test_a_missing_variable_of_a_kind_is_a_problem_and_told_once(reviewing: Path) -> None:
    rows, ok = check(read(reviewing, CONFIG + AGENTS.replace("[files]", "['${NONE_SUCH}']")))
    assert not ok
    (problem,) = problems(rows)
    assert "agents.explore.tools[0]: the environment variable NONE_SUCH is not set" in problem
    assert rows[-1] == f"1 problem: {problem}"
    rows, ok = check(read(reviewing, CONFIG + AGENTS.replace("max_depth: 2", "max_depth: ${NONE_SUCH}")))
    assert not ok
    assert ["agents.max_depth" in problem for problem in problems(rows)] == [True]


def test_a_kind_that_needs_trust_is_not_shown(reviewing: Path) -> None:
    (reviewing / "reviewer.yaml").write_text("interruption_prompt: ~/../secret.yaml\n")
    rows, ok = check(read(reviewing, CONFIG + AGENTS, named=False))
    assert not ok
    assert "agents.reviewer.prompt" in rows[-1]
    assert "secret" not in "\n".join(rows)


async def test_the_servers_are_those_of_the_workspace_that_was_given(folder: Path) -> None:
    work = folder / "work"
    work.mkdir()
    (work / ".mcp.json").write_text('{"mcpServers": {"near": {"command": "/no/such/program"}}}')
    rows, faults = await check_servers(read(folder), work, folder / "state", ["near"])
    assert "mcp.near: not available" in rows
    assert list(faults) == ["mcp.near"]


async def test_no_server_is_started_for_a_workspace_in_which_no_session_would_be_opened(folder: Path) -> None:
    settings = read(folder, f"{CONFIG}mcp: {{own: {{command: touch, args: ['{folder}/started']}}}}\n")
    rows, faults = await check_servers(settings, folder / "none", folder / "state", [])
    assert "the workspace is not a folder" in rows[-1]
    assert faults
    assert not (folder / "started").exists()


def test_servers_are_started_without_a_key_but_with_no_other_problem(folder: Path) -> None:
    near = lambda: (["mcp.near: not available", "problem: it ended"], {"mcp.near": ["it ended"]})  # noqa: E731
    rows, ok = check(read(folder, environ={}), start_servers=near)
    assert not ok
    assert problems(rows) == ["no API key: set ANTHROPIC_API_KEY or use --model offline", "it ended"]
    assert rows[-1] == "2 problems: fix them above, at models.definitions.claude.api_key, mcp.near"
    (folder / "system.yaml").unlink()
    rows, _ = check(read(folder), start_servers=near)
    assert len(problems(rows)) == 1
