"""The sandbox that the settings and the machine allow, and the environment of a command."""

from __future__ import annotations

from typing import Any

import pytest

from chain.tools.processes.probe import Protections
from chain.tools.processes.sandbox import Sandbox, ShellRules

ALL = Protections(*(True for _ in Protections._fields))
FENCED = ("writes", "network", "signals", "devices")
ONLINE = ("writes", "unix_sockets", "signals", "devices")


def only(*names: str) -> Protections:
    return Protections(**dict.fromkeys(names, True))


@pytest.mark.parametrize(
    ("sandbox", "network", "found", "active", "missing", "escalations"),
    [
        ("auto", False, ALL, FENCED, (), ("network", "outside")),
        ("auto", True, ALL, ONLINE, (), ("outside",)),
        ("auto", False, only(), (), (), ()),
        ("auto", False, only("writes", "network"), ("writes", "network"), (), ("network", "outside")),
        ("auto", False, only("writes", "signals", "devices"), ("writes", "signals", "devices"), (), ("outside",)),
        ("strict", False, ALL, FENCED, (), ("network", "outside")),
        ("strict", False, only(*FENCED), FENCED, (), ("outside",)),
        ("strict", True, only(*ONLINE), ONLINE, (), ("outside",)),
        ("strict", False, only(*FENCED[:3]), FENCED[:3], ("devices",), ("outside",)),
        ("strict", True, only("network"), (), ONLINE, ()),
        ("off", False, ALL, (), (), ()),
        ("off", True, only(), (), (), ()),
    ],
)
def test_protections_follow_settings_and_machine(
    sandbox: Any,
    network: bool,
    found: Protections,
    active: tuple[str, ...],
    missing: tuple[str, ...],
    escalations: tuple[str, ...],
) -> None:
    box = Sandbox(ShellRules(sandbox, network), found)
    assert box.active_protections == active
    assert box.escalations == escalations
    assert len(box.gap_sentences) == (4 if "network" in active else 5) - len(active)
    assert bool(box.missing_reason) == bool(missing)
    assert all((f"({name})" in box.missing_reason) == (name in missing) for name in (*FENCED, *ONLINE))


SIGNS = {
    "curl: (6) Could not resolve host: example.org": "network",
    "urllib.error.URLError: <urlopen error [Errno -3] Temporary failure in name resolution>": "network",
    "Error: getaddrinfo EAI_AGAIN example.org": "network",
    "Could not connect to Redis at 127.0.0.1:6379: Permission denied": "network",
    "    _socket.socket.__init__(self, family)\nPermissionError: [Errno 13] Permission denied": "network",
    "dial unix /var/run/docker.sock: socket: permission denied": "network",
    "java.net.UnknownHostException: example.org": "network",
    "cat: /dev/tty: Permission denied": "devices",
    "PermissionError: [Errno 13] Permission denied: '/dev/tty'": "devices",
    "bash: line 1: kill: (1) - Operation not permitted": "signals",
    "touch: cannot touch '/x': Permission denied": "writes",
    "Error: EACCES: permission denied, open '/x'": "writes",
    "error: could not lock config file /root/.gitconfig: Permission denied": "writes",
    "mv: cannot move 'a' to '/x': Operation not permitted": "writes",
    "ls: cannot access 'x': No such file or directory": "",
    "1 failed, 3 passed": "",
    "": "",
}


@pytest.mark.parametrize(("output", "name"), SIGNS.items())
def test_a_refusal_is_recognized_in_the_output(output: str, name: str) -> None:
    box = Sandbox(ShellRules(), ALL)
    key = "w" if name == "network" else "o"
    assert box.refusal("make", output) == (f"[sandbox: {name} denied; see chain help sandbox]" if name else "")
    assert box.refusal("make", output, can_approve=True) == (
        f"[sandbox: {name} denied; approve with {key}]" if name else ""
    )
    assert box.escalated("outside").refusal("make", output) == ""
    assert Sandbox(ShellRules(), only()).refusal("make", output) == ""
    online = Sandbox(ShellRules(network=True), ALL._replace(writes=False)).refusal("make", output)
    assert ("network" in online, "unix_sockets" in online) == (False, "docker.sock" in output)


def test_silence_after_an_address_names_the_network() -> None:
    assert "network denied" in Sandbox(ShellRules(), ALL).refusal("curl -s https://example.org", "\n")


def test_commands_get_no_secrets_and_no_chain_variables() -> None:
    kept = {"HOME": "/home/me", "KEYMAP": "1", "OTHER": "2"}
    secret = {"ANTHROPIC_API_KEY": "3", "my_token": "4", "MY_PLACE": "5", "DATABASE_URL": "postgres://me:6@host/db"}
    named = {"GITHUB_TOKEN": "7", "NPM": "8", "OTHER_URL": "postgres://me:9@host/db"}
    own = {"CHAIN_TRACE": "10", "CHAIN_KEY": "11", "chain_door": "12"}
    rules = ShellRules(env=frozenset({*named, "CHAIN_KEY"}), secrets=frozenset({"MY_PLACE", "NPM"}))
    assert rules.environment({**kept, **secret, **named, **own}) == {**kept, **named}
