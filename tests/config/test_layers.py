"""Which file is the configuration, and the message about a file that is almost one."""

from pathlib import Path

import pytest
from support.configuration import ConfigPlace

from chain.config.layers import find_file
from chain.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "line", "message_part"),
    [
        ("chain: {default: {max_iterations: 5}}\n", 1, "unknown key chain: did you mean chains?"),
        ("# mine\n\nchain:\n  default: {model: offline}\n", 3, ": did you mean chains?"),
        ("chians: {default: {tools: [todo]}}\n", 1, ": did you mean chains?"),
        ("inbox: {size: 3}\nChains: {default: {max_iterations: 5}}\n", 2, ": did you mean chains?"),
        ("chain: {max_iterations: 5}\n", 1, ": did you mean chains?"),
        ("chains:\n  default: [\n", 3, "is not valid YAML"),
    ],
)
def test_a_mistake_in_our_file_is_an_error(place: ConfigPlace, text: str, line: int, message_part: str) -> None:
    with pytest.raises(ConfigError, match=message_part) as error:
        place.load_found(text)
    assert str(error.value).startswith(f"{place.work / 'config.yaml'}:{line}: ")


PASSED_OVER = {
    "models: {default: offline}\n": 1,
    "\nmodels: {definitions: {mine: {provider: anthropic, model: m}}}\nother: 1\n": 2,
    "tools: {allow: [shell]}\ninbox: {size: 4}\n": 1,
    "agents: {max_depth: 2}\n": 1,
    "agents: {reviewer: {description: x, tools: [files]}}\n": 1,
}
"""Configurations without ``chains``, and the line of their first key of ours."""


@pytest.mark.parametrize(("text", "line"), PASSED_OVER.items())
def test_a_configuration_without_chains_is_reported(tmp_path: Path, text: str, line: int) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    result = find_file(None, {"HOME": str(tmp_path)}, tmp_path)
    assert result.file is None
    assert str(result.passed_over).startswith(f"{file}:{line}: is not used, as it has no key chains")


@pytest.mark.parametrize(
    "text",
    [
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
    ],
)
def test_a_file_of_another_program_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.yaml").write_text(text)
    result = find_file(None, {"HOME": str(tmp_path)}, tmp_path)
    assert (result.file, result.passed_over) == (None, None)


def test_the_users_file_replaces_one_passed_over(tmp_path: Path) -> None:
    own = tmp_path / ".config" / "chain" / "config.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("inbox: {size: 3}")
    environ, here = {"HOME": str(tmp_path)}, tmp_path / "config.yaml"
    here.write_text("models: {default: offline}")
    result = find_file(None, environ, tmp_path)
    assert result.file == own
    assert result.passed_over is not None
    here.write_text("chains: {}")
    assert find_file(None, environ, tmp_path).file == here
    skipped = find_file(None, environ, tmp_path, skip_here=True)
    assert (skipped.file, skipped.passed_over) == (own, None)
