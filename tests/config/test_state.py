"""Where sessions are kept: a flag, the environment or the configuration says it, and no secret in it is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from chain.config.load import load_settings, require_trust
from chain.errors import ConfigError
from cli.subcommands.check import check

ADDRESS = "redis://me:hush@db/3"


def test_a_flag_goes_before_the_environment_and_that_before_the_file(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text("chains: {}\nstate: redis://file/0\n")
    for environ, flags, expected in (
        ({}, {}, "redis://file/0"),
        ({"CHAIN_STATE": "redis://variable/0"}, {}, "redis://variable/0"),
        ({"CHAIN_STATE": "redis://variable/0"}, {"state": "redis://flag/0"}, "redis://flag/0"),
    ):
        assert load_settings(config=file, environ=environ, cwd=tmp_path, flags=flags).state == expected
    file.write_text("chains: {}\n")
    assert load_settings(config=file, environ={}, cwd=tmp_path, flags={}).state == ""


def test_one_that_was_found_needs_trust_and_its_password_is_not_shown(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"chains: {{}}\nstate: {ADDRESS}\n")
    found = load_settings(config=None, environ={"HOME": str(tmp_path)}, cwd=tmp_path, flags={})
    assert found.untrusted == ("state",)
    assert [each.value for each in found.asked] == ["redis://…@db/3"]
    with pytest.raises(ConfigError, match="it sets state"):
        require_trust(found)
    assert "hush" not in repr(found)


def test_check_shows_it_without_the_password(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(f"chains: {{}}\nstate: {ADDRESS}\n")
    named = load_settings(config=tmp_path / "config.yaml", environ={}, cwd=tmp_path, flags={"model": "offline"})
    text = "\n".join(check(named)[0])
    assert "state: redis://db/3" in text
    assert "hush" not in text
