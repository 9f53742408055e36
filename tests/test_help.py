"""The help pages (``chain help``), compared with the program: their tables, examples and recipes."""

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
from support.documents import REFERENCE, code_block, run_at_home, table_rows, text_of
from support.program import call_at_home
from support.servers import server
from support.sessions import open_session

from chain import events
from chain.agent.tree import Activity
from chain.app.instructions import KIB, MAX_ALL, MAX_EACH, READ_S
from chain.app.sessions import FORMATS
from chain.app.toolbox import read_allowances, tool_groups
from chain.config.load import Settings, load_settings
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

ALL_TOPICS = "\n".join(text_of(topic) for topic in TOPICS)


def test_every_page_is_a_topic() -> None:
    assert sorted(path.stem for path in REFERENCE.iterdir()) == sorted(TOPICS)


async def run_forever(on_output: object) -> JobEnd:
    await trio.sleep_forever()
    raise AssertionError("unreachable")


async def test_the_slash_commands_are_documented(tmp_path: Path) -> None:
    documented = {
        name for command, *_ in table_rows("terminal", "command") for name in re.findall(r"`(/[\w-]+)", command)
    }
    servers = [server({"command": "/no/such/program"})]
    async with open_session("rules: [{text: Hello.}]", servers=servers) as session:
        session.chain.jobs.start("main", "call", "sleep 1000", run_forever, wakes=False)
        commands = Commands(session.chain, load_settings(config=None, environ={}, cwd=tmp_path))
        assert documented == {name.strip() for name in commands.completions("/")}


def test_every_event_is_documented() -> None:
    common = {"agent", "iteration", "time"}
    documented = {
        type: names.strip("`").split()
        for types, names in table_rows("events", "type")
        for type in re.findall(r"`(\w+)`", types)
    }
    actual = {type: [name for name in names if name not in common] for type, names in event_json.FIELD_NAMES.items()}
    assert documented == actual


def test_every_exit_code_is_documented() -> None:
    codes = {
        status: int(code)
        for code, statuses in table_rows("exit-codes", "code")
        for status in re.findall(r"`(\w+)`", statuses)
    }
    assert codes == EXIT_CODES
    assert "143, 130, 1, 4, 3" in text_of("exit-codes"), "the order of precedence"


def test_every_word_of_lines_is_documented() -> None:
    states = {state.strip("`") for state, *_ in table_rows("lines", "state")} | {"refused", "unsent"}
    assert states == {*get_args(events.State)} - {"queued"}
    assert all(f"`{word}`" in text_of("lines") for word in (*states, *lines.STOP_PHRASES))


def test_every_moment_is_documented() -> None:
    documented = {name for moment, _ in table_rows("moments", "moment") for name in re.findall(r"@\w+", moment)[:1]}
    assert documented == set(moments._USAGE)


def test_every_variable_of_a_handler_is_documented() -> None:
    assert all(f"`${{{name}}}`" in text_of("handler-prompts") for name in TEMPLATE_NAMES)


def test_every_action_on_sessions_is_documented() -> None:
    actions = [
        name for cells in table_rows("sessions", "command") for name in re.findall(r"`chain sessions (\w+)", cells[0])
    ]
    assert tuple(actions) == ACTIONS
    assert set(re.findall(r"`--format (\w+)`", text_of("sessions"))) == set(FORMATS)


def test_every_tool_is_documented_in_its_group(tmp_path: Path) -> None:
    documented = {
        group.strip("`"): set(re.findall(r"`(\w+)`", tools)) for group, tools, *_ in table_rows("tools", "group")
    }
    groups = tool_groups(load_settings(config=None, environ={}, cwd=tmp_path))
    for name, tools in groups.items():
        assert {tool.name for tool in tools} <= documented[name]
    assert set(documented) == set(groups)


def test_the_tools_and_limits_of_agents_are_documented(tmp_path: Path) -> None:
    settings = load_settings(config=None, environ={}, cwd=tmp_path)
    documented = {tool.strip("`") for tool, *_ in table_rows("agents", "tool")}
    assert documented == {tool.name for tool in tool_groups(settings)["agents"]}
    assert {state for state, *_ in table_rows("agents", "state")} == {*get_args(Activity)}
    _, _, section = text_of("agents").partition("## Limits")
    limits = [settings.agents.max_depth, settings.agents.max_running, settings.agents.max_kept]
    assert [int(number) for number in re.findall(r"\((\d+)\)", section)] == limits


def test_every_documented_address_is_valid() -> None:
    for at_prompt in re.findall(r"`(/to [^`]+)`", text_of("agents")):
        agent, _ = split_address(at_prompt)
        assert agent, at_prompt
    for written in re.findall(r"`(@\w+ [^`]+)`", text_of("agents")):
        assert moments.parse_moment(written, strict=True).to == "explore-1"


def load(folder: Path, topic: str, mark: str) -> Settings:
    """Load the example of a topic."""
    (folder / "config.yaml").write_text(code_block(topic, mark))
    environ = {"ANTHROPIC_API_KEY": "not for servers of the user"}
    return load_settings(config=folder / "config.yaml", environ=environ, cwd=folder)


def test_the_example_of_a_configuration_works(tmp_path: Path) -> None:
    settings = load(tmp_path, "configuration", "config")
    assert settings.chain().max_iterations == 5
    assert settings.model().files["script"] == tmp_path / "my_rules.yaml"


def test_the_example_of_agents_works(tmp_path: Path) -> None:
    kinds = {kind.name: kind for kind in load(tmp_path, "configuration", "agents").agents.kinds}
    assert kinds["explore"].tools == ("files",)
    reviewer = {field.name: getattr(kinds["reviewer"], field.name) for field in fields(kinds["reviewer"])}
    assert all(reviewer.values())
    documented = {key.strip("`") for key, *_ in table_rows("configuration", "key of a kind")}
    assert documented == {*reviewer} - {"name"}


def test_the_example_of_instructions_works(tmp_path: Path) -> None:
    assert load(tmp_path, "context", "instructions").instructions == ("AGENTS.md", "GEMINI.md")
    limits = f"A file may have {MAX_EACH // KIB} KiB, and all of them {MAX_ALL // KIB} KiB"
    assert limits in text_of("context")
    assert f"more than {READ_S:g} s" in text_of("context")


def test_the_examples_of_local_models_need_no_key(tmp_path: Path) -> None:
    settings = load(tmp_path, "models", "local models")
    for name, port in {"llamacpp": 8080, "ollama": 11434, "lmstudio": 1234, "vllm": 8000}.items():
        model = settings.model(name)
        assert model.values["base_url"] == f"http://localhost:{port}"
        assert (model.values["api_key"], model.missing_key) == (None, "")


def test_the_example_of_allowances_works(tmp_path: Path) -> None:
    settings = load(tmp_path, "tools", "allowances")
    assert [str(each) for each in read_allowances(settings, (), tool_groups(settings))] == list(settings.allow)
    assert (settings.shell.sandbox, settings.research_hosts) == ("strict", ("docs.python.org",))


def test_the_example_of_a_handler_works(tmp_path: Path) -> None:
    (tmp_path / "handler.yaml").write_text(code_block("handler-prompts", "handler"))
    prompt = parse_prompt(code_block("handler-prompts", "handler"), "handler.yaml")
    assert (prompt.overrides.max_tokens, prompt.resume, prompt.todo_direct) == (1500, None, False)
    (tmp_path / "mine.yaml").write_text("chains: {default: {model: offline, interruption_prompt: handler.yaml}}\n")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "one.txt").write_text("one\ntwo\n")
    query = ["-p", "Count the lines of every file in notes", "--say", "@iteration 2 how far are you?"]
    done = call_at_home(tmp_path, "--config", "mine.yaml", *query)
    assert "INTERRUPTION at iteration 2" in done.stderr
    assert "total of 1" in done.stdout, done.stdout


@pytest.mark.slow
def test_the_example_of_a_tool_works(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(code_block("library", "library"))
    (tmp_path / "rules.yaml").write_text(
        "rules:\n  - {when: {tool: shout}, text: 'Heard ${result}'}\n"
        "  - {when: {user: '^shout (.*)'}, tools: [{name: shout, input: {text: '${1}'}}]}\n"
    )
    (tmp_path / "config.yaml").write_text(
        "models: {definitions: {mine: {provider: scripted, script: rules.yaml}}}\nchains: {default: {model: mine}}\n"
    )
    done = run_at_home("example.py", cwd=tmp_path, home=tmp_path)
    assert (done.returncode, done.stdout) == (0, "Heard HELLO\n"), done.stderr


NOT_OURS = {"--clean", "--stat", "--format", "--output", "--jinja", "--enable-auto-tool-choice", "--tool-call-parser"}
"""Options of other programs, and of slash commands."""


def test_every_name_in_the_reference_exists() -> None:
    for option in sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", ALL_TOPICS)) - NOT_OURS):
        assert option in HELP, option
    assert set(re.findall(r"`chain ([a-z]+)", ALL_TOPICS)) <= set(COMMANDS)
    assert set(re.findall(r"`chain help ([a-z-]+)", ALL_TOPICS)) <= set(TOPICS)


def test_ascii_applies_to_written_pages(tmp_path: Path) -> None:
    for words in (["help", "terminal"], ["help", "benchmark"], ["help"], ["check"], ["explain", "»?"]):
        done = call_at_home(tmp_path, *words, "--ascii", "--model", "offline")
        assert done.stdout.isascii(), words
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("recipe", "answer", "notes"),
    [
        ("edit", "Changed notes.md +1 −1.", "color\n"),
        ("read", "docs/a.md: Title", "colour\n"),
        pytest.param("tests", "1 passed", "colour\n", marks=pytest.mark.slow),
    ],
)
def test_a_recipe_works(recipe: str, answer: str, notes: str, tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# Title\n")
    (tmp_path / "test_a.py").write_text("def test_a():\n    assert True\n")
    (tmp_path / "notes.md").write_text("colour\n")
    *preparation, command = code_block("tools", f"recipe: {recipe}").splitlines()
    subprocess.run(["sh", "-ec", "\n".join(preparation)], cwd=tmp_path, check=True)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    program, *words = shlex.split(command)
    done = call_at_home(tmp_path, *words, PATH=path)
    assert (program, done.returncode) == ("chain", 0), done.stderr
    assert answer in done.stdout
    assert (tmp_path / "notes.md").read_text() == notes


@pytest.mark.parametrize(
    ("tests", "send_code", "is_sent"),
    [
        ("echo one; echo two; echo test_it FAILED; exit 1", 0, True),
        ("echo one; echo two; echo test_it FAILED; exit 1", 1, True),
        ("echo fine", 0, False),
    ],
    ids=["broken tests", "broken tests, and chain send fails", "tests pass"],
)
def test_the_hook_reports_broken_tests(tests: str, send_code: int, is_sent: bool, tmp_path: Path) -> None:
    chain = f"printf '%s|' \"$@\" > sent; exit {send_code}"
    for name, script in {"run-tests": tests, "chain": chain}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "hook").write_text(code_block("side-door", "hook"))
    subprocess.run(["sh", "hook"], cwd=tmp_path, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}, check=True)
    assert (tmp_path / "sent").exists() == is_sent
    if is_sent:
        command, line, _ = (tmp_path / "sent").read_text().split("|")
        assert (command, line) == ("send", "!the tests are broken since the last commit: one\ntwo\ntest_it FAILED")
        assert lines.parse_line(line).urgency == "urgent"
