"""A chain without a terminal: what comes in on standard input, and what the process tells and returns.

Everything runs in one process and in lock-step: lines go into a pipe, and the next step waits for the event that shows
what became of them.
"""

from __future__ import annotations

import json
import math
import os
import signal
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from io import FileIO
from pathlib import Path
from typing import Any, Literal

import pytest
import trio
from support import check_invariants, open_session, settings
from support.crashes import left
from support.killed import killed
from support.models import ASKING_TOOLS
from support.stages import Printing, line
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.config.load import Settings
from chain.lines.parse import MAX_LINE
from chain.messages import from_json
from chain.tools.tool import JobEnd, ToolContext, tool
from cli import headless
from cli.headless import Job
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
  - {when: {user: ^two, tool: wait}, text: "abcdefghij", pace: {chunk: 5, delay_s: 5}}
  - {when: {user: ^stream}, text: "abcdefghij", pace: {chunk: 5, delay_s: 5}}
  - {when: {user: ^busy}, text: So far, error: {message: try later, retryable: true, retry_after: 1000, after: 3}}
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


@dataclass
class Headless(Printing):
    """A headless process without the process."""

    stdin: FileIO
    open: trio.Event = field(default_factory=trio.Event)
    code: int | None = None
    news: trio.Event = field(default_factory=trio.Event)

    def send(self, *lines: str | dict[str, Any]) -> None:
        """Write lines into standard input, all in one piece."""
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        self.stdin.write("".join(f"{text}\n" for text in texts).encode())

    def tell(self, event: events.Event) -> None:
        self.news.set()

    async def until(self, type: str, count: int = 1, **values: object) -> events.Event:
        """Wait for the ``count``-th event of this type with these values."""
        while True:
            found = [
                e
                for e in self.session.events
                if e.type == type and all(getattr(e, name) == value for name, value in values.items())
            ]
            if len(found) >= count:
                return found[count - 1]
            self.news = trio.Event()
            await self.news.wait()

    async def end(self) -> int:
        """Let the tools go, close standard input and wait for the exit code."""
        self.open.set()
        self.stdin.close()
        return await self.ended()

    async def ended(self) -> int:
        """Wait for the exit code."""
        while self.code is None:
            self.news = trio.Event()
            await self.news.wait()
        return self.code

    @property
    def last(self) -> dict[str, Any]:
        """The last object, which is a result."""
        last = self.objects[-1]
        assert last["type"] == "result"
        return last


@asynccontextmanager
async def opened(
    folder: Path,
    query: str | None = None,
    *,
    says: Iterable[str] = (),
    reads: bool = True,
    output: Format = "stream-json",
    input: Literal["text", "stream-json"] = "text",
    use: Settings | None = None,
    piped_within: float | None = None,
    max_iterations: int = 20,
    is_checked: bool = True,
    before: bytes = b"",
) -> AsyncIterator[Headless]:
    """Run the job; ``reads``: standard input is a pipe that ``Headless.send`` writes into.

    ``before`` is the journal of the session that it goes on with, if it does. ``is_checked``: afterwards the invariants
    are, which take an id for one line only.
    """
    paths = folder / "stdout", folder / "stderr"
    outs = [os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for path in paths]
    reading, writing = os.pipe()
    scheduled = tuple(parse_moment(say, strict=True) for say in says)
    job = Job(query, scheduled, reads and piped_within is None, output, input, piped_within=piped_within)
    renderer = Renderer(color=False, ascii=False, width=100)

    file, read = left(before) if before else (None, None)

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
        stage.code = await headless.run_job(session.chain, job, renderer, stdin=reading, stdout=outs[0], stderr=outs[1])
        stage.news.set()

    try:
        with FileIO(writing, "w") as stdin:
            chosen = use or settings(max_iterations=max_iterations)
            async with (
                open_session(RULES, tools=[wait, quick, *ASKING_TOOLS], use=chosen, file=file, resume=read) as session,
                trio.open_nursery() as nursery,
            ):
                stage = Headless(session, paths, stdin)
                session.chain.listen(stage.tell)
                nursery.start_soon(work)
                yield stage
                if stage.code is None:
                    await stage.end()
                if is_checked and session.model.requests and not before:
                    check_invariants(session, max_iterations=max_iterations)
    finally:
        for fd in (*outs, reading):
            os.close(fd)


INTERRUPT = {"type": "interrupt"}


@pytest.fixture
def clock(mock_clock: MockClock) -> MockClock:
    """Time as it is, which a test can move on, so that paced text takes no real time."""
    mock_clock.rate = 1
    return mock_clock


# --------------------------------------------------------------------------------------------------------------- runs


async def test_a_query_is_run_and_ends_the_process(tmp_path: Path) -> None:
    async with opened(tmp_path, "hello", reads=False, output="text") as stage:
        assert await stage.ended() == 0

        assert stage.stdout == "Done: hello\n"
        assert "done, 1 iteration" in stage.stderr


async def test_without_reading_standard_input_it_is_left_alone(tmp_path: Path) -> None:
    async with opened(tmp_path, "hello", reads=False) as stage:
        stage.send("not for us")
        assert await stage.ended() == 0

        assert stage.states == {"hello": "delivered"}


async def test_a_query_is_not_parsed(tmp_path: Path) -> None:
    async with opened(tmp_path, "todo: add x", reads=False) as stage:
        assert await stage.ended() == 0

        assert stage.last["result"] == "Done: todo: add x"
        assert stage.session.chain.plan.tasks == ()


async def test_the_first_line_of_a_pipe_starts_the_run_and_later_ones_interrupt_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as stage:
        stage.send("task")
        await stage.until("tool_call")
        stage.send("use B", "todo: add check the licence")
        await stage.until("line_queued", count=2)
        assert await stage.end() == 0

        (entered,) = stage.session.of(events.UserInterruption)
        assert (entered.message, entered.point) == ("use B\n\ntodo: add check the licence", "D")
        assert stage.delivered == [("task", "start"), ("use B", "D"), ("todo: add check the licence", "D")]
        assert [t.text for t in stage.session.chain.plan.tasks] == ["check the licence"]


async def test_a_run_is_told_before_what_interrupts_it(tmp_path: Path) -> None:
    async with opened(tmp_path) as stage:
        stage.send("hello", "todo: add x")
        assert await stage.end() == 0

        told = [o["type"] for o in stage.objects]
        assert told.index("run_started") < told.index("line_queued")


async def test_the_end_of_the_input_means_no_more_lines(tmp_path: Path) -> None:
    async with opened(tmp_path, "task") as stage:
        await stage.until("tool_call")
        stage.stdin.close()
        await wait_all_tasks_blocked()
        assert stage.code is None
        stage.open.set()

        assert await stage.ended() == 0
        assert stage.last["result"] == "The answer to task."


async def test_from_a_pipe_a_full_channel_holds_the_rest_back(tmp_path: Path) -> None:
    lines = [f"line {n}" for n in range(1, 25)]
    async with opened(tmp_path, "task") as stage:
        await stage.until("tool_call")
        stage.send(*lines)
        await stage.until("line_queued", count=10)
        assert len(stage.session.chain.lines.waiting) == 10
        assert await stage.end() == 0

        first, *_ = stage.session.of(events.UserInterruption)
        assert first.message.split("\n\n") == lines[:10]
        assert [text for text, _ in stage.delivered] == ["task", *lines]
        assert stage.session.of(events.LineRefused) == []


async def test_todo_and_status_with_no_run_need_no_model(tmp_path: Path) -> None:
    async with opened(tmp_path) as stage:
        stage.send("todo: add x", "status")
        assert await stage.end() == 0

        assert stage.session.model.requests == []
        assert stage.states == {"todo: add x": "handled", "status": "handled"}
        assert [t.text for t in stage.session.chain.plan.tasks] == ["x"]
        notices = [o["message"] for o in stage.objects if o["type"] == "notice"]
        assert len(notices) == 2
        assert "plan 0/1" in notices[1]
        assert stage.last["status"] == "done"


async def test_a_stop_with_no_run_says_that_nothing_is_running(tmp_path: Path) -> None:
    async with opened(tmp_path, output="text") as stage:
        stage.send("stop")
        assert await stage.end() == 0

        assert "Nothing is running." in stage.stderr
        assert stage.session.model.requests == []


@pytest.mark.parametrize("text", ["/help me", "@home is where", "@iteration x y", "@after soon x"])
async def test_in_a_pipe_slashes_and_unknown_moments_are_text(tmp_path: Path, text: str) -> None:
    async with opened(tmp_path) as stage:
        stage.send(text)
        assert await stage.end() == 0

        assert stage.last["result"] == f"Done: {text}"


async def test_blank_lines_do_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as stage:
        stage.send("", "   ", "hello", "\t")
        assert await stage.end() == 0

        assert stage.states == {"hello": "delivered"}


async def test_bytes_that_are_not_utf_8_are_replaced_with_a_notice(tmp_path: Path) -> None:
    async with opened(tmp_path, output="text") as stage:
        stage.stdin.write(b"gr\xfc\xdfe\n")
        assert await stage.end() == 0

        assert stage.stdout == "Done: gr\ufffd\ufffde\n"
        assert "line 1 of the input is not UTF-8" in stage.stderr


async def test_an_over_long_line_is_refused_with_the_limit(tmp_path: Path) -> None:
    async with opened(tmp_path, "task", output="text") as stage:
        await stage.until("tool_call")

        def write() -> None:
            stage.send("x" * 100_001, "y" * 1_000_000, "use B")

        await trio.to_thread.run_sync(write)
        await stage.until("line_queued")
        assert await stage.end() == 3

        assert stage.delivered == [("task", "start"), ("use B", "D")]
        refused = stage.session.of(events.LineRefused)
        assert len(refused) == 2
        assert all("100,000" in e.reason for e in refused)
        assert stage.stderr.count("the limit is 100,000") == 2


# ------------------------------------------------------------------------------------------------------------ moments


@pytest.mark.parametrize("by", ["say", "pipe", "json"])
async def test_a_line_at_its_moment(tmp_path: Path, by: str) -> None:
    text = "@iteration 2 use B"
    says = [text] if by == "say" else []
    async with opened(tmp_path, says=says, input="stream-json" if by == "json" else "text") as stage:
        stage.open.set()
        for each in [text, "task"] if by != "say" else ["task"]:
            stage.send(line(each) if by == "json" else each)
        assert await stage.end() == 0

        (entered,) = [o for o in stage.objects if o["type"] == "user_interruption"]
        assert (entered["message"], entered["point"], entered["iteration"]) == ("use B", "B", 2)
        assert stage.delivered == [("task", "start"), ("use B", "B")]


# --------------------------------------------------------------------------------------------------------------- JSON


async def test_the_senders_ids_are_in_the_receipts(tmp_path: Path) -> None:
    async with opened(tmp_path, input="stream-json") as stage:
        stage.send(line("task", "q"))
        await stage.until("tool_call")
        stage.send(line("use B", "b"), line("todo: add x", "t"), line("then: hello", "f"), line("todo: add", "bad"))
        await stage.until("line_queued", count=3)
        assert await stage.end() == 3

        told = {o["id"]: o["state"] for o in stage.objects if o["type"] == "receipt"}
        assert told == {
            "q": "delivered",
            "b": "delivered",
            "t": "delivered",
            "f": "delivered",
            "bad": "refused",
        }
        results = [o for o in stage.objects if o["type"] == "result"]
        assert {r["id"]: r["state"] for result in results for r in result["receipts"]} == told
        queued = [o["id"] for o in stage.objects if o["type"] == "line_queued"]
        assert queued == ["b", "t", "f"]
        entered = [o["ids"] for o in stage.objects if o["type"] == "user_interruption"]
        assert entered == [["b", "t"]]


async def test_lines_without_an_id_get_one(tmp_path: Path) -> None:
    async with opened(tmp_path, input="stream-json") as stage:
        stage.send(line("hello"), line("use B", "L2"), line("use C"))
        assert await stage.end() == 0

        ids = [r["id"] for r in stage.last["receipts"]]
        assert len(set(ids)) == 3
        assert ids[:2] == ["L1", "L2"]


@pytest.mark.parametrize(("text", "state"), [("   ", "handled"), ("stop", "handled")])
async def test_a_line_that_needs_nothing_is_answered_too(tmp_path: Path, text: str, state: str) -> None:
    async with opened(tmp_path, input="stream-json") as stage:
        stage.send(line("hello", "q"))
        await stage.until("result")
        await stage.session.chain.wait_idle()
        stage.send(line(text, "mine"))
        assert await stage.end() == 0

        told = [(o["id"], o["state"]) for o in stage.objects if o["type"] == "receipt"]
        assert told == [("q", "delivered"), ("mine", state)]


async def test_a_line_whose_moment_does_not_come_is_answered_too(tmp_path: Path) -> None:
    async with opened(tmp_path, input="stream-json") as stage:
        stage.send(line("@iteration 9 never", "n"), line("hello", "q"))
        assert await stage.end() == 3

        told = [(o["id"], o["state"]) for o in stage.objects if o["type"] == "receipt"]
        assert told == [("q", "delivered"), ("n", "unsent")]
        assert stage.last["unsent"] == ["@iteration 9 never"]


async def test_urgent_lines_are_marked(tmp_path: Path) -> None:
    async with opened(tmp_path, input="stream-json") as stage:
        stage.send(line("two", "q"))
        await stage.until("tool_call", name="wait")
        stage.send(line("use B", "u", urgent=True))
        await stage.until("line_queued", urgency="urgent", origin="json")
        assert await stage.end() == 0

        (entered,) = [o for o in stage.objects if o["type"] == "user_interruption"]
        assert (entered["ids"], entered["point"], entered["tools_skipped"]) == (["u"], "C", ["quick"])


async def test_lines_are_dropped_where_they_wait_also_those_that_are_held_back(tmp_path: Path) -> None:
    async with opened(tmp_path, input="stream-json") as stage:
        stage.send(line("task", "q"))
        await stage.until("tool_call")
        stage.send(*(line(f"line {n}", f"l{n}") for n in range(12)), line("@done next", "d"))
        await stage.until("line_queued", count=10)
        stage.send(*({"type": "drop", "id": id} for id in ("l3", "l11", "d", "q", "none")))
        await stage.until("receipt", state="unsent", count=2)
        assert await stage.end() == 3

        states = {o["id"]: o["state"] for o in stage.objects if o["type"] == "receipt"}
        gone = {"l3": "dropped", "l11": "unsent", "d": "unsent"}
        assert states == {"q": "delivered", **{f"l{n}": "delivered" for n in range(12)}, **gone}
        refused = [
            (o["id"], o["kind"], o["reason"].split(";")[0]) for o in stage.objects if o["type"] == "line_refused"
        ]
        assert refused == [("q", "drop", "q is not waiting"), ("none", "drop", "none is not waiting")]


async def test_several_runs_in_one_process(tmp_path: Path) -> None:
    async with opened(tmp_path, input="stream-json") as stage:
        for n in range(1, 4):
            stage.send(line(f"hello {n}", f"q{n}"))
            await stage.until("result", count=n)
        assert await stage.end() == 0

        results = [o for o in stage.objects if o["type"] == "result"]
        assert [r["result"] for r in results] == [f"Done: hello {n}" for n in range(1, 4)]
        assert [[r["id"] for r in result["receipts"]] for result in results] == [["q1"], ["q2"], ["q3"]]
        assert [o["type"] for o in stage.objects].count("init") == 1


async def test_an_interrupt_ends_the_run_and_the_next_one_works(tmp_path: Path) -> None:
    async with opened(tmp_path, input="stream-json") as stage:
        stage.send(line("task", "q"))
        await stage.until("tool_call")
        stage.send(line("use B", "b"))
        await stage.until("line_queued")
        stage.send(INTERRUPT)
        await stage.until("result", status="interrupted")
        stage.send(line("hello", "h"))
        await stage.until("result", status="done")
        assert await stage.end() == 130

        results = [o for o in stage.objects if o["type"] == "result"]
        assert [r["exit_code"] for r in results][:2] == [130, 130]
        assert results[0]["result"] == "Interrupted. Tell the chain what to do instead."
        assert results[0]["partial"]
        assert [{r["id"]: r["state"] for r in result["receipts"]} for result in results[:2]] == [
            {"q": "delivered", "b": "returned"},
            {"h": "delivered"},
        ]
        sent = stage.session.sent()
        assert "[Interrupted: stopped while running, it may have had effects]" in sent
        assert "[The user interrupted the run here]" in sent


async def test_what_is_written_behind_an_interrupt_is_for_the_next_run(tmp_path: Path) -> None:
    async with opened(tmp_path, input="stream-json") as stage:
        stage.send(line("task", "q"))
        await stage.until("tool_call")
        stage.send(INTERRUPT, line("hello", "h"))
        await stage.until("result", status="done")
        assert await stage.end() == 130

        assert stage.statuses == ["interrupted", "done"]
        assert {r["id"]: r["state"] for r in stage.last["receipts"]} == {"h": "delivered"}


async def test_an_interrupt_when_nothing_runs_leaves_nothing_behind(tmp_path: Path) -> None:
    async with opened(tmp_path, input="stream-json") as stage:
        stage.send(INTERRUPT, line("hello"))
        await stage.until("result")
        stage.send(INTERRUPT, line("again"))
        assert await stage.end() == 0

        assert stage.statuses == ["done", "done"]


async def test_input_that_is_not_understood_is_told_of_and_stops_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path, input="stream-json") as stage:
        stage.send("not json", "", line("hello"))
        assert await stage.end() == 3

        (refused,) = [o for o in stage.objects if o["type"] == "line_refused"]
        assert (refused["origin"], refused["text"]) == ("json", "not json")
        assert refused["reason"].startswith("line 1 of the input was not understood (it is not a JSON object); write ")
        assert stage.last["result"] == "Done: hello"


async def test_a_malformed_line_with_an_id_is_answered(tmp_path: Path) -> None:
    async with opened(tmp_path, input="stream-json") as stage:
        stage.send({"type": "line", "id": "mine", "text": "x", "urgent": "yes"}, line("hello"))
        assert await stage.end() == 3

        (refused,) = [o for o in stage.objects if o["type"] == "receipt" and o["id"] == "mine"]
        assert (refused["state"], refused["text"]) == ("refused", "x")


async def test_nothing_but_malformed_input_is_wrong_usage(tmp_path: Path) -> None:
    async with opened(tmp_path, input="stream-json") as stage:
        stage.send("not json")
        assert await stage.end() == 2

        assert stage.last["status"] == "error"


async def test_a_json_line_may_be_as_long_as_any_other_however_it_is_written(tmp_path: Path) -> None:
    text = "я" * 100_000
    async with opened(tmp_path, input="stream-json") as stage:
        await trio.to_thread.run_sync(stage.send, line(text, "long"))
        assert await stage.end() == 0

        assert {r["id"]: r["state"] for r in stage.last["receipts"]} == {"long": "delivered"}


async def test_an_over_long_json_line_is_refused_with_the_limit(tmp_path: Path) -> None:
    async with opened(tmp_path, "hello", input="stream-json") as stage:
        await trio.to_thread.run_sync(stage.send, {"type": "line", "id": "long", "text": "x" * 2_000_000})
        await stage.end()

        (receipt,) = [o for o in stage.objects if o["type"] == "receipt" and o["state"] == "refused"]
        assert receipt["id"] == "long"
        assert "100,000" in receipt["reason"]


async def test_json_that_utf_8_cannot_say_is_taken(tmp_path: Path) -> None:
    async with opened(tmp_path, input="stream-json") as stage:
        stage.send('{"type":"line","text":"half \\ud83d a pair"}')
        assert await stage.end() == 0

        assert stage.last["result"] == "Done: half ? a pair"


async def test_a_json_line_may_have_lines(tmp_path: Path) -> None:
    async with opened(tmp_path, input="stream-json") as stage:
        stage.send(line("hello\nstop\nworld"))
        assert await stage.end() == 0

        assert stage.last["result"] == "Done: hello\nstop\nworld"


# --------------------------------------------------------------------------------------------------------- exit codes


@pytest.mark.parametrize(
    ("query", "says", "code", "status"),
    [
        ("hello", [], 0, "done"),
        ("fail", [], 1, "error"),
        ("hello", ["@iteration 9 x"], 3, "done"),
        ("loop", ["@done hello"], 4, "done"),
        ("loop", ["@done fail"], 1, "error"),
    ],
)
async def test_exit_codes(tmp_path: Path, query: str, says: list[str], code: int, status: str) -> None:
    async with opened(tmp_path, query, says=says, reads=False, max_iterations=3) as stage:
        assert await stage.ended() == code

        assert (stage.last["status"], stage.last["exit_code"]) == (status, code)


async def test_no_query_at_all_is_wrong_usage(tmp_path: Path) -> None:
    async with opened(tmp_path) as stage:
        assert await stage.end() == 2

        assert "there is no query" in stage.last["result"]
        assert stage.session.model.requests == []


@pytest.mark.parametrize("query", ["x" * 100_001, " "])
async def test_a_query_that_is_refused_is_wrong_usage(tmp_path: Path, query: str) -> None:
    async with opened(tmp_path, query, reads=False, output="text") as stage:
        assert await stage.ended() == 2

        (row,) = [row for row in stage.stderr.splitlines() if row.startswith("chain: ")]
        assert "100,000" in row or "empty" in row


async def test_an_over_long_first_line_is_wrong_usage(tmp_path: Path) -> None:
    async with opened(tmp_path, output="text") as stage:
        await trio.to_thread.run_sync(stage.send, "x" * 100_001)
        assert await stage.end() == 2

        assert "100,000" in stage.stderr


# -------------------------------------------------------------------------------------------------------------- stops


async def test_lines_that_wait_at_a_stop_come_back(tmp_path: Path) -> None:
    async with opened(tmp_path, "task", output="text") as stage:
        await stage.until("tool_call")
        stage.send("use B", "stop")
        await stage.until("receipt", state="handled")
        assert await stage.end() == 3

        assert stage.states == {"task": "delivered", "use B": "returned", "stop": "handled"}
        assert "↩ Returned (cancelled_with_partial): use B" in stage.stderr.splitlines()


# ------------------------------------------------------------------------------------------------------------ signals

SIGNALS = [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)]


def strike(number: signal.Signals) -> None:
    """Send the signal to this process, where the program under test must be listening."""
    assert signal.getsignal(number) not in (signal.SIG_DFL, signal.default_int_handler)
    signal.raise_signal(number)


def quiet_after_the_end(stage: Headless) -> bool:
    """Whether no model call and no tool started after the first interrupted result."""
    told = [e.type for e in stage.session.events]
    return not {"run_started", "iteration_started", "tool_call"} & set(told[told.index("result") :])


@pytest.mark.parametrize(("number", "code"), SIGNALS)
async def test_a_signal_during_a_tool(tmp_path: Path, number: signal.Signals, code: int) -> None:
    async with opened(tmp_path, "two") as stage:
        await stage.until("tool_call", name="wait")
        stage.send("use B")
        await stage.until("line_queued")
        strike(number)
        assert await stage.ended() == code

        assert (stage.last["status"], stage.last["exit_code"]) == ("interrupted", code)
        assert stage.last["partial_results"] == ["a quick result"]
        assert stage.states == {"two": "delivered", "use B": "returned"}
        messages = [from_json(r["message"]) for r in stage.session.records if r["type"] == "message"]
        assert [result.text for message in messages for result in message.results] == [
            "a quick result",
            "[Interrupted: stopped while running, it may have had effects]",
            "[Skipped: user interrupted]",
        ]
        assert quiet_after_the_end(stage)


@pytest.mark.parametrize("input", ["text", "stream-json"])
async def test_a_signal_while_nothing_runs(tmp_path: Path, input: Literal["text", "stream-json"]) -> None:
    async with opened(tmp_path, "hello", input=input) as stage:
        await stage.until("result")
        await stage.session.chain.wait_idle()
        strike(signal.SIGTERM)
        assert await stage.ended() == 143

        assert stage.statuses == ["done"]
        assert (stage.last["status"], stage.last["exit_code"]) == ("done", 143)


async def test_a_signal_before_anything_came(tmp_path: Path) -> None:
    async with opened(tmp_path) as stage:
        await wait_all_tasks_blocked()
        strike(signal.SIGTERM)
        assert await stage.ended() == 143

        assert stage.session.model.requests == []
        assert (stage.last["status"], stage.last["exit_code"]) == ("interrupted", 143)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("again", range(10))  # in which order the tasks of one step run is drawn
@pytest.mark.parametrize("steps", range(4))
async def test_no_run_starts_after_a_signal_in_whatever_step_it_comes(tmp_path: Path, steps: int, again: int) -> None:
    async with opened(tmp_path, "hello") as stage:
        while signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, None):
            await trio.lowlevel.checkpoint()
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        had_begun = stage.session.chain.is_running or bool(stage.session.events[1:])
        strike(signal.SIGTERM)
        assert await stage.ended() == 143

        assert had_begun or set(stage.statuses) <= {"interrupted"}


async def test_after_a_signal_no_line_starts_a_run(tmp_path: Path) -> None:
    async with opened(tmp_path, "task", says=["@done hello", "then: again"], reads=False) as stage:
        await stage.until("tool_call")
        strike(signal.SIGINT)
        assert await stage.ended() == 130

        assert stage.statuses == ["interrupted"]
        assert stage.last["unsent"] == ["@done hello"]
        assert stage.states["then: again"] == "returned"
        assert quiet_after_the_end(stage)


async def test_at_a_signal_held_lines_are_reported(tmp_path: Path) -> None:
    lines = [f"line {n}" for n in range(1, 13)]
    async with opened(tmp_path, "task") as stage:
        await stage.until("tool_call")
        stage.send(*lines)
        await stage.until("line_queued", count=10)
        strike(signal.SIGTERM)
        assert await stage.ended() == 143

        first, last = (o for o in stage.objects if o["type"] == "result")
        assert [r["text"] for r in first["receipts"] if r["state"] == "returned"] == lines[:10]
        assert (last["receipts"], last["unsent"]) == ([], lines[10:])
        assert quiet_after_the_end(stage)


async def test_a_signal_in_text_mode_says_what_happened(tmp_path: Path) -> None:
    async with opened(tmp_path, "task", output="text") as stage:
        await stage.until("tool_call")
        strike(signal.SIGINT)
        assert await stage.ended() == 130

        assert stage.stdout == "", "there is no answer"
        *_, sentence, closing, _resume = stage.stderr.splitlines()
        assert sentence == "Interrupted. Tell the chain what to do instead."
        assert "interrupted, 1 iteration" in closing


# -------------------------------------------------------------------------------------------------------- piped input


async def test_what_is_piped_in_goes_with_the_query(tmp_path: Path) -> None:
    async with opened(tmp_path, "hello", piped_within=FIRST_BYTE_S) as stage:
        await wait_all_tasks_blocked()
        assert stage.statuses == [], "nothing begins before the input has ended"
        stage.send("todo: add x", "then: y")
        assert await stage.end() == 0

        assert stage.last["result"] == "Done: hello\n\n<stdin>\ntodo: add x\nthen: y\n</stdin>"
        assert len(stage.states) == 1, "its lines are no lines"


async def test_what_is_piped_in_and_is_not_utf_8_is_replaced_with_a_notice(tmp_path: Path) -> None:
    async with opened(tmp_path, "hello", piped_within=FIRST_BYTE_S, output="text") as stage:
        stage.stdin.write(b"gr\xfc\xdfe")
        assert await stage.end() == 0

        assert "gr\ufffd\ufffde" in stage.stdout
        assert "not UTF-8" in stage.stderr


async def test_what_is_piped_in_alone_is_the_query(tmp_path: Path) -> None:
    async with opened(tmp_path, piped_within=math.inf) as stage:
        stage.send("todo: add x")
        assert await stage.end() == 0

        assert stage.last["result"] == "Done: todo: add x"


async def test_without_anything_piped_in_and_no_query_there_is_nothing_to_do(tmp_path: Path) -> None:
    async with opened(tmp_path, piped_within=math.inf) as stage:
        assert await stage.end() == 2

        assert "query is empty" in stage.last["result"]
        assert stage.session.model.requests == []


async def test_a_pipe_that_says_nothing_is_left_alone_with_a_notice(tmp_path: Path, clock: MockClock) -> None:
    async with opened(tmp_path, "hello", says=["@answer more"], piped_within=FIRST_BYTE_S) as stage:
        await wait_all_tasks_blocked()
        clock.jump(FIRST_BYTE_S)
        assert await stage.ended() == 0

        assert stage.last["result"] == "Heard: more."
        told = [o["message"] for o in stage.objects if o["type"] == "notice"]
        [notice] = [message for message in told if "standard input" in message]
        assert "--no-stdin" in notice
        assert "--stdin" in notice


WAYS: dict[str, dict[str, Any]] = {
    "-p": {"piped_within": FIRST_BYTE_S},
    "-p --stdin": {"piped_within": math.inf},
    "a pipe": {},
    "stream-json": {"input": "stream-json"},
}
"""How standard input is read of a headless session that goes on without a query."""


@pytest.mark.parametrize("way", WAYS)
async def test_lines_from_before_run_when_standard_input_ends_without_a_query(tmp_path: Path, way: str) -> None:
    async with opened(tmp_path, before=await killed("use B"), **WAYS[way]) as stage:
        assert await stage.end() == 0

        assert stage.last["result"] == "Heard: use B."
        assert stage.session.state("L2") == "delivered"


@pytest.mark.parametrize("way", [way for way in WAYS if "--stdin" not in way])
async def test_lines_from_before_do_not_wait_for_a_pipe_that_says_nothing(
    tmp_path: Path, way: str, clock: MockClock
) -> None:
    async with opened(tmp_path, before=await killed("use B"), **WAYS[way]) as stage:
        await wait_all_tasks_blocked()
        assert stage.session.model.requests == [], "a query may still come"
        clock.jump(FIRST_BYTE_S)
        assert (await stage.until("result")).result == "Heard: use B."


@pytest.mark.parametrize("way", WAYS)
async def test_a_query_from_standard_input_goes_with_the_lines_from_before(tmp_path: Path, way: str) -> None:
    async with opened(tmp_path, before=await killed("use B"), **WAYS[way]) as stage:
        stage.send(line("hello") if way == "stream-json" else "hello")
        assert await stage.end() == 0

        assert [e.query for e in stage.session.of(events.RunStarted)] == ["hello"]
        assert "USER INTERRUPTION: use B" in stage.session.sent()


@pytest.mark.parametrize("c", ["c", "L"])
async def test_the_ids_of_lines_count_for_one_process(tmp_path: Path, c: str) -> None:
    """Those of the lines before are another process's, and keep apart in the journal and in what is told."""
    before = await killed("use B", id=f"{c}2")
    async with opened(tmp_path, before=before, input="stream-json", is_checked=False) as stage:
        stage.send(line("hello", f"{c}1"), line("status", f"{c}2"), line("again", f"{c}1"))
        assert await stage.end() == 3

        assert [e.query for e in stage.session.of(events.RunStarted)] == ["hello"]
        final = {(o["id"], o["text"]): o["state"] for o in stage.objects if o["type"] == "receipt"}
        assert final == {
            (f"{c}1", "hello"): "delivered",
            (f"{c}2 (before)", "use B"): "delivered",
            (f"{c}2", "status"): "delivered",
            (f"{c}1", "again"): "refused",
        }
        told = [id for o in stage.objects if o["type"] == "user_interruption" for id in o["ids"]]
        assert sorted(told) == [f"{c}2", f"{c}2 (before)"]
        on_record = {r["id"]: r["text"] for r in stage.session.records if r["type"] == "line"}
        assert sorted(on_record.values()) == ["Do the task", "hello", "status", "use B"]
        assert on_record[f"{c}2"] == "use B"


async def test_more_than_a_query_can_be_is_wrong_usage(tmp_path: Path) -> None:
    async with opened(tmp_path, "hello", piped_within=FIRST_BYTE_S) as stage:
        await trio.to_thread.run_sync(stage.send, "x" * MAX_LINE)
        assert await stage.end() == 2

        assert "the limit is 100,000" in stage.last["result"]
        assert stage.session.model.requests == []


@pytest.mark.parametrize("has_begun", [True, False])
async def test_a_signal_while_it_waits_for_what_is_piped_in(tmp_path: Path, has_begun: bool) -> None:
    async with opened(tmp_path, "hello", says=["@done x"], piped_within=math.inf) as stage:
        if has_begun:
            stage.send("begun")
        await wait_all_tasks_blocked()
        strike(signal.SIGTERM)
        assert await stage.ended() == 143

        assert stage.session.model.requests == []
        assert (stage.last["exit_code"], stage.last["unsent"]) == (143, ["@done x"])


# ------------------------------------------------------------------------------------------------- the handler prompt


async def test_a_handler_that_cannot_be_used_is_told_of_and_stops_nothing(tmp_path: Path) -> None:
    use = settings(handler="messages: [")
    async with opened(tmp_path, "task", says=["@tool wait use B"], use=use, output="text", reads=False) as stage:
        stage.open.set()
        assert await stage.ended() == 0

        (row,) = [row for row in stage.stderr.splitlines() if "handler.yaml:1" in row]
        assert "built-in" in row
        assert "user: USER INTERRUPTION: use B" in stage.session.sent()


# --------------------------------------------------------------------------------------------------------- questions


def answer(id: str, text: str) -> dict[str, str]:
    return {"type": "answer", "id": id, "text": text}


def decided(stage: Headless) -> list[tuple[str, str, str]]:
    return [(e.id, e.decision, e.by) for e in stage.session.of(events.Answer)]


async def test_json_answers_a_question_and_a_line_never_does(tmp_path: Path) -> None:
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
        assert decided(stage) == [("Q1", "allowed", "user"), ("Q2", "refused", "user")]
        told = [o for o in stage.objects if o["type"] in ("question", "answer")]
        assert [o["type"] for o in told] == ["question", "answer"] * 2
        assert told[0]["preview"] == "change a"


async def test_at_the_end_of_its_input_nobody_can_answer(tmp_path: Path) -> None:
    async with opened(tmp_path, "change it", input="stream-json") as stage:
        await stage.until("question", id="Q1")
        assert await stage.end() == 0
        assert decided(stage) == [("Q1", "refused", "nobody"), ("Q2", "refused", "nobody")]
        assert "allow it with --allow change_file" in stage.last["result"]


@pytest.mark.parametrize("reads", [True, False])
async def test_a_script_answers_in_its_order_each_once(tmp_path: Path, reads: bool) -> None:
    says = ["@question y", "@question not that one", "@question left over"]
    async with opened(tmp_path, "change it", says=says, reads=reads) as stage:
        await stage.until("result")
        assert await (stage.end() if reads else stage.ended()) == 3
        assert decided(stage) == [("Q1", "allowed", "user"), ("Q2", "refused", "user")]
        assert [o["text"] for o in stage.objects if o["type"] == "answer"] == ["", "not that one"]
        assert stage.last["unsent"] == ["@question left over"]


async def test_an_answer_that_is_refused_makes_way_for_the_next(tmp_path: Path) -> None:
    says = ["@question " + "x" * 100_001, "@question y", "@question y"]
    async with opened(tmp_path, "change it", says=says, reads=False) as stage:
        await stage.ended()
        assert decided(stage) == [("Q1", "allowed", "user"), ("Q2", "allowed", "user")]


async def test_when_a_script_has_no_more_answers_and_nobody_else_is_there(tmp_path: Path) -> None:
    async with opened(tmp_path, "change it", says=["@question y"], reads=False) as stage:
        assert await stage.ended() == 0
        assert decided(stage) == [("Q1", "allowed", "user"), ("Q2", "refused", "nobody")]


async def test_a_pipe_that_is_open_may_still_answer(tmp_path: Path) -> None:
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


async def test_a_question_does_not_wait_for_lines_that_wait_for_it(tmp_path: Path) -> None:
    """Input that is held back for want of room brings no answer."""
    async with opened(tmp_path, input="stream-json", is_checked=False) as stage:
        stage.send(line("which one"))
        await stage.until("question", id="Q1")
        async with trio.open_nursery() as nursery:
            lines = [line(f"line {n}") for n in range(1_100)]
            nursery.start_soon(trio.to_thread.run_sync, stage.send, *lines)
            await stage.until("answer", id="Q1")
        assert decided(stage) == [("Q1", "refused", "nobody")]
        stage.send(line("stop"))
        await stage.end()


# ------------------------------------------------------------------------------------------------ lines of others


async def test_a_chain_that_only_others_used_has_done_its_work(tmp_path: Path) -> None:
    async with opened(tmp_path) as stage:
        stage.session.chain.submit("hello", origin="door")
        await stage.until("result")
        assert await stage.end() == 0
        assert stage.stderr == ""
        assert stage.session.chain.submit("more", origin="door").message == "the chain is closing"


# --------------------------------------------------------------------------------------------------- background jobs


@pytest.mark.parametrize("wakes", [True, False])
async def test_a_job_that_wakes_is_waited_for_and_another_is_listed_in_the_result(tmp_path: Path, wakes: bool) -> None:
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
        receipt = stage.objects[-1]["receipts"][-1]
        how = "exit code 0" if wakes else "ended with the session"
        assert receipt["text"] == f"[JOB J1] {how} after 0 s\n$ make"
        assert receipt["state"] == ("delivered" if wakes else "returned")
        assert receipt["kind"] == "job"
