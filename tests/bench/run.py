"""Measures what SPEC section 14 promises, and prints goal and figure as a table:

    python tests/bench/run.py

It takes some minutes, wants a machine that does little else, and exits with 1 when a goal is missed. Rows
without a goal are there to be compared. Journals are written in the temporary folder: ``TMPDIR`` says on which disk.
``--quick`` tries every program with a fiftieth of the iterations: its figures mean nothing, and it exits with 0.

What is measured runs in a process of its own, and so does the double of the Messages API that answers it, so neither
has the other's CPU time. What is compared runs in turn, a new process each time; a figure is the median, with the least
and the most.
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


@dataclass(frozen=True, slots=True)
class Row:
    """One row: what was promised and what was found. ``goal`` is ``None`` where nothing was promised."""

    what: str
    goal: float | None
    figures: Sequence[float]
    unit: str = ""
    at_least: bool = False
    remark: str = ""

    @property
    def figure(self) -> float:
        return statistics.median(self.figures)

    @property
    def is_met(self) -> bool:
        if self.goal is None:
            return True
        return self.figure >= self.goal if self.at_least else self.figure <= self.goal

    def cells(self) -> tuple[str, ...]:
        goal = "" if self.goal is None else f"{'≥' if self.at_least else '≤'} {self.goal:g}{self.unit}"
        spread = f"{min(self.figures):.2f} to {max(self.figures):.2f}" if len(self.figures) > 1 else ""
        verdict = "" if self.goal is None else "met" if self.is_met else "MISSED"
        return self.what, goal, f"{self.figure:.2f}{self.unit}", verdict, spread, self.remark


HEAD = ("what", "goal", "figure", "", "least to most", "remark")


QUICK = 50
"""By what the numbers of iterations are divided in a trial run."""

Size: TypeAlias = Callable[..., int]
"""How often something is done, given the usual number and the least that a trial run needs."""


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure what SPEC section 14 promises.")
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
        *resuming(size(10_000)),
        *commands(size(200)),
        *server_calls(size(5), size(1_000)),
        *first_prompt(size(11), is_compiled=not quick),
    ]
    sys.stdout.write(table([HEAD, *(row.cells() for row in rows)]))
    return 0 if quick or all(row.is_met for row in rows) else 1


def table(lines: Sequence[Sequence[str]]) -> str:
    """The lines as a Markdown table with columns in line."""
    widths = [max(len(line[n]) for line in lines) for n in range(len(lines[0]))]
    rows = ["| " + " | ".join(c.ljust(w) for c, w in zip(line, widths, strict=True)) + " |\n" for line in lines]
    rule = "|" + "|".join("-" * (w + 2) for w in widths) + "|\n"
    return "".join([rows[0], rule, *rows[1:]])


# ---- the rows


def cpu(size: Size) -> list[Row]:
    """The chain and the bare loop in turn, on the same replies."""
    short, long = size(100, 2), size(500, 2)
    steps = [*replies(WARM_UP), *replies(short), *replies(long), *replies(short, delay_between=0.001)]
    lengths = (short, long, short)
    ours: list[list[float]] = []
    theirs: list[list[float]] = []
    with double({"steps": steps, "lean": True, "repeat": True}) as service:
        for _ in range(size(5)):
            ours.append(json.loads(program("cpu_chain.py", service.url, *lengths)))
            theirs.append(json.loads(program("cpu_bare.py", service.url, *lengths)))
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
    """One answer without tools, from the start of the program to its end, and the bare loop's in turn."""
    ours: list[float] = []
    theirs: list[float] = []
    with (
        double({"steps": replies(1), "lean": True, "repeat": True}) as service,
        tempfile.TemporaryDirectory() as folder,
    ):
        settings(Path(folder), service.url, 1)
        chain = ("-m", "cli", "-p", QUERY, "--config", f"{folder}/config.yaml")
        for _ in range(processes):
            ours.append(cpu_of(*chain, home=folder))
            theirs.append(cpu_of("cpu_bare.py", service.url, home=folder))
    return [_ratio("CPU of one headless run without tools, the whole process", 0.35, ours, theirs)]


def growth(size: Size) -> list[Row]:
    """Late work against early work, in one process."""
    runs, iterations, chains, outputs = size(4_000, 80), size(50_000), size(1_000), size(3_000)
    rows = [
        (f"CPU of run {runs:,} of a session, of run {runs // 10:,}", 1.1, "runs", runs),
        (f"CPU of iteration {iterations:,}, of {iterations // 10:,}", 1.3, "iterations", iterations),
        (f"CPU per iteration of {chains:,} chains at once, of one", 1.1, "chains", chains),
    ]
    found = []
    for what, goal, kind, count in rows:
        pairs = [json.loads(program("growth.py", kind, count))[0] for _ in range(size(3))]
        late, early = zip(*pairs, strict=True)
        remark = f"{statistics.median(late) * MS:.2f} ms and {statistics.median(early) * MS:.2f} ms"
        found.append(Row(what, goal, [a / b for a, b in pairs], remark=remark))
    sizes = json.loads(program("growth.py", "bytes", outputs))
    for what, (late, early) in zip(("stream-json", "the trace"), sizes, strict=True):
        told = f"bytes of {what} for run {outputs:,}, of run {outputs // 10:,}"
        found.append(Row(told, 1.1, [late / early], remark=f"{late:,.0f} and {early:,.0f}"))
    return found


def waiting_line(iterations: int) -> list[Row]:
    """From the safe point in one process to the request's arrival in another, by the clock that they share."""
    with started("waiting.py", "service", str(iterations)) as service:
        carried = json.loads(program("waiting.py", "lines", service.url, iterations))
        arrived = json.loads(service.stop())
    waited = {when: [(arrived[n] - at) * MS for n, at in lines] for when, lines in carried.items()}
    remark = f"{len(waited['waiting'])} lines"
    return [
        Row("a waiting line, from its safe point to the service", 5.0, waited["waiting"], " ms", remark=remark),
        Row("the same, typed so late that the disk is waited for", None, waited["late"], " ms", remark=remark),
    ]


def reuse(iterations: int) -> list[Row]:
    """By the account of the strict double, which also checks every request."""
    with double({"steps": interrupted_steps(iterations)}) as service:
        lines = int(program("interrupted.py", service.url, iterations))
        report = json.loads(service.stop())
    if report["complaints"]:
        raise SystemExit("\n".join(report["complaints"]))
    remark = f"{iterations} iterations, {lines} lines delivered"
    found = [report["cache_read"] / report["repeatable"] * PERCENT]
    return [Row("input read from the cache, of what was sent before", 99.0, found, " %", at_least=True, remark=remark)]


def memory(iterations: int) -> list[Row]:
    """The run's peak against its messages alone, each beyond what the process held before."""
    with tempfile.TemporaryDirectory() as folder:
        steps = [*replies(WARM_UP), *replies(iterations)]
        with double({"steps": steps, "lean": True}) as service:
            needed = int(program("memory.py", "run", service.url, iterations, folder))
        alone = max(1, int(program("memory.py", "hold", folder)))
    remark = f"{needed / MIB:.1f} MiB, the messages {alone / MIB:.1f} MiB"
    return [Row(f"memory for {iterations:,} iterations, of the conversation's", 3.0, [needed / alone], remark=remark)]


def resuming(iterations: int) -> list[Row]:
    """A long session that is opened again."""
    seconds, grown, journal = map(float, program("resuming.py", iterations).split())
    remark = f"{grown / MIB:.1f} MiB, the journal {journal / MIB:.1f} MiB"
    return [
        Row(f"resuming a session of {iterations:,} iterations", 1.0, [seconds], " s"),
        Row("memory for that, of its journal's size", 3.0, [grown / journal], remark=remark),
    ]


def server_calls(rounds: int, calls: int) -> list[Row]:
    """A call of a server's tool, and the bare client's in turn."""
    times: dict[str, list[float]] = {"ours": [], "bare": []}
    for _ in range(rounds):
        for who, found in times.items():
            with tempfile.TemporaryDirectory() as folder:
                found.append(float(program("server_calls.py", who, calls, folder)) / calls)
    what = "CPU of a call of a server's tool, of the bare client's"
    return [_ratio(what, 1.3, times["ours"], times["bare"], "the bare client")]


def commands(count: int) -> list[Row]:
    """A command that does nothing, under the guard and without."""
    guarded, bare = zip(*json.loads(program("growth.py", "commands", count)), strict=True)
    times = f"{statistics.median(guarded) * MS:.1f} ms and {statistics.median(bare) * MS:.1f} ms, {count} commands"
    ratio = statistics.median(guarded) / statistics.median(bare)
    return [Row("a command under the guard, of one without", 6.0, [ratio], remark=times)]


def first_prompt(count: int, *, is_compiled: bool) -> list[Row]:
    """The program as its user has it, and what it cannot do without."""
    with prompt.lab(is_compiled=is_compiled) as lab:
        started = [(lab.first_prompt(), lab.imports()) for _ in range(count)]
        asked = [(lab.first_request(), lab.first_request_of_script()) for _ in range(count)]
        with double({"steps": replies(1), "lean": True, "repeat": True}) as service:
            lab.ask_at(service.url)
            answered = [(lab.answer(), lab.answer_to_script(service.url)) for _ in range(count)]
    return [
        _ratio("time to the first usable prompt", 1.3, *zip(*started, strict=True), other="the imports"),
        _ratio("time to the request for a line typed at once", 3.0, *zip(*asked, strict=True), other="the bare script"),
        _ratio("time of a headless run without tools", 2.2, *zip(*answered, strict=True), other="the bare script"),
    ]


# ---- processes


def start(arguments: Sequence[str], **pipes: Any) -> subprocess.Popen[str]:
    """A Python program in this folder."""
    command = [sys.executable, *arguments]
    return subprocess.Popen(command, cwd=HERE, env=environment(), text=True, **pipes)


class Service:
    """A double that runs in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout
        self._process = process
        self._said = ""
        self.url = f"http://127.0.0.1:{int(process.stdout.readline())}"

    def stop(self) -> str:
        """Have it end, if it has not, and return the last thing it said."""
        if not self._said:
            self._said, _ = self._process.communicate()
        return self._said.splitlines()[-1]


@contextmanager
def double(script: dict[str, Any]) -> Iterator[Service]:
    """The double with this script."""
    with tempfile.NamedTemporaryFile("w", suffix=".json", encoding="utf-8") as file:
        json.dump(script, file)
        file.flush()
        with started("-m", "double.server", "--script", file.name) as service:
            yield service


@contextmanager
def started(*arguments: str) -> Iterator[Service]:
    """A Python program that serves: it says its port first, and ends with its input."""
    with start(arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        service = Service(process)
        try:
            yield service
        finally:
            service.stop()


def program(name: str, *arguments: object) -> str:
    """Run one of the measured programs, and return the last thing it said."""
    with start([name, *map(str, arguments)], stdout=subprocess.PIPE) as process:
        said, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, name)
    return said.splitlines()[-1]


def cpu_of(*arguments: str, home: str) -> float:
    """The seconds of CPU time that a Python program uses as a process."""
    command = [sys.executable, *arguments]
    place = {**environment(), "HOME": home, "XDG_STATE_HOME": home}
    with subprocess.Popen(
        command, cwd=HERE, env=place, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        _, status, used = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}")
    return used.ru_utime + used.ru_stime


def environment() -> dict[str, str]:
    """Ours, with this checkout first, and without what would lead a client elsewhere."""
    ours = {k: v for k, v in os.environ.items() if not k.upper().startswith("ANTHROPIC_")}
    return {**ours, "PYTHONPATH": os.pathsep.join(map(str, (TESTS.parent, TESTS))), "NO_PROXY": "127.0.0.1"}


if __name__ == "__main__":
    sys.exit(main())
