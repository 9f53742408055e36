"""Entries of servers: what they can be, what is wrong with them, and when variables are read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.servers import server

from chain.config.servers import FILE, Address, Launch, find_servers
from chain.errors import ConfigError

RUN = {"command": "run"}


@pytest.mark.parametrize(
    ("entry", "why"),
    [
        ({}, "either a command"),
        ({"command": "x", "url": "http://x"}, "either a command"),
        ({"type": "http", "command": "x"}, "either a command"),
        ({"type": "sse", "url": "http://x"}, "sse is not supported"),
        ({"type": "socket", "url": "http://x"}, "expected one of"),
        ({"command": " "}, "is blank"),
        ({"command": 5}, "expected text"),
        ({"command": "x", "args": "y"}, "expected a list"),
        ({"command": "x", "args": [["y"]]}, "expected text"),
        ({"command": "x", "env": {"A": ["b"]}}, "expected text"),
        ({"command": "x", "headers": {}}, "cannot be used with command"),
        ({"url": "http://x", "env": {}}, "cannot be used with url"),
        ({"command": "x", "trust_hints": "very"}, "expected true or false"),
        ({"command": "x", "start_s": "long"}, "expected a number"),
        ({"command": "x", "timeout_s": 0}, "at least 0.01"),
        ({"command": "x", "commnad": "y"}, "did you mean"),
        ("x", "expected a mapping"),
    ],
)
def test_an_entry_that_is_none_is_refused_where_it_stands(entry: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as raised:
        server(entry)
    assert str(raised.value).startswith("test.yaml:1: ")


@pytest.mark.parametrize("name", ["", "a b", "a__b", "a.b", "x" * 32, "-a", "a_", "_a", "a\n"])
def test_a_name_has_room_in_that_of_a_tool(name: str) -> None:
    with pytest.raises(ConfigError, match="its name is"):
        server(RUN, name)


def test_variables_are_filled_in_when_it_starts() -> None:
    entry = {"command": "${TOOL}", "args": ["${A:-b}", 5], "env": {"KEY": "${SECRET}"}}
    made = server(entry)
    assert made.written == "'${TOOL}' '${A:-b}' 5"
    assert made.with_variables({"TOOL": "t", "SECRET": "s"}, frozenset()) == Launch(("t", "b", "5"), {"KEY": "s"})
    with pytest.raises(ConfigError, match="SECRET is not set"):
        made.with_variables({"TOOL": "t"}, frozenset())


def test_an_address_has_headers_and_no_password() -> None:
    made = server({"type": "http", "url": "https://x/${A}", "headers": {"Authorization": "Bearer ${T}"}})
    assert made.with_variables({"A": "a", "T": "t"}, frozenset()) == Address(
        "https://x/a", {"Authorization": "Bearer t"}
    )
    with pytest.raises(ConfigError, match="put them in a header"):
        server({"url": "https://me:word@x/"}).with_variables({}, frozenset())
    with pytest.raises(ConfigError, match="begins with http"):
        server({"url": "ftp://x"}).with_variables({}, frozenset())
    with pytest.raises(ConfigError, match="url: is blank"):
        server({"url": "${NONE:-}"}).with_variables({}, frozenset())


def test_a_key_of_ours_is_not_given_to_a_found_server() -> None:
    entry, environ, keys = {"url": "http://x", "headers": {"A": "${KEY}"}}, {"KEY": "k"}, frozenset({"KEY"})
    with pytest.raises(ConfigError, match="asks for KEY"):
        server(entry, is_found=True).with_variables(environ, keys)
    assert server(entry).with_variables(environ, keys) == Address("http://x", {"A": "k"})


def test_what_it_is_shown_and_filled_with_is_no_part_of_its_repr() -> None:
    made = server({"url": "http://x", "headers": {"A": "word"}})
    assert "word" not in repr(made) + repr(made.with_variables({}, frozenset()))


def test_the_file_of_a_workspace_is_read_as_others_write_it(tmp_path: Path) -> None:
    text = '{\n\t"mcpServers": {\n\t\t"a": {"command": "x", "disabled": true},\n\t\t"b c": {"command": "y"}\n\t}\n}'
    (tmp_path / FILE).write_text(text)
    servers, faults = find_servers(tmp_path)
    assert [(each.name, each.written, each.is_found) for each in servers] == [("a", "x", True)]
    assert len(faults) == 1
    assert f"{FILE}:4: b c cannot be a server" in faults[0]


@pytest.mark.parametrize("text", ["", "{", "[]", '"x"', "null", "mcpServers: {a: {command: x}}", "[" * 5000])
def test_a_file_that_is_no_json_object_is_told(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    servers, faults = find_servers(tmp_path)
    assert servers == ()
    assert [fault.startswith(str(tmp_path / FILE)) for fault in faults] == [True]


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ({"servers": {}}, "needs a key mcpServers"),
        *(({"mcpServers": value}, "mcpServers: expected a mapping") for value in (5, [], None)),
    ],
)
def test_a_file_without_servers_is_told(tmp_path: Path, value: object, why: str) -> None:
    (tmp_path / FILE).write_text(json.dumps(value))
    servers, faults = find_servers(tmp_path)
    assert servers == ()
    assert why in faults[0]


def test_a_folder_of_that_name_is_told(tmp_path: Path) -> None:
    (tmp_path / FILE).mkdir()
    assert find_servers(tmp_path) == (
        (),
        (f"{tmp_path / FILE}: cannot be read: it is a folder, a device, a pipe or a socket",),
    )


def test_a_number_of_thousands_of_digits_is_told(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(f'{{"mcpServers": {{}}, "n": {"1" * 5_000}}}')
    servers, faults = find_servers(tmp_path)
    assert servers == ()
    assert "a number may have at most 40 characters" in faults[0]


@pytest.mark.parametrize("text", ["{}", '{"mcpServers": {}}'])
def test_a_file_may_name_no_server(tmp_path: Path, text: str) -> None:
    (tmp_path / FILE).write_text(text)
    assert find_servers(tmp_path) == ((), ())


@pytest.mark.parametrize("is_found", [False, True])
def test_the_times_of_a_server_are_in_its_entry(is_found: bool) -> None:
    made = server({**RUN, "start_s": 60, "timeout_s": 0.5}, is_found=is_found)
    assert (made.start_s, made.timeout_s) == (60, 0.5)


def test_a_digest_changes_with_the_entry_its_name_and_the_workspace(tmp_path: Path) -> None:
    digests = {
        server(RUN).digest(tmp_path),
        server(RUN).digest(tmp_path / "other"),
        server(RUN, "i").digest(tmp_path),
        server({**RUN, "args": ["a"]}).digest(tmp_path),
        server({**RUN, "env": {"A": "b"}}).digest(tmp_path),
    }
    assert len(digests) == 5
    assert json.dumps(sorted(digests))
