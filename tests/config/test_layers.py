"""Which file is the configuration, and what is said of one that is nearly it."""

from pathlib import Path

import pytest
from support.configuration import ConfigPlace

from chain.config.layers import find_file
from chain.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("chain: {default: {max_iterations: 5}}\n", 1, "did you mean chains instead of chain"),
        ("# mine\n\nchain:\n  default: {model: offline}\n", 3, "did you mean chains instead of "),
        ("chians: {default: {tools: [todo]}}\n", 1, "did you mean chains instead of "),
        ("inbox: {size: 3}\nChains: {default: {max_iterations: 5}}\n", 2, "did you mean chains instead of "),
        ("chain: {max_iterations: 5}\n", 1, "did you mean chains instead of "),
        ("chains:\n  default: [\n", 3, "is not valid YAML"),
    ],
)
def test_a_mistake_in_our_file_is_an_error(place: ConfigPlace, text: str, line: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as error:
        place.load_found(text)
    assert str(error.value).startswith(f"{place.work / 'config.yaml'}:{line}: ")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("models: {default: offline}\n", 1),
        ("\nmodels: {definitions: {mine: {provider: anthropic, model: m}}}\nother: 1\n", 2),
        ("tools: {allow: [shell]}\ninbox: {size: 4}\n", 1),
        ("agents: {max_depth: 2}\n", 1),
        ("agents: {reviewer: {description: x, tools: [files]}}\n", 1),
        # Files of other programs.
        ("services: {web: {image: x}}", None),
        ("chain: mainnet\nrpc: http://localhost", None),
        ("chain: {id: 1, name: mainnet}", None),
        ("change: {default: {model: x}}", None),
        ("models: {gpt: {path: x}}", None),
        ("models: {definitions: {user: {provider: postgres}}}\ndb: x", None),
        ("tools: {hammer: {size: 3}}", None),
        ("inbox: {size: 3}\nsmtp: {host: x}", None),
        ("agents: {}", None),
        ("agents: {researcher: {role: x, goal: y}}", None),
        ("agents: [a]", None),
        ("chain: [", None),
        ("", None),
    ],
)
def test_a_file_without_chains_is_passed_over(tmp_path: Path, text: str, line: int | None) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(text)
    found = find_file(None, {"HOME": str(tmp_path)}, tmp_path)
    assert found.file is None
    if line is None:
        assert found.passed_over is None
    else:
        assert str(found.passed_over).startswith(f"{file}:{line}: is not used, as it has no key chains")


def test_the_users_file_replaces_one_passed_over(tmp_path: Path) -> None:
    own = tmp_path / ".config" / "chain" / "config.yaml"
    own.parent.mkdir(parents=True)
    own.write_text("inbox: {size: 3}")
    environ, here = {"HOME": str(tmp_path)}, tmp_path / "config.yaml"
    here.write_text("models: {default: offline}")
    found = find_file(None, environ, tmp_path)
    assert found.file == own
    assert found.passed_over is not None
    here.write_text("chains: {}")
    assert find_file(None, environ, tmp_path).file == here
    skipped = find_file(None, environ, tmp_path, skip_here=True)
    assert (skipped.file, skipped.passed_over) == (own, None)
