"""A chain without a terminal: its input, its events and its exit codes.

Everything runs in this process: a test writes lines into a pipe, and waits for the event that they cause.
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
from support.checks import check_invariants
from support.crashes import load_crashed
from support.gate import kill_session
from support.headless_sessions import PrintingSession, line_object
from support.models import ASKING_TOOLS
from support.rows import check_order
from support.sessions import INTERRUPTED, SKIPPED, make_settings, open_session
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.concurrency.wakeup import Wakeup
from chain.config.load import Settings
from chain.events import Point
from chain.lines.parse import MAX_LINE
from chain.messages import from_json
from chain.tools.tool import JobEnd, ToolContext, tool
from cli import headless
from cli.headless import HeadlessTask
from cli.headless_output import Format
from cli.input.moments import parse_moment
from cli.input.sender import MAX_WAITING
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
  - {when: {user: ^code}, text: "\\n  \\n    a\\n    b\\n"}
  - {text: "Done: ${query}"}
"""

InputFormat = Literal["text", "stream-json"]


@dataclass
class HeadlessProgram(PrintingSession):
    """A headless program in this process. Its tool ``wait`` returns when ``gate`` is set."""

    stdin: FileIO
    gate: trio.Event = field(default_factory=trio.Event)
    code: int | None = None
    changed: Wakeup = field(default_factory=Wakeup)

    def send(self, *lines: str | dict[str, Any]) -> None:
        """Write lines into standard input in one piece."""
        texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
        self.stdin.write("".join(f"{text}\n" for text in texts).encode())

    async def until(self, type: str, count: int = 1, **values: object) -> Any:
        """Wait for the ``count``-th event of this type with these values, and return it."""
        while True:
            of_type = (event for event in self.session.events if event.type == type)
            found = [e for e in of_type if all(getattr(e, name) == value for name, value in values.items())]
            if len(found) >= count:
                return found[count - 1]
            await self.changed.wait()

    async def finish(self) -> int:
        """Open the gate, close standard input, and return the exit code."""
        self.gate.set()
        self.stdin.close()
        return await self.wait_exit()

    async def wait_exit(self) -> int:
        """Wait for the exit code and return it."""
        while self.code is None:
            await self.changed.wait()
        return self.code

    def objects_of(self, *types: str) -> list[dict[str, Any]]:
        """Return the JSON objects of these types."""
        return [each for each in self.objects if each["type"] in types]

    @property
    def receipt_states(self) -> dict[str, str]:
        """The state of each receipt by its id."""
        return {receipt["id"]: receipt["state"] for receipt in self.objects_of("receipt")}

    @property
    def last_result(self) -> dict[str, Any]:
        """The last JSON object, which must be a result."""
        *_, last = self.objects
        assert last["type"] == "result"
        return last


@asynccontextmanager
async def run_program(
    folder: Path,
    query: str | None = None,
    *,
    script: Sequence[str] = (),
    reads_stdin: bool = True,
    output: Format = "stream-json",
    input_format: InputFormat = "text",
    configured: Settings | None = None,
    piped_within: float | None = None,
    max_iterations: int = 20,
    is_checked: bool = True,
    journal: bytes = b"",
) -> AsyncIterator[HeadlessProgram]:
    """Run a task in a program whose standard input is a pipe, with the lines of ``--say`` as its ``script``.

    ``journal`` is that of the session to resume. ``is_checked``: check the invariants, which need unique ids of lines.
    """
    paths = folder / "stdout", folder / "stderr"
    stdout, stderr = (os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) for path in paths)
    read_end, write_end = os.pipe()
    scheduled = tuple(parse_moment(line, strict=True) for line in script)
    reads_lines = reads_stdin and piped_within is None
    task = HeadlessTask(query, scheduled, reads_lines, output, input_format, piped_within=piped_within)
    renderer = Renderer(color=False, ascii=False, width=100)
    file, resumed = load_crashed(journal) if journal else (None, None)

    @tool(timeout_s=10_000)
    async def wait(ctx: ToolContext) -> str:
        """Wait."""
        await program.gate.wait()
        return "waited"

    @tool
    async def quick(ctx: ToolContext) -> str:
        """Do not wait."""
        return "a quick result"

    async def serve() -> None:
        program.code = await headless.run_headless(
            session.chain, task, renderer, stdin=read_end, stdout=stdout, stderr=stderr
        )
        program.changed.set()

    tools, settings = [wait, quick, *ASKING_TOOLS], configured or make_settings(max_iterations=max_iterations)
    try:
        with FileIO(write_end, "w") as stdin:
            async with (
                open_session(RULES, tools=tools, settings=settings, file=file, resume=resumed) as session,
                trio.open_nursery() as nursery,
            ):
                program = HeadlessProgram(session, paths, stdin)
                session.chain.listen(lambda event: program.changed.set())
                nursery.start_soon(serve)
                yield program
                if program.code is None:
                    await program.finish()
                if is_checked and session.model.requests and not journal:
                    check_invariants(session, max_iterations=max_iterations)
    finally:
        for fd in (stdout, stderr, read_end):
            os.close(fd)


@pytest.fixture
def clock(mock_clock: MockClock) -> MockClock:
    """Return a clock that runs in real time, and that a test can advance."""
    mock_clock.rate = 1
    return mock_clock


# --------------------------------------------------------------------------------------------------- queries and lines


async def test_a_query_is_not_parsed_and_ignores_input(tmp_path: Path) -> None:
    async with run_program(tmp_path, "todo: add x", reads_stdin=False, output="text") as program:
        program.send("not for us")
        assert await program.wait_exit() == 0
        assert program.stdout == "Done: todo: add x\n"
        assert "done, 1 iteration" in program.stderr
        assert program.session.chain.plan.tasks == ()
        assert program.states == {"todo: add x": "delivered"}


async def test_the_indent_of_an_answer_is_kept(tmp_path: Path) -> None:
    async with run_program(tmp_path, "code", reads_stdin=False, output="text") as program:
        await program.wait_exit()
        assert program.stdout == "    a\n    b\n"


async def test_lines_after_the_first_interrupt_its_run(tmp_path: Path) -> None:
    async with run_program(tmp_path) as program:
        program.send("", "   ", "task", "\t")
        await program.until("tool_call")
        program.send("use B", "todo: add check the licence")
        await program.until("line_queued", count=2)
        program.stdin.close()
        await wait_all_tasks_blocked()
        assert program.code is None, "the end of the input does not end the run"
        assert await program.finish() == 0
        (entered,) = program.session.of(events.UserInterruption)
        assert (entered.message, entered.point) == ("use B\n\ntodo: add check the licence", Point.AFTER_TOOLS)
        assert program.delivered == [
            ("task", "start"),
            ("use B", Point.AFTER_TOOLS),
            ("todo: add check the licence", Point.AFTER_TOOLS),
        ]
        check_order(program.stdout, ['"run_started"', '"line_queued"'])


async def test_lines_that_need_no_run_are_answered(tmp_path: Path) -> None:
    async with run_program(tmp_path) as program:
        program.send("todo: add x", "status", "stop")
        assert await program.finish() == 0
        assert program.session.model.requests == []
        assert program.states == {"todo: add x": "handled", "status": "handled"}
        _, status, stop = (notice["message"] for notice in program.objects_of("notice"))
        assert "plan 0/1" in status
        assert stop.startswith("Nothing is running.")
        assert program.last_result["status"] == "done"


@pytest.mark.parametrize("text", ["/help me", "@iteration x y"])
async def test_commands_and_malformed_moments_are_text(tmp_path: Path, text: str) -> None:
    async with run_program(tmp_path) as program:
        program.send(text)
        assert await program.finish() == 0
        assert program.last_result["result"] == f"Done: {text}"


async def test_invalid_bytes_are_replaced_with_a_notice(tmp_path: Path) -> None:
    async with run_program(tmp_path, output="text") as program:
        program.stdin.write(b"gr\xfc\xdfe\n")
        assert await program.finish() == 0
        assert program.stdout == "Done: gr\ufffd\ufffde\n"
        assert "line 1 of the input is not UTF-8" in program.stderr


async def test_a_long_line_is_refused_with_the_limit(tmp_path: Path) -> None:
    async with run_program(tmp_path, "task", output="text") as program:
        await program.until("tool_call")
        await trio.to_thread.run_sync(program.send, "x" * (MAX_LINE + 1), "y" * (10 * MAX_LINE), "use B")
        await program.until("line_queued")
        assert await program.finish() == 3
        assert program.delivered == [("task", "start"), ("use B", Point.AFTER_TOOLS)]
        assert program.stderr.count("the limit is 100,000") == 2


@pytest.mark.parametrize(
    ("script", "input_format", "lines"),
    [
        pytest.param(["@iteration 2 use B"], "text", ["task"], id="--say"),
        pytest.param([], "text", ["@iteration 2 use B", "task"], id="a pipe"),
        pytest.param([], "stream-json", [line_object("@iteration 2 use B"), line_object("task")], id="JSON"),
    ],
)
async def test_a_line_is_sent_at_its_moment(
    tmp_path: Path, script: list[str], input_format: InputFormat, lines: list[str | dict[str, Any]]
) -> None:
    async with run_program(tmp_path, script=script, input_format=input_format) as program:
        program.gate.set()
        program.send(*lines)
        assert await program.finish() == 0
        (entered,) = program.session.of(events.UserInterruption)
        assert (entered.message, entered.point, entered.iteration) == ("use B", Point.AFTER_REPLY, 2)


async def test_an_unusable_handler_is_replaced_with_a_notice(tmp_path: Path) -> None:
    options: dict[str, Any] = {"script": ["@tool wait use B"], "configured": make_settings(handler="messages: [")}
    async with run_program(tmp_path, "task", output="text", reads_stdin=False, **options) as program:
        program.gate.set()
        assert await program.wait_exit() == 0
        (notice,) = [row for row in program.stderr.splitlines() if "handler.yaml:1" in row]
        assert "built-in" in notice
        assert "user: USER INTERRUPTION: use B" in program.session.sent()


# --------------------------------------------------------------------------------------------------------------- JSON


async def test_receipts_have_the_senders_ids(tmp_path: Path) -> None:
    async with run_program(tmp_path, input_format="stream-json") as program:
        program.send(line_object("@iteration 9 never", "scheduled"), line_object("task", "query"))
        await program.until("tool_call")
        program.send(
            line_object("use B", "redirect"), line_object("todo: add x", "todo"),
            line_object("then: hello", "follow-up"),
            line_object("todo: add", "no task"), {"type": "line", "id": "no bool", "text": "x", "urgent": "yes"},
            line_object("use C", "L2"), line_object("use D"),
        )  # fmt: skip
        await program.until("line_queued", count=5)
        assert await program.finish() == 3
        # The chain gives the last line, which has no id, the id L1.
        delivered = dict.fromkeys(("query", "redirect", "todo", "L2", "L1", "follow-up"), "delivered")
        states = {**delivered, "no task": "refused", "no bool": "refused"}
        assert program.receipt_states == {**states, "scheduled": "unsent"}
        results = [receipt for result in program.objects_of("result") for receipt in result["receipts"]]
        assert {receipt["id"]: receipt["state"] for receipt in results} == states
        queued_ids = [queued["id"] for queued in program.objects_of("line_queued")]
        assert queued_ids == ["redirect", "todo", "follow-up", "L2", "L1"]
        (entered,) = program.objects_of("user_interruption")
        assert entered["ids"] == ["redirect", "todo", "L2", "L1"]
        assert program.last_result["unsent"] == ["@iteration 9 never"]


@pytest.mark.parametrize("text", ["   ", "stop"], ids=["blank", "stop"])
async def test_a_line_without_effect_has_a_receipt(tmp_path: Path, text: str) -> None:
    async with run_program(tmp_path, input_format="stream-json") as program:
        program.send(line_object("hello", "query"))
        await program.until("result")
        await program.session.chain.wait_idle()
        program.send(line_object(text, "later"))
        assert await program.finish() == 0
        assert program.receipt_states == {"query": "delivered", "later": "handled"}


async def test_an_urgent_line_skips_tools(tmp_path: Path) -> None:
    async with run_program(tmp_path, input_format="stream-json") as program:
        program.send(line_object("two", "query"))
        await program.until("tool_call", name="wait")
        program.send(line_object("use B", "urgent", urgent=True))
        await program.until("line_queued", urgency="urgent", origin="json")
        assert await program.finish() == 0
        (entered,) = program.session.of(events.UserInterruption)
        assert (entered.ids, entered.point, entered.tools_skipped) == (("urgent",), Point.BEFORE_TOOL, ("quick",))


async def test_waiting_lines_can_be_dropped(tmp_path: Path) -> None:
    async with run_program(tmp_path, input_format="stream-json") as program:
        program.send(line_object("task", "query"))
        await program.until("tool_call")
        program.send(*(line_object(f"line {n}", f"l{n}") for n in range(12)), line_object("@done next", "scheduled"))
        await program.until("line_queued", count=10)  # there is no room for l10 and l11
        program.send(*({"type": "drop", "id": id} for id in ("l3", "l11", "scheduled", "query", "unknown")))
        await program.until("receipt", state="unsent", count=2)
        assert await program.finish() == 3
        delivered = dict.fromkeys(["query", *(f"l{n}" for n in range(12))], "delivered")
        dropped = {"l3": "dropped", "l11": "unsent", "scheduled": "unsent"}
        assert program.receipt_states == {**delivered, **dropped}
        for id, refusal in zip(("query", "unknown"), program.objects_of("line_refused"), strict=True):
            reason, _, _ = refusal["reason"].partition(";")
            assert (refusal["id"], refusal["kind"], reason) == (id, "drop", f"{id} is not waiting")


async def test_an_interrupt_ends_only_the_active_run(tmp_path: Path) -> None:
    async with run_program(tmp_path, input_format="stream-json") as program:
        program.send({"type": "interrupt"}, line_object("task", "first"))
        await program.until("tool_call")
        program.send(line_object("use B", "queued"), {"type": "interrupt"}, line_object("hello", "second"))
        await program.until("result", status="done")
        program.send(line_object("again", "third"))
        assert await program.finish() == 130
        first, second, third, *_ = program.objects_of("result")
        assert first["result"] == "Interrupted. Tell the chain what to do instead."
        assert second["result"] == "Done: hello"
        for result, states in (
            (first, {"first": "delivered", "queued": "returned"}),
            (second, {"second": "delivered"}),
            (third, {"third": "delivered"}),
        ):
            assert {receipt["id"]: receipt["state"] for receipt in result["receipts"]} == states
            assert result["exit_code"] == 130, "that of the process so far"
        assert len(program.objects_of("init")) == 1
        assert INTERRUPTED in program.session.sent(), "the model learns of the interrupt with the next query"


@pytest.mark.parametrize(
    ("later_lines", "code", "status"),
    [
        pytest.param(["hello"], 3, "done", id="before a query"),
        pytest.param([], 2, "error", id="without a query"),
    ],
)
async def test_malformed_input_stops_nothing(tmp_path: Path, later_lines: list[str], code: int, status: str) -> None:
    async with run_program(tmp_path, input_format="stream-json") as program:
        program.send("not json", "", *map(line_object, later_lines))
        assert await program.finish() == code
        (refused,) = program.objects_of("line_refused")
        assert (refused["origin"], refused["text"]) == ("json", "not json")
        assert refused["reason"].startswith("line 1 of the input was not understood (it is not a JSON object); write ")
        assert program.last_result["status"] == status


@pytest.mark.parametrize(
    ("row", "result"),
    [
        pytest.param(json.dumps(line_object("я" * MAX_LINE)), "Done: " + "я" * MAX_LINE, id="the longest line"),
        pytest.param('{"type":"line","text":"half \\ud83d a pair"}', "Done: half ? a pair", id="half a surrogate pair"),
        pytest.param(json.dumps(line_object("hello\nstop\nworld")), "Done: hello\nstop\nworld", id="several rows"),
    ],
)
async def test_any_text_can_be_a_json_line(tmp_path: Path, row: str, result: str) -> None:
    async with run_program(tmp_path, input_format="stream-json") as program:
        await trio.to_thread.run_sync(program.send, row)
        assert await program.finish() == 0
        assert program.last_result["result"] == result


# --------------------------------------------------------------------------------------------------------- exit codes


@pytest.mark.parametrize(
    ("query", "script", "code", "status"),
    [
        pytest.param("hello", [], 0, "done", id="success"),
        pytest.param("fail", [], 1, "error", id="a failed run"),
        pytest.param("hello", ["@iteration 9 x"], 3, "done", id="an unsent line"),
        pytest.param("loop", ["@done hello"], 4, "done", id="a run at its limit before a success"),
        pytest.param(None, [], 2, "error", id="no query"),
        pytest.param(" ", [], 2, "error", id="a blank query"),
        pytest.param("x" * (MAX_LINE + 1), [], 2, "error", id="a query over the limit"),
    ],
)
async def test_exit_codes(tmp_path: Path, query: str | None, script: list[str], code: int, status: str) -> None:
    async with run_program(tmp_path, query, script=script, reads_stdin=query is None, max_iterations=3) as program:
        # Without a query the program reads lines until the end of its input.
        assert await (program.wait_exit() if query else program.finish()) == code
        assert (program.last_result["status"], program.last_result["exit_code"]) == (status, code)
        if code == 2:
            assert program.stderr == f"chain: {program.last_result['result']}\n"


async def test_a_run_of_another_client_counts_as_work(tmp_path: Path) -> None:
    async with run_program(tmp_path) as program:
        program.session.chain.submit("hello", origin="door")
        await program.until("result")
        assert await program.finish() == 0
        assert program.stderr == ""
        assert program.session.chain.submit("more", origin="door").message == "the chain is closing"


# ------------------------------------------------------------------------------------------------------------ signals


def raise_signal(number: signal.Signals) -> None:
    """Send a signal to this process, in which the tested code must handle it."""
    assert signal.getsignal(number) not in (signal.SIG_DFL, signal.default_int_handler)
    signal.raise_signal(number)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 143)])
async def test_a_signal_interrupts_the_run(tmp_path: Path, number: signal.Signals, code: int) -> None:
    script = ["@done hello", "@tool wait then: again"]
    async with run_program(tmp_path, "two", script=script) as program:
        await program.until("tool_call", name="wait")
        program.send("use B", *(f"line {n}" for n in range(10)))
        # The queue has room for 10 lines: the script's "then: again", "use B" and the first 8 of the others.
        await program.until("line_queued", count=10)
        chain = program.session.chain
        chain.listen(lambda event: chain.submit("refused", origin="door") if event.type == "result" else None)
        raise_signal(number)
        assert await program.wait_exit() == code
        assert (program.last_result["status"], program.last_result["exit_code"]) == ("interrupted", code)
        assert program.last_result["partial_results"] == ["a quick result"]
        assert sorted(program.last_result["unsent"]) == ["@done hello", "line 8", "line 9"]
        returned = [text for text, state in program.states.items() if state == "returned"]
        assert returned == ["then: again", "use B", *(f"line {n}" for n in range(8))]
        messages = [from_json(record["message"]) for record in program.session.records if record["type"] == "message"]
        results = [result.text for message in messages for result in message.results]
        assert results == ["a quick result", INTERRUPTED, SKIPPED]
        types = [event.type for event in program.session.events]
        types_after_the_result = types[types.index("result") :]
        assert not {"run_started", "iteration_started", "tool_call"} & set(types_after_the_result)


@pytest.mark.parametrize("input_format", ["text", "stream-json"])
async def test_a_signal_after_a_run_keeps_its_status(tmp_path: Path, input_format: InputFormat) -> None:
    async with run_program(tmp_path, "hello", input_format=input_format) as program:
        await program.until("result")
        await program.session.chain.wait_idle()
        raise_signal(signal.SIGTERM)
        assert await program.wait_exit() == 143
        assert program.statuses == ["done"]
        assert (program.last_result["status"], program.last_result["exit_code"]) == ("done", 143)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("again", range(10))  # trio runs the tasks of one step in a random order
@pytest.mark.parametrize("steps", range(4))
async def test_no_run_starts_after_a_signal(tmp_path: Path, steps: int, again: int) -> None:
    async with run_program(tmp_path, "hello") as program:
        while signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, None):
            await trio.lowlevel.checkpoint()
        for _ in range(steps):
            await trio.lowlevel.checkpoint()
        has_begun = program.session.chain.is_running or len(program.session.events) > 1
        raise_signal(signal.SIGTERM)
        assert await program.wait_exit() == 143
        assert has_begun or set(program.statuses) <= {"interrupted"}


@pytest.mark.parametrize(
    ("piped_within", "text"),
    [
        pytest.param(None, "", id="for a line"),
        pytest.param(math.inf, "", id="for piped input"),
        pytest.param(math.inf, "begun", id="for the rest of piped input"),
    ],
)
async def test_a_signal_ends_waiting_for_input(tmp_path: Path, piped_within: float | None, text: str) -> None:
    async with run_program(tmp_path, script=["@done x"], piped_within=piped_within) as program:
        program.stdin.write(text.encode())
        await wait_all_tasks_blocked()
        raise_signal(signal.SIGTERM)
        assert await program.wait_exit() == 143
        assert program.session.model.requests == []
        assert (program.last_result["status"], program.last_result["exit_code"]) == ("interrupted", 143)
        assert program.last_result["unsent"] == ["@done x"]


# -------------------------------------------------------------------------------------------------------- piped input


async def test_piped_input_is_appended_to_the_query(tmp_path: Path) -> None:
    async with run_program(tmp_path, "hello", piped_within=1_000) as program:
        await wait_all_tasks_blocked()
        assert program.statuses == [], "the run waits for the input"
        program.stdin.write(b"todo: add x\ngr\xfc\xdfe\n")
        assert await program.finish() == 0
        assert program.last_result["result"] == "Done: hello\n\n<stdin>\ntodo: add x\ngr\ufffd\ufffde\n</stdin>"
        assert len(program.states) == 1, "the input is no separate line"
        assert any("not UTF-8" in notice["message"] for notice in program.objects_of("notice"))


@pytest.mark.parametrize(
    ("query", "text", "code", "result"),
    [
        pytest.param(None, "todo: add x", 0, "Done: todo: add x", id="the whole query"),
        pytest.param(None, "", 2, "query is empty", id="an empty query"),
        pytest.param("hello", "x" * MAX_LINE, 2, "the limit is 100,000", id="over the limit with the query"),
    ],
)
async def test_piped_input_is_awaited(tmp_path: Path, query: str | None, text: str, code: int, result: str) -> None:
    async with run_program(tmp_path, query, piped_within=math.inf) as program:
        await trio.to_thread.run_sync(program.stdin.write, text.encode())
        assert await program.finish() == code
        assert result in program.last_result["result"]
        has_run = program.session.model.requests != []
        assert has_run == (code == 0)


async def test_a_silent_pipe_is_ignored_with_a_notice(tmp_path: Path, clock: MockClock) -> None:
    async with run_program(tmp_path, "hello", script=["@answer more"], piped_within=FIRST_BYTE_S) as program:
        await wait_all_tasks_blocked()
        clock.jump(FIRST_BYTE_S)
        assert await program.wait_exit() == 0
        assert program.last_result["result"] == "Heard: more."
        messages = [notice["message"] for notice in program.objects_of("notice")]
        (notice,) = [message for message in messages if "standard input" in message]
        assert notice.endswith("--stdin waits for it, --no-stdin ignores it")


# --------------------------------------------------------------------------------------------------- resumed sessions

INPUTS: dict[str, dict[str, Any]] = {
    "-p": {"piped_within": FIRST_BYTE_S},
    "-p --stdin": {"piped_within": math.inf},
    "a pipe": {},
    "stream-json": {"input_format": "stream-json"},
}
"""The ways to read the standard input of a resumed session without a query."""


@pytest.mark.parametrize("name", INPUTS)
@pytest.mark.parametrize("is_silent", [False, True], ids=["closed", "silent"])
async def test_waiting_lines_run_without_a_query(tmp_path: Path, name: str, is_silent: bool, clock: MockClock) -> None:
    async with run_program(tmp_path, journal=await kill_session("use B"), **INPUTS[name]) as program:
        await wait_all_tasks_blocked()
        assert program.session.model.requests == [], "a query may still come"
        if is_silent and name != "-p --stdin":  # which has no time limit, so it waits for the end
            clock.jump(FIRST_BYTE_S)
        else:
            program.stdin.close()
        assert (await program.until("result")).result == "Heard: use B."
        assert program.session.state("L2") == "delivered"


@pytest.mark.parametrize("name", INPUTS)
async def test_waiting_lines_go_with_a_query(tmp_path: Path, name: str) -> None:
    async with run_program(tmp_path, journal=await kill_session("use B"), **INPUTS[name]) as program:
        program.send(line_object("hello") if name == "stream-json" else "hello")
        assert await program.finish() == 0
        assert [run.query for run in program.session.of(events.RunStarted)] == ["hello"]
        assert "USER INTERRUPTION: use B" in program.session.sent()


# --------------------------------------------------------------------------------------------------------- questions


def answer(id: str, text: str) -> dict[str, str]:
    """Return the JSON object that answers a question."""
    return {"type": "answer", "id": id, "text": text}


def decisions(program: HeadlessProgram) -> list[tuple[str, str, str]]:
    """Return the id, the decision and the author of each answer."""
    return [(each.id, each.decision, each.by) for each in program.session.of(events.Answer)]


async def test_lines_and_malformed_answers_decide_nothing(tmp_path: Path) -> None:
    async with run_program(tmp_path, "change it", input_format="stream-json") as program:
        await program.until("question", id="Q1")
        program.send(
            line_object("y", "line"),
            line_object("@question y", "at Q1"),
            answer("Q2", "y"),
            {"type": "answer", "id": "Q1"},
        )
        await program.until("line_refused", id="Q1")
        await program.until("line_queued", id="line")
        reasons = {refusal.id: refusal.reason for refusal in program.session.of(events.LineRefused)}
        assert reasons["at Q1"] == 'a line does not answer a question; write {"type":"answer","id":"Q1","text":"y"}'
        assert reasons["Q2"] == "there is no question Q2"
        assert program.session.chain.questions.open_id == "Q1"
        program.send(answer("Q1", "y"), answer("Q2", "y"))
        await program.finish()


async def test_the_first_answer_in_json_decides(tmp_path: Path) -> None:
    async with run_program(tmp_path, "change it", input_format="stream-json") as program:
        await program.until("question", id="Q1")
        program.send(answer("Q1", "y"))
        await program.until("question", id="Q2")
        program.send(answer("Q2", "no need"), answer("Q2", "y"))
        await program.until("line_refused", id="Q2", text="y")
        await program.finish()
        assert decisions(program) == [("Q1", "allowed", "user"), ("Q2", "refused", "user")]
        first_question, *others = program.objects_of("question", "answer")
        assert [first_question["type"], *(each["type"] for each in others)] == ["question", "answer"] * 2
        assert first_question["preview"] == "change a"


async def test_nobody_can_answer_after_the_input(tmp_path: Path) -> None:
    async with run_program(tmp_path, "change it", input_format="stream-json") as program:
        await program.until("question", id="Q1")
        assert await program.finish() == 0
        assert decisions(program) == [("Q1", "refused", "nobody"), ("Q2", "refused", "nobody")]
        assert "allow it with --allow change_file" in program.last_result["result"]


@pytest.mark.parametrize(
    ("answers", "expected", "unsent", "code"),
    [
        pytest.param(
            ["y", "not that one", "left over"],
            [("Q1", "allowed", "user"), ("Q2", "refused", "user")],
            ["@question left over"],
            3,
            id="too many answers",
        ),
        pytest.param(
            ["x" * (MAX_LINE + 1), "y", "y"],
            [("Q1", "allowed", "user"), ("Q2", "allowed", "user")],
            [],
            3,
            id="an answer over the limit",
        ),
        pytest.param(["y"], [("Q1", "allowed", "user"), ("Q2", "refused", "nobody")], [], 0, id="a missing answer"),
    ],
)
async def test_a_script_answers_in_order(
    tmp_path: Path, answers: list[str], expected: list[tuple[str, str, str]], unsent: list[str], code: int
) -> None:
    script = [f"@question {text}" for text in answers]
    async with run_program(tmp_path, "change it", script=script, reads_stdin=False) as program:
        assert await program.wait_exit() == code
        assert decisions(program) == expected
        assert program.last_result["unsent"] == unsent


async def test_an_open_pipe_can_answer(tmp_path: Path) -> None:
    async with run_program(tmp_path) as program:
        program.send("which one")
        await program.until("question", id="Q1")
        program.send("not an answer", "@question 2", "@question 1")
        await program.until("answer", id="Q1")
        await program.until("result")
        program.send("which one now")
        await program.until("answer", id="Q2")
        await program.until("result", count=2)
        assert await program.finish() == 0
        answers = [(each.text, each.by) for each in program.session.of(events.Answer)]
        assert answers == [("right", "user"), ("left", "user")]
        assert program.states["not an answer"] == "delivered"


async def test_input_that_is_not_read_cannot_answer(tmp_path: Path) -> None:
    # A full sender stops reading. The question must not wait for lines that wait for its answer.
    async with run_program(tmp_path, input_format="stream-json", is_checked=False) as program:
        program.send(line_object("which one"))
        await program.until("question", id="Q1")
        lines = [line_object(f"line {n}") for n in range(MAX_WAITING + 100)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.to_thread.run_sync, program.send, *lines)
            await program.until("answer", id="Q1")
        assert decisions(program) == [("Q1", "refused", "nobody")]
        program.send(line_object("stop"))
        await program.finish()


# --------------------------------------------------------------------------------------------------- background jobs


async def test_a_job_that_wakes_the_model_is_awaited(tmp_path: Path) -> None:
    can_end = trio.Event()

    async def run(on_output: object) -> JobEnd:
        await can_end.wait()
        return JobEnd(0, "exit code 0")

    async with run_program(tmp_path, "hello", reads_stdin=False, output="json") as program:
        program.session.chain.jobs.start("main", "call", "make", run, wakes=True)
        await wait_all_tasks_blocked()
        assert program.code is None
        can_end.set()
        assert await program.wait_exit() == 0
        *_, receipt = program.last_result["receipts"]
        assert receipt["text"] == "[JOB J1] exit code 0 after 0 s\n$ make"
        assert (receipt["state"], receipt["kind"]) == ("delivered", "job")


async def test_another_job_ends_with_the_session(tmp_path: Path) -> None:
    async def run(on_output: object) -> JobEnd:
        await trio.sleep_forever()
        raise AssertionError

    async with run_program(tmp_path, "hello", reads_stdin=False, output="json") as program:
        program.session.chain.jobs.start("main", "call", "make", run, wakes=False)
        assert await program.wait_exit() == 0
        *_, receipt = program.last_result["receipts"]
        assert receipt["text"] == "[JOB J1] ended with the session after 0 s\n$ make"
        assert (receipt["state"], receipt["kind"]) == ("returned", "job")
