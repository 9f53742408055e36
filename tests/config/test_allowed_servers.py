"""Which servers may start: an answer holds for a workspace and an entry, and nothing starts without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chain.app.toolbox import shell_rules
from chain.config.allowed_servers import remember_answer, servers_of
from chain.config.load import Settings, load_settings
from chain.config.servers import START_S
from chain.errors import ConfigError


def read(folder: Path, mcp: str = "{}") -> Settings:
    (folder / "own.yaml").write_text(f"chains: {{}}\nmcp: {mcp}\n")
    return load_settings(config=folder / "own.yaml", environ={}, cwd=folder)


def found(folder: Path, **commands: str) -> None:
    entries = {name: {"command": command} for name, command in commands.items()}
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": entries}))


def names(folder: Path, settings: Settings, *named: str) -> tuple[list[str], list[str]]:
    which = servers_of(settings, folder, folder / "state", named)
    return [each.name for each in which.allowed], [each.name for each in which.unasked]


def test_a_found_server_starts_once_it_was_allowed_and_asks_again_when_it_changed(tmp_path: Path) -> None:
    settings = read(tmp_path)
    found(tmp_path, git="git-server")
    which = servers_of(settings, tmp_path, tmp_path / "state")
    assert which.allowed == ()
    assert "--mcp git" in which.notes_unattended[0]
    remember_answer(which.unasked[0], tmp_path, tmp_path / "state", is_allowed=True)
    assert names(tmp_path, settings) == (["git"], [])
    found(tmp_path, git="another")
    assert names(tmp_path, settings) == ([], ["git"])


def test_an_answer_holds_in_its_workspace_alone(tmp_path: Path) -> None:
    settings, other = read(tmp_path), tmp_path / "other"
    other.mkdir()
    found(tmp_path, git="x")
    found(other, git="x")
    remember_answer(servers_of(settings, tmp_path, tmp_path / "state").unasked[0], tmp_path, tmp_path / "state",
                    is_allowed=True)  # fmt: skip
    which = servers_of(settings, other, tmp_path / "state")
    assert [each.name for each in which.unasked] == ["git"]


def test_a_no_is_remembered_too_and_a_flag_goes_before_it(tmp_path: Path) -> None:
    settings = read(tmp_path)
    found(tmp_path, git="x")
    remember_answer(servers_of(settings, tmp_path, tmp_path / "state").unasked[0], tmp_path, tmp_path / "state",
                    is_allowed=False)  # fmt: skip
    assert names(tmp_path, settings) == ([], [])
    assert "--mcp git" in servers_of(settings, tmp_path, tmp_path / "state").notes[0]
    assert names(tmp_path, settings, "git") == (["git"], [])
    assert servers_of(settings, tmp_path, tmp_path / "state", ["git"]).notes == ()


def test_the_configuration_says_yes_or_no_and_its_own_server_comes_first(tmp_path: Path) -> None:
    found(tmp_path, git="found", web="x", db="y")
    settings = read(tmp_path, "{git: {command: own}, web: true, db: false}")
    which = servers_of(settings, tmp_path, tmp_path / "state")
    assert [(each.name, each.written) for each in which.allowed] == [("git", "own"), ("web", "x")]
    assert which.unasked == ()
    assert names(tmp_path, settings, "db") == (["git", "web", "db"], [])  # a flag goes before the configuration


def test_a_name_that_no_server_has_is_refused(tmp_path: Path) -> None:
    found(tmp_path, git="x")
    with pytest.raises(ConfigError, match="did you mean git"):
        servers_of(read(tmp_path), tmp_path, tmp_path / "state", ["gti"])


def test_a_name_is_not_sought_in_a_file_that_is_invalid_without_saying_so(tmp_path: Path) -> None:
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {"git": {"command": "x"},}}')
    with pytest.raises(ConfigError, match=r"there is no server 'git'; .*\.mcp\.json:1: is not valid JSON"):
        servers_of(read(tmp_path), tmp_path, tmp_path / "state", ["git"])


def test_a_server_that_a_flag_names_is_waited_for(tmp_path: Path) -> None:
    found(tmp_path, git="x")
    settings = read(tmp_path, "{own: {command: x, start_s: 90}, other: {command: x}}")
    allowed = servers_of(settings, tmp_path, tmp_path, ["git", "own"]).allowed
    assert {each.name: each.start_s for each in allowed} == {"git": START_S, "own": 90, "other": None}


def test_a_configuration_that_was_found_may_name_no_server_before_it_is_trusted(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("chains: {default: {}}\nmcp: {git: {command: x}, web: true}\n")
    settings = load_settings(config=None, environ={}, cwd=tmp_path)
    assert {"mcp.git", "mcp.web"} <= {*settings.untrusted}


def test_a_secret_of_an_own_server_is_given_to_nobody_else(tmp_path: Path) -> None:
    entry = '{url: "https://x", headers: {Authorization: "Bearer ${TRACKER_PAT}"}}'
    settings = read(tmp_path, f'{{tracker: {entry}, git: {{command: "${{HOME}}/git", args: ["${{GIT_WORD}}"]}}}}')
    assert settings.key_variables >= {"TRACKER_PAT", "GIT_WORD"}
    assert "HOME" not in settings.key_variables
    environ = {"TRACKER_PAT": "word", "GIT_WORD": "word", "HOME": "/home/me"}
    assert shell_rules(settings).environment(environ) == {"HOME": "/home/me"}
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {"near": {"command": "x", "args": ["${TRACKER_PAT}"]}}}')
    (near,) = servers_of(settings, tmp_path, tmp_path / "state").unasked
    with pytest.raises(ConfigError, match="asks for TRACKER_PAT"):
        near.with_variables(environ, settings.key_variables)
