"""Sessions with servers of tools: questions, cuts, runs that come after each other, replay, and what is left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import trio
import trio.lowlevel
from hypothesis import strategies as st
from support import Session, check_invariants, open_session, settings, sharded, wait_quiet
from support.examples import fewer
from support.house import ROOT
from support.processes import until, until_async
from support.program import run_program
from support.servers import entry_of, heard, hostile, left_by, until_heard, without_time_limits

from chain import events
from chain.app.replay import replay
from chain.journal.reading import Reading
from chain.messages import Image, Text, ToolResult, sent_form
from chain.session.resume import load_journal
from chain.tools.mcp import servers as life

_patient = pytest.fixture(autouse=True)(without_time_limits)


def calling(*tools: str) -> str:
    """A model that calls tools of the server one after the other, and then says what came last."""
    rules = [
        f"- {{when: {{step: {n}}}, tools: [{{name: mcp__h__{tool}, input: {{text: hello}}}}]}}"
        for n, tool in enumerate(tools, 1)
    ]
    return "\n".join(["rules:", *rules, '- {text: "Result: ${result}"}'])


ALLOWED = settings(allow="mcp__h__*")


def results(session: Session) -> list[str]:
    return [event.text for event in session.events if isinstance(event, events.ToolResult)]


async def test_a_call_asks_and_shows_its_arguments(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with open_session(calling("echo", "echo"), interactive=True, servers=[hostile(log)]) as session:
        with session.chain.answering():
            session.chain.submit("Go")
            await until_async(lambda: session.chain.questions.open_id == "Q1")
            asked = session.chain.questions.asked.latest[-1]
            assert (asked.text, json.loads(asked.preview)) == ("Allow mcp__h__echo?", {"text": "hello"})
            assert "tools/call" not in heard(log)
            session.chain.answer("Q1", "a")
            await session.chain.wait_idle()
    assert results(session) == ["hello", "hello"]
    check_invariants(session)


async def test_a_hanging_call_ends_with_an_interrupt_and_its_server_hears_of_it(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with open_session(calling("hang"), use=ALLOWED, interactive=True, servers=[hostile(log)]) as session:
        session.chain.submit("Go")
        await until_heard(log, "tools/call")
        session.interrupt()
        await until_heard(log, "notifications/cancelled")
        await wait_quiet(session)
    assert results(session)[0].startswith("[Interrupted")
    check_invariants(session)


async def test_what_a_server_asks_is_a_question(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with open_session(calling("ask"), use=ALLOWED, interactive=True, servers=[hostile(log)]) as session:
        with session.chain.answering():
            session.chain.submit("Go")
            await until_async(lambda: session.chain.questions.open_id is not None)
            asked = session.chain.questions.asked.latest[-1]
            assert asked.kind == "choice"
            assert asked.text.splitlines()[0].startswith("h asks: Which")
            assert "\x1b" not in asked.text
            assert asked.options == ("red", "blue", "decline")
            session.chain.answer(asked.id, "2")
            await session.chain.wait_idle()
    assert results(session) == ['You said {"action": "accept", "content": {"colour": "blue"}}.']


def test_an_error_with_a_picture_is_sent_as_a_service_accepts_it() -> None:
    sent = sent_form(ToolResult("t1", "It failed.", is_error=True, images=(Image("image/png", "", "i", "AA=="),)))
    assert "is_error" not in sent
    assert sent["content"][0] == {"type": "text", "text": "Error: It failed."}


@pytest.mark.slow
async def test_a_server_may_ask_twice_in_a_call(tmp_path: Path) -> None:
    log, rules = tmp_path / "log", calling("ask").replace("hello", "twice")
    async with open_session(rules, use=ALLOWED, interactive=True, servers=[hostile(log)]) as session:
        with session.chain.answering():
            session.chain.submit("Go")
            for id, text in (("Q2", "blue"), ("Q3", "accept")):
                await until_async(lambda id=id: session.chain.questions.open_id == id)
                session.chain.answer(id, text)
            await session.chain.wait_idle()
    assert results(session) == ['You said {"action": "accept", "content": {}}.']


async def test_a_question_goes_with_its_call(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with open_session(calling("ask"), use=ALLOWED, interactive=True, servers=[hostile(log)]) as session:
        with session.chain.answering():
            session.chain.submit("Go")
            await until_async(lambda: session.chain.questions.open_id is not None)
            session.chain.interrupt()
            await session.chain.wait_idle()
            assert session.chain.questions.open_id is None
            await until_heard(log, "notifications/cancelled")


async def test_nobody_to_ask_is_said_to_the_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with open_session(calling("ask"), use=ALLOWED, servers=[hostile(log)]) as session:
        session.chain.submit("Go")
        await session.chain.wait_idle()
    assert results(session) == ['You said {"action": "cancel"}.']


async def test_a_picture_goes_to_the_model_and_beside_the_journal(tmp_path: Path) -> None:
    async with open_session(calling("picture"), use=ALLOWED, servers=[hostile(tmp_path / "log")]) as session:
        session.chain.submit("Go")
        await session.chain.wait_idle()
        (result,) = session.model.requests[-1].messages[-1].results
    assert [image.media_type for image in result.images] == ["image/png"]
    assert [block["type"] for block in sent_form(result)["content"]] == ["text", "image"]
    again = load_journal(session.file.data.splitlines(keepends=True)).state.main.history.conversation
    assert again.messages[-2].results[0].images == result.images
    check_invariants(session)


async def test_tools_change_between_runs_alone(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with open_session(calling("change", "look"), use=ALLOWED, servers=[hostile(log)]) as session:
        session.chain.submit("Go")
        await session.chain.wait_idle()
        told = [{tool.name for tool in request.tools} for request in session.model.requests]
        assert told[0] == told[-1]
        assert "mcp__h__look" in told[0]
        session.chain.submit("Go on")
        await session.chain.wait_idle()
        last = {tool.name for tool in session.model.requests[-1].tools}
    assert "mcp__h__new" in last
    assert "mcp__h__look" not in last


async def test_a_run_that_waits_for_a_server_can_be_interrupted(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with open_session(calling("echo"), use=ALLOWED, servers=[hostile(log, "silent")]) as session:
        session.chain.submit("Go")
        await until_heard(log, "initialize")
        session.chain.interrupt()
        await session.chain.wait_idle()
    assert session.chain.runs.last_status == "interrupted"


@pytest.mark.slow
async def test_an_interrupt_in_the_step_in_which_servers_are_there_goes_before_their_tools(tmp_path: Path) -> None:
    for n in range(fewer(8, divided_by=4)):  # which of two tasks goes on first is left to chance
        server = hostile(tmp_path / f"log{n}")
        async with open_session(calling("echo"), use=ALLOWED, interactive=True, servers=[server]) as session:
            session.chain.submit("Go")
            await session.chain.wait_servers_settled()
            session.interrupt()
            await session.chain.wait_idle()
        check_invariants(session)


@pytest.mark.slow
async def test_a_replay_starts_no_server(tmp_path: Path) -> None:
    log = tmp_path / "log"
    used = ("echo", "picture", "die", "change", "echo")
    async with open_session(calling(*used), use=ALLOWED, servers=[hostile(log)]) as session:
        session.chain.submit("Go")
        await session.chain.wait_idle()
        session.chain.submit("Again")
        await session.chain.wait_idle()
    starts = heard(log).count("initialize")
    rows = session.file.data.splitlines(keepends=True)
    found = replay(ALLOWED, rows)
    assert found.is_same, found.rows
    assert heard(log).count("initialize") == starts


@pytest.mark.slow
async def test_a_session_goes_on_with_its_servers_or_without(tmp_path: Path) -> None:
    log = tmp_path / "log"
    async with open_session(calling("echo"), use=ALLOWED, servers=[hostile(log)]) as session:
        session.chain.submit("Go")
        await session.chain.wait_idle()
    data = session.file.data
    for servers in ([hostile(log)], []):
        rows = data.splitlines(keepends=True)
        async with open_session(calling("echo"), use=ALLOWED, servers=servers, resume=load_journal(rows)) as again:
            again.chain.submit("Go")
            await again.chain.wait_idle()
            names = {tool.name for tool in again.model.requests[-1].tools}
            assert ("mcp__h__echo" in names) == bool(servers)


async def test_a_prompt_of_a_server_begins_a_run(tmp_path: Path) -> None:
    async with open_session("rules: [{text: Hello.}]", use=ALLOWED, servers=[hostile(tmp_path / "log")]) as session:
        await session.chain.wait_servers_settled()
        session.chain.start_prompt("h", "greet", ["Ada", "Lovelace"])
        await until_async(lambda: session.model.requests)
        await session.chain.wait_idle()
        assert session.model.requests[0].messages[-1].text == "Greet Ada Lovelace."
        session.chain.start_prompt("h", "greet", [])
        await until_async(lambda: any("needs who" in str(getattr(e, "message", "")) for e in session.events))


async def test_a_prompt_of_a_server_names_no_files(tmp_path: Path) -> None:
    async with open_session("rules: [{text: Hello.}]", use=ALLOWED, servers=[hostile(tmp_path / "log")]) as session:
        (session.chain.workspace / "secret").write_text("a key")
        await session.chain.wait_servers_settled()
        session.chain.start_prompt("h", "greet", ["@secret"])
        await until_async(lambda: session.model.requests)
        await session.chain.wait_idle()
        assert session.model.requests[0].messages[-1].blocks == (Text("Greet @secret."),)
        session.chain.submit("See @secret")
        await session.chain.wait_idle()
        assert "a key" in str(session.model.requests[-1].messages[-1].blocks)


# ------------------------------------------------------------------------------------------- sessions as they may go

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
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        log = Path(folder, "log")
        servers = [hostile(log, "spawn-first"), hostile(Path(folder, "i"), "random", seed, name="i")]
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
        assert left_by(log) == []


# ------------------------------------------------------------------------------------------------- what is left behind

PROGRAM = """
import math, sys, trio
from pathlib import Path
from chain.app.open import open_chain
from chain.config.load import load_settings
from chain.config.servers import find_servers
from chain.tools.mcp import connection, servers
servers.FIRST_S = connection.START_S = math.inf
here = Path.cwd()
settings = load_settings(config=here / "test.yaml", environ={}, cwd=here)
async def main():
    found, _ = find_servers(here)
    async with open_chain(settings, workspace=here, state=here / "state", servers=found) as chain:
        chain.submit("Go")
        await trio.sleep_forever()
trio.run(main)
"""
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

ENDINGS = {
    "kill -9": signal.SIGKILL,
    "ctrl-c": signal.SIGINT,
    "terminated": signal.SIGTERM,
}


@pytest.mark.slow
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("ending", ENDINGS)
def test_nothing_is_left_however_the_program_ends(tmp_path: Path, ending: str) -> None:
    log = tmp_path / "log"
    servers = {"mcpServers": {"h": entry_of(log, "spawn-first", "hang-at-end")}}
    for name, text in {".mcp.json": json.dumps(servers), "test.yaml": CONFIG, "rules.yaml": RULES}.items():
        (tmp_path / name).write_text(text)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        stderr=subprocess.DEVNULL,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as program:
        try:
            until(lambda: heard(log).count("tools/call") == 2)
        finally:
            program.send_signal(ENDINGS[ending])
    assert sum(row.startswith("left ") for row in heard(log)) == 2
    until(lambda: left_by(log) == [])
    until(lambda: not _speaks_to(log))


def _speaks_to(log: Path) -> list[str]:
    """The processes with this file in their command lines."""
    found = []
    for name in filter(str.isdecimal, os.listdir("/proc")):
        try:
            if str(log).encode() in Path("/proc", name, "cmdline").read_bytes():
                found.append(name)
        except OSError:
            continue
    return found


@pytest.mark.slow
def test_a_found_server_is_not_touched_before_it_is_allowed(tmp_path: Path) -> None:
    """Neither a program nor an address: what would run leaves a mark, and who would be called hears nothing."""
    import socket

    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(0)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}/mcp"
        entries = {"h": entry_of(tmp_path / "log"), "far": {"type": "http", "url": url, "headers": {"A": "${NOT_SET}"}}}
        (tmp_path / ".mcp.json").write_text(json.dumps({"mcpServers": entries}))
        environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_STATE_HOME": str(tmp_path / "state")}
        ran = run_program(
            [sys.executable, "-m", "cli", "-p", "hello", "--model", "offline", "--no-stdin"],
            cwd=tmp_path,
            env={**environ, "PYTHONPATH": str(ROOT)},
            text=True,
        )
        with pytest.raises(BlockingIOError):
            listening.accept()
    assert ran.returncode == 0, ran.stderr
    assert "the server h, which was not started; allow it with --mcp h" in ran.stderr
    assert "the server far, which was not started" in ran.stderr
    assert "NOT_SET" not in ran.stderr
    assert heard(tmp_path / "log") == []


async def test_a_server_that_is_late_keeps_no_session_from_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(life, "FIRST_S", 0.1)
    log = tmp_path / "log"
    async with open_session("rules: [{text: Hi.}]", servers=[hostile(log, "silent", "hang-at-end")]) as session:
        session.chain.submit("Go")
        await session.chain.wait_idle()
    assert any("did not start within" in str(getattr(event, "message", "")) for event in session.events)
