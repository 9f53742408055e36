"""Measures what SPEC section 14 promises, and how quick the terminal is, and prints goal and figure as a table:

    python tests/bench/run.py

It takes about eight minutes, wants a machine that does little else, and exits with 1 when a goal is missed. Rows
without a goal are there to be compared. Journals are written in the temporary folder: ``TMPDIR`` says on which disk.
``--quick`` tries every program with few iterations: its figures mean nothing, and it exits with 0. Most programs are
then forks of one that has imported what they do, which would take longer than all the rest.

What is measured runs in a process of its own, and so does the double of the Messages API that answers it, so neither
has the other's CPU time. What is compared runs in turn, a new process each time; a figure is the median, with the least
and the most. Where a row says "at worst" the figure is the most: whoever types notices the one key that is late.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
TESTS = HERE.parent
sys.path[:0] = [str(TESTS.parent), str(TESTS)]

import prompt  # noqa: E402 - the path comes first
from interrupted import steps as interrupted_steps  # noqa: E402
from scrolling import LINES_A_SECOND  # noqa: E402
from support.forked import Popen  # noqa: E402
from workload import QUERY, WARM_UP, replies, settings  # noqa: E402

MS = 1000.0
US = 1_000_000.0
PERCENT = 100.0
MIB = 1024.0 * 1024.0

KEPT = 0.95
"""Of the lines that are to scroll by: with fewer, the time of a key would say nothing."""


@dataclass(frozen=True, slots=True)
class Row:
    """One row: what was promised and what was found. ``goal`` is ``None`` where nothing was promised."""

    what: str
    goal: float | None
    figures: Sequence[float]
    unit: str = ""
    at_least: bool = False
    remark: str = ""
    judged_by: Callable[[Sequence[float]], float] = statistics.median

    @property
    def figure(self) -> float:
        return self.judged_by(self.figures)

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


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured."""

    short: int = 100
    long: int = 500
    rounds: int = 5
    lines: int = 200
    interrupted: int = 200
    memory: int = 10_000
    records: int = 1_000_000
    prompts: int = 11
    keys: int = 200
    reports: int = 150
    pieces: int = 600
    idle_s: int = 10
    processes: int = 9
    runs: int = 4_000
    iterations: int = 50_000
    compacted: int = 5_000
    outputs: int = 3_000
    chains: int = 1_000
    agents: int = 50
    agents_lines: int = 500
    calls: int = 1_000
    commands: int = 200
    streamed: int = 1_000
    watchers: int = 200
    growths: int = 3


QUICK = Size(
    *(8, 12),
    rounds=1,
    lines=8,
    interrupted=21,
    memory=40,
    records=2_540,
    prompts=1,
    keys=8,
    reports=8,
    pieces=20,
    idle_s=1,
    processes=1,
    runs=100,
    iterations=200,
    compacted=200,
    outputs=100,
    chains=4,
    agents=3,
    agents_lines=12,
    calls=5,
    commands=3,
    streamed=20,
    watchers=4,
    growths=1,
)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description="Measure what SPEC section 14 promises.")
    parser.add_argument("--quick", action="store_true", help="few iterations, only to see that everything runs")
    quick = parser.parse_args().quick
    size = QUICK if quick else Size()
    if quick:
        _origin.extend(("-m", "forks.bench_parent"))
    parts: list[Callable[[], list[Row]]] = [
        partial(cpu, size),
        partial(whole, size.processes),
        partial(growth, size),
        partial(agents, size),
        partial(waiting_line, size.lines),
        partial(reuse, size.interrupted),
        partial(memory, size.memory),
        partial(resuming, size),
        partial(commands, size.commands),
        partial(server_calls, size),
        partial(watching, size),
        partial(terminal, size, is_compiled=not quick),
    ]
    # One after the other, lest they disturb each other; in a trial run that does not matter.
    with ThreadPoolExecutor(len(parts) if quick else 1) as pool:
        rows = [row for found in pool.map(lambda part: part(), parts) for row in found]
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
    spread = replies(size.short, delay_between=0.001)
    steps = [*replies(WARM_UP), *replies(size.short), *replies(size.long), *spread]
    lengths = (size.short, size.long, size.short)
    ours: list[list[float]] = []
    theirs: list[list[float]] = []
    with double({"steps": steps, "lean": True, "repeat": True}) as service:
        for _ in range(size.rounds):
            ours.append(json.loads(program("cpu_chain.py", service.url, *lengths)))
            theirs.append(json.loads(program("cpu_bare.py", service.url, *lengths)))
    wanted = [
        (f"CPU per iteration, whole stack, {size.short} iterations", 0.45),
        (f"the same, {size.long} iterations", 0.3),
        (f"the same, {size.short} iterations, each event alone", 0.6),
    ]
    columns = zip(wanted, zip(*ours, strict=True), zip(*theirs, strict=True), strict=True)
    return [_ratio(*want, our, their) for want, our, their in columns]


def _ratio(
    what: str, goal: float | None, ours: Sequence[float], theirs: Sequence[float], other: str = "the bare loop"
) -> Row:
    remark = f"{statistics.median(ours) * MS:.2f} ms, {other} {statistics.median(theirs) * MS:.2f} ms"
    return Row(what, goal, [a / b for a, b in zip(ours, theirs, strict=True)], remark=remark)


def server_calls(size: Size) -> list[Row]:
    """A call of a server's tool, and the bare client's in turn."""
    ours: list[float] = []
    theirs: list[float] = []
    for _ in range(size.rounds):
        for times, who in ((ours, "ours"), (theirs, "bare")):
            with tempfile.TemporaryDirectory() as folder:
                times.append(float(program("server_calls.py", who, size.calls, folder)) / size.calls)
    return [_ratio("CPU of a call of a server's tool, of the bare client's", 1.3, ours, theirs, "the bare client")]


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
            theirs.append(cpu_of("whole_bare.py", service.url, home=folder))
    return [_ratio("CPU of one headless run without tools, the whole process", 0.9, ours, theirs)]


def growth(size: Size) -> list[Row]:
    """Late work against early work, in one process."""
    rows = [
        (f"CPU of run {size.runs:,} of a session, of run {size.runs // 10:,}", 1.1, "runs", size.runs),
        (f"CPU of iteration {size.iterations:,}, of {size.iterations // 10:,}", 1.3, "iterations", size.iterations),
        (f"CPU per iteration of {size.chains:,} chains at once, of one", 1.1, "chains", size.chains),
        (
            f"the last tenth of {size.compacted:,} iterations in full windows, of the first",
            1.2,
            "compacted",
            size.compacted,
        ),
    ]
    found = []
    for what, goal, kind, count in rows:
        pairs = [json.loads(program("growth.py", kind, count))[0] for _ in range(size.growths)]
        late, early = zip(*pairs, strict=True)
        remark = f"{statistics.median(late) * MS:.2f} ms and {statistics.median(early) * MS:.2f} ms"
        found.append(Row(what, goal, [a / b for a, b in pairs], remark=remark))
    ((most, text),) = json.loads(program("growth.py", "memory", size.compacted))
    found.append(Row("memory for that, of a window's text", 3.0, [most / text]))
    outputs = zip(("stream-json", "the trace"), json.loads(program("growth.py", "bytes", size.outputs)), strict=True)
    for what, (late, early) in outputs:
        told = f"bytes of {what} for run {size.outputs:,}, of run {size.outputs // 10:,}"
        found.append(Row(told, 1.1, [late / early], remark=f"{late:,.0f} and {early:,.0f}"))
    return found


def agents(size: Size) -> list[Row]:
    """Agents at work and lines to them, against one agent that has as much to do."""
    ours: list[float] = []
    theirs: list[float] = []
    seconds: list[float] = []
    most = 0
    for _ in range(size.growths):
        rounds, peak = json.loads(program("agents.py", size.agents, size.agents_lines))
        together, alone, took = zip(*rounds, strict=True)
        ours += together
        theirs += alone
        seconds += took
        most = max(most, peak)
    remark = (
        f"{statistics.median(ours) * MS:.2f} ms and {statistics.median(theirs) * MS:.2f} ms, "
        f"{statistics.median(seconds):.2f} s, {most / MIB:.0f} MiB at most"
    )
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    return [
        Row(
            f"CPU per iteration, {size.agents} agents with {size.agents_lines} lines, of one alone",
            1.2,
            ratios,
            remark=remark,
        )
    ]


def waiting_line(iterations: int) -> list[Row]:
    """From the safe point in one process to the request's arrival in another, by the clock that they share."""
    with started("arrivals.py", str(iterations)) as service:
        carried = json.loads(program("waiting.py", service.url, iterations))
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


def resuming(size: Size) -> list[Row]:
    """A long session that is opened again, and a journal that is very long, against a tenth of it."""
    seconds, grown, journal = map(float, program("resuming.py", "open", size.memory).split())
    held = f"{grown / MIB:.1f} MiB, the journal {journal / MIB:.1f} MiB"
    long, more, _ = map(float, program("resuming.py", "read", size.records).split())
    short, some, _ = map(float, program("resuming.py", "read", size.records // 10).split())
    took = f"{short:.1f} s and {long:.1f} s, grown by {some / MIB:.1f} MiB and {more / MIB:.1f} MiB"
    return [
        Row(f"resuming a session of {size.memory:,} iterations", 2.0, [seconds], " s"),
        Row("memory for that, of its journal's size", 3.0, [grown / journal], remark=held),
        Row(
            f"a journal of {size.records:,} records, of ten times a tenth of it",
            1.2,
            [long / (10 * short)],
            remark=took,
        ),
    ]


def commands(count: int) -> list[Row]:
    """A command that does nothing, under the guard and without."""
    guarded, bare = json.loads(program("commands.py", count))
    times = f"{statistics.median(guarded) * MS:.1f} ms and {statistics.median(bare) * MS:.1f} ms, {count} commands"
    ratio = statistics.median(guarded) / statistics.median(bare)
    return [Row("a command under the guard, of one without", 6.0, [ratio], remark=times)]


def watching(size: Size) -> list[Row]:
    """A reply that streams, a piece a millisecond, with nobody at the side door, with one who watches and with many."""
    text = {"type": "text", "text": "word " * size.streamed}
    reply = {"type": "say", "blocks": [text], "text_chunk": 5, "pings": False, "delay_between": 0.001}
    with double({"steps": [reply], "lean": True, "repeat": True}) as service:
        found = json.loads(program("watching.py", service.url, size.rounds, 0, 1, size.watchers))
    alone, one, many = ([seconds for seconds, *_ in runs] for runs in zip(*found, strict=True))
    ratios, of_many = ([a / b for a, b in zip(each, alone, strict=True)] for each in (one, many))
    took = f"{statistics.median(one):.2f} s and {statistics.median(alone):.2f} s"
    rows = [Row("a run that streams, with one watcher, of one without", 1.1, ratios, remark=took)]
    beside = ("", f"the run takes {statistics.median(of_many):.2f} times as long")
    for n, count in enumerate((1, size.watchers), 1):
        costs = [(runs[n][1] - runs[0][1]) / (runs[n][2] * count) * US for runs in found]
        rows.append(Row(f"CPU per event and watcher, of {count}", None, costs, " us", remark=beside[n - 1]))
    return rows


def terminal(size: Size, *, is_compiled: bool = True) -> list[Row]:
    """The program as its user has it, in a pseudo-terminal."""
    with prompt.lab(is_compiled=is_compiled) as lab:
        started = [(prompt.first_prompt(lab), prompt.imports(lab)) for _ in range(size.prompts)]
        echoes = prompt.echoes(lab, size.keys)
        reports = [seconds * MS for seconds in prompt.showings(lab, "report", size.reports)]
        pieces = [seconds * MS for seconds in prompt.showings(lab, "tell", size.pieces)]
        idle = [seconds * MS for seconds in prompt.idling(lab, size.idle_s)]
    ours, theirs = zip(*started, strict=True)
    first = f"{statistics.median(ours) * MS:.0f} ms, the imports {statistics.median(theirs) * MS:.0f} ms"
    keys = [seconds * MS for seconds in echoes.seconds]
    typed = f"median {statistics.median(keys):.1f} ms, {len(keys)} keys, {echoes.lines_a_second:,.0f} lines a second"
    if echoes.lines_a_second < KEPT * LINES_A_SECOND:
        keys = [math.inf]
    return [
        Row("time to the first usable prompt", 1.3, [a / b for a, b in started], remark=first),
        _worst(f"a key's echo while {LINES_A_SECOND:,} lines a second scroll, at worst", 50.0, keys, typed),
        _worst("an event on the screen, a tool's now and then, at worst", 100.0, reports, _median(reports)),
        _worst("the same, the pieces of a reply that streams", 100.0, pieces, _median(pieces)),
        _worst("CPU in a second of an idle prompt, at worst", 1.0, idle, f"{len(idle)} seconds"),
    ]


def _worst(what: str, goal: float, figures: Sequence[float], remark: str) -> Row:
    return Row(what, goal, figures, " ms", remark=remark, judged_by=max)


def _median(figures: Sequence[float]) -> str:
    return f"median {statistics.median(figures):.1f} ms, {len(figures)} events"


# ---- processes

_origin: list[str] = []
"""What runs in the process that the programs are forks of in a trial run."""


def start(arguments: Sequence[str], **pipes: Any) -> subprocess.Popen[str]:
    """A Python program in this folder."""
    command = [sys.executable, *arguments]
    if _origin:
        return Popen(command, origin=_origin, cwd=HERE, env=environment(), text=True, **pipes)
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
