"""Which file is the configuration, and the one that was meant to be it."""

from pathlib import Path

import pytest

from chain.config.layers import find_file
from chain.errors import ConfigError

MISSPELT = [
    ("chain: {default: {max_iterations: 5}}\n", 1),
    ("# mine\n\nchain:\n  default: {model: offline}\n", 3),
    ("chians: {default: {tools: [todo]}}\n", 1),
    ("inbox: {size: 3}\nChains: {default: {max_iterations: 5}}\n", 2),
    ("chain: {max_iterations: 5}\n", 1),
]
OURS = [
    ("models: {default: offline}\n", 1),
    ("\nmodels: {definitions: {mine: {provider: anthropic, model: m}}}\nother: 1\n", 2),
    ("tools: {allow: [shell]}\ninbox: {size: 4}\n", 1),
    ("agents: {max_depth: 2}\n", 1),
    ("agents: {reviewer: {description: x, tools: [files]}}\n", 1),
]
OTHERS = [
    "services: {web: {image: x}}",
    "chain: mainnet\nrpc: http://localhost",
    "chain: {id: 1, name: mainnet}",
    "change: {default: {model: x}}",
    "models: {gpt: {path: x}}",
    "models: {definitions: {user: {provider: postgres}}}\ndb: x",
    "tools: {hammer: {size: 3}}",
    "inbox: {size: 3}\nsmtp: {host: x}",
    "agents: {}",
    "agents: {researcher: {role: x, goal: y}}",
    "agents: [a]",
    "chain: [",
    "",
]


@pytest.mark.parametrize(("text", "line"), MISSPELT)
def test_chains_under_another_name_are_an_error(tmp_path: Path, text: str, line: int) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="did you mean chains instead of ") as error:
        find_file(None, {"HOME": str(tmp_path)}, tmp_path)
    assert str(error.value).startswith(f"{file}:{line}: unknown key")


@pytest.mark.parametrize(("text", "line"), OURS)
def test_a_file_that_was_meant_for_us_is_told_with_its_line(tmp_path: Path, text: str, line: int) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    found = find_file(None, {"HOME": str(tmp_path)}, tmp_path)
    assert found.file is None
    assert found.passed_over is not None
    assert str(found.passed_over).startswith(f"{file}:{line}: is not used")
    assert "chains" in found.passed_over.message


@pytest.mark.parametrize("text", OTHERS)
def test_nothing_is_said_of_another_programs_file(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    found = find_file(None, {"HOME": str(tmp_path)}, tmp_path)
    assert (found.file, found.passed_over) == (None, None)


def test_the_users_own_file_holds_where_the_one_here_is_passed_over_or_left_aside(tmp_path: Path) -> None:
    own = tmp_path / ".config" / "chain" / "config.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("inbox: {size: 3}")
    environ = {"HOME": str(tmp_path)}
    here = tmp_path / "config.yaml"
    here.write_text("models: {default: offline}")
    found = find_file(None, environ, tmp_path)
    assert found.file == own
    assert found.passed_over is not None
    here.write_text("chains: {}")
    assert find_file(None, environ, tmp_path).file == here
    left_aside = find_file(None, environ, tmp_path, skip_here=True)
    assert (left_aside.file, left_aside.passed_over) == (own, None)
