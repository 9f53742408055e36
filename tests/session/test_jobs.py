"""Background jobs: each end reaches the model once, or the user knows that it did not; nothing of them is left."""

from __future__ import annotations

import os
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import trio
from support import FullDisk, Session, open_session, settings
from support.agents import Obedient, work
from support.crashes import left
from support.gate import TWO_STEPS, Gate, begin
from trio.testing import wait_all_tasks_blocked

from chain import events
from chain.errors import ToolError, UserError
from chain.session.jobs import MAX_JOBS
from chain.tools.jobs import JOB_TOOLS, JobOutput
from chain.tools.tool import JobEnd, Tool, ToolContext, tool

STARTS = """
rules:
  - {when: {tool: work}, text: Started.}
  - {when: {user: 'JOB'}, text: So it ended.}
  - {when: {user: 'start (?P<name>[a-z]+) waking'}, tools: [{name: work, input: {name: "${name}", wakes: true}}]}
  - {when: {user: 'start (?P<name>[a-z]+)'}, tools: [{name: work, input: {name: "${name}"}}]}
  - {text: The answer.}
"""


@dataclass
class Works:
    """The tool ``work``, which starts jobs, each of which ends when the test says so."""

    ends: dict[str, trio.Event] = field(default_factory=lambda: defaultdict(trio.Event))
    codes: dict[str, int] = field(default_factory=dict)
    killed: list[str] = field(default_factory=list)

    @property
    def tool(self) -> Tool:
        @tool
        async def work(ctx: ToolContext, name: str, wakes: bool = False) -> str:
            """Start a job."""

            async def run(on_output: object) -> JobEnd:
                assert callable(on_output)
                on_output(f"{name} begins\n".encode())
                try:
                    await self.ends[name].wait()
                except trio.Cancelled:
                    self.killed.append(name)
                    raise
                code = self.codes.get(name, 0)
                if code < 0:
                    raise ToolError("it cannot be started")
                on_output(f"{name} ends\n".encode())
                return JobEnd(code, f"exit code {code}")

            return f"[job {ctx.jobs.start(ctx.agent, ctx.call_id, f'run {name}', run, wakes=wakes)} started]"

        return work

    async def end(self, name: str) -> None:
        self.ends[name].set()
        await wait_all_tasks_blocked()


def job_lines(session: Session) -> list[str]:
    """The states of the lines of jobs."""
    return [r.state for r in session.chain.lines.receipts if r.origin == "job"]


async def test_the_end_of_a_job_waits_for_the_next_run() -> None:
    works = Works()
    async with open_session(STARTS, tools=[works.tool], interactive=True) as session:
        await session.run("start a")
        assert session.of(events.ToolResult)[0].text == "[job J1 started]"
        await works.end("a")
        assert not session.chain.is_running
        assert [e.text for e in session.of(events.LineQueued)] == [
            "[JOB J1] exit code 0 after 0 s\n$ run a\na begins\na ends"
        ]
        await session.run("go on")
        assert session.sent().splitlines()[-5:] == [
            "user: go on",
            "user: [JOB J1] exit code 0 after 0 s",
            "$ run a",
            "a begins",
            "a ends",
        ]
        assert job_lines(session) == ["delivered"]


async def test_a_job_that_wakes_starts_a_run() -> None:
    works = Works()
    async with open_session(STARTS, tools=[works.tool]) as session:
        await session.run("start a waking")
        await works.end("a")
        await session.chain.wait_idle()
        assert [e.result for e in session.of(events.Result)] == ["Started.", "So it ended."]
        (told,) = session.of(events.UserInterruption)
        assert (told.point, told.iteration) == ("A", 0)


async def test_jobs_killed_together_end_in_their_order() -> None:
    works = Works()
    async with open_session(STARTS, tools=[works.tool], interactive=True) as session:
        for name in "abcde":
            await session.run(f"start {name}")
        assert session.chain.jobs.kill_all() == "Killing 5 background jobs: J1, J2, J3, J4, J5."
        await wait_all_tasks_blocked()
        assert [e.text[:8] for e in session.of(events.LineQueued)] == [f"[JOB J{n}]" for n in range(1, 6)]


async def test_a_job_that_the_user_kills_starts_no_run() -> None:
    works = Works()
    async with open_session(STARTS, tools=[works.tool], interactive=True) as session:
        await session.run("start a waking")
        session.chain.jobs.kill_job("j1")
        await wait_all_tasks_blocked()
        assert not session.chain.is_running
        assert [a.line.text for a in session.chain.lines.waiting] == [
            "[JOB J1] killed by the user after 0 s\n$ run a\na begins"
        ]


@pytest.mark.parametrize("line", ["use the other file", "how is it going?"])
async def test_it_goes_in_together_with_other_lines_and_asks_nothing(line: str) -> None:
    works, gate = Works(), Gate()
    handler = "messages: [{role: user, content: 'SAID: ${message}'}, {role: system, content: Answer it.}]"
    use = settings(handler=handler, inbox_size=1)
    async with open_session(TWO_STEPS, tools=[works.tool, gate.tool], use=use) as session:
        started = session.chain.jobs.start
        await begin(session, gate)

        async def run(on_output: object) -> JobEnd:
            return JobEnd(1, "exit code 1", "[sandbox: network denied]")

        assert started("main", "call", "make", run, wakes=False) == "J1"
        await wait_all_tasks_blocked()
        assert session.chain.submit(line).what == "queued", "the line of a job takes no room"
        gate.open.set()
        await session.chain.wait_idle()
        request = session.model.requests[1]
        assert request.messages[-1].text == (
            f"[JOB J1] exit code 1 after 0 s\n$ make\n[sandbox: network denied]\n\nSAID: {line}"
        )
        assert request.tail[0] == "Answer it."


async def test_no_rule_of_the_handler_prompt_sees_the_output() -> None:
    works, gate = Works(), Gate()
    handler = "rules: [{match: begins, action: stop}]"
    async with open_session(TWO_STEPS, tools=[works.tool, gate.tool], use=settings(handler=handler)) as session:
        await begin(session, gate)

        async def run(on_output: object) -> JobEnd:
            return JobEnd(0, "exit code 0")

        session.chain.jobs.start("main", "call", "begins @config.yaml", run, wakes=False)
        await wait_all_tasks_blocked()
        gate.open.set()
        await session.chain.wait_idle()
        assert session.result.status == "done"
        assert session.model.requests[1].tail == ()
        assert session.model.requests[1].messages[-1].text.endswith("$ begins @config.yaml")


async def test_a_stop_and_an_interrupt_leave_jobs_and_say_so() -> None:
    works, gate = Works(), Gate()
    rules = STARTS.replace("text: Started.", "tools: [{name: wait, input: {}}]")
    async with open_session(rules, tools=[works.tool, gate.tool], interactive=True) as session:
        session.chain.submit("start a")
        await gate.started.wait()
        session.interrupt()
        await session.chain.wait_idle()
        says = "1 background job is still running: /jobs shows them, /kill all ends them."
        assert session.of(events.Notice)[-1].message == says
        assert session.chain.jobs.running == ("J1",)
        # While nothing but jobs is running, a stop ends them.
        answer = session.chain.submit("stop")
        assert (answer.what, answer.message) == ("nothing", "Killing 1 background job: J1.")
        await wait_all_tasks_blocked()
        assert works.killed == ["a"]
        await session.run("go on")
        assert "[JOB J1] killed by the user after 0 s" in session.sent()


@pytest.mark.parametrize("how", ["interrupt", "stop"])
async def test_an_end_that_waits_when_the_user_ends_the_run_stays_for_the_next(how: str) -> None:
    works, gate = Works(), Gate()
    rules = STARTS.replace("text: Started.", "tools: [{name: wait, input: {}}]")
    async with open_session(rules, tools=[works.tool, gate.tool]) as session:
        session.chain.submit("start a waking")
        await gate.started.wait()
        await works.end("a")
        session.chain.submit("and this")
        if how == "stop":
            session.chain.submit("stop")
            gate.open.set()
        else:
            session.interrupt()
        await session.chain.wait_idle()
        assert [a.line.kind for a in session.chain.lines.waiting] == ["job"], "and starts no run by itself"
        assert session.state("L3") == "returned"
        await session.run("go on")
        assert "[JOB J1]" in session.sent()


async def test_a_job_line_at_the_last_iteration_does_not_change_the_ending() -> None:
    works, gate = Works(), Gate()
    async with open_session(TWO_STEPS, tools=[works.tool, gate.tool], use=settings(max_iterations=2)) as session:
        await begin(session, gate)
        held = trio.Event()
        session.model.on_request = lambda request: held.set()

        async def run(on_output: object) -> JobEnd:
            await held.wait()
            return JobEnd(0, "exit code 0")

        session.chain.jobs.start("main", "call", "make", run, wakes=True)
        gate.open.set()
        await session.chain.wait_idle()
        assert session.result.status == "done"


async def test_no_more_than_eight() -> None:
    works = Works()
    async with open_session(STARTS, tools=[works.tool], interactive=True) as session:
        for n in range(MAX_JOBS + 1):
            await session.run(f"start {'abcdefghi'[n]}")
        last = session.of(events.ToolResult)[-1]
        assert last.is_error
        assert last.text.startswith("8 background jobs are running (J1, J2, ")
        await works.end("c")
        await session.run("go on")
        await session.run("start z")
        assert session.of(events.ToolResult)[-1].text == "[job J9 started]"


async def test_a_command_that_cannot_be_started() -> None:
    works = Works(codes={"a": -1})
    async with open_session(STARTS, tools=[works.tool], interactive=True) as session:
        await session.run("start a")
        await works.end("a")
        await session.run("go on")
        assert "[JOB J1] failed after 0 s\n$ run a\na begins\nit cannot be started" in session.sent()


# ------------------------------------------------------------------------------------------------------- child agents


async def test_the_jobs_of_an_agent_end_with_it_and_its_parent_is_told() -> None:
    works, gate = Works(), Gate()
    task = work([["agent", {"task": work([["work", {"name": "a"}], ["work", {"name": "b"}], ["wait", {}]])}]])
    async with open_session(Obedient(), tools=[works.tool, gate.tool], use=settings(agents=True)) as session:
        session.chain.submit(task)
        await gate.started.wait()
        await works.end("b")
        gate.open.set()
        await session.chain.wait_idle()
        assert works.killed == ["a"]
        await wait_all_tasks_blocked()
        await session.run("go on")
        assert "[JOB J1] ended with agent-1 after 0 s" in session.sent()
        lines = [(r.text.split("]")[0], r.state, r.agent) for r in session.chain.lines.receipts if r.origin == "job"]
        assert sorted(lines) == [("[JOB J1", "delivered", "main"), ("[JOB J2", "delivered", "agent-1")]


# ------------------------------------------------------------------------------------------------- the tools for them


async def ask(session: Session, name: str, **input: object) -> str:
    jobs = session.chain.jobs
    if name == "kill":
        return await jobs.kill(str(input["id"]), "main")
    return jobs.output(str(input["id"]), int(str(input.get("after", 0))), 1_000)


async def test_reading_and_killing() -> None:
    works = Works()
    async with open_session(STARTS, tools=[works.tool, *JOB_TOOLS], interactive=True) as session:
        await session.run("start a")
        assert await ask(session, "output", id="j1") == (
            "[J1: running for 0 s]\na begins\n[end of the output: after=9]"
        )
        assert await ask(session, "output", id="J1", after=2) == (
            "[J1: running for 0 s]\nbegins\n[end of the output: after=9]"
        )
        with pytest.raises(ToolError, match="There is no job J2; there are J1"):
            await ask(session, "output", id="J2")
        assert await ask(session, "kill", id="J1") == "[job J1 killed]"
        with pytest.raises(ToolError, match="no job J1 is running; none is running"):
            await ask(session, "kill", id="J1")
        with pytest.raises(UserError, match="no job J1"):
            session.chain.jobs.kill_job("J1")
        await session.run("go on")
        assert "[JOB J1] killed by main after 0 s" in session.sent()


@pytest.mark.parametrize("kind", ["fifo", "folder", "link", "nothing"])
def test_what_is_no_file_is_no_output(tmp_path: Path, kind: str) -> None:
    (tmp_path / "other").write_text("other")
    make = {"fifo": os.mkfifo, "folder": os.mkdir, "link": lambda path: os.symlink(tmp_path / "other", path)}
    make.get(kind, str)(tmp_path / "J1.out")
    assert JobOutput.open(tmp_path / "J1.out") is None


def test_the_middle_of_much_output_is_dropped(tmp_path: Path) -> None:
    output = JobOutput(os.open(tmp_path / "J1.out", os.O_RDWR | os.O_CREAT), most=1_000, head=100, tail=200)
    written = b""
    for n in range(2_000):
        row = f"{n:07}\n".encode()
        written += row
        output.write(row)
        assert (tmp_path / "J1.out").stat().st_size <= 1_000
        assert output.size == len(written)
    content = (tmp_path / "J1.out").read_bytes()
    head, _, rest = content.partition(b"\n[")
    gap, _, tail = rest.partition(b" bytes left out]\n")
    assert head == written[:100]
    assert written.endswith(tail)
    assert len(tail) >= 200
    assert int(gap.replace(b",", b"")) == len(written) - 100 - len(tail)
    for after in (*range(0, 200, 7), 5_000, len(written) - 150, len(written), -150, -100_000):
        piece = output.read(after, 50)
        assert piece.data == written[piece.begin : piece.end]
        assert bool(piece.data) == (after != len(written))
    assert output.read(100, 50).begin == len(written) - len(tail)
    output.close()


# --------------------------------------------------------------------------------------------- the end of the session


async def test_what_was_not_delivered_is_listed_when_the_session_ends() -> None:
    works = Works()
    async with open_session(STARTS, tools=[works.tool]) as session:
        await session.run("start a")
        await session.run("start b")
        await works.end("a")
        await session.chain.wind_down()
        settled = session.chain.lines.settled()
        assert [(r.state, r.reason, r.text.split("\n")[0]) for r in settled.receipts] == [
            ("returned", "ended with the session", "[JOB J1] exit code 0 after 0 s"),
            ("returned", "ended with the session", "[JOB J2] ended with the session after 0 s"),
        ]
        assert session.chain.runs.exit_code() == 0
    assert works.killed == ["b"]


async def test_at_a_terminal_it_stays_in_the_session() -> None:
    works = Works()
    async with open_session(STARTS, tools=[works.tool], interactive=True) as session:
        await session.run("start a")
        session.chain.leave()
        await session.chain.wait_idle()
    assert works.killed == ["a"]
    file, read = left(session.file.data)
    async with open_session("rules: [{text: Gone on.}]", file=file, resume=read) as session:
        await session.run("go on")
        assert "user: [JOB J1] ended with the session after 0 s" in session.sent()
        assert job_lines(session) == ["delivered"]


@pytest.mark.parametrize("how", ["while it runs", "before its line", "stopped"])
async def test_a_program_that_was_killed(how: str) -> None:
    works, gate = Works(), Gate()
    rules = STARTS.replace("text: Started.", "tools: [{name: wait, input: {}}]")
    async with open_session(rules, tools=[works.tool, gate.tool], interactive=True) as session:
        session.chain.submit("start a")
        await gate.started.wait()
        if how == "stopped":
            session.chain.submit("stop")
        if how == "before its line":
            await works.end("a")
        rows = session.file.data.splitlines(keepends=True)
        if how == "before its line":
            (n,) = (n for n, row in enumerate(rows) if b'"job_ended"' in row)
            rows = rows[: n + 1]
        gate.open.set()
    file, read = left(b"".join(rows))
    async with open_session("rules: [{text: Gone on.}]", file=file, resume=read, interactive=True) as session:
        assert session.chain.jobs.running == ()
        await session.run("go on")
        ended = "exit code 0 after 0 s" if how == "before its line" else "ended with the program"
        assert f"user: [JOB J1] {ended}\n$ run a" in session.sent()
        assert job_lines(session) == ["delivered"]
    _, again = left(session.file.data)
    assert again.state.jobs["J1"].ended is not None


async def test_an_end_that_a_full_disk_does_not_take_is_reported_and_delivered_after_resuming() -> None:
    works, disk = Works(), FullDisk()
    async with open_session(STARTS, tools=[works.tool], interactive=True, file=disk) as session:
        await session.run("start a")
        disk.full = True
        await works.end("a")
        assert session.of(events.Notice)[-1].message.startswith("The end of job J1 could not be recorded: ")
        assert session.chain.jobs.running == ()
        disk.full = False
        await session.run("go on")
        assert "JOB" not in session.sent()
        data = disk.data
    file, read = left(data)
    async with open_session("rules: [{text: Gone on.}]", file=file, resume=read) as session:
        await session.run("go on")
        assert "user: [JOB J1] ended with the program\n$ run a" in session.sent()
