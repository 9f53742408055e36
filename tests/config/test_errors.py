"""Broken files, flags and variables: each mistake is told in one sentence that begins with its place."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from cli.main import main

CONFIG = """\
models:
  default: test
  definitions:
    test:
      provider: scripted
      script: rules.yaml
chains:
  default:
    tools: [todo, files]
    system_prompt: system.yaml
    interruption_prompt: handler.yaml
"""

GOOD = {
    "config.yaml": CONFIG,
    "rules.yaml": "rules:\n  - text: hello\n",
    "system.yaml": "messages:\n  - {role: system, content: Be brief.}\n",
    "handler.yaml": "messages:\n  - {role: user, content: 'NOW: ${message}'}\n",
}


def sentence(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, args: Sequence[str] = ()
) -> str:
    """What the program says of a configuration that it cannot use."""
    monkeypatch.chdir(folder)
    for name in ("XDG_STATE_HOME", "HOME"):
        monkeypatch.setenv(name, str(folder / "home"))
    code = main(["-p", "hello", "--config", "config.yaml", *args])
    out, err = capfd.readouterr()
    assert (code, out) == (2, "")
    (row,) = err.splitlines()
    assert row.isprintable()
    return row.removeprefix("chain: ")


def written(folder: Path, **files: str) -> None:
    for name, text in {**GOOD, **{f"{name}.yaml": text for name, text in files.items()}}.items():
        (folder / name).write_text(text)


CHAIN = CONFIG[: CONFIG.index("    tools")]
"""The configuration up to the chain's first key, which is on line 9."""

IN_CONFIG = [
    (CONFIG + "inbox: {size: 3}\ninbox: {size: 4}\n", 13, "first on line 12"),
    (CONFIG + "inbox: {siz: 3}\n", 12, "did you mean size?"),
    (CONFIG + "inboks: {size: 3}\n", 12, "did you mean inbox?"),
    (CONFIG + "inbox:\n  size: many\n", 13, "inbox.size: expected a whole number"),
    (CONFIG + "inbox: {size: 1e400}\n", 12, "inbox.size"),
    (CONFIG + "tools: {timeout_s: 0}\n", 12, "tools.timeout_s"),
    (CONFIG + "tools:\n  allow:\n    - list_files\n    - edit_fil\n", 15, "did you mean edit_file?"),
    (CONFIG + "tools:\n  allow:\n    - 'edit_file(/etc/*)'\n", 14, "relative to the workspace"),
    (CONFIG + "tools:\n  allow: ['(']\n", 13, "tools.allow[0]"),
    (CONFIG + "tools:\n  allow:\n    - ' '\n", 14, "is blank"),
    (CONFIG + "tools:\n  shell:\n    sandbox: on\n", 14, "must be one of"),
    (CONFIG + "tools:\n  research:\n    hosts:\n      - https://example.org/\n", 15, "without https://"),
    (CONFIG + "instructions: AGENTS.md\n", 12, "instructions: expected a list"),
    (CONFIG + "instructions:\n  - AGENTS.md\n  - docs/rules.md\n", 14, "the name of a file, without a folder"),
    (CONFIG + "instructions: [..]\n", 12, "the name of a file, without a folder"),
    (CONFIG + "instructions: [' ']\n", 12, "is blank"),
    (CONFIG + "agent: {max_depth: 2}\n", 12, "did you mean agents?"),
    (CONFIG + "agents: [a]\n", 12, "agents: expected a mapping"),
    (CONFIG + "agents:\n  max_depth: 0\n", 13, "agents.max_depth: must be at least 1"),
    (CONFIG + "agents:\n  max_running: some\n", 13, "agents.max_running: expected a whole number"),
    (CONFIG + "agents:\n  max_kept: 1.5\n", 13, "agents.max_kept: expected a whole number"),
    (CONFIG + "agents:\n  max_kept:\n", 13, "agents.max_kept: expected a whole number, found nothing"),
    (CONFIG + "agents:\n  max_dept: 2\n", 13, "unknown key agents.max_dept: did you mean max_depth?"),
    (CONFIG + "agents:\n  helpers: 2\n", 13, "agents.helpers: expected a mapping"),
    (CONFIG + "agents:\n  explore: files\n", 13, "agents.explore: expected a mapping"),
    (CONFIG + "agents:\n  explore:\n    tool: [files]\n", 14, "did you mean tools?"),
    (CONFIG + "agents:\n  explore:\n    tools: files\n", 14, "agents.explore.tools: expected a list"),
    (CONFIG + "agents:\n  explore:\n    tools:\n      - files\n      - ' '\n", 16, "is blank"),
    (CONFIG + "agents:\n  explore:\n    model: tset\n", 14, "did you mean test?"),
    (CONFIG + "agents:\n  plan:\n    max_iterations: 0\n", 14, "agents.plan.max_iterations: must be at least 1"),
    (CONFIG + "agents:\n  plan:\n    description: [a]\n", 14, "agents.plan.description: expected text"),
    (CONFIG + 'agents:\n  plan:\n    prompt: "a\\0b"\n', 14, "agents.plan.prompt: is not a path"),
    (CONFIG + "agents:\n  plan:\n    prompt: ${NOT-THERE}\n", 14, "write $${ for a plain ${"),
    (CONFIG + "agents:\n  reviewer:\n    tools: [files]\n", 13, "agents.reviewer: a kind of your own needs a descr"),
    (CONFIG + "agents:\n  reviewer:\n    tools: []\n    description: ' '\n", 15, "needs a description"),
    (CONFIG + "agents:\n  exlpore:\n    tools: [files]\n", 13, "did you mean explore?"),
    (CONFIG + "agents:\n  main: {description: x}\n", 13, "main cannot be a kind of agent"),
    (CONFIG + "agents:\n  Root: {description: x}\n", 13, "Root cannot be a kind of agent"),
    (CONFIG + "agents:\n  code review: {description: x}\n", 13, "'code review' cannot be a kind of agent"),
    (CONFIG + "agents:\n  'a.b': {description: x}\n", 13, "cannot be a kind of agent"),
    (CONFIG + "agents:\n  prüfer: {description: x}\n", 13, "cannot be a kind of agent"),
    (CONFIG + 'agents:\n  "\\e[2J": {description: x}\n', 13, "cannot be a kind of agent"),
    (CONFIG + f"agents:\n  {'a' * 57}: {{description: x}}\n", 13, "1 to 56"),
    (CONFIG + "? [a]\n: 1\n", 12, "a key must be a word"),
    (CONFIG + "inbox: {size: \x07}\n", 12, "\\x07"),
    (CONFIG + "inbox: [\n", 13, "is not valid YAML"),
    (CONFIG + "inbox: {size: 3\n  \tx: 1}\n", 13, "is not valid YAML"),
    (CHAIN + "    tools:\n      - todo\n      - flies\n", 11, "did you mean files?"),
    (CHAIN + "    system_prompt: gone.yaml\n", 9, "gone.yaml cannot be read: No such file"),
    (CHAIN + "    system_prompt: .\n", 9, "cannot be read"),
    (CHAIN + "    compact: 0.9\n", 9, "must be off, or have at and keep"),
    (CHAIN + "    compact:\n      att: 0.9\n", 10, "did you mean at?"),
    (CHAIN + "    compact:\n      at: 1.5\n", 10, "chains.default.compact.at: is a share of the window: from"),
    (CHAIN + "    compact:\n      at: off\n", 10, "`compact: off` leaves it to /compact"),
    (CHAIN + "    compact:\n      at: 0.5\n      keep: 0.6\n", 11, "must be less than at (0.5)"),
    (CHAIN + "    compaction_prompt: gone.yaml\n", 9, "gone.yaml cannot be read: No such file"),
    (CONFIG.replace("script: rules.yaml", "script: rules.yaml\n      context_window: -1"), 7, "context_window"),
    (CONFIG.replace("script: rules.yaml", "script: rules.yaml\n      context_window: wide"), 7, "a whole number"),
    (CHAIN + "    model: tset\n", 9, "did you mean test?"),
    (CHAIN + "    model: ${NOT_THERE}\n", 9, "NOT_THERE is not set"),
    (CHAIN + "    max_iterations: ${NOT_THERE}\n", 9, "NOT_THERE is not set"),
    (CHAIN + "    budget: {max_tokens: -1}\n", 9, "chains.default.budget.max_tokens"),
    (CONFIG.replace("rules.yaml", "gone.yaml"), 6, "gone.yaml cannot be read: No such file"),
    (CONFIG.replace("rules.yaml", "${NOT_THERE}"), 6, "NOT_THERE is not set"),
    (CONFIG.replace("rules.yaml", "${NOT-THERE}"), 6, "write $${ for a plain ${"),
    (CONFIG.replace("provider: scripted", "provider: script"), 5, "must be one of anthropic, scripted"),
    (CONFIG.replace("      script: rules.yaml\n", ""), 4, "needs a script"),
    (CONFIG.replace("default: test", "default: tets"), 2, "did you mean test?"),
]


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("text", "line", "words"), IN_CONFIG)
def test_a_mistake_in_the_configuration_names_its_line(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    text: str,
    line: int,
    words: str,
) -> None:
    written(tmp_path, config=text)
    said = sentence(tmp_path, capfd, monkeypatch)
    assert re.match(rf"\S*config\.yaml:{line}: ", said), said
    assert words in said


RULE = "rules:\n  - when:\n      user: '%s'\n    text: %s\n"

IN_OTHERS = [
    ("rules", RULE % ("(", "x"), 3, "is not a regular expression"),
    ("rules", RULE % ("x", "${nobody}"), 4, "unknown name"),
    ("rules", RULE % ("x", "x") + "    texxt: y\n", 5, "did you mean text?"),
    ("rules", RULE % ("x", "x") + "    text: y\n", 5, "is there twice"),
    ("rules", RULE % ("x", "x") + "    times: 0\n", 5, "must be at least 1"),
    ("rules", RULE % ("x", "x") + "    usage: {input_tokens: many}\n", 5, "expected a whole number"),
    ("rules", RULE % ("x", "x") + "    stop_reason: tired\n", 5, "expected one of"),
    ("rules", RULE % ("x", "x") + "    tools:\n      - {input: {}}\n", 6, "needs the name of the tool"),
    ("rules", RULE % ("x", "x") + "    collect:\n      a: {match: '['}\n", 6, "is not a regular expression"),
    ("rules", RULE % ("x", "x") + "    error: {retryable: maybe}\n", 5, "expected true or false"),
    ("rules", "name: n\nrules: 3\n", 2, "expected a list"),
    ("rules", "rules: []\npace: {chunk: 0}\n", 2, "must be at least 1"),
    ("rules", "rules: []\nmarks: {note: '('}\n", 2, "is not a regular expression"),
    ("rules", "rules:\n  - {}\n", 2, "a rule that does nothing"),
    ("system", "messages:\n  - {role: system}\n", 2, "needs a content"),
    ("system", "version: 1\nmessages: 3\n", 2, "expected a list"),
    ("system", "version: 1\n", 1, "has no messages"),
    ("system", "messages:\n  - role: system\n    content: 3\n", 3, "expected text"),
]


@pytest.mark.parametrize(("name", "text", "line", "words"), IN_OTHERS)
def test_a_mistake_in_a_file_that_it_names_has_its_line(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    text: str,
    line: int,
    words: str,
) -> None:
    written(tmp_path, **{name: text})
    said = sentence(tmp_path, capfd, monkeypatch)
    assert re.match(rf"\S*{name}\.yaml:{line}: ", said), said
    assert words in said


GIVEN: list[tuple[Sequence[str], Mapping[str, str], str, str]] = [
    (["--model", "tets"], {}, "flag --model: ", "did you mean test?"),
    (["--chain", "defualt"], {}, "flag --chain: ", "did you mean default?"),
    (["--max-iterations", "few"], {}, "flag --max-iterations: ", "whole number"),
    (["--allow", "list_files,edit_fil"], {}, "flag --allow: ", "did you mean edit_file?"),
    (["--allow", "edit_file(/etc/*)"], {}, "flag --allow: ", "relative to the workspace"),
    ([], {"CHAIN_MODEL": "tets"}, "CHAIN_MODEL: ", "did you mean test?"),
    ([], {"CHAIN_CHAIN": "defualt"}, "CHAIN_CHAIN: ", "did you mean default?"),
    ([], {"CHAIN_MAX_ITERATIONS": "0"}, "CHAIN_MAX_ITERATIONS: ", "at least 1"),
    ([], {"CHAIN_ALLOW": "edit_fil"}, "CHAIN_ALLOW: ", "did you mean edit_file?"),
]


@pytest.mark.parametrize(("args", "environ", "place", "words"), GIVEN)
def test_a_mistake_in_a_flag_or_a_variable_names_it(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    args: Sequence[str],
    environ: Mapping[str, str],
    place: str,
    words: str,
) -> None:
    written(tmp_path)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    said = sentence(tmp_path, capfd, monkeypatch, args)
    assert said.startswith(place), said
    assert words in said
