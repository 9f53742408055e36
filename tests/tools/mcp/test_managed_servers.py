"""Running servers: their tools and calls, their restarts, and the end of those that misbehave."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
import trio
from support.processes import until_async
from support.servers import (
    Running,
    entry_of,
    heard,
    hostile,
    left_by,
    running,
    server,
    until_heard,
    without_time_limits,
)
from support.steered import tool_context

from chain.config.extras import MCP, install_command
from chain.config.servers import find_servers
from chain.errors import ToolError
from chain.tools.mcp import connection, tools, traffic
from chain.tools.mcp import servers as life
from chain.tools.tool import Asking

_patient = pytest.fixture(autouse=True)(without_time_limits)


@pytest.fixture
def _ends_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a server's exit code without a time limit."""
    monkeypatch.setattr(connection, "ENDING_S", math.inf)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
async def made(log: Path) -> AsyncIterator[Running]:
    """A server ``h`` that is ready."""
    async with running(log.parent, hostile(log)) as made:
        await made.tools()
        yield made


# --------------------------------------------------------------------------------------------------------------- calls


async def test_tool_is_listed_and_called(log: Path, made: Running) -> None:
    assert "h__echo" in await made.tools()
    assert await made.call("h__echo", text="hello") == "hello"
    assert await made.call("h__echo", text="a\ud83d") == "a?"
    view = made.servers.views[0]
    assert (view.state, view.error, view.prompts) == ("ready", "", (("greet", "A greeting."),))
    assert heard(log)[:3] == ["initialize", "notifications/initialized", "tools/list"]
    for tool, why in {"fail": "It failed.", "nothing": "no tool nothing", "wrong": "not a valid result"}.items():
        with pytest.raises(ToolError, match=why):
            await made.call(f"h__{tool}")
    assert (await made.call("h__everything")).split("\n\n") == [
        "A text.",
        "[audio audio/wav, 4 bytes: left out]",
        "[image image/png, which is not base64: left out]",
        "[Resource x: file:///x]",
        "[Resource file:///y]\nOf a resource.",
        "[Resource file:///z]\n[image 1: image/png, 70 bytes]",
        "[Content of the unknown kind hologram]",
        "[Invalid content]",
        '{\n  "a": 1\n}',
    ]


async def test_progress_is_reported_and_extends_the_call(log: Path, made: Running) -> None:
    said, extended = list[str](), list[None]()
    steps = tool_context(log.parent, report=said.append, extend=lambda: extended.append(None))
    assert (await made.servers.by_name["h"].call("steps", steps, {})).text == "All steps."
    assert said[0] == "step 1"
    assert len(extended) == 3


async def test_cancelled_call_is_cancelled_at_the_server(log: Path, made: Running) -> None:
    for n, tool in enumerate(("hang", "late"), 1):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(made.call, f"h__{tool}")
            await until_heard(log, "tools/call", n)
            nursery.cancel_scope.cancel()
        await until_heard(log, "notifications/cancelled", n)
    assert await made.call("h__echo", text="on") == "on"  # not the late answer


async def test_question_of_a_server_ends_with_its_call(log: Path, made: Running) -> None:
    asked, withdrawn = trio.Event(), trio.Event()

    class User(Asking):
        async def choose(self, question: str, options: Sequence[str]) -> str:
            asked.set()
            try:
                await trio.sleep_forever()
            finally:
                withdrawn.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(made.servers.by_name["h"].call, "ask", tool_context(log.parent, asking=User()), {})
        await asked.wait()
        nursery.cancel_scope.cancel()
    await withdrawn.wait()


@pytest.mark.slow
@pytest.mark.usefixtures("_ends_by_itself")
async def test_noise_between_messages_is_ignored(log: Path) -> None:
    async with running(log.parent, hostile(log, "not-json")) as made:
        await made.tools()
        assert await made.call("h__rows") == "After noise."
        assert len(await made.call("h__rows", text="large")) == 7_000_000
        with pytest.raises(ToolError, match=r": it ended with exit code 7$"):
            await made.call("h__die")


# --------------------------------------------------------------------------------------------------------------- lists


async def test_tools_and_prompts_are_bounded(log: Path) -> None:
    async with running(log.parent, hostile(log, "many")) as made:
        assert len(await made.tools()) == 200
        assert "more than 200" in made.notices[0]
        prompts = made.servers.views[0].prompts
        assert len(prompts) == 200
        assert max(len(about) for _, about in prompts) == tools.MAX_SERVER_TEXT
        made.servers.request_prompt("h", "greet", ["Ada"], print)
        await until_async(lambda: len(made.notices) == 2)
        assert made.notices[1].startswith("h: no no no")
        assert len(made.notices[1]) < 310
        made.servers.request_prompt("h", "p1", ["Ada"], print)  # its arguments are no list
        await until_async(lambda: len(made.notices) == 3)


async def test_servers_with_the_same_tools_are_separate(log: Path) -> None:
    """Hints count only for a trusted server."""
    other = log.with_name("other")
    async with running(log.parent, hostile(log, trust_hints=True), hostile(other, name="i")) as made:
        assert {"h__echo", "i__echo"} <= {*await made.tools()}
        assert await made.call("i__echo", text="x") == "x"
        offered = {tool.name: tool for tool in (await made.servers.offer()).tools}
    assert not offered["mcp__h__look"].needs_approval
    assert offered["mcp__h__look"].read_only
    assert all(offered[name].needs_approval for name in ("mcp__h__echo", "mcp__i__look"))
    assert "tools/call" in heard(other)
    assert "tools/call" not in heard(log)


@pytest.mark.slow
async def test_late_list_loses_no_change(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(life, "LIST_S", 0.1)
    async with running(log.parent, hostile(log, "slow-list")) as made:
        await made.tools()
        await made.call("h__change")
        await until_async(lambda: made.servers.by_name["h"]._changes)
        assert "h__new" not in await made.tools()
        monkeypatch.setattr(life, "LIST_S", math.inf)
        assert "h__new" in await made.tools()


# -------------------------------------------------------------------------------------------------------------- starts


@pytest.mark.usefixtures("_ends_by_itself")
async def test_folder_in_which_a_server_starts(tmp_path: Path) -> None:
    entry = {"command": "sh", "args": ["-c", "pwd >&2"]}
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/run.sh").write_text("pwd >&2")
    (tmp_path / "run").write_text("pwd >&2")
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"found": {**entry, "cwd": "docs"}}}))
    servers = (
        server(entry, "own"),
        server({**entry, "cwd": str(tmp_path / "docs")}, "there"),
        server({"command": "sh", "args": ["docs/run.sh"]}, "script"),
        server({"command": "/no/such/program"}, "missing"),
        server({"command": "sh", "args": ["-c", "pwd >&2", "run", str(tmp_path / "docs/run.sh")]}, "other"),
        *find_servers(tmp_path)[0],
    )
    async with running(tmp_path, *servers) as made:
        await made.servers.wait_settled()
        errors = {view.name: view.error for view in made.servers.views}
    assert "cannot be started" in errors.pop("missing")
    starts = {"own": "/servers", "there": "/docs", "script": "", "other": "/servers", "found": ""}
    assert errors == {name: f"it ended with exit code 0 ({tmp_path}{where})" for name, where in starts.items()}
    assert (tmp_path / "servers").stat().st_mode & 0o777 == 0o700


async def test_root_is_the_workspace(log: Path) -> None:
    workspace = log.parent / "a\udcff"
    workspace.mkdir()
    async with running(workspace, hostile(log, "roots")):
        await until_heard(log, json.dumps({"roots": [{"uri": workspace.as_uri(), "name": "a?"}]}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "why"),
    [
        ("die-first", r"exit code 3 \(cannot read the settings\)"),
        ("silent", "did not answer within"),
        ("flood", "messages in a second"),
        ("one-row", "more than 8,388,608 bytes"),
    ],
)
async def test_failed_start_has_one_notice(log: Path, act: str, why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "MAX_MESSAGES_PER_S", 100)
    monkeypatch.setattr(connection, "START_S", 0)  # each entry has its own limit
    monkeypatch.setattr(connection, "ENDING_S", math.inf if act == "die-first" else 0.1)
    bad = server({**entry_of(log, act), "start_s": 0.5 if act == "silent" else 1_000})
    good = server({**entry_of(log.with_name("i")), "start_s": 1_000}, "i")
    async with running(log.parent, bad, good) as made:
        await made.servers.wait_settled()
        assert "i__echo" in await made.tools()
        assert "i__echo" in await made.tools()
        (notice,) = made.notices
        assert notice.startswith("The server h is not running: ")
        assert made.servers.views[0].error
        assert re.search(why, notice)


async def test_missing_client_has_a_notice(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("connection", "streams", "traffic"):
        monkeypatch.delitem(sys.modules, f"chain.tools.mcp.{module}")
    monkeypatch.setitem(sys.modules, "mcp.client.session", None)
    async with running(log.parent, *(hostile(log, name=name) for name in "abcdef")) as made:
        assert await made.tools() == []
        assert len(made.notices) == 6
        assert all(said.endswith(f"servers need the extra mcp: {install_command(MCP)}") for said in made.notices)


@pytest.mark.slow
async def test_failure_of_the_client_ends_one_server(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    initialize = connection.ClientSession.initialize

    async def fail_once(session: connection.ClientSession) -> object:
        monkeypatch.setattr(connection.ClientSession, "initialize", initialize)
        raise KeyError

    monkeypatch.setattr(connection.ClientSession, "initialize", fail_once)
    async with running(log.parent, hostile(log), hostile(log.with_name("i"), name="i")) as made:
        assert len({name.partition("__")[0] for name in await made.tools()}) == 1
        assert made.notices[0].endswith(" is not running: its messages could not be understood (KeyError)")


@pytest.mark.slow
async def test_late_server_is_reported_once(log: Path) -> None:
    async with running(log.parent, server({**entry_of(log, "silent"), "start_s": 0.2})) as made:
        with trio.move_on_after(0.01) as limit:
            await made.tools()
        assert limit.cancelled_caught
        assert made.notices == []
        for _ in range(3):
            await made.tools()
        assert made.notices == [
            "The server h did not start within 0.2 s; once it has started, new runs have its tools."
        ]


async def test_entry_sets_time_limits(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "START_S", 0)
    monkeypatch.setattr(life, "FIRST_S", 0)
    async with running(log.parent, server({**entry_of(log), "start_s": 1_000, "timeout_s": 7})) as made:
        offered = (await made.servers.offer()).tools
        assert made.servers.tool(offered[0]).timeout_s == 7


@pytest.mark.slow
async def test_failed_server_is_restarted_when_a_run_begins(log: Path) -> None:
    program = log.with_name("program")
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    async with running(log.parent, server({"command": str(program), "args": entry_of(log)["args"]})) as made:
        for _ in range(6):
            assert await made.tools() == []
            await made.servers.wait_settled()
        assert len(made.servers.by_name["h"]._starts) == 3, "at most three starts in a minute"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        made.servers.by_name["h"]._starts.clear()
        await made.tools()
        await made.servers.wait_settled()
        assert "h__echo" in await made.tools()
        assert len(made.notices) == 1


# ---------------------------------------------------------------------------------------------------------------- ends


@pytest.mark.usefixtures("_ends_by_itself")
async def test_dead_server_is_restarted_at_its_next_call(made: Running) -> None:
    with pytest.raises(ToolError, match=r"ended during the call.*exit code 7"):
        await made.call("h__die")
    assert made.servers.views[0].state == "ended"
    assert "exit code 7" in made.servers.views[0].error
    assert await made.call("h__echo", text="again") == "again"


@pytest.mark.slow
async def test_restarts_are_limited_to_three_a_minute(
    log: Path, made: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        with pytest.raises(ToolError, match="ended during the call"):
            await made.call("h__die")
    with pytest.raises(ToolError, match="3 starts in a minute"):
        await made.call("h__echo", text="x")
    assert heard(log).count("initialize") == 4
    monkeypatch.setattr(life, "PER_S", 0.0)
    assert await made.call("h__echo", text="x") == "x"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "calls", "why"),
    [
        ("", ["gush"], "it sent "),
        ("", ["huge"], "it sent "),
        ("mute", ["empty"], "ended during the call.*: it closed its output"),
        ("deaf", ["empty", "echo"], "ended during the call.*: it closed its input"),
    ],
)
async def test_misbehaving_server_is_ended_in_a_call(
    log: Path, act: str, calls: list[str], why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic, "MAX_MESSAGES_PER_S", 100)
    async with running(log.parent, hostile(log, act)) as made:
        await made.tools()
        for call in calls[:-1]:
            await made.call(f"h__{call}")
        with pytest.raises(ToolError, match=why):
            await made.call(f"h__{calls[-1]}", text="x")
        assert await made.call("h__echo", text="on") == "on"


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("acts", [("spawn-first", "hang-at-end"), ("spawn-first",), ("hang-at-end",)])
async def test_no_process_of_a_server_is_left(log: Path, acts: tuple[str, ...]) -> None:
    async with running(log.parent, hostile(log, *acts)) as made:
        await made.tools()
        await made.call("h__spawn")
        assert left_by(log)
    assert left_by(log) == []
