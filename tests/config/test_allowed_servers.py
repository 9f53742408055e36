"""Which MCP servers may start. The user's answer applies to one entry of one workspace; none starts without one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from chain.app.toolbox import shell_rules
from chain.config.allowed_servers import FoundServers, remember_answer, servers_of
from chain.config.load import Settings, load_settings
from chain.config.servers import START_S
from chain.errors import ConfigError


def load(folder: Path, mcp: str = "{}") -> Settings:
    (folder / "own.yaml").write_text(f"chains: {{}}\nmcp: {mcp}\n")
    return load_settings(config=folder / "own.yaml", environ={}, cwd=folder)


def write_servers(folder: Path, **commands: str) -> None:
    entries = {name: {"command": command} for name, command in commands.items()}
    folder.mkdir(exist_ok=True)
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": entries}))


def names(found: FoundServers) -> tuple[list[str], list[str]]:
    """Return the names of the servers that may start and of those that need an answer."""
    return [each.name for each in found.allowed], [each.name for each in found.unasked]


def test_an_answer_covers_one_entry_of_a_workspace(tmp_path: Path) -> None:
    settings, state, other = load(tmp_path), tmp_path / "state", tmp_path / "other"
    write_servers(tmp_path, git="x")
    write_servers(other, git="x")
    found = servers_of(settings, tmp_path, state)
    assert names(found) == ([], ["git"])
    (note,), (git,) = found.notes_unattended, found.unasked
    assert "--mcp git" in note
    remember_answer(git, tmp_path, state, is_allowed=True)
    assert names(servers_of(settings, tmp_path, state)) == (["git"], [])
    assert names(servers_of(settings, other, state)) == ([], ["git"])
    (tmp_path / "link").symlink_to(tmp_path)
    assert names(servers_of(settings, tmp_path / "link", state)) == (["git"], [])
    write_servers(tmp_path, git="another")
    assert names(servers_of(settings, tmp_path, state)) == ([], ["git"])


def test_a_flag_overrides_a_remembered_no(tmp_path: Path) -> None:
    settings, state = load(tmp_path), tmp_path / "state"
    write_servers(tmp_path, git="x")
    (git,) = servers_of(settings, tmp_path, state).unasked
    remember_answer(git, tmp_path, state, is_allowed=False)
    without_flag = servers_of(settings, tmp_path, state)
    assert names(without_flag) == ([], [])
    (note,) = without_flag.notes
    assert "--mcp git" in note
    with_flag = servers_of(settings, tmp_path, state, ["git"])
    assert (names(with_flag), with_flag.notes) == ((["git"], []), ())


def test_the_configuration_answers_for_found_servers(tmp_path: Path) -> None:
    write_servers(tmp_path, git="found", web="x", db="y")
    settings = load(tmp_path, "{git: {command: own, start_s: 90}, web: true, db: false}")
    found = servers_of(settings, tmp_path, tmp_path / "state", ["git"])
    allowed = [(each.name, each.target, each.start_s) for each in found.allowed]  # db: false denies db
    assert allowed == [("git", "own", 90), ("web", "x", None)]
    assert found.unasked == ()
    with_flags = servers_of(settings, tmp_path, tmp_path / "state", ["web", "db"])
    assert {each.name: each.start_s for each in with_flags.allowed} == {"git": 90, "web": START_S, "db": START_S}


def test_an_unknown_name_suggests_the_nearest(tmp_path: Path) -> None:
    write_servers(tmp_path, git="x")
    with pytest.raises(ConfigError, match="did you mean git"):
        servers_of(load(tmp_path), tmp_path, tmp_path / "state", ["gti"])


def test_an_invalid_file_explains_a_missing_server(tmp_path: Path) -> None:
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {"git": {"command": "x"},}}')
    with pytest.raises(ConfigError, match=r"there is no server 'git'; .*\.mcp\.json:1: is not valid JSON"):
        servers_of(load(tmp_path), tmp_path, tmp_path / "state", ["git"])


def test_no_other_program_gets_a_servers_secret(tmp_path: Path) -> None:
    entry = '{url: "https://x", headers: {Authorization: "Bearer ${TRACKER_PAT}"}}'
    settings = load(tmp_path, f'{{tracker: {entry}, git: {{command: "${{HOME}}/git", args: ["${{GIT_WORD}}"]}}}}')
    assert settings.key_variables >= {"TRACKER_PAT", "GIT_WORD"}
    assert "HOME" not in settings.key_variables
    environ = {"TRACKER_PAT": "word", "GIT_WORD": "word", "HOME": "/home/me"}
    assert shell_rules(settings).environment(environ) == {"HOME": "/home/me"}
    (tmp_path / ".mcp.json").write_text('{"mcpServers": {"new": {"command": "x", "args": ["${TRACKER_PAT}"]}}}')
    (found_server,) = servers_of(settings, tmp_path, tmp_path / "state").unasked
    with pytest.raises(ConfigError, match="asks for TRACKER_PAT"):
        found_server.with_variables(environ, settings.key_variables)
