"""Each row of SPEC sections 3, 4 and 7, and each item of the test lists of the seeds, has a test with its marker.

The markers are read from the source, so that the check holds however the tests are distributed and selected.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from support.house import ROOT

SPEC = {
    "3: states of a line": """
        queued
        delivered
        handled
        returned, to the report
        returned, to the editor
        dropped
        refused: full
        refused: over-long, malformed, not writable
        unsent
        which state may follow which
        delivered, then returned by a refusal
    """,
    "3: what a line can say while a run is active": """
        any text
        !any text
        !!any text
        Alt-Enter, Shift-Enter
        stop and the other phrases
        todo: ..., plan: ...
        focus on, skip, also check, ignore, prefer
        context: text
        a line ending in ?, or status
        then: text
        /command
        a line that begins with a space
        case does not matter in keywords, and is kept after them
        blank lines
    """,
    "3: with no run active": """
        a todo command
        status
        a stop
        everything else
        a query given as an argument
        a line that races with the end of a run
    """,
    "3: plan commands": """
        add, complete, done, fail, list, show, clear
        malformed
        a number that does not exist
        any other word after todo:
    """,
    "4: the safe points": """
        A: lines carried over
        B: before going idle
        C: before each tool, the first included
        C acts only for urgent lines and stops
        an urgent line takes the whole queue with it
        a stop waits after the tools: the run ends
        D: all waiting lines, after all results
        all lines of one safe point are one message, each with its id
        A and D come before a model call
        the last iteration delivers nothing; todo lines are carried out
        on the last iteration C still skips
        max_iterations even if the reply was a final one
        the limit's result is the last text, or a sentence of its own
        N: a now line cuts the reply
        N: a now line cancels the tools
        N: a now line during a retry pause
        N: a now line on the last iteration
        N: a now line needs no room
        N: a now line before the model is asked
        N stands wherever a now line finds the agent
        B, after a reply without content
    """,
    "4: tools and model errors": """
        an unknown tool, bad input, a timeout, an exception
        killed while it ran, or never started
        a stream that breaks
        the last attempt
        a reply that could not be sent back
    """,
    "4: stop reasons": """
        end_turn
        stop_sequence
        tool_use
        max_tokens, under a handler's limit
        max_tokens, text
        max_tokens, a cut-off tool call
        refusal
        model_context_window_exceeded
        pause_turn
        a reply without content
    """,
    "5: the request tail": """
        the post-prompt, until a call has answered
    """,
    "8: who answers": """
        a terminal whose editor is up
        stream-json input that is open
        @question, in a script or a pipe
        nobody, or the last of these has gone
    """,
    "8: questions": """
        one is open at a time, and the first answer counts
        an answer is no line
        y, a, n, or any other text
        a number, an option, or any other text
        what the configuration answers
        the clocks stand still
        the clocks of all calls above stand still
        what is allowed waits for nobody's answer
        no allowance of edits covers that does not name them
        stops, urgent lines, interrupts and exits withdraw
        approval holds for what was shown
        a call starts when the answer is on disk
    """,
    "7: ways to stop": """
        soft
        urgent
        stop, in a reply that streams
        stop, in a tool
        hard: Esc, Ctrl-C, SIGINT
        exit: Ctrl-C twice
        exit: Ctrl-D, SIGTERM, /quit
        with no run active: Ctrl-C, Esc
        text in the editor survives
    """,
    "7: what a stop shows": """
        thinking, none
        tools, none
        thinking, some
        tools, some
        answering, none
        answering, some
        the four fields
        after an interrupt: the text, what is kept and what is dropped
        the checks, at four places
    """,
    "7: endings": """
        each status: what becomes of waiting lines, with a follow-up among them and without
        every status
        each status: its exit code
        done: none wait, follow-ups start the next run
        max_iterations: carried over; headless with no run to follow: returned
        limit_reached: time, tokens
        limit_reached: cost
        3: lines came back
        3: a line was not sent
        0: a line was dropped
        143
        2
        several runs: the largest problem
        text that goes back is placed above what is typed
    """,
}
"""The rows by section and table, a row a line."""

SEEDS = {
    "000": """
        an interjection after a tool completes
        several rapid interjections
        state transitions
        metadata of an interjection
        cleanup after an interjection
    """,
    "002": """
        while text streams, no tools: B
        while tools run: D, after all of them
        urgent while several are queued: C
        several messages rapidly: one injection
        pairing of calls and results
    """,
    "004": """
        rapid injections
        a race at completion
        each guidance kind
        free text as guidance
        redirect, results and count kept
        add context, results and count kept
        each phrase cancels
        cancel while thinking
        cancel before anything was done
        cancel in the tools, no result yet
        cancel in the tools, some results
        cancel in the tools of a later round
        cancel in the answer, no results
        cancel in the answer, some results
        cancel between two phases
        cancel inside a long tool
        cancel when nothing runs
        a race of a stop at completion
        cleanup after any ending
    """,
    "003": """
        the check after the model's response
        the check before each tool
        the check after the tools
        the check before the follow-up call
        an interrupt while the reply streams
        an interrupt while a tool runs
        the states after an interrupt
        an interrupt when nothing runs
    """,
}
"""The same of the seeds, as far as they are about one agent."""


def marked(path: Path) -> Iterator[tuple[str, str, str]]:
    """The markers of a file, on a test or on a row of its table: kind, section and row."""
    text = path.read_text(encoding="utf-8")
    for node in ast.walk(ast.parse(text)) if "mark.s" in text else ():
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Attribute(attr="mark"), attr="spec" | "seed" as kind),
                args=[ast.Constant(value=str(section)), ast.Constant(value=str(row))],
            ):
                yield kind, section, row
            case _:
                pass


def test_every_row_has_a_test_and_every_marker_a_row() -> None:
    found = [mark for path in sorted(ROOT.glob("tests/**/test_*.py")) for mark in marked(path)]
    for kind, table in (("spec", SPEC), ("seed", SEEDS)):
        rows = [(key.partition(":")[0], row.strip()) for key, text in table.items() for row in text.strip().split("\n")]
        assert len(rows) == len(set(rows)) > 10
        assert set(rows) == {(section, row) for one, section, row in found if one == kind}


def test_every_test_of_the_contract_is_marked() -> None:
    (path,) = ROOT.glob("tests/**/test_contract.py")
    tests = [n for n in ast.parse(path.read_text()).body if getattr(n, "name", "").startswith("test_")]
    assert len(tests) > 10
    for test in tests:
        assert isinstance(test, ast.FunctionDef | ast.AsyncFunctionDef)
        assert any("mark.spec" in ast.unparse(decorator) for decorator in test.decorator_list), test.name
