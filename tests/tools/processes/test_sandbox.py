"""The sandbox that the settings and the machine allow, and the environment of a command."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from chain.tools.processes.probe import Protections
from chain.tools.processes.sandbox import Sandbox, ShellRules

OFFLINE = ("writes", "network", "signals", "devices")
"""The protections that are active without access to the network."""
ONLINE = ("writes", "unix_sockets", "signals", "devices")
"""The protections that are active with access to the network."""
ALL = Protections(*(True for _ in Protections._fields))


def only(*names: str) -> Protections:
    return Protections(**dict.fromkeys(names, True))


class Case(NamedTuple):
    """Settings and a machine, and what follows from them."""

    rules: ShellRules
    machine: Protections
    active: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    escalations: tuple[str, ...] = ()


THREE = ("writes", "network", "signals")
AUTO, STRICT, OFF = ShellRules("auto"), ShellRules("strict"), ShellRules("off")
ONLINE_AUTO, ONLINE_STRICT = ShellRules("auto", network=True), ShellRules("strict", network=True)
CASES = {
    "auto": Case(AUTO, ALL, OFFLINE, escalations=("network", "outside")),
    "auto with network": Case(ONLINE_AUTO, ALL, ONLINE, escalations=("outside",)),
    "auto without protections": Case(AUTO, only()),
    "auto with two": Case(AUTO, only("writes", "network"), ("writes", "network"), escalations=("network", "outside")),
    "auto without network protection": Case(AUTO, only("writes"), ("writes",), escalations=("outside",)),
    "strict": Case(STRICT, ALL, OFFLINE, escalations=("network", "outside")),
    "strict, network not to be approved": Case(STRICT, only(*OFFLINE), OFFLINE, escalations=("outside",)),
    "strict with network": Case(ONLINE_STRICT, only(*ONLINE), ONLINE, escalations=("outside",)),
    "strict without one": Case(STRICT, only(*THREE), THREE, missing=("devices",), escalations=("outside",)),
    "strict without all": Case(ONLINE_STRICT, only("network"), missing=ONLINE),
    "off": Case(OFF, ALL),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_protections_follow_settings_and_machine(case: Case) -> None:
    sandbox = Sandbox(case.rules, case.machine)
    assert sandbox.active_protections == case.active
    assert sandbox.escalations == case.escalations
    # The protection of the network includes that of Unix sockets.
    needed = {*OFFLINE, *ONLINE} - ({"unix_sockets"} if "network" in case.active else set())
    assert len(sandbox.gap_sentences) == len(needed - {*case.active})
    assert {name for name in needed if f"({name})" in sandbox.missing_reason} == {*case.missing}
    assert bool(sandbox.missing_reason) == bool(case.missing)


PROTECTION_BY_OUTPUT = {
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
}
OTHER_OUTPUTS = ["ls: cannot access 'x': No such file or directory", "1 failed, 3 passed", ""]


@pytest.mark.parametrize(("output", "protection"), PROTECTION_BY_OUTPUT.items(), ids=PROTECTION_BY_OUTPUT)
def test_refusal_is_recognized_in_the_output(output: str, protection: str) -> None:
    sandbox = Sandbox(AUTO, ALL)
    key = "w" if protection == "network" else "o"  # with network, or outside the sandbox
    assert sandbox.refusal("make", output) == f"[sandbox: {protection} denied; see chain help sandbox]"
    approvable = sandbox.refusal("make", output, can_approve=True)
    assert approvable == f"[sandbox: {protection} denied; approve with {key}]"


@pytest.mark.parametrize("output", OTHER_OUTPUTS)
def test_other_failures_are_no_refusals(output: str) -> None:
    assert Sandbox(AUTO, ALL).refusal("make", output) == ""
    assert Sandbox(AUTO, ALL).refusal("make", output, can_approve=True) == ""


@pytest.mark.parametrize("output", [*PROTECTION_BY_OUTPUT, *OTHER_OUTPUTS])
def test_inactive_protection_is_not_named(output: str) -> None:
    assert Sandbox(AUTO, ALL).escalated("outside").refusal("make", output) == ""
    assert Sandbox(AUTO, only()).refusal("make", output) == ""
    online = Sandbox(ONLINE_AUTO, ALL._replace(writes=False)).refusal("make", output)
    assert "network" not in online
    assert ("unix_sockets" in online) == ("docker.sock" in output)


def test_silence_after_an_address_names_the_network() -> None:
    assert "network denied" in Sandbox(AUTO, ALL).refusal("curl -s https://example.org", "\n")


def test_commands_get_no_secrets_and_no_chain_variables() -> None:
    ordinary = {"HOME": "/home/me", "KEYMAP": "1", "OTHER": "2"}
    secret = {"ANTHROPIC_API_KEY": "3", "my_token": "4", "MY_PLACE": "5", "DATABASE_URL": "postgres://me:6@host/db"}
    allowed = {"GITHUB_TOKEN": "7", "NPM": "8", "OTHER_URL": "postgres://me:9@host/db"}  # secrets, but in rules.env
    own = {"CHAIN_TRACE": "10", "CHAIN_KEY": "11", "chain_door": "12"}
    rules = ShellRules(env=frozenset({*allowed, "CHAIN_KEY"}), secrets=frozenset({"MY_PLACE", "NPM"}))
    assert rules.environment({**ordinary, **secret, **allowed, **own}) == {**ordinary, **allowed}
