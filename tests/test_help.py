"""What the reference says (`chain help`), held against the program. Behaviour has its tests beside the behaviour."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from dataclasses import fields
from pathlib import Path
from typing import get_args

import pytest
import trio
from support import open_session
from support.documents import REFERENCE, block, rows, run, text_of
from support.program import call_program, environ
from support.servers import server

from chain import events
from chain.agent.tree import Activity
from chain.app.instructions import KIB, MAX_ALL, MAX_EACH, READ_S
from chain.app.sessions import FORMATS
from chain.app.toolbox import read_allowances, tool_groups
from chain.config.load import load_settings
from chain.interruption.prompt import TEMPLATE_NAMES
from chain.interruption.prompt_file import parse_prompt
from chain.lines import parse as lines
from chain.session import event_json
from chain.session.exit_codes import EXIT_CODES
from chain.tools.tool import JobEnd
from cli.input import moments
from cli.input.address import split_address
from cli.options import COMMANDS, HELP
from cli.subcommands.help import TOPICS
from cli.subcommands.sessions import ACTIONS
from cli.terminal.slash import Commands

ALL = "\n".join(text_of(topic) for topic in TOPICS)


def test_every_file_is_a_topic() -> None:
    assert sorted(path.stem for path in REFERENCE.iterdir()) == sorted(TOPICS)


async def forever(on_output: object) -> JobEnd:
    await trio.sleep_forever()
    raise AssertionError


async def test_the_commands_are_those_of_the_terminal(tmp_path: Path) -> None:
    told = {name for cells in rows("terminal", "command") for name in re.findall(r"`(/[\w-]+)", cells[0])}
    servers = [server({"command": "/no/such/program"})]
    async with open_session("rules: [{text: Hello.}]", servers=servers) as session:
        session.chain.jobs.start("main", "call", "sleep 1000", forever, wakes=False)
        commands = Commands(session.chain, load_settings(config=None, environ={}, cwd=tmp_path))
        assert told == {name.strip() for name in commands.completions("/")}


def test_the_event_table_is_the_union() -> None:
    common = {"agent", "iteration", "time"}
    shown = {}
    for types, names in rows("events", "type"):
        for type in re.findall(r"`(\w+)`", types):
            shown[type] = names.strip("`").split()
    actual = {type: [name for name in names if name not in common] for type, names in event_json.FIELD_NAMES.items()}
    assert shown == actual


def test_the_exit_codes_are_the_table_of_endings() -> None:
    told = {s: int(code) for code, statuses in rows("exit-codes", "code") for s in re.findall(r"`(\w+)`", statuses)}
    assert told == EXIT_CODES
    assert "143, 130, 1, 4, 3" in text_of("exit-codes")


def test_the_states_are_those_of_receipts() -> None:
    told = {cells[0].strip("`") for cells in rows("lines", "state")} | {"refused", "unsent"}
    assert told == {*get_args(events.State)} - {"queued"}
    assert all(f"`{state}`" in text_of("lines") for state in told)


def test_the_moments_are_those_of_the_program() -> None:
    told = {re.findall(r"@\w+", moment)[0] for moment, _ in rows("moments", "moment") if "@" in moment}
    assert told == set(moments._USAGE)


@pytest.mark.parametrize("phrase", lines.STOP_PHRASES)
def test_every_stop_phrase_is_listed(phrase: str) -> None:
    assert f"`{phrase}`" in text_of("lines")


def test_every_tool_is_listed_in_its_group(tmp_path: Path) -> None:
    told = {cells[0].strip("`"): set(re.findall(r"`(\w+)`", cells[1])) for cells in rows("tools", "group")}
    groups = tool_groups(load_settings(config=None, environ={}, cwd=tmp_path))
    for name, tools in groups.items():
        assert {tool.name for tool in tools} <= told[name]
    assert set(told) == set(groups)


def test_the_agents_are_those_of_the_program(tmp_path: Path) -> None:
    settings = load_settings(config=None, environ={}, cwd=tmp_path)
    told = {cells[0].strip("`") for cells in rows("agents", "tool")}
    assert told == {tool.name for tool in tool_groups(settings)["agents"]}
    assert {cells[0] for cells in rows("agents", "state")} == {*get_args(Activity)}
    bounds = settings.agents.max_depth, settings.agents.max_running, settings.agents.max_kept
    assert tuple(int(n) for n in re.findall(r"\((\d+)\)", text_of("agents").partition("## Limits")[2])) == bounds


def test_every_address_that_it_names_is_read() -> None:
    for at_prompt in re.findall(r"`(/to [^`]+)`", text_of("agents")):
        assert split_address(at_prompt)[0], at_prompt
    for written in re.findall(r"`(@\w+ [^`]+)`", text_of("agents")):
        assert moments.parse_moment(written, strict=True).to == "explore-1"


def test_the_configuration_example_works(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(block("configuration", "config"))
    settings = load_settings(config=tmp_path / "config.yaml", environ={}, cwd=tmp_path)
    assert settings.chain().max_iterations == 5
    assert settings.model().files["script"] == tmp_path / "my_rules.yaml"


def test_the_example_of_instructions_works(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(block("context", "instructions"))
    settings = load_settings(config=tmp_path / "config.yaml", environ={}, cwd=tmp_path)
    assert settings.instructions == ("AGENTS.md", "GEMINI.md")
    shipped = load_settings(config=None, environ={}, cwd=tmp_path, skip_here=True)
    assert shipped.instructions == ("AGENTS.md", "CLAUDE.md")
    bounds = f"A file may have {MAX_EACH // KIB} KiB, and all of them {MAX_ALL // KIB} KiB"
    assert bounds in text_of("context")
    assert f"more than {READ_S:g} s" in text_of("context")


def test_the_example_of_agents_works(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(block("configuration", "agents"))
    settings = load_settings(config=tmp_path / "config.yaml", environ={}, cwd=tmp_path)
    kinds = {kind.name: kind for kind in settings.agents.kinds}
    assert kinds["explore"].tools == ("files",)
    own = {f.name: getattr(kinds["reviewer"], f.name) for f in fields(kinds["reviewer"])}
    assert all(own.values())
    told = {cells[0].strip("`") for cells in rows("configuration", "key of a kind")}
    assert told == {*own} - {"name"}


def test_the_handler_example_is_used_as_it_is() -> None:
    prompt = parse_prompt(block("handler-prompts", "handler"), "handler.yaml")
    assert (prompt.overrides.max_tokens, prompt.resume, prompt.todo_direct) == (1500, None, False)


def test_with_the_handler_example_the_offline_model_keeps_its_task(tmp_path: Path) -> None:
    (tmp_path / "handler.yaml").write_text(block("handler-prompts", "handler"))
    (tmp_path / "mine.yaml").write_text("chains: {default: {model: offline, interruption_prompt: handler.yaml}}\n")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "one.txt").write_text("one\ntwo\n")
    query = ["-p", "Count the lines of every file in notes", "--say", "@iteration 2 how far are you?"]
    done = call_program("--config", "mine.yaml", *query, cwd=tmp_path, environ=environ(tmp_path, {}))
    assert "INTERRUPTION at iteration 2" in done.stderr
    assert "total of 1" in done.stdout, done.stdout


def test_the_template_names_are_all_listed() -> None:
    for name in TEMPLATE_NAMES:
        assert f"`${{{name}}}`" in text_of("handler-prompts")


@pytest.mark.slow  # a program for itself; another example runs in `test_readme.py`
def test_the_library_example_runs(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(block("library", "library"))
    (tmp_path / "rules.yaml").write_text(
        "rules:\n  - {when: {tool: shout}, text: 'Heard ${result}'}\n"
        "  - {when: {user: '^shout (.*)'}, tools: [{name: shout, input: {text: '${1}'}}]}\n"
    )
    (tmp_path / "config.yaml").write_text(
        "models: {definitions: {mine: {provider: scripted, script: rules.yaml}}}\nchains: {default: {model: mine}}\n"
    )
    done = run("example.py", cwd=tmp_path, home=tmp_path)
    assert (done.returncode, done.stdout) == (0, "Heard HELLO\n"), done.stderr


NOT_OURS = {"--clean", "--stat", "--format", "--output", "--jinja", "--enable-auto-tool-choice", "--tool-call-parser"}


def test_every_option_that_it_names_exists() -> None:
    for option in sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", ALL)) - NOT_OURS):
        assert option in HELP, option


def test_every_command_and_topic_that_it_names_exists() -> None:
    assert set(re.findall(r"`chain ([a-z]+)", ALL)) <= set(COMMANDS)
    assert set(re.findall(r"`chain help ([a-z-]+)", ALL)) <= set(TOPICS)


def test_the_local_models_need_no_key(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(block("models", "local models"))
    settings = load_settings(
        config=tmp_path / "config.yaml", environ={"ANTHROPIC_API_KEY": "not for these servers"}, cwd=tmp_path
    )
    found = {name: settings.model(name) for name in ("llamacpp", "ollama", "lmstudio", "vllm")}
    assert {name: model.values["base_url"] for name, model in found.items()} == {
        "llamacpp": "http://localhost:8080",
        "ollama": "http://localhost:11434",
        "lmstudio": "http://localhost:1234",
        "vllm": "http://localhost:8000",
    }
    assert {(model.values["api_key"], model.missing_key) for model in found.values()} == {(None, "")}


def test_the_allowances_of_the_example_mean_something(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(block("tools", "allowances"))
    settings = load_settings(config=tmp_path / "config.yaml", environ={}, cwd=tmp_path)
    assert [str(each) for each in read_allowances(settings, (), tool_groups(settings))] == list(settings.allow)
    assert (settings.shell.sandbox, settings.research_hosts) == ("strict", ("docs.python.org",))


def test_ascii_is_kept_by_what_is_only_written(tmp_path: Path) -> None:
    for words in (["help", "terminal"], ["help", "benchmark"], ["help"], ["check"], ["explain", "»?"]):
        done = call_program(*words, "--ascii", "--model", "offline", cwd=tmp_path, environ=environ(tmp_path, {}))
        assert done.stdout.isascii(), words
        assert done.returncode == 0, done.stderr


def test_the_session_commands_and_formats_are_those_of_the_program() -> None:
    told = [re.findall(r"`chain sessions (\w+)", cells[0])[0] for cells in rows("sessions", "command")]
    assert tuple(told) == ACTIONS
    assert set(re.findall(r"`--format (\w+)`", text_of("sessions"))) == set(FORMATS)


RECIPES = {
    "tests": ("1 passed", "def test_a():\n    assert True\n"),
    "edit": ("Changed notes.md +1 −1.", "color\n"),
    "read": ("docs/a.md: Title", "colour\n"),
}


@pytest.mark.parametrize("recipe", ["edit", "read", pytest.param("tests", marks=pytest.mark.slow)])
def test_a_recipe_does_what_it_says(recipe: str, tmp_path: Path) -> None:
    said, content = RECIPES[recipe]
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# Title\n")
    file = tmp_path / ("test_a.py" if recipe == "tests" else "notes.md")
    file.write_text(content.replace("color\n", "colour\n"))
    *before, command = block("tools", f"recipe: {recipe}").splitlines()
    subprocess.run(["sh", "-ec", "\n".join(before)], cwd=tmp_path, check=True)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    words = shlex.split(command)
    done = call_program(*words[1:], cwd=tmp_path, environ=environ(tmp_path, {"PATH": path}))
    assert (words[0], done.returncode) == ("chain", 0), done.stderr
    assert said in done.stdout
    assert file.read_text() == content
