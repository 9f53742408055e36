"""What the README claims, held against the program. Claims about behaviour have their tests beside the behaviour."""

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
from support import open_session
from support.house import ROOT
from support.rows import without_chance
from support.screen import Screen

from chain import events
from chain.app import read_allowances, tool_groups
from chain.config.load import load_settings
from chain.exit_codes import EXIT_CODES
from chain.interruption.parse import parse as parse_prompt
from chain.interruption.prompt import NAMES
from chain.lines import parse as lines
from cli.arguments import USAGE
from cli.input import moments
from cli.slash import Commands

README = (ROOT / "README.md").read_text(encoding="utf-8")


def block(mark: str) -> str:
    """The code block behind a mark."""
    found = re.search(rf"<!-- {mark} -->\n```\w+\n(.*?)```", README, re.S)
    assert found, f"no block {mark}"
    return found[1]


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading, without its head."""
    below = README.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    table = [row for row in below.splitlines() if row.startswith("| ") or row.startswith("|--")]
    return [[cell.strip() for cell in row.strip("|").split("|")] for row in table[2:]]


def run(*argv: str, cwd: Path, home: Path) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": str(ROOT), "PYTHONUTF8": "1"}
    command = [sys.executable, *argv]
    return subprocess.run(command, cwd=cwd, env=environ, capture_output=True, text=True, timeout=120, check=False)


def test_the_main_job_shows_the_line_land(tmp_path: Path) -> None:
    command = block("main job").split(".venv/bin/chain ")[1]
    argv = re.findall(r"'([^']*)'|(\S+)", command)
    done = run("-m", "cli", *(quoted or plain for quoted, plain in argv), cwd=ROOT, home=tmp_path)
    assert done.returncode == 0
    assert "[🔔 INTERRUPTION at iteration 2] todo: add check the licence ✓ Message injected (after " in done.stderr
    assert "[ ] 1. check the licence" in done.stderr
    assert re.search(r"total of \d+", done.stdout)


def test_the_ci_runs_the_readmes_own_command() -> None:
    assert "pytest" in block("tests")
    assert "<!-- tests -->" in (ROOT / ".ci" / "run").read_text(encoding="utf-8")


def test_the_usage_is_the_programs() -> None:
    assert USAGE in README


def test_the_transcript_is_what_the_terminal_shows(tmp_path: Path) -> None:
    """Made again by the real program; where it differs, the failure shows the new one to paste."""
    command, _, told = block("transcript").partition("\n")
    argv = shlex.split(command.removeprefix("$ chain "))
    with Screen([sys.executable, "-m", "cli", *argv], home=tmp_path, cwd=ROOT, rows=50, columns=100) as screen:
        screen.until("✓ done")
        screen.type("/quit\r")
        assert screen.wait() == 0
        shown = screen.everything.partition("Session ")[0].rstrip()
    assert without_chance(shown) == without_chance(told.rstrip())


async def test_the_commands_are_those_of_the_terminal(tmp_path: Path) -> None:
    told = {name for cells in rows("Use") for name in re.findall(r"`(/\w+)", cells[0])}
    async with open_session("rules: [{text: Hello.}]") as session:
        commands = Commands(session.chain, load_settings(config=None, environ={}, cwd=tmp_path))
        assert told == {name.strip() for name in commands.completions("/")}


def test_the_event_table_is_the_union() -> None:
    common = {"agent", "iteration", "time"}
    shown = {}
    for types, names in rows("Events"):
        for type in re.findall(r"`(\w+)`", types):
            shown[type] = names.strip("`").split()
    actual = {e.type: [f.name for f in fields(e) if f.name not in common] for e in get_args(events.Event)}
    assert shown == actual


def test_the_exit_codes_are_the_table_of_endings() -> None:
    told = {s: int(code) for code, statuses in rows("Exit codes") for s in re.findall(r"`(\w+)`", statuses)}
    assert told == EXIT_CODES
    assert "143, 130, 1, 4, 3" in README


def test_the_moments_are_those_of_the_program() -> None:
    told = {re.findall(r"@\w+", moment)[0] for moment, _ in rows("Scripting") if "@" in moment}
    assert told == set(moments._USAGE)


@pytest.mark.parametrize("phrase", lines.STOP_PHRASES)
def test_every_stop_phrase_is_listed(phrase: str) -> None:
    assert f"`{phrase}`" in README


def test_the_configuration_example_works(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(block("config"))
    settings = load_settings(config=tmp_path / "config.yaml", environ={}, cwd=tmp_path)
    assert settings.chain().max_iterations == 5
    assert settings.model().script == tmp_path / "my_rules.yaml"


def test_the_handler_example_is_used_as_it_is() -> None:
    prompt = parse_prompt(block("handler"), "handler.yaml")
    assert (prompt.overrides.max_tokens, prompt.resume, prompt.todo_direct) == (1500, None, False)


def test_with_the_handler_example_the_offline_model_keeps_its_task(tmp_path: Path) -> None:
    (tmp_path / "handler.yaml").write_text(block("handler"))
    (tmp_path / "mine.yaml").write_text("chains: {default: {model: offline, interruption_prompt: handler.yaml}}\n")
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "one.txt").write_text("one\ntwo\n")
    query = ["-p", "Count the lines of every file in notes", "--say", "@iteration 2 how far are you?"]
    done = run("-m", "cli", "--config", "mine.yaml", *query, cwd=tmp_path, home=tmp_path)
    assert "INTERRUPTION at iteration 2" in done.stderr
    assert "total of 1" in done.stdout, done.stdout


def test_the_template_names_are_all_listed() -> None:
    for name in NAMES:
        assert f"`${{{name}}}`" in README


def test_the_library_example_runs(tmp_path: Path) -> None:
    (tmp_path / "example.py").write_text(block("library"))
    (tmp_path / "rules.yaml").write_text(
        "rules:\n  - {when: {tool: shout}, text: 'Heard ${result}'}\n"
        "  - {when: {user: '^shout (.*)'}, tools: [{name: shout, input: {text: '${1}'}}]}\n"
    )
    (tmp_path / "config.yaml").write_text(
        "models: {definitions: {mine: {provider: scripted, script: rules.yaml}}}\nchains: {default: {model: mine}}\n"
    )
    done = run("example.py", cwd=tmp_path, home=tmp_path)
    assert (done.returncode, done.stdout) == (0, "Heard HELLO\n"), done.stderr


def test_every_option_of_the_readme_exists(tmp_path: Path) -> None:
    shown = run("-m", "cli", "--help", cwd=tmp_path, home=tmp_path).stdout
    for option in sorted(set(re.findall(r"--[a-z][a-z-]+", README))):
        if option not in {"--stat"}:
            assert option in shown, option


def test_the_local_model_example_needs_no_key(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(block("local model"))
    settings = load_settings(
        config=tmp_path / "config.yaml", environ={"ANTHROPIC_API_KEY": "not for this server"}, cwd=tmp_path
    )
    model = settings.model("local")
    assert (model.base_url, model.api_key, model.lacks_key) == ("http://localhost:8080", None, False)


def test_the_table_of_figures_has_the_rows_and_goals_of_the_benchmark() -> None:
    program = (ROOT / "tests" / "bench" / "run.py").read_text(encoding="utf-8")
    goals = re.findall(r"^\| [^|]*\| (?:[≤≥] ([\d.]+)(?: ms| %)?)? *\| [\d.]+", README, re.M)
    growth = [0.9, 1.1, 1.3, 1.1, 1.1, 1.1]
    rest = [5.0, 99.0, 3.0, 6.0, 1.3, 50.0, 100.0, 100.0, 1.0]
    assert [float(goal) for goal in goals if goal] == [0.45, 0.3, 0.6, *growth, *rest]
    for row in (
        "a waiting line, from its safe point to the service",
        "input read from the cache, of what was sent before",
    ):
        assert row in README
        assert row in program
    assert block("bench").split()[-1] == "tests/bench/run.py"


def test_the_allowances_of_the_example_mean_something(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(block("allowances"))
    settings = load_settings(config=tmp_path / "config.yaml", environ={}, cwd=tmp_path)
    assert [str(each) for each in read_allowances(settings, (), tool_groups(settings))] == list(settings.allow)
    assert (settings.shell.sandbox, settings.research_hosts) == ("strict", ("docs.python.org",))


RECIPES = {
    "tests": ("1 passed", "def test_a():\n    assert True\n"),
    "edit": ("Changed notes.md +1 −1.", "color\n"),
    "read": ("docs", "colour\n"),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_recipe_does_what_it_says(recipe: str, tmp_path: Path) -> None:
    said, content = RECIPES[recipe]
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "a.md").write_text("# Title\n")
    file = tmp_path / ("test_a.py" if recipe == "tests" else "notes.md")
    file.write_text(content.replace("color\n", "colour\n"))
    python = Path(sys.executable).parent
    environ = {"PATH": f"{python}:{os.environ['PATH']}", "HOME": str(tmp_path), "PYTHONUTF8": "1"}
    program = f'chain() {{ {shlex.quote(sys.executable)} -m cli "$@"; }}\nexport PYTHONPATH={ROOT}\n'
    command = ["bash", "-ec", program + block(f"recipe: {recipe}")]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout
    assert file.read_text() == content
