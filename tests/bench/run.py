"""Measures the budgets of SPEC section 14, and prints goals and figures as a table:

    python tests/bench/run.py

It takes some minutes on an idle machine, and exits with 1 if a goal is missed. Rows without a goal are for comparison.
Journals are written in the temporary folder, ``TMPDIR``. ``--quick`` runs every program with a fiftieth of the
iterations: its figures mean nothing, and it exits with 0.

Each measured program and the double of the Messages API run in processes of their own, each with its own CPU time.
Programs that are compared run in turn. A figure is the median; the table has the minimum and the maximum too.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
sys.path[:0] = [str(TESTS.parent), str(TESTS)]

import prompt  # noqa: E402 - the path comes first
from interrupted import steps as interrupted_steps  # noqa: E402
from workload import QUERY, WARM_UP, replies, settings  # noqa: E402

MS = 1000.0
PERCENT = 100.0
MIB = 1024.0 * 1024.0
QUICK = 50
"""The divisor of the numbers of iterations in a quick run."""

Size: TypeAlias = Callable[..., int]
"""Returns a number of iterations, given the usual number and the least that a quick run needs."""


@dataclass(frozen=True, slots=True)
class Row:
    """A figure and its goal, the largest allowed figure. ``goal`` is ``None`` for a comparison."""

    what: str
    goal: float | None
    figures: Sequence[float]
    unit: str = ""
    remark: str = ""

    @property
    def figure(self) -> float:
        return statistics.median(self.figures)

    @property
    def is_met(self) -> bool:
        return self.goal is None or self.figure <= self.goal

    def cells(self) -> tuple[str, ...]:
        goal = "" if self.goal is None else f"≤ {self.goal:g}{self.unit}"
        spread = f"{min(self.figures):.2f} to {max(self.figures):.2f}" if len(self.figures) > 1 else ""
        verdict = "" if self.goal is None else "met" if self.is_met else "MISSED"
        return self.what, goal, f"{self.figure:.2f}{self.unit}", verdict, spread, self.remark


HEAD = ("what", "goal", "figure", "", "least to most", "remark")


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the budgets of SPEC section 14.")
    parser.add_argument("--quick", action="store_true", help="few iterations, only to see that everything runs")
    quick = parser.parse_args().quick

    def size(usual: int, least: int = 1) -> int:
        return max(usual // QUICK, least) if quick else usual

    rows = [
        *cpu(size),
        *whole(size(9)),
        *growth(size),
        *waiting_line(size(200)),
        *reuse(size(200, 21)),
        *memory(size(10_000)),
        *commands(size(200)),
        *server_calls(size(5), size(1_000)),
        *first_prompt(size(11)),
    ]
    sys.stdout.write(table([HEAD, *(row.cells() for row in rows)]))
    return 0 if quick or all(row.is_met for row in rows) else 1


def table(lines: Sequence[Sequence[str]]) -> str:
    """Format the lines as a Markdown table with aligned columns."""
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    rows = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |\n" for line in lines]
    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|\n"
    return "".join([rows[0], rule, *rows[1:]])


# ---- the rows


def cpu(size: Size) -> list[Row]:
    """Compare the chain with the bare loop, on the same replies."""
    short, long = size(100, 2), size(500, 2)
    steps = [*replies(WARM_UP), *replies(short), *replies(long), *replies(short, delay_between=0.001)]
    lengths = (short, long, short)
    with double({"steps": steps, "lean": True, "repeat": True}) as service:
        measured = [
            [json.loads(program(name, service.url, *lengths)) for name in ("cpu_chain.py", "cpu_bare.py")]
            for _ in range(size(5))
        ]
    ours, theirs = zip(*measured, strict=True)
    wanted = [
        (f"CPU per iteration, whole stack, {short} iterations", 0.5),
        (f"the same, {long} iterations", 0.25),
        (f"the same, {short} iterations, each event alone", 0.6),
    ]
    columns = zip(wanted, zip(*ours, strict=True), zip(*theirs, strict=True), strict=True)
    return [_ratio(*want, our, their) for want, our, their in columns]


def _ratio(
    what: str, goal: float | None, ours: Sequence[float], theirs: Sequence[float], other: str = "the bare loop"
) -> Row:
    remark = f"{statistics.median(ours) * MS:.2f} ms, {other} {statistics.median(theirs) * MS:.2f} ms"
    return Row(what, goal, [a / b for a, b in zip(ours, theirs, strict=True)], remark=remark)


def whole(processes: int) -> list[Row]:
    """Compare one answer without tools, from the start of the program to its end, with the bare loop."""
    with (
        double({"steps": replies(1), "lean": True, "repeat": True}) as service,
        tempfile.TemporaryDirectory() as folder,
    ):
        settings(Path(folder), service.url, 1)
        chain = ("-m", "cli", "-p", QUERY, "--config", f"{folder}/config.yaml")
        bare = ("cpu_bare.py", service.url)
        measured = [(cpu_of(*chain, home=folder), cpu_of(*bare, home=folder)) for _ in range(processes)]
    return [_ratio("CPU of one headless run without tools, the whole process", 0.35, *zip(*measured, strict=True))]


def growth(size: Size) -> list[Row]:
    """Compare late work with early work, in one process."""
    runs, iterations, chains, outputs = size(4_000, 80), size(50_000), size(1_000), size(3_000)
    rows = [
        (f"CPU of run {runs:,} of a session, relative to run {runs // 10:,}", 1.1, "runs", runs),
        (f"CPU of iteration {iterations:,}, relative to iteration {iterations // 10:,}", 1.3, "iterations", iterations),
        (f"CPU per iteration of {chains:,} chains at once, relative to one", 1.1, "chains", chains),
    ]
    result_rows = []
    for what, goal, kind, count in rows:
        pairs = [json.loads(program("growth.py", kind, count))[0] for _ in range(size(3))]
        late, early = zip(*pairs, strict=True)
        remark = f"{statistics.median(late) * MS:.2f} ms and {statistics.median(early) * MS:.2f} ms"
        result_rows.append(Row(what, goal, [a / b for a, b in pairs], remark=remark))
    sizes = json.loads(program("growth.py", "bytes", outputs))
    for what, (late, early) in zip(("stream-json", "the trace"), sizes, strict=True):
        bytes_of = f"bytes of {what} for run {outputs:,}, relative to run {outputs // 10:,}"
        result_rows.append(Row(bytes_of, 1.1, [late / early], remark=f"{late:,.0f} and {early:,.0f}"))
    return result_rows


def waiting_line(iterations: int) -> list[Row]:
    """Measure from the safe point in one process to the arrival of the request in another, by the same clock."""
    with serving_program("waiting.py", "service", str(iterations)) as service:
        lines_of_runs = json.loads(program("waiting.py", "lines", service.url, iterations))
        arrivals = json.loads(service.stop())
    delays = {run: [(arrivals[n] - at) * MS for n, at in lines] for run, lines in lines_of_runs.items()}
    remark = f"{len(delays['waiting'])} lines"
    return [
        Row("a waiting line, from its safe point to the service", 5.0, delays["waiting"], " ms", remark=remark),
        Row("the same, with a wait for the disk", None, delays["late"], " ms", remark=remark),
    ]


def reuse(iterations: int) -> list[Row]:
    """Use the counts of the strict double, which also checks every request."""
    with double({"steps": interrupted_steps(iterations)}) as service:
        lines = int(program("interrupted.py", service.url, iterations))
        report = json.loads(service.stop())
    if report["complaints"]:
        raise SystemExit("\n".join(report["complaints"]))
    remark = f"{iterations} iterations, {lines} lines delivered"
    missed = [(1 - report["cache_read"] / report["repeatable"]) * PERCENT]
    return [Row("repeated input that is not read from the cache", 1.0, missed, " %", remark=remark)]


def memory(iterations: int) -> list[Row]:
    """Compare the memory of a run with that of its messages, and resume its session."""
    with tempfile.TemporaryDirectory() as folder:
        steps = [*replies(WARM_UP), *replies(iterations)]
        with double({"steps": steps, "lean": True}) as service:
            (needed,) = json.loads(program("memory.py", "run", service.url, iterations, folder))
        (alone,) = json.loads(program("memory.py", "hold", folder))
        seconds, grown, journal = json.loads(program("memory.py", "resume", folder))
    of_messages, of_journal = needed / max(alone, 1), grown / journal
    remark = f"{needed / MIB:.1f} MiB, the messages {alone / MIB:.1f} MiB"
    resumed = f"{grown / MIB:.1f} MiB, the journal {journal / MIB:.1f} MiB"
    return [
        Row(f"memory for {iterations:,} iterations, relative to the messages", 3.0, [of_messages], remark=remark),
        Row(f"resuming a session of {iterations:,} iterations", 1.0, [seconds], " s"),
        Row("memory for that, relative to the journal's size", 3.0, [of_journal], remark=resumed),
    ]


def server_calls(rounds: int, calls: int) -> list[Row]:
    """Compare a call of a server's tool with one of the bare client."""

    def cpu_of_call(who: str) -> float:
        with tempfile.TemporaryDirectory() as folder:
            return float(program("server_calls.py", who, calls, folder)) / calls

    measured = [(cpu_of_call("ours"), cpu_of_call("bare")) for _ in range(rounds)]
    what = "CPU of a call of a server's tool, relative to the bare client"
    return [_ratio(what, 1.3, *zip(*measured, strict=True), other="the bare client")]


def commands(count: int) -> list[Row]:
    """Compare a command that does nothing under the guard with one without."""
    guarded, bare = zip(*json.loads(program("growth.py", "commands", count)), strict=True)
    times = f"{statistics.median(guarded) * MS:.1f} ms and {statistics.median(bare) * MS:.1f} ms, {count} commands"
    ratio = statistics.median(guarded) / statistics.median(bare)
    return [Row("time of a command under the guard, relative to one without", 6.0, [ratio], remark=times)]


def first_prompt(count: int) -> list[Row]:
    """Compare the times of the whole program with those of its imports and of a bare script."""
    with prompt.ready_lab() as lab:
        prompts = [(lab.first_prompt(), lab.imports()) for _ in range(count)]
        requests = [(lab.first_request(), lab.first_request_of_script()) for _ in range(count)]
        with double({"steps": replies(1), "lean": True, "repeat": True}) as service:
            lab.use_service(service.url)
            answers = [(lab.answer(), lab.answer_to_script(service.url)) for _ in range(count)]
    script = "the bare script"
    return [
        _ratio("time to the first usable prompt", 1.3, *zip(*prompts, strict=True), other="the imports"),
        _ratio(
            "time to the request for a line typed at once", 3.0, *zip(*requests, strict=True), other="the bare script"
        ),
        _ratio("time of a headless run without tools", 2.2, *zip(*answers, strict=True), other=script),
    ]


# ---- processes


def start_program(arguments: Sequence[str], **pipes: Any) -> subprocess.Popen[str]:
    """Start a Python program in this folder."""
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, cwd=HERE, env=environment(), text=True, **pipes)


class Service:
    """A process that serves: it prints its port first, and ends at the end of its input."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout
        self._process = process
        self._output = ""
        self.url = f"http://127.0.0.1:{int(process.stdout.readline())}"

    def stop(self) -> str:
        """End the process and return the last row of its output."""
        if not self._output:
            self._output, _ = self._process.communicate()
        return self._output.splitlines()[-1]


@contextmanager
def double(script: dict[str, Any]) -> Iterator[Service]:
    """Start the double with this script."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(script, file)
        file.flush()
        with serving_program("-m", "double.server", "--script", file.name) as service:
            yield service


@contextmanager
def serving_program(*arguments: str) -> Iterator[Service]:
    """Start a Python program that serves."""
    with start_program(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        service = Service(process)
        try:
            yield service
        finally:
            service.stop()


def program(name: str, *arguments: object) -> str:
    """Run a measured program and return the last row of its output."""
    with start_program([name, *map(str, arguments)], stdout=subprocess.PIPE) as process:
        output, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, name)
    return output.splitlines()[-1]


def cpu_of(*arguments: str, home: str) -> float:
    """Return the seconds of CPU time of a Python program, as a process."""
    command = [sys.executable, *arguments]
    variables = {**environment(), "HOME": home, "XDG_STATE_HOME": home}
    with subprocess.Popen(
        command, cwd=HERE, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime


def environment() -> dict[str, str]:
    """Return our environment with this checkout first, and without variables that redirect a client."""
    ours = {k: v for k, v in os.environ.items() if not k.upper().startswith("ANTHROPIC_")}
    return {**ours, "PYTHONPATH": os.pathsep.join(map(str, (TESTS.parent, TESTS))), "NO_PROXY": "127.0.0.1"}


if __name__ == "__main__":
    sys.exit(main())
