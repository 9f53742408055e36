"""Entries of MCP servers: their forms, mistakes in them, and when variables are substituted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.servers import server

from chain.config.servers import FILE, Address, Launch, find_servers
from chain.errors import ConfigError

RUN = {"command": "run"}
NO_KEYS = frozenset[str]()


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        # Neither a command nor an address, both, or another type.
        ({}, "either a command"),
        ({"command": "x", "url": "http://x"}, "either a command"),
        ({"type": "http", "command": "x"}, "either a command"),
        ({"type": "sse", "url": "http://x"}, "sse is not supported"),
        ({"type": "socket", "url": "http://x"}, "expected one of"),
        # Wrong values.
        ({"command": " "}, "is blank"),
        ({"command": 5}, "expected text"),
        ({"command": "x", "args": "y"}, "expected a list"),
        ({"command": "x", "args": [["y"]]}, "expected text"),
        ({"command": "x", "env": {"A": ["b"]}}, "expected text"),
        ({"command": "x", "trust_hints": "very"}, "expected true or false"),
        ({"command": "x", "start_s": "long"}, "expected a number"),
        ({"command": "x", "timeout_s": 0}, "at least 0.01"),
        ("x", "expected a mapping"),
        # Wrong keys.
        ({"command": "x", "headers": {}}, "cannot be used with command"),
        ({"url": "http://x", "env": {}}, "cannot be used with url"),
        ({"command": "x", "commnad": "y"}, "did you mean"),
    ],
)
def test_an_entrys_error_names_file_and_line(entry: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        server(entry)
    assert str(raised.value).startswith("test.yaml:1: ")


# A tool's full name is ``mcp__SERVER__TOOL``, and services limit its length.
@pytest.mark.parametrize("name", ["", "a b", "a__b", "a.b", "x" * 32, "-a", "a_", "_a", "a\n"])
def test_a_name_must_fit_a_tools_name(name: str) -> None:
    with pytest.raises(ConfigError, match="its name is"):
        server(RUN, name)


def test_variables_are_substituted_when_a_server_starts() -> None:
    program = server({"command": "${TOOL}", "args": ["${A:-b}", 5], "env": {"KEY": "${SECRET}"}})
    assert program.target == "'${TOOL}' '${A:-b}' 5"
    assert program.with_variables({"TOOL": "t", "SECRET": "s"}, NO_KEYS) == Launch(("t", "b", "5"), {"KEY": "s"})
    with pytest.raises(ConfigError, match="SECRET is not set"):
        program.with_variables({"TOOL": "t"}, NO_KEYS)
    remote = server({"type": "http", "url": "https://x/${A}", "headers": {"Authorization": "Bearer ${T}"}})
    address = remote.with_variables({"A": "a", "T": "word"}, NO_KEYS)
    assert address == Address("https://x/a", {"Authorization": "Bearer word"})


def test_no_header_is_in_a_repr() -> None:
    remote = server({"url": "http://x", "headers": {"A": "hunter2"}})
    assert "hunter2" not in repr(remote) + repr(remote.with_variables({}, NO_KEYS))


@pytest.mark.parametrize(
    ("url", "why"),
    [("https://me:word@x/", "put them in a header"), ("ftp://x", "begins with http"), ("${NONE:-}", "url: is blank")],
)
def test_a_mistake_in_an_address_is_refused(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        server({"url": url}).with_variables({}, NO_KEYS)


def test_found_servers_get_none_of_the_users_keys() -> None:
    entry, environ, keys = {"url": "http://x", "headers": {"A": "${KEY}"}}, {"KEY": "k"}, frozenset({"KEY"})
    with pytest.raises(ConfigError, match="asks for KEY"):
        server(entry, is_found=True).with_variables(environ, keys)
    assert server(entry).with_variables(environ, keys) == Address("http://x", {"A": "k"})


def test_a_workspaces_file_is_read(tmp_path: Path) -> None:
    text = '{\n\t"mcpServers": {\n\t\t"a": {"command": "x", "disabled": true},\n\t\t"b c": {"command": "y"}\n\t}\n}'
    (tmp_path / FILE).write_text(text)
    servers, (fault,) = find_servers(tmp_path)  # the fault is that of "b c"
    assert [(each.name, each.target, each.is_found) for each in servers] == [("a", "x", True)]
    assert f"{FILE}:4: b c cannot be a server" in fault
    for empty in ("{}", '{"mcpServers": {}}'):
        (tmp_path / FILE).write_text(empty)
        assert find_servers(tmp_path) == ((), ())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *((no_object, "") for no_object in ("", "{", "[]", '"x"', "null", "mcpServers: {a: {command: x}}", "[" * 5000)),
        ('{"servers": {}}', "needs a key mcpServers"),
        *((f'{{"mcpServers": {value}}}', "mcpServers: expected a mapping") for value in ("5", "[]", "null")),
        (f'{{"mcpServers": {{}}, "n": {"1" * 5_000}}}', "a number may have at most 40 characters"),
        (None, "cannot be read: it is a folder, a device, a pipe or a socket"),  # None: a folder instead of a file
    ],
)
def test_an_unusable_file_gives_one_sentence(tmp_path: Path, text: str | None, why: str) -> None:
    file = tmp_path / FILE
    if text is None:
        file.mkdir()
    else:
        file.write_text(text)
    servers, (fault,) = find_servers(tmp_path)
    assert servers == ()
    assert fault.startswith(str(file))
    assert why in fault


@pytest.mark.parametrize("is_found", [False, True])
def test_an_entry_may_set_its_time_limits(is_found: bool) -> None:
    entry = server({**RUN, "start_s": 60, "timeout_s": 0.5}, is_found=is_found)
    assert (entry.start_s, entry.timeout_s) == (60, 0.5)


def test_a_digest_covers_entry_name_and_workspace(tmp_path: Path) -> None:
    unequal_digests = {
        server(RUN).digest(tmp_path),
        server(RUN).digest(tmp_path / "other"),
        server(RUN, "i").digest(tmp_path),
        server({**RUN, "args": ["a"]}).digest(tmp_path),
        server({**RUN, "env": {"A": "b"}}).digest(tmp_path),
    }
    assert len(unequal_digests) == 5
