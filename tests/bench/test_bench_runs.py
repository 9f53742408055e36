"""The benchmarks run, and print all their rows; how fast anything is, is not for a test to say."""

import subprocess
import sys
from pathlib import Path

import pytest

ROWS = (
    "CPU per iteration, whole stack, 8 iterations",
    "the same, 12 iterations",
    "the same, 8 iterations, each event alone",
    "CPU of one headless run without tools, the whole process",
    "CPU of run 100 of a session, of run 10",
    "CPU of iteration 200, of 20",
    "CPU per iteration of 4 chains at once, of one",
    "the last tenth of 200 iterations in full windows, of the first",
    "memory for that, of a window's text",
    "bytes of stream-json for run 100, of run 10",
    "bytes of the trace for run 100, of run 10",
    "CPU per iteration, 3 agents with 12 lines, of one alone",
    "a waiting line, from its safe point to the service",
    "the same, typed so late that the disk is waited for",
    "input read from the cache, of what was sent before",
    "memory for 40 iterations, of the conversation's",
    "resuming a session of 40 iterations",
    "memory for that, of its journal's size",
    "a journal of 2,540 records, of ten times a tenth of it",
    "a command under the guard, of one without",
    "CPU of a call of a server's tool, of the bare client's",
    "a run that streams, with one watcher, of one without",
    "CPU per event and watcher, of 1",
    "CPU per event and watcher, of 4",
    "time to the first usable prompt",
    "a key's echo while 10,000 lines a second scroll, at worst",
    "an event on the screen, a tool's now and then, at worst",
    "the same, the pieces of a reply that streams",
    "CPU in a second of an idle prompt, at worst",
)

pytestmark = pytest.mark.slow


def test_the_table_has_all_its_rows() -> None:
    command = [sys.executable, str(Path(__file__).with_name("run.py")), "--quick"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.returncode, done.stderr) == (0, "")
    _head, _rule, *rows = [[cell.strip() for cell in row.strip("|\n").split("|")] for row in done.stdout.splitlines()]
    assert tuple(row[0] for row in rows) == ROWS
    assert all(row[2] for row in rows)
