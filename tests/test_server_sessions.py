"""Sessions with MCP servers: questions, interrupts, successive runs, replay, and processes left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trio
from hypothesis import strategies as st
from support import Session, check_invariants, open_session, settings, sharded
from support.crashes import reopened
from support.examples import fewer
from support.processes import until, until_async
from support.program import environ, run_program, start_program
from support.servers import entry_of, live_daemons, hostile_server, log_rows, until_logged, without_time_limits

from chain import events
from chain.app.replay import replay
from chain.journal.reading import Reading
from chain.messages import Text, block_to_request_json
from chain.session.resume import load_journal

_patient = pytest.fixture(autouse=True)(without_time_limits)


def calling(*tools: str) -> str:
    """A model that calls tools of the server one after the other, and then repeats the last result."""
    rules = [
        f"- {{when: {{step: {n}}}, tools: [{{name: mcp__h__{tool}, input: {{text: hello}}}}]}}"
        for n, tool in enumerate(tools, 1)
    ]
    return "\n".join(["rules:", *rules, '- {text: "Result: ${result}"}'])


ALLOWED = settings(allow="mcp__h__*")


@asynccontextmanager
async def serving(log: Path, rules: str, *acts: str, **options: Any) -> AsyncIterator[Session]:
    """A session with a server, in which a run has started."""
    options = {"use": ALLOWED, "servers": [hostile_server(log, *acts)], **options}
    async with open_session(rules, **options) as session:
        session.chain.submit("Go")
        yield session


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def results(session: Session) -> list[str]:
    return [event.text for event in session.of(events.ToolResult)]


async def test_a_call_asks_and_shows_its_arguments(log: Path) -> None:
    async with serving(log, calling("echo", "echo"), use=settings(), interactive=True) as session:
        with session.chain.answering():
            await until_async(lambda: session.chain.questions.open_id == "Q1")
            asked = session.chain.questions.log.latest[-1]
            assert (asked.text, json.loads(asked.preview)) == ("Allow mcp__h__echo?", {"text": "hello"})
            assert "tools/call" not in log_rows(log)
            session.chain.answer("Q1", "a")
            await session.chain.wait_idle()
    assert results(session) == ["hello", "hello"]
    check_invariants(session)


async def test_an_elicitation_is_a_question(log: Path) -> None:
    async with serving(log, calling("ask"), interactive=True) as session:
        with session.chain.answering():
            await until_async(lambda: session.chain.questions.open_id is not None)
            asked = session.chain.questions.log.latest[-1]
            assert asked.kind == "choice"
            assert asked.text.splitlines()[0].startswith("h asks: Which")
            assert "\x1b" not in asked.text
            assert asked.options == ("red", "blue", "decline")
            session.chain.answer(asked.id, "2")
            await session.chain.wait_idle()
    assert results(session) == ['You said {"action": "accept", "content": {"colour": "blue"}}.']


async def test_an_interrupt_withdraws_the_question_of_a_server(log: Path) -> None:
    async with serving(log, calling("ask"), interactive=True) as session:
        with session.chain.answering():
            await until_async(lambda: session.chain.questions.open_id is not None)
            session.chain.interrupt()
            await session.chain.wait_idle()
            assert session.chain.questions.open_id is None
            await until_logged(log, "notifications/cancelled")


async def test_without_a_user_an_elicitation_is_cancelled(log: Path) -> None:
    async with serving(log, calling("ask")) as session:
        await session.chain.wait_idle()
    assert results(session) == ['You said {"action": "cancel"}.']


async def test_an_image_in_a_result_is_sent(log: Path) -> None:
    async with serving(log, calling("picture")) as session:
        await session.chain.wait_idle()
        [result] = session.model.requests[-1].messages[-1].results
    assert [image.media_type for image in result.images] == ["image/png"]
    assert [block["type"] for block in block_to_request_json(result)["content"]] == ["text", "image"]
    again = load_journal(session.file.data.splitlines(keepends=True)).state.main.history.conversation
    assert again.messages[-2].results[0].images == result.images
    check_invariants(session)


async def test_tools_change_only_between_runs(log: Path) -> None:
    async with serving(log, calling("change", "look")) as session:
        await session.chain.wait_idle()
        await session.run("Go on")
        names = [{tool.name for tool in request.tools} for request in session.model.requests]
    has_changed = [("mcp__h__look" in each, "mcp__h__new" in each) for each in names]
    assert has_changed == [(True, False)] * 3 + [(False, True)] * 3


async def test_waiting_for_a_server_can_be_interrupted(log: Path) -> None:
    async with serving(log, calling("echo"), "silent") as session:
        await until_logged(log, "initialize")
        session.chain.interrupt()
        await session.chain.wait_idle()
    assert session.chain.runs.last_status == "interrupted"


@pytest.mark.slow
async def test_an_interrupt_as_servers_settle_starts_nothing(tmp_path: Path) -> None:
    for n in range(fewer(8, divided_by=4)):  # which of two tasks goes on first is left to chance
        async with serving(tmp_path / f"log{n}", calling("echo"), interactive=True) as session:
            await session.chain.wait_servers_settled()
            session.interrupt()
            await session.chain.wait_idle()
        check_invariants(session)


@pytest.mark.slow
async def test_a_replay_starts_no_server(log: Path) -> None:
    async with serving(log, calling("echo", "picture", "die", "change", "echo")) as session:
        await session.chain.wait_idle()
        await session.run("Again")
    starts = log_rows(log).count("initialize")
    found = replay(ALLOWED, session.file.data.splitlines(keepends=True))
    assert found.is_same, found.rows
    assert log_rows(log).count("initialize") == starts


@pytest.mark.slow
@pytest.mark.parametrize("has_server", [True, False])
async def test_a_resumed_session_offers_the_servers_it_has(has_server: bool, log: Path) -> None:
    async with serving(log, calling("echo")) as session:
        await session.chain.wait_idle()
    servers = [hostile_server(log)] if has_server else []
    async with reopened(session.file.data, calling("echo"), use=ALLOWED, servers=servers) as again:
        await again.run("Go")
        assert ("mcp__h__echo" in {tool.name for tool in again.model.requests[-1].tools}) == has_server


async def test_a_prompt_of_a_server_starts_a_run(log: Path) -> None:
    async with open_session("rules: [{text: Hello.}]", use=ALLOWED, servers=[hostile_server(log)]) as session:
        (session.chain.workspace / "secret").write_text("a key")
        await session.chain.wait_servers_settled()
        session.chain.start_prompt("h", "greet", ["Ada", "@secret"])
        await until_async(lambda: session.model.requests)
        await session.chain.wait_idle()
        assert session.model.requests[0].messages[-1].blocks == (Text("Greet Ada @secret."),), "it attaches no file"
        await session.run("Again")
        assert sum(record["type"] == "server_tools" for record in session.records) == 1, "the tools are the same"
        session.chain.start_prompt("h", "greet", [])
        await until_async(lambda: any("needs who" in str(getattr(e, "message", "")) for e in session.events))


# -------------------------------------------------------------------------------------------------- random sessions

WALK = st.lists(
    st.sampled_from(["run", "run", "wait", "line", "!line", "!!line", "!!stop", "Esc", "then: more"]), max_size=12
)


@sharded(200, WALK, st.integers(0, 2**16), shards=4)
def test_random_sessions_keep_the_invariants(walk: list[str], seed: int) -> None:
    """Two hundred sessions in CI: each starts a guard and two servers, about 0.15 s of a processor."""
    chance = random.Random(seed)
    names = [chance.choice(("h__echo", "h__look", "i__echo", "i__steps", "i__hang")) for _ in range(3)]
    rules = [
        f"- {{when: {{step: {n}}}, tools: [{{name: mcp__{name}, input: {{text: x}}}}]}}"
        for n, name in enumerate(names, 1)
    ]
    trio.run(_walk, walk, "\n".join(["rules:", *rules, "- {text: Done.}"]), str(seed))


async def _walk(walk: list[str], rules: str, seed: str) -> None:
    with TemporaryDirectory() as folder:
        log = Path(folder, "log")
        servers = [hostile_server(log, "spawn-first"), hostile_server(Path(folder, "i"), "random", seed, name="i")]
        use = settings(allow="mcp__*")
        async with open_session(rules, use=use, interactive=True, servers=servers) as session:
            for act in walk:
                if act == "run":
                    session.chain.submit("Go")
                elif act == "wait":
                    with trio.move_on_after(0.02):
                        await session.chain.wait_idle()
                elif act == "Esc":
                    session.interrupt()
                else:
                    session.chain.submit(act)
                await trio.lowlevel.checkpoint()
            with trio.move_on_after(0.05):
                await session.chain.wait_idle()
        check_invariants(session)
        assert not Reading(session.file.data.splitlines(keepends=True)).faults
        assert live_daemons(log) == []


# ------------------------------------------------------------------------------------------------------ real programs

CONFIG = """
models: {default: test, definitions: {test: {provider: scripted, script: rules.yaml}}}
chains: {default: {model: test, system_prompt: null, tools: [mcp]}}
tools: {allow: [mcp__*]}
"""
RULES = """
rules:
  - {when: {step: 1}, tools: [{name: mcp__h__spawn, input: {}}]}
  - {tools: [{name: mcp__h__hang, input: {}}]}
"""


@pytest.mark.slow
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_servers_end_with_their_program(tmp_path: Path, log: Path, ending: signal.Signals) -> None:
    servers = {"mcpServers": {"h": entry_of(log, "spawn-first", "hang-at-end")}}
    for name, text in {".mcp.json": json.dumps(servers), "test.yaml": CONFIG, "rules.yaml": RULES}.items():
        (tmp_path / name).write_text(text)
    argv = [sys.executable, "-m", "cli", "-p", "Go", "--config", "test.yaml", "--mcp", "h", "--no-stdin"]
    with start_program(argv, cwd=tmp_path, env=environ(tmp_path, {}), stderr=subprocess.DEVNULL) as program:
        try:
            until(lambda: log_rows(log).count("tools/call") == 2)
        finally:
            program.send_signal(ending)
    assert sum(row.startswith("left ") for row in log_rows(log)) == 2
    until(lambda: live_daemons(log) == [])
    until(lambda: not processes_with(log))


def processes_with(log: Path) -> list[str]:
    """The processes with this file in their command lines."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        with suppress(OSError):
            found += [name] if str(log).encode() in Path("/proc", name, "cmdline").read_bytes() else []
    return found


@pytest.mark.slow
def test_a_found_server_is_untouched_until_allowed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        entries = {"h": entry_of(tmp_path / "log"), "far": {"type": "http", "url": url, "headers": {"A": "${NOT_SET}"}}}
        (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": entries}))
        argv = [sys.executable, "-m", "cli", "-p", "hello", "--model", "offline", "--no-stdin"]
        ran = run_program(argv, cwd=tmp_path, env=environ(tmp_path, {}), text=True)
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert ran.returncode == 0, ran.stderr
    assert "the server h, which was not started; allow it with --mcp h" in ran.stderr
    assert "the server far, which was not started" in ran.stderr
    assert "NOT_SET" not in ran.stderr
    assert log_rows(tmp_path / "log") == []
