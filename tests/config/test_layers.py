"""Which file is the configuration, and the message about a file that is almost one."""

from pathlib import Path

import pytest
from support.configuration import ConfigPlace

from chain.config.layers import FoundFile, find_file
from chain.errors import ConfigError

HINT = ": did you mean chains?"
MISTAKES = {
    "singular": ("chain: {default: {max_iterations: 5}}\n", 1, f"unknown key chain{HINT}"),
    "on a later line": ("# mine\n\nchain:\n  default: {model: offline}\n", 3, HINT),
    "letters swapped": ("chians: {default: {tools: [todo]}}\n", 1, HINT),
    "upper case, after another key": ("inbox: {size: 3}\nChains: {default: {max_iterations: 5}}\n", 2, HINT),
    "one chain instead of chains by name": ("chain: {max_iterations: 5}\n", 1, HINT),
    "no valid YAML below chains": ("chains:\n  default: [\n", 3, "is not valid YAML"),
}
"""Configurations with ``chains``, perhaps misspelt: the text, and the line and a part of the error."""


def find(place: ConfigPlace, *, skip_here: bool = False) -> FoundFile:
    return find_file(None, {"HOME": str(place.home)}, place.work, skip_here=skip_here)


@pytest.mark.parametrize(("text", "line", "message_part"), MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_in_our_file_is_an_error(place: ConfigPlace, text: str, line: int, message_part: str) -> None:
    with pytest.raises(ConfigError, match=message_part) as error:
        place.load_found(text)
    assert str(error.value).startswith(f"{place.work / 'config.yaml'}:{line}: ")


PASSED_OVER = {
    "a default model": ("models: {default: offline}\n", 1),
    "a model of our provider": ("\nmodels: {definitions: {a: {provider: anthropic, model: m}}}\nother: 1\n", 2),
    "only sections of ours": ("tools: {allow: [shell]}\ninbox: {size: 4}\n", 1),
    "a limit of agents": ("agents: {max_depth: 2}\n", 1),
    "a kind of agent": ("agents: {reviewer: {description: x, tools: [files]}}\n", 1),
}
"""Configurations without ``chains``, and the line of their first key of ours."""


@pytest.mark.parametrize(("text", "line"), PASSED_OVER.values(), ids=PASSED_OVER)
def test_a_configuration_without_chains_is_reported(place: ConfigPlace, text: str, line: int) -> None:
    file = place.work / "config.yaml"
    file.write_text(text)
    result = find(place)
    assert result.file is None
    assert str(result.passed_over).startswith(f"{file}:{line}: is not used, as it has no key chains")


OF_OTHER_PROGRAMS = {
    "no key of ours": "services: {web: {image: x}}",
    "chain is text": "chain: mainnet\nrpc: http://localhost",
    "chain has no key of a chain": "chain: {id: 1, name: mainnet}",
    "change is not a misspelt chains": "change: {default: {model: x}}",
    "models without our keys": "models: {gpt: {path: x}}",
    "a model of an unknown provider": "models: {definitions: {user: {provider: postgres}}}\ndb: x",
    "tools without our keys": "tools: {hammer: {size: 3}}",
    "a section of ours and one of theirs": "inbox: {size: 3}\nsmtp: {host: x}",
    "no agents": "agents: {}",
    "agents that are no kinds": "agents: {researcher: {role: x, goal: y}}",
    "a list of agents": "agents: [a]",
    "no valid YAML, without chains": "chain: [",
    "empty": "",
}


@pytest.mark.parametrize("text", OF_OTHER_PROGRAMS.values(), ids=OF_OTHER_PROGRAMS)
def test_a_file_of_another_program_is_ignored(place: ConfigPlace, text: str) -> None:
    (place.work / "config.yaml").write_text(text)
    result = find(place)
    assert (result.file, result.passed_over) == (None, None)


@pytest.fixture
def own_file(place: ConfigPlace) -> Path:
    """The user's own configuration."""
    file = place.home / ".config/chain/config.yaml"
    file.parent.mkdir(parents=True)
    file.write_text("inbox: {size: 3}")
    return file


def test_the_users_file_replaces_one_passed_over(place: ConfigPlace, own_file: Path) -> None:
    (place.work / "config.yaml").write_text("models: {default: offline}")
    result = find(place)
    assert result.file == own_file
    assert result.passed_over is not None


def test_a_found_file_may_be_skipped(place: ConfigPlace, own_file: Path) -> None:
    (place.work / "config.yaml").write_text("chains: {}")
    assert find(place).file == place.work / "config.yaml"
    skipped = find(place, skip_here=True)
    assert (skipped.file, skipped.passed_over) == (own_file, None)
