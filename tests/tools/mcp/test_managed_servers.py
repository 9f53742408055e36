"""Running servers: their tools and calls, their restarts, and the end of those that misbehave.

The names of tools and of acts, such as ``late`` and ``slow-list``, are those of ``support/hostile_server.py``.
"""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import trio
from support.contexts import tool_context
from support.processes import wait_until
from support.servers import (
    RunningServers,
    entry_of,
    hostile_server,
    live_daemons,
    log_rows,
    remove_time_limits,
    run_servers,
    server,
    until_logged,
)

from chain.config.extras import MCP, install_command
from chain.config.servers import ToolServer, find_servers
from chain.errors import ToolError
from chain.tools.mcp import connection, tools, traffic
from chain.tools.mcp import servers as mcp_servers
from chain.tools.tool import Asking

_no_time_limits = pytest.fixture(autouse=True)(remove_time_limits)


@pytest.fixture
def _exits_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait for a server's exit code without a time limit, instead of killing the server."""
    monkeypatch.setattr(connection, "ENDING_S", math.inf)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


@pytest.fixture
async def servers(log: Path) -> AsyncIterator[RunningServers]:
    """Run the server ``h`` until it is ready."""
    async with run_servers(log.parent, hostile_server(log)) as servers:
        await servers.tools()
        yield servers


# --------------------------------------------------------------------------------------------------------------- calls


async def test_server_is_ready_after_its_handshake(log: Path, servers: RunningServers) -> None:
    (view,) = servers.manager.views
    assert (view.state, view.error, view.prompts) == ("ready", "", (("greet", "A greeting."),))
    handshake = ["initialize", "notifications/initialized", "tools/list"]
    assert log_rows(log)[: len(handshake)] == handshake


@pytest.mark.parametrize(("text", "result"), [("hello", "hello"), ("a\ud83d", "a?")])
async def test_call_returns_the_text_of_its_result(servers: RunningServers, text: str, result: str) -> None:
    assert await servers.call("h__echo", text=text) == result


@pytest.mark.parametrize(
    ("tool", "error"), [("fail", "It failed."), ("unknown", "no tool unknown"), ("wrong", "not a valid result")]
)
async def test_failed_call_raises_tool_error(servers: RunningServers, tool: str, error: str) -> None:
    with pytest.raises(ToolError, match=error):
        await servers.call(f"h__{tool}")


async def test_content_of_each_kind_becomes_text(servers: RunningServers) -> None:
    assert (await servers.call("h__everything")).split("\n\n") == [
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


async def test_progress_is_reported_and_extends_the_call(log: Path, servers: RunningServers) -> None:
    reports, extensions = list[str](), list[None]()
    context = tool_context(log.parent, report=reports.append, extend=lambda: extensions.append(None))
    assert (await servers.manager.by_name["h"].call("steps", context, {})).text == "All steps."
    assert reports[0] == "step 1"  # later steps may come within the same moment, and are not reported
    assert len(extensions) == 3, "one for each step"


@pytest.mark.parametrize("tool", ["hang", "late"])
async def test_cancelled_call_is_cancelled_at_the_server(log: Path, servers: RunningServers, tool: str) -> None:
    async with trio.open_nursery() as nursery:
        nursery.start_soon(servers.call, f"h__{tool}")
        await until_logged(log, "tools/call")
        nursery.cancel_scope.cancel()
    await until_logged(log, "notifications/cancelled")
    assert await servers.call("h__echo", text="on") == "on"  # not the result that "late" sends now


async def test_question_of_a_server_ends_with_its_call(log: Path, servers: RunningServers) -> None:
    question_opened, question_withdrawn = trio.Event(), trio.Event()

    class User(Asking):
        async def choose(self, question: str, options: Sequence[str]) -> str:
            question_opened.set()
            try:
                await trio.sleep_forever()
            finally:
                question_withdrawn.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(servers.manager.by_name["h"].call, "ask", tool_context(log.parent, asking=User()), {})
        await question_opened.wait()
        nursery.cancel_scope.cancel()
    await question_withdrawn.wait()


@pytest.mark.slow
@pytest.mark.usefixtures("_exits_by_itself")
async def test_noise_between_messages_is_ignored(log: Path) -> None:
    async with run_servers(log.parent, hostile_server(log, "not-json")) as servers:
        await servers.tools()
        assert await servers.call("h__rows") == "After noise."
        assert len(await servers.call("h__rows", text="large")) == 7_000_000
        with pytest.raises(ToolError, match=r": it ended with exit code 7$"):
            await servers.call("h__die")


# --------------------------------------------------------------------------------------------------------------- lists


async def test_tools_and_prompts_are_bounded(log: Path) -> None:
    async with run_servers(log.parent, hostile_server(log, "many")) as servers:
        assert len(await servers.tools()) == 200
        (view,), (notice,) = servers.manager.views, servers.notices
    assert "more than 200" in notice
    assert len(view.prompts) == 200
    assert max(len(description) for _, description in view.prompts) == tools.MAX_SERVER_TEXT


@pytest.mark.parametrize("prompt", ["greet", "p1"], ids=["error of the server", "invalid list of arguments"])
async def test_failed_prompt_has_a_short_notice(log: Path, prompt: str) -> None:
    async with run_servers(log.parent, hostile_server(log, "many")) as servers:
        await servers.tools()
        servers.notices.clear()
        servers.manager.request_prompt("h", prompt, ["Ada"], print)
        await wait_until(lambda: servers.notices)
        (notice,) = servers.notices
        assert notice.startswith("h: no no no")
        assert len(notice) <= len("h: ") + 300


@pytest.fixture
async def trusted_and_other(log: Path) -> AsyncIterator[RunningServers]:
    """Run the server ``h``, whose hints are trusted, and the server ``i`` with the same tools."""
    other = hostile_server(log.with_name("other"), name="i")
    async with run_servers(log.parent, hostile_server(log, trust_hints=True), other) as servers:
        await servers.tools()
        yield servers


async def test_servers_with_the_same_tools_are_separate(log: Path, trusted_and_other: RunningServers) -> None:
    assert {"h__echo", "i__echo"} <= {*await trusted_and_other.tools()}
    assert await trusted_and_other.call("i__echo", text="x") == "x"
    assert "tools/call" in log_rows(log.with_name("other"))
    assert "tools/call" not in log_rows(log)


async def test_hints_count_only_for_a_trusted_server(trusted_and_other: RunningServers) -> None:
    offered = {tool.name: tool for tool in (await trusted_and_other.manager.offer()).tools}
    assert offered["mcp__h__look"].read_only
    assert not offered["mcp__h__look"].needs_approval
    assert offered["mcp__h__echo"].needs_approval, "it has no hint"
    assert offered["mcp__i__look"].needs_approval


@pytest.mark.slow
async def test_late_list_loses_no_change(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_servers, "LIST_S", 0.1)
    async with run_servers(log.parent, hostile_server(log, "slow-list")) as servers:
        await servers.tools()
        await servers.call("h__change")
        await wait_until(lambda: servers.manager.by_name["h"]._change_count)
        assert "h__new" not in await servers.tools()
        monkeypatch.setattr(mcp_servers, "LIST_S", math.inf)
        assert "h__new" in await servers.tools()


# -------------------------------------------------------------------------------------------------------------- starts

PRINT_FOLDER = {"command": "sh", "args": ["-c", "pwd >&2"]}
"""A server that reports its working directory, and ends."""


async def error_of_start(workspace: Path, configured: ToolServer) -> str:
    async with run_servers(workspace, configured) as servers:
        await servers.manager.wait_settled()
        (view,) = servers.manager.views
        return view.error


@pytest.mark.usefixtures("_exits_by_itself")
@pytest.mark.parametrize(
    ("entry", "folder"),
    [
        pytest.param(PRINT_FOLDER, "/servers", id="default"),
        pytest.param({**PRINT_FOLDER, "cwd": "{workspace}/docs"}, "/docs", id="configured folder"),
        pytest.param({"command": "sh", "args": ["docs/run.sh"]}, "", id="relative path of a script"),
        pytest.param(
            {"command": "sh", "args": ["-c", "pwd >&2", "run", "{workspace}/docs/run.sh"]},
            "/servers",
            id="absolute path of a script, and a word that is also a file",
        ),
    ],
)
async def test_folder_in_which_a_server_starts(tmp_path: Path, entry: dict[str, Any], folder: str) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/run.sh").write_text("pwd >&2")
    (tmp_path / "run").write_text("pwd >&2")
    configured = server(json.loads(json.dumps(entry).replace("{workspace}", str(tmp_path))))
    assert await error_of_start(tmp_path, configured) == f"it ended with exit code 0 ({tmp_path}{folder})"


async def test_folder_of_servers_is_private(log: Path, servers: RunningServers) -> None:
    assert log.with_name("servers").stat().st_mode & 0o777 == 0o700


@pytest.mark.usefixtures("_exits_by_itself")
async def test_server_of_a_workspace_starts_in_it(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": {"found": {**PRINT_FOLDER, "cwd": "docs"}}}))
    (found,), _ = find_servers(tmp_path)
    assert await error_of_start(tmp_path, found) == f"it ended with exit code 0 ({tmp_path})"


async def test_missing_program_is_an_error(tmp_path: Path) -> None:
    assert "cannot be started" in await error_of_start(tmp_path, server({"command": "/no/such/program"}))


async def test_root_is_the_workspace(log: Path) -> None:
    workspace = log.parent / "a\udcff"
    workspace.mkdir()
    async with run_servers(workspace, hostile_server(log, "roots")):
        await until_logged(log, json.dumps({"roots": [{"uri": workspace.as_uri(), "name": "a?"}]}))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "cause"),
    [
        ("die-first", r"exit code 3 \(cannot read the settings\)"),
        ("silent", "did not answer within"),
        ("flood", "messages in a second"),
        ("one-row", "more than 8,388,608 bytes"),
    ],
)
async def test_failed_start_has_one_notice(log: Path, act: str, cause: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic, "MAX_MESSAGES_PER_S", 100)
    monkeypatch.setattr(connection, "START_S", 0)  # each entry has its own limit
    monkeypatch.setattr(connection, "ENDING_S", math.inf if act == "die-first" else 0.1)
    bad = server({**entry_of(log, act), "start_s": 0.5 if act == "silent" else 1_000})
    good = server({**entry_of(log.with_name("i")), "start_s": 1_000}, "i")
    async with run_servers(log.parent, bad, good) as servers:
        await servers.manager.wait_settled()
        for _ in range(2):
            assert "i__echo" in await servers.tools()
        (notice,) = servers.notices
        assert notice.startswith("The server h is not running: ")
        assert re.search(cause, notice)
        assert servers.manager.views[0].error


async def test_missing_client_has_a_notice(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("connection", "streams", "traffic"):
        monkeypatch.delitem(sys.modules, f"chain.tools.mcp.{module}")
    monkeypatch.setitem(sys.modules, "mcp.client.session", None)
    async with run_servers(log.parent, *(hostile_server(log, name=name) for name in "abcdef")) as servers:
        assert await servers.tools() == []
        assert len(servers.notices) == 6
        hint = f"servers need the extra mcp: {install_command(MCP)}"
        assert all(notice.endswith(hint) for notice in servers.notices)


@pytest.mark.slow
async def test_failure_of_the_client_ends_one_server(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    initialize = connection.ClientSession.initialize

    async def fail_once(session: connection.ClientSession) -> object:
        monkeypatch.setattr(connection.ClientSession, "initialize", initialize)
        raise KeyError

    monkeypatch.setattr(connection.ClientSession, "initialize", fail_once)
    async with run_servers(log.parent, hostile_server(log), hostile_server(log.with_name("i"), name="i")) as servers:
        assert len({name.partition("__")[0] for name in await servers.tools()}) == 1
        assert servers.notices[0].endswith(" is not running: its messages could not be understood (KeyError)")


@pytest.mark.slow
async def test_late_server_is_reported_once(log: Path) -> None:
    async with run_servers(log.parent, server({**entry_of(log, "silent"), "start_s": 0.2})) as servers:
        with trio.move_on_after(0.01) as limit:
            await servers.tools()
        assert limit.cancelled_caught
        assert servers.notices == []
        for _ in range(3):
            await servers.tools()
        assert servers.notices == [
            "The server h did not start within 0.2 s; once it has started, new runs have its tools."
        ]


async def test_entry_sets_time_limits(log: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "START_S", 0)
    monkeypatch.setattr(mcp_servers, "FIRST_S", 0)
    async with run_servers(log.parent, server({**entry_of(log), "start_s": 1_000, "timeout_s": 7})) as servers:
        offer = await servers.manager.offer()
        assert servers.manager.tool(offer.tools[0]).timeout_s == 7


@pytest.mark.slow
async def test_failed_server_is_restarted_when_a_run_starts(log: Path) -> None:
    program = log.with_name("program")
    program.write_text("#!/bin/sh\nexit 3\n")
    program.chmod(0o755)
    async with run_servers(log.parent, server({"command": str(program), "args": entry_of(log)["args"]})) as servers:
        for _ in range(6):
            assert await servers.tools() == []
            await servers.manager.wait_settled()
        assert len(servers.manager.by_name["h"]._starts) == 3, "at most three starts in a minute"
        program.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        servers.manager.by_name["h"]._starts.clear()
        await servers.tools()
        await servers.manager.wait_settled()
        assert "h__echo" in await servers.tools()
        assert len(servers.notices) == 1


# ---------------------------------------------------------------------------------------------------------------- ends


@pytest.mark.usefixtures("_exits_by_itself")
async def test_dead_server_is_restarted_at_its_next_call(servers: RunningServers) -> None:
    with pytest.raises(ToolError, match=r"ended during the call.*exit code 7"):
        await servers.call("h__die")
    (view,) = servers.manager.views
    assert view.state == "ended"
    assert "exit code 7" in view.error
    assert await servers.call("h__echo", text="again") == "again"


@pytest.mark.slow
async def test_restarts_are_limited_to_three_a_minute(
    log: Path, servers: RunningServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        with pytest.raises(ToolError, match="ended during the call"):
            await servers.call("h__die")
    with pytest.raises(ToolError, match="3 starts in a minute"):
        await servers.call("h__echo", text="x")
    assert log_rows(log).count("initialize") == 4, "the first start and three restarts"
    monkeypatch.setattr(mcp_servers, "PER_S", 0.0)
    assert await servers.call("h__echo", text="x") == "x"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("act", "earlier_calls", "call", "error"),
    [
        pytest.param("", [], "gush", "it sent ", id="many messages"),
        pytest.param("", [], "huge", "it sent ", id="endless message"),
        pytest.param("mute", [], "empty", "ended during the call.*: it closed its output", id="closed output"),
        pytest.param("deaf", ["empty"], "echo", "ended during the call.*: it closed its input", id="closed input"),
    ],
)
async def test_misbehaving_server_is_ended_in_a_call(
    log: Path, act: str, earlier_calls: list[str], call: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(traffic, "MAX_MESSAGES_PER_S", 100)
    async with run_servers(log.parent, hostile_server(log, act)) as servers:
        await servers.tools()
        for earlier_call in earlier_calls:
            await servers.call(f"h__{earlier_call}")
        with pytest.raises(ToolError, match=error):
            await servers.call(f"h__{call}", text="x")
        assert await servers.call("h__echo", text="on") == "on"


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("acts", [["spawn-first", "hang-at-end"], ["spawn-first"], ["hang-at-end"]], ids=" ".join)
async def test_no_process_outlives_its_server(log: Path, acts: list[str]) -> None:
    async with run_servers(log.parent, hostile_server(log, *acts)) as servers:
        await servers.tools()
        await servers.call("h__spawn")
        assert live_daemons(log)
    assert live_daemons(log) == []
