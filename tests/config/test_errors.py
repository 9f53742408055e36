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
CHAIN = CONFIG[: CONFIG.index("    tools")]
"""The configuration up to the chain's first key, which is on line 9."""

GOOD = {
    "config.yaml": CONFIG,
    "rules.yaml": "rules:\n  - text: hello\n",
    "system.yaml": "messages:\n  - {role: system, content: Be brief.}\n",
    "handler.yaml": "messages:\n  - {role: user, content: 'NOW: ${message}'}\n",
}

IN_FILES = [
    ("config", CONFIG + "inbox:\n  size: many\n", 13, "inbox.size: expected a whole number"),
    ("config", CONFIG + "tools:\n  allow:\n    - list_files\n    - edit_fil\n", 15, "did you mean edit_file?"),
    ("config", CONFIG + "tools:\n  allow:\n    - 'edit_file(../etc/*)'\n", 14, "relative to the workspace"),
    ("config", CONFIG + "tools:\n  allow: ['(']\n", 13, "tools.allow[0]"),
    ("config", CONFIG + "tools:\n  research:\n    hosts:\n      - https://example.org/\n", 15, "without https://"),
    ("config", CHAIN + "    tools:\n      - todo\n      - flies\n", 11, "did you mean files?"),
    ("config", CHAIN + "    system_prompt: gone.yaml\n", 9, "gone.yaml cannot be read: No such file"),
    ("config", CHAIN + "    compaction_prompt: gone.yaml\n", 9, "gone.yaml cannot be read: No such file"),
    ("config", CONFIG.replace("rules.yaml", "gone.yaml"), 6, "gone.yaml cannot be read: No such file"),
    ("rules", "rules:\n  - when:\n      user: '('\n    text: x\n", 3, "is not a regular expression"),
    ("system", "messages:\n  - {role: system}\n", 2, "needs a content"),
]


def said_of(
    folder: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, args: Sequence[str] = ()
) -> str:
    """Return what the program says of a configuration that it cannot use."""
    monkeypatch.chdir(folder)
    for name in ("XDG_STATE_HOME", "HOME"):
        monkeypatch.setenv(name, str(folder / "home"))
    code = main(["-p", "hello", "--config", "config.yaml", *args])
    out, err = capfd.readouterr()
    assert (code, out) == (2, "")
    (row,) = err.splitlines()
    assert row.isprintable()
    return row.removeprefix("chain: ")


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(("name", "text", "line", "words"), IN_FILES)
def test_a_mistake_in_a_file_names_its_line(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    text: str,
    line: int,
    words: str,
) -> None:
    for each, content in {**GOOD, f"{name}.yaml": text}.items():
        (tmp_path / each).write_text(content)
    said = said_of(tmp_path, capfd, monkeypatch)
    assert re.match(rf"\S*{name}\.yaml:{line}: ", said), said
    assert words in said


@pytest.mark.parametrize(
    ("args", "environ", "place", "words"),
    [
        (["--allow", "list_files,edit_fil"], {}, "flag --allow: ", "did you mean edit_file?"),
        ([], {"CHAIN_ALLOW": "edit_fil"}, "CHAIN_ALLOW: ", "did you mean edit_file?"),
    ],
)
def test_a_mistake_in_a_flag_or_a_variable_names_it(
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    args: Sequence[str],
    environ: Mapping[str, str],
    place: str,
    words: str,
) -> None:
    for name, text in GOOD.items():
        (tmp_path / name).write_text(text)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    said = said_of(tmp_path, capfd, monkeypatch, args)
    assert said.startswith(place), said
    assert words in said
