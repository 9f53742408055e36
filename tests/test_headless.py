"""A chain without a terminal: its input, its events and its exit codes.

Everything runs in one process and in lock-step: lines are written into a pipe, and the next step waits for the event
that they cause.
"""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
from support import check_invariants, open_session, settings
from support.crashes import load_crashed
from support.headless_sessions import PrintingSession, line
from support.killed import killed
from support.models import ASKING_TOOLS
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.config.load import Settings
from chain.lines.parse import MAX_LINE
from chain.messages import from_json
from chain.tools.tool import JobEnd, ToolContext, tool
from cli import headless
from cli.headless import HeadlessTask
from cli.headless_output import Format
from cli.input.moments import parse_moment
from cli.input.stdin import FIRST_BYTE_S
from cli.show.renderer import Renderer

RULES = """
rules:
  - {when: {interruption: '.'}, text: "Heard: ${interruption}."}
  - {when: {user: ^task, step: 1}, text: Looking., tools: [{name: wait, input: {}}]}
  - {when: {user: ^task, tool: wait}, text: "The answer to ${query}."}
  - {when: {user: ^two, step: 1}, tools: [{name: quick, input: {}}, {name: wait, input: {}}, {name: quick, input: {}}]}
  - {when: {user: ^two, tool: wait}, text: Two answers.}
  - {when: {user: ^fail}, error: {message: the service is gone}}
  - {when: {user: ^loop, step: 1}, tools: [{name: quick, input: {}}]}
  - {when: {user: ^loop, tool: quick}, text: "Step ${step}.", tools: [{name: quick, input: {}}]}
  - when: {user: ^change, step: 1}
    tools: [{name: change_file, input: {path: a}}, {name: change_file, input: {path: b}}]
  - {when: {user: ^change, tool: change_file}, text: "${result}"}
  - when: {user: ^which, step: 1}
    tools: [{name: ask_user_question, input: {question: Which?, options: [left, right]}}]
  - {when: {user: ^which, tool: ask_user_question}, text: "${result}"}
  - {text: "Done: ${query}"}
"""

Input = Literal["text", "stream-json"]


@dataclass
class Headless(PrintingSession):
    """A headless process without the process."""

    stdin: FileIO
    open: trio.Event = field(default_factory=trio.Event)
    code: int | None = None
    news: trio.Event = field(default_factory=trio.Event)

    def send(self, *lines: str | dict[str, Any]) -> None:
        """Write lines into standard input in one piece."""
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        self.stdin.write("".join(f"{text}\n" for text in texts).encode())

    async def until(self, type: str, count: int = 1, **values: object) -> Any:
        """Wait for the ``count``-th event of this type with these values."""
        while True:
            of_type = (e for e in self.session.events if e.type == type)
            found = [e for e in of_type if all(getattr(e, name) == value for name, value in values.items())]
            if len(found) >= count:
                return found[count - 1]
            self.news = trio.Event()
            await self.news.wait()

    async def end(self) -> int:
        """Let the tools go, close standard input, and return the exit code."""
        self.open.set()
        self.stdin.close()
        return await self.ended()

    async def ended(self) -> int:
        """Wait for the exit code."""
        while self.code is None:
            self.news = trio.Event()
            await self.news.wait()
        return self.code

    def objects_of(self, *types: str) -> list[dict[str, Any]]:
        """Return the JSON objects of these types."""
        return [o for o in self.objects if o["type"] in types]

    @property
    def ids(self) -> dict[str, str]:
        """The state of each receipt by its id."""
        return {o["id"]: o["state"] for o in self.objects_of("receipt")}

    @property
    def last(self) -> dict[str, Any]:
        """The last JSON object, which is a result."""
        assert self.objects[-1]["type"] == "result"
        return self.objects[-1]


@asynccontextmanager
async def opened(
    folder: Path,
    query: str | None = None,
    *,
    says: Sequence[str] = (),
    reads: bool = True,
    output: Format = "stream-json",
    input: Input = "text",
    use: Settings | None = None,
    piped_within: float | None = None,
    max_iterations: int = 20,
    is_checked: bool = True,
    before: bytes = b"",
) -> AsyncIterator[Headless]:
    """Run a job whose standard input is a pipe.

    ``before`` is the journal of the session to resume. ``is_checked``: check the invariants, which need unique ids.
    """
    paths = folder / "stdout", folder / "stderr"
    outs = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for path in paths]
    reading, writing = os.pipe()
    scheduled = tuple(parse_moment(say, strict=True) for say in says)
    job = HeadlessTask(query, scheduled, reads and piped_within is None, output, input, piped_within=piped_within)
    renderer = Renderer(color=False, ascii=False, width=100)
    file, read = load_crashed(before) if before else (None, None)

    @tool(timeout_s=10_000)
    async def wait(ctx: ToolContext) -> str:
        """Wait."""
        await stage.open.wait()
        return "waited"

    @tool
    async def quick(ctx: ToolContext) -> str:
        """Do not wait."""
        return "a quick result"

    async def work() -> None:
        stage.code = await headless.run_headless(
            session.chain, job, renderer, stdin=reading, stdout=outs[0], stderr=outs[1]
        )
        stage.news.set()

    try:
        with FileIO(writing, "w") as stdin:
            chosen = use or settings(max_iterations=max_iterations)
            async with (
                open_session(RULES, tools=[wait, quick, *ASKING_TOOLS], use=chosen, file=file, resume=read) as session,
                trio.open_nursery() as nursery,
            ):
                stage = Headless(session, paths, stdin)
                session.chain.listen(lambda event: stage.news.set())
                nursery.start_soon(work)
                yield stage
                if stage.code is None:
                    await stage.end()
                if is_checked and session.model.requests and not before:
                    check_invariants(session, max_iterations=max_iterations)
    finally:
        for fd in (*outs, reading):
            os.close(fd)


@pytest.fixture
def clock(mock_clock: MockClock) -> MockClock:
    """Return a clock that runs, and that a test can advance."""
    mock_clock.rate = 1
    return mock_clock


# --------------------------------------------------------------------------------------------------- queries and lines


async def test_a_query_runs_and_ends_the_process(tmp_path: Path) -> None:
    """It is not parsed, and standard input is left alone."""
    async with opened(tmp_path, "todo: add x", reads=False, output="text") as stage:
        stage.send("not for us")
        assert await stage.ended() == 0
        assert stage.stdout == "Done: todo: add x\n"
        assert "done, 1 iteration" in stage.stderr
        assert stage.session.chain.plan.tasks == ()
        assert stage.states == {"todo: add x": "delivered"}


async def test_the_first_line_is_the_query(tmp_path: Path) -> None:
    """Later lines interrupt its run; blank ones do nothing."""
    async with opened(tmp_path) as stage:
        stage.send("", "   ", "task", "\t")
        await stage.until("tool_call")
        stage.send("use B", "todo: add check the licence")
        await stage.until("line_queued", count=2)
        stage.stdin.close()
        await wait_all_tasks_blocked()
        assert stage.code is None, "the end of the input does not end the run"
        assert await stage.end() == 0
        (entered,) = stage.session.of(events.UserInterruption)
        assert (entered.message, entered.point) == ("use B\n\ntodo: add check the licence", "D")
        assert stage.delivered == [("task", "start"), ("use B", "D"), ("todo: add check the licence", "D")]
        types = [o["type"] for o in stage.objects]
        assert types.index("run_started") < types.index("line_queued")


async def test_lines_that_need_no_run_are_answered(tmp_path: Path) -> None:
    async with opened(tmp_path) as stage:
        stage.send("todo: add x", "status", "stop")
        assert await stage.end() == 0
        assert stage.session.model.requests == []
        assert stage.states == {"todo: add x": "handled", "status": "handled"}
        _, status, stop = (o["message"] for o in stage.objects_of("notice"))
        assert "plan 0/1" in status
        assert stop.startswith("Nothing is running.")
        assert stage.last["status"] == "done"


@pytest.mark.parametrize("text", ["/help me", "@home is where", "@iteration x y", "@after soon x"])
async def test_slashes_and_unknown_moments_are_text(tmp_path: Path, text: str) -> None:
    async with opened(tmp_path) as stage:
        stage.send(text)
        assert await stage.end() == 0
        assert stage.last["result"] == f"Done: {text}"


async def test_invalid_bytes_are_replaced_with_a_notice(tmp_path: Path) -> None:
    async with opened(tmp_path, output="text") as stage:
        stage.stdin.write(b"gr\xfc\xdfe\n")
        assert await stage.end() == 0
        assert stage.stdout == "Done: gr\ufffd\ufffde\n"
        assert "line 1 of the input is not UTF-8" in stage.stderr


async def test_a_long_line_is_refused_with_the_limit(tmp_path: Path) -> None:
    async with opened(tmp_path, "task", output="text") as stage:
        await stage.until("tool_call")
        await trio.to_thread.run_sync(stage.send, "x" * 100_001, "y" * 1_000_000, "use B")
        await stage.until("line_queued")
        assert await stage.end() == 3
        assert stage.delivered == [("task", "start"), ("use B", "D")]
        assert stage.stderr.count("the limit is 100,000") == 2


@pytest.mark.parametrize("by", ["say", "pipe", "json"])
async def test_a_line_is_sent_at_its_moment(tmp_path: Path, by: str) -> None:
    text = "@iteration 2 use B"
    says = [text] if by == "say" else []
    async with opened(tmp_path, says=says, input="stream-json" if by == "json" else "text") as stage:
        stage.open.set()
        for each in [text, "task"] if by != "say" else ["task"]:
            stage.send(line(each) if by == "json" else each)
        assert await stage.end() == 0
        (entered,) = stage.objects_of("user_interruption")
        assert (entered["message"], entered["point"], entered["iteration"]) == ("use B", "B", 2)


async def test_an_unusable_handler_is_replaced_with_a_notice(tmp_path: Path) -> None:
    use = settings(handler="messages: [")
    async with opened(tmp_path, "task", says=["@tool wait use B"], use=use, output="text", reads=False) as stage:
        stage.open.set()
        assert await stage.ended() == 0
        (row,) = [row for row in stage.stderr.splitlines() if "handler.yaml:1" in row]
        assert "built-in" in row
        assert "user: USER INTERRUPTION: use B" in stage.session.sent()


# --------------------------------------------------------------------------------------------------------------- JSON


async def test_receipts_have_the_senders_ids(tmp_path: Path) -> None:
    async with opened(tmp_path, input="stream-json") as stage:
        stage.send(line("@iteration 9 never", "n"), line("task", "q"))
        await stage.until("tool_call")
        stage.send(line("use B", "b"), line("todo: add x", "t"), line("then: hello", "f"), line("todo: add", "bad"))
        stage.send({"type": "line", "id": "mine", "text": "x", "urgent": "yes"}, line("use C", "L2"), line("use D"))
        await stage.until("line_queued", count=5)
        assert await stage.end() == 3
        states = {**dict.fromkeys(("q", "b", "t", "L2", "L1", "f"), "delivered"), "bad": "refused", "mine": "refused"}
        assert stage.ids == {**states, "n": "unsent"}
        assert {r["id"]: r["state"] for result in stage.objects_of("result") for r in result["receipts"]} == states
        assert [o["id"] for o in stage.objects_of("line_queued")] == ["b", "t", "f", "L2", "L1"]
        assert [o["ids"] for o in stage.objects_of("user_interruption")] == [["b", "t", "L2", "L1"]]
        assert stage.last["unsent"] == ["@iteration 9 never"]


@pytest.mark.parametrize("text", ["   ", "stop"])
async def test_a_line_without_effect_has_a_receipt(tmp_path: Path, text: str) -> None:
    async with opened(tmp_path, input="stream-json") as stage:
        stage.send(line("hello", "q"))
        await stage.until("result")
        await stage.session.chain.wait_idle()
        stage.send(line(text, "mine"))
        assert await stage.end() == 0
        assert stage.ids == {"q": "delivered", "mine": "handled"}


async def test_an_urgent_line_skips_tools(tmp_path: Path) -> None:
    async with opened(tmp_path, input="stream-json") as stage:
        stage.send(line("two", "q"))
        await stage.until("tool_call", name="wait")
        stage.send(line("use B", "u", urgent=True))
        await stage.until("line_queued", urgency="urgent", origin="json")
        assert await stage.end() == 0
        (entered,) = stage.objects_of("user_interruption")
        assert (entered["ids"], entered["point"], entered["tools_skipped"]) == (["u"], "C", ["quick"])


async def test_waiting_lines_can_be_dropped(tmp_path: Path) -> None:
    """Also those without room, and those whose moment has not come."""
    async with opened(tmp_path, input="stream-json") as stage:
        stage.send(line("task", "q"))
        await stage.until("tool_call")
        stage.send(*(line(f"line {n}", f"l{n}") for n in range(12)), line("@done next", "d"))
        await stage.until("line_queued", count=10)
        stage.send(*({"type": "drop", "id": id} for id in ("l3", "l11", "d", "q", "none")))
        await stage.until("receipt", state="unsent", count=2)
        assert await stage.end() == 3
        gone = {"l3": "dropped", "l11": "unsent", "d": "unsent"}
        assert stage.ids == {"q": "delivered", **{f"l{n}": "delivered" for n in range(12)}, **gone}
        refused = [(o["id"], o["kind"], o["reason"].split(";")[0]) for o in stage.objects_of("line_refused")]
        assert refused == [("q", "drop", "q is not waiting"), ("none", "drop", "none is not waiting")]


async def test_an_interrupt_ends_the_run_alone(tmp_path: Path) -> None:
    """Lines after it are for the next run. When nothing runs, it does nothing."""
    async with opened(tmp_path, input="stream-json") as stage:
        stage.send({"type": "interrupt"}, line("task", "q"))
        await stage.until("tool_call")
        stage.send(line("use B", "b"), {"type": "interrupt"}, line("hello", "h"))
        await stage.until("result", status="done")
        stage.send(line("again", "a"))
        assert await stage.end() == 130
        results = stage.objects_of("result")[:3]
        assert [r["exit_code"] for r in results] == [130] * 3
        assert [r["result"] for r in results[:2]] == ["Interrupted. Tell the chain what to do instead.", "Done: hello"]
        receipts = [{r["id"]: r["state"] for r in result["receipts"]} for result in results]
        assert receipts == [{"q": "delivered", "b": "returned"}, {"h": "delivered"}, {"a": "delivered"}]
        assert len(stage.objects_of("init")) == 1
        assert "[Interrupted: stopped while running, it may have had effects]" in stage.session.sent()


@pytest.mark.parametrize("more", [["hello"], []])
async def test_malformed_input_stops_nothing(tmp_path: Path, more: list[str]) -> None:
    async with opened(tmp_path, input="stream-json") as stage:
        stage.send("not json", "", *map(line, more))
        assert await stage.end() == (3 if more else 2)
        (refused,) = stage.objects_of("line_refused")
        assert (refused["origin"], refused["text"]) == ("json", "not json")
        assert refused["reason"].startswith("line 1 of the input was not understood (it is not a JSON object); write ")
        assert stage.last["status"] == ("done" if more else "error")


@pytest.mark.parametrize(
    ("row", "result"),
    [
        (json.dumps(line("я" * 100_000)), "Done: " + "я" * 100_000),
        ('{"type":"line","text":"half \\ud83d a pair"}', "Done: half ? a pair"),
        (json.dumps(line("hello\nstop\nworld")), "Done: hello\nstop\nworld"),
    ],
    ids=["longest", "half a pair", "rows"],
)
async def test_any_text_can_be_a_json_line(tmp_path: Path, row: str, result: str) -> None:
    async with opened(tmp_path, input="stream-json") as stage:
        await trio.to_thread.run_sync(stage.send, row)
        assert await stage.end() == 0
        assert stage.last["result"] == result


# --------------------------------------------------------------------------------------------------------- exit codes


@pytest.mark.parametrize(
    ("query", "says", "code", "status"),
    [
        ("hello", [], 0, "done"),
        ("fail", [], 1, "error"),
        ("hello", ["@iteration 9 x"], 3, "done"),
        ("loop", ["@done hello"], 4, "done"),
        ("loop", ["@done fail"], 1, "error"),
        (None, [], 2, "error"),
        (" ", [], 2, "error"),
        ("x" * 100_001, [], 2, "error"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_exit_codes(tmp_path: Path, query: str | None, says: list[str], code: int, status: str) -> None:
    async with opened(tmp_path, query, says=says, reads=query is None, max_iterations=3) as stage:
        assert await (stage.ended() if query else stage.end()) == code
        assert (stage.last["status"], stage.last["exit_code"]) == (status, code)
        assert code != 2 or stage.stderr == f"chain: {stage.last['result']}\n"


async def test_runs_of_other_clients_count(tmp_path: Path) -> None:
    async with opened(tmp_path) as stage:
        stage.session.chain.submit("hello", origin="door")
        await stage.until("result")
        assert await stage.end() == 0
        assert stage.stderr == ""
        assert stage.session.chain.submit("more", origin="door").message == "the chain is closing"


# ------------------------------------------------------------------------------------------------------------ signals


def strike(number: signal.Signals) -> None:
    """Send a signal to this process, in which the tested code must handle it."""
    assert signal.getsignal(number) not in (signal.SIG_DFL, signal.default_int_handler)
    signal.raise_signal(number)


def is_quiet_after_the_end(stage: Headless) -> bool:
    """Return whether no model call and no tool started after the first result."""
    types = [e.type for e in stage.session.events]
    return not {"run_started", "iteration_started", "tool_call"} & set(types[types.index("result") :])


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
async def test_a_signal_interrupts_the_run(tmp_path: Path, number: signal.Signals, code: int) -> None:
    says = ["@done hello", "@tool wait then: again"]
    async with opened(tmp_path, "two", says=says) as stage:
        await stage.until("tool_call", name="wait")
        stage.send("use B", *(f"line {n}" for n in range(10)))
        await stage.until("line_queued", count=10)
        chain = stage.session.chain
        chain.listen(lambda e: chain.submit("refused", origin="door") if e.type == "result" else None)
        strike(number)
        assert await stage.ended() == code
        assert (stage.last["status"], stage.last["exit_code"]) == ("interrupted", code)
        assert stage.last["partial_results"] == ["a quick result"]
        assert sorted(stage.last["unsent"]) == ["@done hello", "line 8", "line 9"]
        returned = [text for text, state in stage.states.items() if state == "returned"]
        assert returned == ["then: again", "use B", *(f"line {n}" for n in range(8))]
        messages = [from_json(r["message"]) for r in stage.session.records if r["type"] == "message"]
        assert [result.text for message in messages for result in message.results] == [
            "a quick result",
            "[Interrupted: stopped while running, it may have had effects]",
            "[Skipped: user interrupted]",
        ]
        assert is_quiet_after_the_end(stage)


@pytest.mark.parametrize("input", ["text", "stream-json"])
async def test_a_signal_after_a_run_keeps_its_status(tmp_path: Path, input: Input) -> None:
    async with opened(tmp_path, "hello", input=input) as stage:
        await stage.until("result")
        await stage.session.chain.wait_idle()
        strike(signal.SIGTERM)
        assert await stage.ended() == 143
        assert stage.statuses == ["done"]
        assert (stage.last["status"], stage.last["exit_code"]) == ("done", 143)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("again", range(10))  # trio runs the tasks of one step in a random order
@pytest.mark.parametrize("steps", range(4))
async def test_no_run_starts_after_a_signal(tmp_path: Path, steps: int, again: int) -> None:
    async with opened(tmp_path, "hello") as stage:
        while signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, None):
            await trio.lowlevel.checkpoint()
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        had_begun = stage.session.chain.is_running or bool(stage.session.events[1:])
        strike(signal.SIGTERM)
        assert await stage.ended() == 143
        assert had_begun or set(stage.statuses) <= {"interrupted"}


@pytest.mark.parametrize("piped_within", [None, math.inf])
@pytest.mark.parametrize("text", ["", "begun"])
async def test_a_signal_ends_waiting_for_input(tmp_path: Path, text: str, piped_within: float | None) -> None:
    """Also when all of the input is read as a part of the query."""
    async with opened(tmp_path, says=["@done x"], piped_within=piped_within) as stage:
        if piped_within:
            stage.stdin.write(text.encode())
        await wait_all_tasks_blocked()
        strike(signal.SIGTERM)
        assert await stage.ended() == 143
        assert stage.session.model.requests == []
        assert (stage.last["status"], stage.last["exit_code"]) == ("interrupted", 143)
        assert stage.last["unsent"] == ["@done x"]


# -------------------------------------------------------------------------------------------------------- piped input


async def test_piped_input_is_appended_to_the_query(tmp_path: Path) -> None:
    async with opened(tmp_path, "hello", piped_within=FIRST_BYTE_S) as stage:
        await wait_all_tasks_blocked()
        assert stage.statuses == []
        stage.stdin.write(b"todo: add x\ngr\xfc\xdfe\n")
        assert await stage.end() == 0
        assert stage.last["result"] == "Done: hello\n\n<stdin>\ntodo: add x\ngr\ufffd\ufffde\n</stdin>"
        assert len(stage.states) == 1
        assert any("not UTF-8" in o["message"] for o in stage.objects_of("notice"))


@pytest.mark.parametrize(
    ("query", "text", "code", "result"),
    [
        (None, "todo: add x", 0, "Done: todo: add x"),
        (None, "", 2, "query is empty"),
        ("hello", "x" * MAX_LINE, 2, "the limit is 100,000"),
    ],
    ids=["alone", "nothing", "too long"],
)
async def test_piped_input_can_be_the_query(
    tmp_path: Path, query: str | None, text: str, code: int, result: str
) -> None:
    async with opened(tmp_path, query, piped_within=math.inf) as stage:
        await trio.to_thread.run_sync(stage.stdin.write, text.encode())
        assert await stage.end() == code
        assert result in stage.last["result"]
        assert len(stage.session.model.requests) == (code == 0)


async def test_a_silent_pipe_is_ignored_with_a_notice(tmp_path: Path, clock: MockClock) -> None:
    async with opened(tmp_path, "hello", says=["@answer more"], piped_within=FIRST_BYTE_S) as stage:
        await wait_all_tasks_blocked()
        clock.jump(FIRST_BYTE_S)
        assert await stage.ended() == 0
        assert stage.last["result"] == "Heard: more."
        (notice,) = (o["message"] for o in stage.objects_of("notice") if "standard input" in o["message"])
        assert notice.endswith("--stdin waits for it, --no-stdin ignores it")


# --------------------------------------------------------------------------------------------------- resumed sessions

WAYS: dict[str, dict[str, Any]] = {
    "-p": {"piped_within": FIRST_BYTE_S},
    "-p --stdin": {"piped_within": math.inf},
    "a pipe": {},
    "stream-json": {"input": "stream-json"},
}
"""The ways to read the standard input of a resumed session without a query."""


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("end", ["closed", "silent"])
async def test_waiting_lines_run_without_a_query(tmp_path: Path, way: str, end: str, clock: MockClock) -> None:
    async with opened(tmp_path, before=await killed("use B"), **WAYS[way]) as stage:
        await wait_all_tasks_blocked()
        assert stage.session.model.requests == [], "a query may still come"
        if end == "closed" or way == "-p --stdin":
            stage.stdin.close()
        else:
            clock.jump(FIRST_BYTE_S)
        assert (await stage.until("result")).result == "Heard: use B."
        assert stage.session.state("L2") == "delivered"


@pytest.mark.parametrize("way", WAYS)
async def test_waiting_lines_go_with_a_query(tmp_path: Path, way: str) -> None:
    async with opened(tmp_path, before=await killed("use B"), **WAYS[way]) as stage:
        stage.send(line("hello") if way == "stream-json" else "hello")
        assert await stage.end() == 0
        assert [e.query for e in stage.session.of(events.RunStarted)] == ["hello"]
        assert "USER INTERRUPTION: use B" in stage.session.sent()


# --------------------------------------------------------------------------------------------------------- questions


def answer(id: str, text: str) -> dict[str, str]:
    return {"type": "answer", "id": id, "text": text}


def decisions(stage: Headless) -> list[tuple[str, str, str]]:
    return [(e.id, e.decision, e.by) for e in stage.session.of(events.Answer)]


async def test_only_an_answer_in_json_decides(tmp_path: Path) -> None:
    async with opened(tmp_path, "change it", input="stream-json") as stage:
        await stage.until("question", id="Q1")
        stage.send(line("y", "l1"), line("@question y", "l2"), answer("Q2", "y"), {"type": "answer", "id": "Q1"})
        await stage.until("line_refused", id="Q1")
        await stage.until("line_queued", id="l1")
        assert [(e.id, e.reason) for e in stage.session.of(events.LineRefused)][:2] == [
            ("l2", 'a line does not answer a question; write {"type":"answer","id":"Q1","text":"y"}'),
            ("Q2", "there is no question Q2"),
        ]
        assert stage.session.chain.questions.open_id == "Q1"
        stage.send(answer("Q1", "y"))
        await stage.until("question", id="Q2")
        stage.send(answer("Q2", "no need"), answer("Q2", "y"))
        await stage.until("line_refused", id="Q2", text="y")
        await stage.end()
        assert decisions(stage) == [("Q1", "allowed", "user"), ("Q2", "refused", "user")]
        found = stage.objects_of("question", "answer")
        assert [o["type"] for o in found] == ["question", "answer"] * 2
        assert found[0]["preview"] == "change a"


async def test_nobody_can_answer_after_the_input(tmp_path: Path) -> None:
    async with opened(tmp_path, "change it", input="stream-json") as stage:
        await stage.until("question", id="Q1")
        assert await stage.end() == 0
        assert decisions(stage) == [("Q1", "refused", "nobody"), ("Q2", "refused", "nobody")]
        assert "allow it with --allow change_file" in stage.last["result"]


@pytest.mark.parametrize(
    ("says", "expected", "code"),
    [
        (["y", "not that one", "left over"], [("allowed", "user"), ("refused", "user")], 3),
        (["x" * 100_001, "y", "y"], [("allowed", "user"), ("allowed", "user")], 3),
        (["y"], [("allowed", "user"), ("refused", "nobody")], 0),
    ],
    ids=["enough", "one refused", "one missing"],
)
async def test_a_script_answers_in_order(
    tmp_path: Path, says: list[str], expected: list[tuple[str, str]], code: int
) -> None:
    async with opened(tmp_path, "change it", says=[f"@question {text}" for text in says], reads=False) as stage:
        assert await stage.ended() == code
        assert decisions(stage) == [(f"Q{n}", *each) for n, each in enumerate(expected, 1)]
        assert stage.last["unsent"] == [f"@question {text}" for text in says if text == "left over"]


async def test_an_open_pipe_can_answer(tmp_path: Path) -> None:
    async with opened(tmp_path) as stage:
        stage.send("which one")
        await stage.until("question", id="Q1")
        stage.send("not an answer", "@question 2", "@question 1")
        await stage.until("answer", id="Q1")
        await stage.until("result")
        stage.send("which one now")
        await stage.until("answer", id="Q2")
        await stage.until("result", count=2)
        assert await stage.end() == 0
        assert [(e.text, e.by) for e in stage.session.of(events.Answer)] == [("right", "user"), ("left", "user")]
        assert stage.states["not an answer"] == "delivered"


async def test_input_that_is_not_read_cannot_answer(tmp_path: Path) -> None:
    """A full sender stops reading. The question must not wait for lines that wait for its answer."""
    async with opened(tmp_path, input="stream-json", is_checked=False) as stage:
        stage.send(line("which one"))
        await stage.until("question", id="Q1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, stage.send, *(line(f"line {n}") for n in range(1_100)))
            await stage.until("answer", id="Q1")
        assert decisions(stage) == [("Q1", "refused", "nobody")]
        stage.send(line("stop"))
        await stage.end()


# --------------------------------------------------------------------------------------------------- background jobs


@pytest.mark.parametrize("wakes", [True, False])
async def test_only_a_waking_job_is_awaited(tmp_path: Path, wakes: bool) -> None:
    over = trio.Event()

    async def run(on_output: object) -> JobEnd:
        await over.wait()
        return JobEnd(0, "exit code 0")

    async with opened(tmp_path, "hello", reads=False, output="json") as stage:
        stage.session.chain.jobs.start("main", "call", "make", run, wakes=wakes)
        if wakes:
            await wait_all_tasks_blocked()
            assert stage.code is None
            over.set()
        assert await stage.ended() == 0
        receipt = stage.last["receipts"][-1]
        how = "exit code 0" if wakes else "ended with the session"
        assert receipt["text"] == f"[JOB J1] {how} after 0 s\n$ make"
        assert (receipt["state"], receipt["kind"]) == ("delivered" if wakes else "returned", "job")
