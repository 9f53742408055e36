"""Sessions with MCP servers: questions, interrupts, successive runs, replay, and processes left behind."""

from __future__ import annotations

import json
import random
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import trio
from hypothesis import strategies as st
from support.checks import check_invariants
from support.crashes import reopen
from support.examples import divide_in_short_run, sharded
from support.processes import block_until, wait_until
from support.program import make_environ, run_program, start_program
from support.servers import (
    daemon_pids,
    entry_of,
    hostile_server,
    live_daemons,
    log_rows,
    remove_time_limits,
    server_pids,
    until_logged,
)
from support.sessions import Session, make_settings, open_session

from chain import events
from chain.app.replay import replay
from chain.journal.reading import Reading
from chain.messages import Text, block_to_request_json
from chain.session.resume import load_journal

_no_time_limits = pytest.fixture(autouse=True)(remove_time_limits)


def model_calling(*tools: str) -> str:
    """Return the rules of a model that calls these tools one after the other, and then repeats the last result."""
    rules = [
        f"- {{when: {{step: {step}}}, tools: [{{name: mcp__{tool}, input: {{text: hello}}}}]}}"
        for step, tool in enumerate(tools, 1)
    ]
    return "\n".join(["rules:", *rules, '- {text: "Result: ${result}"}'])


ALLOWED = make_settings(allow="mcp__h__*")


@asynccontextmanager
async def run_with_server(log: Path, rules: str, *acts: str, **options: Any) -> AsyncIterator[Session]:
    """Open a session with the server ``h``, and start a run."""
    options = {"settings": ALLOWED, "servers": [hostile_server(log, *acts)], **options}
    async with open_session(rules, **options) as session:
        session.chain.submit("Go")
        yield session


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "log"


def tool_results(session: Session) -> list[str]:
    return [event.text for event in session.of(events.ToolResult)]


def journal_rows(session: Session) -> list[bytes]:
    return session.file.data.splitlines(keepends=True)


async def open_question(session: Session) -> events.Question:
    """Wait until a question is open, and return it."""
    await wait_until(lambda: session.chain.questions.open_id is not None)
    return session.chain.questions.log.latest[-1]


async def test_a_call_asks_and_shows_its_arguments(log: Path) -> None:
    async with run_with_server(log, model_calling("h__echo"), settings=make_settings(), interactive=True) as session:
        with session.chain.answering():
            question = await open_question(session)
            assert question.text == "Allow mcp__h__echo?"
            assert json.loads(question.preview) == {"text": "hello"}
            assert "tools/call" not in log_rows(log)


async def test_an_answer_can_allow_all_calls(log: Path) -> None:
    model = model_calling("h__echo", "h__echo")
    async with run_with_server(log, model, settings=make_settings(), interactive=True) as session:
        with session.chain.answering():
            question = await open_question(session)
            session.chain.answer(question.id, "a")
            await session.chain.wait_idle()
    assert tool_results(session) == ["hello", "hello"]
    check_invariants(session)


async def test_an_elicitation_is_a_question(log: Path) -> None:
    async with run_with_server(log, model_calling("h__ask"), interactive=True) as session:
        with session.chain.answering():
            question = await open_question(session)
            assert question.kind == "choice"
            assert question.text.startswith("h asks: Which")
            assert "\x1b" not in question.text
            assert question.options == ("red", "blue", "decline")
            session.chain.answer(question.id, "2")
            await session.chain.wait_idle()
    assert tool_results(session) == ['You said {"action": "accept", "content": {"colour": "blue"}}.']


async def test_an_interrupt_withdraws_the_question_of_a_server(log: Path) -> None:
    async with run_with_server(log, model_calling("h__ask"), interactive=True) as session:
        with session.chain.answering():
            await open_question(session)
            session.chain.interrupt()
            await session.chain.wait_idle()
            assert session.chain.questions.open_id is None
            await until_logged(log, "notifications/cancelled")


async def test_without_a_user_an_elicitation_is_cancelled(log: Path) -> None:
    async with run_with_server(log, model_calling("h__ask")) as session:
        await session.chain.wait_idle()
    assert tool_results(session) == ['You said {"action": "cancel"}.']


async def test_an_image_in_a_result_is_sent(log: Path) -> None:
    async with run_with_server(log, model_calling("h__picture")) as session:
        await session.chain.wait_idle()
        (result,) = session.model.requests[-1].messages[-1].results
    assert [image.media_type for image in result.images] == ["image/png"]
    assert [block["type"] for block in block_to_request_json(result)["content"]] == ["text", "image"]
    check_invariants(session)


async def test_an_image_in_a_result_is_restored(log: Path) -> None:
    async with run_with_server(log, model_calling("h__picture")) as session:
        await session.chain.wait_idle()
        (result,) = session.model.requests[-1].messages[-1].results
    *_, restored_message, _ = load_journal(journal_rows(session)).state.main.history.conversation.messages
    (restored,) = restored_message.results
    assert restored.images == result.images


async def test_tools_change_only_between_runs(log: Path) -> None:
    async with run_with_server(log, model_calling("h__change", "h__look")) as session:
        await session.chain.wait_idle()
        requests_of_first_run = len(session.model.requests)
        await session.run("Go on")
    for n, request in enumerate(session.model.requests):
        names = {tool.name for tool in request.tools}
        is_first_run = n < requests_of_first_run
        assert ("mcp__h__look" in names) == is_first_run
        assert ("mcp__h__new" in names) != is_first_run


async def test_waiting_for_a_server_can_be_interrupted(log: Path) -> None:
    async with run_with_server(log, model_calling("h__echo"), "silent") as session:
        await until_logged(log, "initialize")
        session.chain.interrupt()
        await session.chain.wait_idle()
    assert session.chain.runs.last_status == "interrupted"


@pytest.mark.slow
async def test_an_interrupt_as_servers_settle_starts_nothing(tmp_path: Path) -> None:
    for n in range(divide_in_short_run(8, divided_by=4)):  # the order of the two tasks that continue now is random
        async with run_with_server(tmp_path / f"log{n}", model_calling("h__echo"), interactive=True) as session:
            await session.chain.wait_servers_settled()
            session.interrupt()
            await session.chain.wait_idle()
        check_invariants(session)


@pytest.mark.slow
async def test_a_replay_starts_no_server(log: Path) -> None:
    tools = ["h__echo", "h__picture", "h__die", "h__change", "h__echo"]
    async with run_with_server(log, model_calling(*tools)) as session:
        await session.chain.wait_idle()
        await session.run("Again")
    starts = log_rows(log).count("initialize")
    report = replay(ALLOWED, journal_rows(session))
    assert report.is_same, report.rows
    assert log_rows(log).count("initialize") == starts


@pytest.mark.slow
@pytest.mark.parametrize("has_server", [True, False])
async def test_a_resumed_session_offers_the_servers_it_has(has_server: bool, log: Path) -> None:
    async with run_with_server(log, model_calling("h__echo")) as session:
        await session.chain.wait_idle()
    servers = [hostile_server(log)] if has_server else []
    async with reopen(session.file.data, model_calling("h__echo"), settings=ALLOWED, servers=servers) as resumed:
        await resumed.run("Go")
        assert ("mcp__h__echo" in {tool.name for tool in resumed.model.requests[-1].tools}) == has_server


@pytest.fixture
async def ready_session(log: Path) -> AsyncIterator[Session]:
    """Open a session whose server has started, and whose model needs no tool."""
    async with open_session("rules: [{text: Hello.}]", settings=ALLOWED, servers=[hostile_server(log)]) as session:
        await session.chain.wait_servers_settled()
        yield session


async def test_a_prompt_of_a_server_starts_a_run(ready_session: Session) -> None:
    (ready_session.chain.workspace / "secret").write_text("a key")
    ready_session.chain.start_prompt("h", "greet", ["Ada", "@secret"])
    await wait_until(lambda: ready_session.model.requests)
    await ready_session.chain.wait_idle()
    (request,) = ready_session.model.requests
    assert request.messages[-1].blocks == (Text("Greet Ada @secret."),), "it attaches no file"


async def test_a_prompt_without_its_argument_has_a_notice(ready_session: Session) -> None:
    ready_session.chain.start_prompt("h", "greet", [])
    await wait_until(lambda: any("needs who" in notice.message for notice in ready_session.of(events.Notice)))


async def test_unchanged_tools_are_recorded_once(ready_session: Session) -> None:
    await ready_session.run("Go")
    await ready_session.run("Again")
    assert sum(record["type"] == "server_tools" for record in ready_session.records) == 1


# -------------------------------------------------------------------------------------------------- random sessions

ACTS = ["run", "run", "wait", "line", "!line", "!!line", "!!stop", "Esc", "then: more"]  # "run" is the most frequent
TOOLS = ["h__echo", "h__look", "i__echo", "i__steps", "i__hang"]


@sharded(200, st.lists(st.sampled_from(ACTS), max_size=12), st.integers(0, 2**16), shards=4)
def test_random_sessions_keep_the_invariants(acts: list[str], seed: int) -> None:
    """Each of the two hundred sessions in CI starts a guard and two servers, which takes 0.15 s of CPU time."""
    model = model_calling(*random.Random(seed).choices(TOOLS, k=3))
    trio.run(run_acts, acts, model, str(seed))


async def run_acts(acts: list[str], model: str, seed: str) -> None:
    with TemporaryDirectory() as folder:
        log = Path(folder, "log")
        servers = [hostile_server(log, "spawn-first"), hostile_server(Path(folder, "i"), "random", seed, name="i")]
        settings = make_settings(allow="mcp__*")
        async with open_session(model, settings=settings, interactive=True, servers=servers) as session:
            for act in acts:
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
        assert not Reading(journal_rows(session)).faults
        assert live_daemons(log) == []


# ------------------------------------------------------------------------------------------------------ real programs

CONFIG = """
models: {default: test, definitions: {test: {provider: scripted, script: rules.yaml}}}
chains: {default: {model: test, system_prompt: null, tools: [mcp]}}
tools: {allow: [mcp__*]}
"""


@pytest.mark.slow
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM], ids=lambda end: end.name)
def test_servers_end_with_their_program(tmp_path: Path, log: Path, end: signal.Signals) -> None:
    servers = {"mcpServers": {"h": entry_of(log, "spawn-first", "hang-at-end")}}
    (tmp_path / ".mcp.json").write_text(json.dumps(servers))
    (tmp_path / "test.yaml").write_text(CONFIG)
    (tmp_path / "rules.yaml").write_text(model_calling("h__spawn", "h__hang"))
    argv = [sys.executable, "-m", "cli", "-p", "Go", "--config", "test.yaml", "--mcp", "h", "--no-stdin"]
    with start_program(argv, cwd=tmp_path, env=make_environ(tmp_path, {}), stderr=subprocess.DEVNULL) as program:
        try:
            block_until(lambda: log_rows(log).count("tools/call") == 2)
        finally:
            program.send_signal(end)
    assert len(daemon_pids(log)) == 2, "one of the server's start and one of the call"
    block_until(lambda: live_daemons(log) == [])
    block_until(lambda: not server_pids(log))


@pytest.mark.slow
def test_a_found_server_is_untouched_until_allowed(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        entries = {"h": entry_of(tmp_path / "log"), "far": {"type": "http", "url": url, "headers": {"A": "${NOT_SET}"}}}
        (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": entries}))
        argv = [sys.executable, "-m", "cli", "-p", "hello", "--model", "offline", "--no-stdin"]
        process = run_program(argv, cwd=tmp_path, env=make_environ(tmp_path, {}), text=True)
        with pytest.raises(BlockingIOError):  # nothing has connected
            listening.accept()
    assert process.returncode == 0, process.stderr
    assert "the server h, which was not started; allow it with --mcp h" in process.stderr
    assert "the server far, which was not started" in process.stderr
    assert "NOT_SET" not in process.stderr
    assert log_rows(tmp_path / "log") == []
