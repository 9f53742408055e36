"""The contract of lines, the loop and endings: each row of the tables of SPEC sections 3, 4 and 7 and a test for it.

A test without a file is here, the others are in the file that is named. ``test_every_test_of_the_maps_exists`` checks
this map and those of ``test_steering.py`` and ``test_stopping.py``, where the test lists of the seeds are.

Section 3, states of a line::

    queued
        test_a_line_that_waits_is_queued
    delivered
        test_a_query_is_delivered_at_the_start
        test_a_line_that_was_delivered_says_where_and_how_long_it_waited
    handled
        test_a_stop_is_handled
        test_a_todo_with_no_model_call_to_follow_is_handled
        test_executor.py::test_without_a_run_a_todo_is_done_at_once_and_no_model_is_called
        test_steering.py::test_a_line_that_a_tool_has_acted_on_ends_handled_if_it_is_never_delivered
    returned, to the report
        test_what_becomes_of_lines_that_wait
        test_headless.py::test_lines_that_wait_at_a_stop_come_back
    returned, to the editor
        test_terminal.py::test_lines_that_come_back_are_above_what_is_typed
    dropped
        test_a_line_that_was_dropped_is_dropped
    refused: full
        test_executor.py::test_eleven_lines_while_a_tool_blocks_ten_wait_and_the_last_is_refused
    refused: over-long, malformed, not writable
        test_a_line_that_cannot_be_accepted_is_refused
    unsent
        test_sender.py::test_a_line_that_is_not_due_is_unsent
        test_headless.py::test_a_line_that_is_not_due_at_the_end_is_unsent
    which state may follow which
        test_inbox.py::test_what_may_become_of_a_line
        test_inbox.py::test_what_may_not_become_of_a_line
    delivered, then returned by a refusal
        test_executor.py::test_stop_reason_refusal_withdraws_the_messages_and_gives_the_lines_back

Section 3, what a line can say while a run is active::

    any text
        test_executor.py::test_a_line_typed_while_a_tool_runs_is_delivered_after_it_at_point_d
    !any text
        test_steering.py::test_an_urgent_line_skips_every_tool_that_has_not_started
    Alt-Enter, Shift-Enter
        test_steering.py::test_any_kind_of_line_can_be_urgent_by_its_key
        test_terminal.py::test_urgent_lines_skip_the_tools_that_have_not_started
    stop and the other phrases
        test_stopping.py::test_each_stop_phrase_ends_the_run
        test_lines.py::test_a_stop_phrase_is_the_whole_line
        test_headless.py::test_what_only_begins_like_a_stop_is_a_redirect
    todo: ..., plan: ...
        test_a_plan_command_is_carried_out_at_the_next_safe_point
        test_executor.py::test_a_todo_line_is_carried_out_by_code_and_the_model_is_told
    focus on, skip, also check, ignore, prefer
        test_steering.py::test_guidance_reaches_the_running_tool_and_the_model
        test_render.py::test_guidance_shows_the_adjustment
    context: text
        test_steering.py::test_added_context_keeps_the_results_the_count_and_the_course
    a line ending in ?, or status
        test_steering.py::test_a_question_is_answered_and_the_task_goes_on
    then: text
        test_executor.py::test_then_starts_the_next_run_and_the_first_ends_done
        test_steering.py::test_no_safe_point_takes_a_follow_up
    /command
        test_a_command_never_enters_the_channel
        test_terminal.py::test_an_unknown_command_stays_with_the_nearest_name_and_help_names_all
    a line that begins with a space
        test_steering.py::test_a_line_that_begins_with_a_space_is_said_as_it_stands
    case does not matter in keywords, and is kept after them
        test_the_case_of_keywords_does_not_matter
        test_lines.py::test_the_case_of_what_follows_a_keyword_is_kept
    blank lines
        test_blank_lines_do_nothing

Section 3, with no run active::

    a todo command
        test_executor.py::test_without_a_run_a_todo_is_done_at_once_and_no_model_is_called
        test_a_plan_command_is_carried_out_at_once_when_nothing_runs
    status
        test_status_with_no_run_needs_no_model
        test_terminal.py::test_status_plan_and_files_of_the_session
    a stop
        test_a_stop_with_no_run_says_so_and_is_no_line
    everything else
        test_everything_else_starts_a_run
    a query given as an argument
        test_a_query_that_is_an_argument_is_not_parsed
        test_headless.py::test_a_query_is_not_parsed
        test_terminal.py::test_a_query_may_be_an_argument
    a line that races with the end of a run
        test_executor.py::test_a_line_in_the_very_step_of_a_runs_end_starts_a_new_run

Section 3, plan commands::

    add, complete, done, fail, list, show, clear
        test_a_plan_command_is_carried_out_at_the_next_safe_point
        test_a_plan_command_is_carried_out_at_once_when_nothing_runs
    malformed
        test_a_malformed_plan_command_is_answered_at_once_and_stays_the_users
        test_terminal.py::test_the_other_kinds_of_line
    a number that does not exist
        test_executor.py::test_a_task_number_that_does_not_exist_is_told_to_the_user_and_the_model
        test_a_task_number_that_does_not_exist_is_told_when_nothing_runs
    any other word after todo:
        test_another_word_after_todo_goes_to_the_model

Section 4, the safe points::

    A: lines carried over
        test_executor.py::test_at_the_limit_an_interactive_chain_carries_lines_over_into_the_next_run
        test_lines_of_the_first_step_enter_at_a_after_the_query
    B: before going idle
        test_executor.py::test_a_line_that_comes_while_the_final_answer_streams_is_answered_in_the_same_run
    C: before each tool, the first included
        test_steering.py::test_an_urgent_line_skips_every_tool_that_has_not_started
        test_steering.py::test_an_urgent_line_before_the_first_tool_skips_all
        test_stopping.py::test_a_stop_in_the_tools_skips_the_rest_and_shows_what_was_found
    C acts only for urgent lines and stops
        test_steering.py::test_what_is_not_urgent_skips_nothing
    an urgent line takes the whole queue with it
        test_steering.py::test_an_urgent_line_takes_the_whole_queue_with_it_in_order
    a stop waits after the tools: the run ends
        test_stopping.py::test_a_stop_in_the_tools_skips_the_rest_and_shows_what_was_found
    D: all waiting lines, after all results
        test_steering.py::test_a_line_in_the_first_of_three_tools_skips_none_of_them
    all lines of one safe point are one message, each with its id
        test_steering.py::test_lines_from_all_over_a_batch_are_one_message
    A and D come before a model call
        test_no_line_is_delivered_where_the_budget_lets_no_call_answer_it
    the last iteration delivers nothing; todo lines are carried out
        test_executor.py::test_at_the_limit_lines_come_back_todos_are_done_and_the_status_says_so
    on the last iteration C still skips
        test_steering.py::test_on_the_last_iteration_an_urgent_line_skips_tools_and_waits_for_the_ending
    max_iterations even if the reply was a final one
        test_executor.py::test_at_the_limit_a_line_that_waits_makes_even_a_final_reply_max_iterations
    the limit's result is the last text, or a sentence of its own
        test_the_result_at_the_limit_is_what_the_model_said_last
        test_executor.py::test_without_any_text_the_limit_has_a_sentence_of_its_own

Section 4, tools and model errors::

    an unknown tool, bad input, a timeout, an exception
        test_executor.py::test_a_tool_fault_is_a_result_and_the_loop_goes_on
    killed while it ran, or never started
        test_steering.py::test_whatever_skips_tools_every_call_has_its_result
        test_the_journal_notes_the_start_and_the_end_of_each_tool
    a stream that breaks
        test_executor.py::test_a_broken_stream_is_asked_again_and_the_text_shown_is_taken_back
    the last attempt
        test_executor.py::test_after_the_last_attempt_the_run_ends_with_the_cause
    a reply that could not be sent back
        test_executor.py::test_a_reply_that_could_not_be_sent_back_counts_as_a_broken_stream

Section 4, stop reasons::

    end_turn
        test_executor.py::test_a_query_is_answered_with_the_tools_results
    stop_sequence
        test_executor.py::test_stop_reason_stop_sequence_is_a_final_answer
    tool_use
        test_executor.py::test_a_query_is_answered_with_the_tools_results
    max_tokens, under a handler's limit
        test_executor.py::test_a_reply_cut_off_by_the_handlers_limit_is_asked_for_again_without_it
    max_tokens, text
        test_executor.py::test_stop_reason_max_tokens_with_text_is_truncated
        test_a_line_that_waits_goes_on_from_a_reply_that_max_tokens_cut
        test_after_an_aside_a_reply_that_max_tokens_cut_ends_the_run
    max_tokens, a cut-off tool call
        test_a_call_that_max_tokens_cut_off_is_kept_without_input_and_the_loop_goes_on
    refusal
        test_executor.py::test_stop_reason_refusal_withdraws_the_messages_and_gives_the_lines_back
        test_a_refusal_takes_back_all_since_the_last_reply_without_calls
    model_context_window_exceeded
        test_executor.py::test_stop_reason_context_window_exceeded_is_context_full
        test_chain.py::test_a_new_conversation_after_a_run_that_ended_badly
    pause_turn
        test_executor.py::test_stop_reason_pause_turn_is_an_error_that_says_why
    a reply without content
        test_executor.py::test_an_empty_reply_is_asked_to_continue_once_then_the_run_is_empty
        test_only_one_empty_reply_in_a_run_is_asked_to_continue

Section 7, ways to stop::

    soft
        test_executor.py::test_a_line_typed_while_a_tool_runs_is_delivered_after_it_at_point_d
    urgent
        test_steering.py::test_an_urgent_line_skips_every_tool_that_has_not_started
        test_terminal_stops.py::test_an_urgent_line_in_a_batch_of_three_skips_the_two_that_wait
    stop, in a reply that streams
        test_stopping.py::test_a_stop_in_an_answer_keeps_its_text
        test_terminal_stops.py::test_a_stop_cuts_a_streaming_answer_at_once_and_shows_what_was_found
    stop, in a tool
        test_stopping.py::test_a_stop_in_the_tools_skips_the_rest_and_shows_what_was_found
        test_terminal_stops.py::test_a_stop_says_what_it_waits_for_and_esc_kills_it
    hard: Esc, Ctrl-C, SIGINT
        test_executor.py::test_an_interrupt_cancels_the_tool_and_the_next_run_works
        test_terminal.py::test_a_key_interrupts_the_work_in_hand
        test_terminal.py::test_signals
    exit: Ctrl-C twice
        test_terminal_stops.py::test_two_quick_ctrl_c_leave_from_a_hanging_tool
        test_terminal.py::test_ctrl_c_twice_exits_from_a_run
    exit: Ctrl-D, SIGTERM, /quit
        test_terminal.py::test_ctrl_d_exits
        test_terminal_stops.py::test_sigterm_closes_the_session
        test_terminal.py::test_quit_in_a_run_gives_the_waiting_lines_back
    with no run active: Ctrl-C, Esc
        test_terminal.py::test_keys_when_nothing_runs
        test_terminal_stops.py::test_esc_with_nothing_to_interrupt_leaves_nothing_behind
    text in the editor survives
        test_terminal.py::test_a_key_interrupts_the_work_in_hand

Section 7, what a stop shows::

    thinking, none
        test_stopping.py::test_a_stop_while_the_model_thinks
    tools, none
        test_stopping.py::test_a_stop_before_the_first_tool_has_a_result
    thinking, some
        test_stopping.py::test_a_stop_while_the_model_thinks_about_results_shows_them
    tools, some
        test_stopping.py::test_a_stop_in_the_tools_skips_the_rest_and_shows_what_was_found
    answering, none
        test_stopping.py::test_a_stop_in_an_answer_keeps_its_text
    answering, some
        test_stopping.py::test_a_stop_in_an_answer_with_results_shows_both
    the four fields
        test_only_what_the_user_ended_is_marked_as_such
        test_terminal_stops.py::test_a_stop_in_a_tool_of_a_headless_run
    after an interrupt: the text, what is kept and what is dropped
        test_stopping.py::test_an_interrupt_keeps_the_text_that_was_shown_and_nothing_else_of_the_reply
        test_stopping.py::test_what_is_blank_is_not_kept
    the checks, at four places
        test_stopping.py::test_an_interrupt_in_the_step_of_a_reply_starts_no_tool
        test_stopping.py::test_an_interrupt_between_two_tools_starts_no_other
        test_stopping.py::test_an_interrupt_in_the_step_in_which_the_last_tool_ends_asks_the_model_nothing
        test_stopping.py::test_an_interrupt_between_two_iterations_makes_no_call

Section 7, endings::

    each status: what becomes of waiting lines, with a follow-up among them and without
        test_what_becomes_of_lines_that_wait
    every status
        test_every_status_has_an_ending
    each status: its exit code
        test_each_ending_has_its_exit_code
    done: none wait, follow-ups start the next run
        test_what_becomes_of_lines_that_wait
    max_iterations: carried over; headless with no run to follow: returned
        test_what_becomes_of_lines_that_wait
        test_executor.py::test_at_the_limit_a_follow_up_takes_carried_lines_along_headless
    limit_reached: time, tokens
        test_executor.py::test_the_time_limit_ends_a_run_whose_tool_hangs
        test_executor.py::test_the_token_budget_lets_no_call_start_once_it_is_reached
    limit_reached: cost
        test_anthropic.py::test_a_budget_of_money_ends_the_run
    3: lines came back
        test_each_ending_has_its_exit_code
    3: a line was not sent
        test_headless.py::test_exit_codes
        test_terminal_stops.py::test_the_last_words_name_what_was_not_sent
    0: a line was dropped
        test_a_line_that_was_dropped_is_dropped
    143
        test_headless.py::test_a_signal_during_a_tool
        test_terminal_stops.py::test_sigterm_closes_the_session
    2
        test_headless.py::test_no_query_at_all_is_wrong_usage
        test_program.py::test_bad_input_ends_the_process_with_one_sentence
    several runs: the largest problem
        test_of_several_runs_the_largest_problem_is_the_exit_code
        test_endings.py::test_of_several_runs_the_largest_problem_gives_the_exit_code
    text that goes back is placed above what is typed
        test_terminal.py::test_lines_that_come_back_are_above_what_is_typed
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

import pytest
from support import FullDisk, Session, at, check_invariants, open_session, settings
from support.gates import THREE_TOOLS, Gates, begin, finish, tick
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.events import Status
from chain.lines.parse import MAX_LINE

TESTS = Path(__file__).parent
WITH_MAPS = ("test_contract.py", "test_steering.py", "test_stopping.py")

ANSWER = "rules: [{text: The answer.}]"
LOOK = """
rules:
  - {when: {turn: 1}, text: Looking., tools: [{name: gate, input: {at: a}}]}
  - {text: The answer.}
"""


def receipt(session: Session, id: str) -> events.Receipt:
    return next(r for r in session.chain.receipts if r.id == id)


# -------------------------------------------------------------------------------------------------------------- the map


def functions(file: str) -> list[str]:
    """The tests that a file has."""
    tree = ast.parse((TESTS / file).read_text())
    kinds = ast.FunctionDef | ast.AsyncFunctionDef
    return [node.name for node in tree.body if isinstance(node, kinds) and node.name.startswith("test_")]


@pytest.mark.parametrize("file", WITH_MAPS)
def test_every_test_of_the_maps_exists(file: str) -> None:
    told = ast.get_docstring(ast.parse((TESTS / file).read_text())) or ""
    named = re.findall(r"^\s{4,}(?:(test_\w+\.py)::)?(test_\w+)$", told, re.M)
    assert len(named) > 10
    assert [f"{where}::{name}" for where, name in named if name not in functions(where or file)] == []


def test_every_test_of_this_file_is_in_the_map() -> None:
    left = set(functions("test_contract.py")) - set(re.findall(r"\btest_\w+", __doc__ or ""))
    assert left == {"test_every_test_of_this_file_is_in_the_map"}


# -------------------------------------------------------------------------------------------------- states of a line


async def test_a_line_that_waits_is_queued() -> None:
    gates = Gates()
    async with open_session(LOOK, tools=gates.tools) as session:
        await begin(session, gates, "a", "use B", "then: the next")
        assert (session.state("L2"), session.state("L3")) == ("queued", "queued")
        told = [(e.id, e.text, e.kind, e.target_agent, e.waiting) for e in session.of(events.LineQueued)]
        assert told == [("L2", "use B", "redirect", "main", 1), ("L3", "then: the next", "follow-up", "main", 2)]
        assert b'"use B"' in session.file.synced, "whoever is told that it waits can rely on it"
        assert not [r for r in session.records if r["type"] == "receipt" and r["id"] != "L1"]
        await finish(session, gates)


async def test_a_query_is_delivered_at_the_start(mock_clock: MockClock) -> None:
    async with open_session(ANSWER) as session:
        await session.run("Do the task")
        found = receipt(session, "L1")
        assert (found.state, found.agent, found.iteration, found.point) == ("delivered", "main", 0, "start")
        assert found.waited_s == 0
        check_invariants(session)


async def test_a_line_that_was_delivered_says_where_and_how_long_it_waited(mock_clock: MockClock) -> None:
    gates = Gates()
    async with open_session(LOOK, tools=gates.tools) as session:
        await begin(session, gates, "a", "use B")
        await tick(mock_clock, 3.25)
        await finish(session, gates)
        found = receipt(session, "L2")
        assert (found.state, found.agent, found.iteration, found.point) == ("delivered", "main", 1, "D")
        assert found.waited_s == 3.25
        assert session.of(events.UserInterruption)[0].waited_s == 3.25
        [record] = [r for r in session.records if r["type"] == "receipt" and r["id"] == "L2"]
        assert [record[k] for k in ("state", "agent", "iteration", "point", "waited_s")] == [
            "delivered",
            "main",
            1,
            "D",
            3.25,
        ]


async def test_a_stop_is_handled() -> None:
    gates = Gates()
    async with open_session(LOOK, tools=gates.tools) as session:
        await begin(session, gates, "a")
        session.chain.submit("Stop.")
        await finish(session, gates)
        found = receipt(session, "L2")
        assert (found.text, found.state, found.iteration, found.point) == ("Stop.", "handled", 1, None)
        assert "Stop" not in session.sent()


async def test_a_todo_with_no_model_call_to_follow_is_handled() -> None:
    gates = Gates()
    async with open_session(LOOK, tools=gates.tools, use=settings(max_iterations=1)) as session:
        await begin(session, gates, "a", "todo: add x", "todo: done 9")
        await finish(session, gates, max_iterations=1)
        assert (session.state("L2"), session.state("L3")) == ("handled", "handled")
        assert [t.text for t in session.chain.plan.tasks] == ["x"]
        assert "there is no task 9" in session.of(events.Notice)[0].message
        assert (await session.run("Do another task")).status == "done"
        assert "todo" not in session.sent()
        assert "[ ] 1. x" in session.model.requests[-1].tail[0], "of the plan the next call is told"


async def test_a_line_that_was_dropped_is_dropped() -> None:
    gates = Gates()
    async with open_session(LOOK, tools=gates.tools) as session:
        await begin(session, gates, "a", "use B")
        assert session.chain.drop("L2") == "use B"
        result = await finish(session, gates)
        found = receipt(session, "L2")
        assert (found.state, found.iteration, found.point) == ("dropped", 1, None)
        assert "use B" not in session.sent()
        assert (result.status, result.exit_code) == ("done", 0)


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x" * (MAX_LINE + 1), "the limit is 100,000"),
        ("todo: complete x", "write it as todo: complete <N>"),
        ("then:", "write what comes next"),
        ("!", "write the message after the !"),
        ("use D", "No space left"),
    ],
    ids=["over-long", "malformed", "without its text", "urgent without a text", "not writable"],
)
async def test_a_line_that_cannot_be_accepted_is_refused(text: str, reason: str, active: bool) -> None:
    gates, disk = Gates(), FullDisk()
    async with open_session(LOOK, tools=gates.tools, file=disk) as session:
        if active:
            await begin(session, gates, "a")
        disk.full = text == "use D"
        lines = [r for r in session.records if r["type"] == "line"]
        answer = session.chain.submit(text)
        assert answer.what == "refused"
        assert reason in answer.message
        [refused] = session.of(events.LineRefused)
        assert (refused.text, refused.reason) == (text[:1_000], answer.message)
        assert (session.chain.receipts[-1].text, session.chain.receipts[-1].state) == (text[:1_000], "refused")
        assert [r for r in session.records if r["type"] == "line"] == lines, "it was never accepted"
        disk.full = False
        gates.let("a")
        await session.chain.wait_idle()
        assert session.chain.is_running is False
        if not active:
            assert session.of(events.RunStarted) == []
        else:
            check_invariants(session)


# -------------------------------------------------------------------------------------------------- what a line can say

PLAN_COMMANDS = {
    "todo: add Verify the Data": ("task 3 added: Verify the Data", ["PENDING", "PENDING", "PENDING"]),
    "plan: add Verify the Data": ("task 3 added: Verify the Data", ["PENDING", "PENDING", "PENDING"]),
    "todo: complete 1": ("task 1 completed: one", ["DONE", "PENDING"]),
    "TODO: Done 2": ("task 2 completed: two", ["PENDING", "DONE"]),
    "todo: fail 2": ("task 2 failed: two", ["PENDING", "FAILED"]),
    "Plan: fail 2 No network": ("task 2 failed: two (No network)", ["PENDING", "FAILED"]),
    "todo: list": ("[ ] 1. one\n[ ] 2. two\n0 done, 0 failed, 2 pending", ["PENDING", "PENDING"]),
    "todo: show": ("[ ] 1. one\n[ ] 2. two\n0 done, 0 failed, 2 pending", ["PENDING", "PENDING"]),
    "todo: clear": ("the plan is cleared, 2 tasks removed", []),
}


@pytest.mark.parametrize("line", PLAN_COMMANDS)
async def test_a_plan_command_is_carried_out_at_the_next_safe_point(line: str) -> None:
    outcome, states = PLAN_COMMANDS[line]
    gates = Gates()
    async with open_session(LOOK, tools=gates.tools) as session:
        for text in ("one", "two"):
            session.chain.plan.add(text, "user")
        await begin(session, gates, "a", line)
        assert [t.state for t in session.chain.plan.tasks] == ["PENDING", "PENDING"]
        await finish(session, gates)
        assert [t.state for t in session.chain.plan.tasks] == states
        said = session.model.requests[1].messages[-1].text
        assert said.startswith(f"USER INTERRUPTION: {line}")
        assert f"{outcome})" in said
        assert session.state("L2") == "delivered"
        changed = states != ["PENDING", "PENDING"]
        assert bool(session.model.requests[1].tail[1:]) == changed, "the model is told of a plan that others changed"


@pytest.mark.parametrize("line", PLAN_COMMANDS)
async def test_a_plan_command_is_carried_out_at_once_when_nothing_runs(line: str) -> None:
    outcome, states = PLAN_COMMANDS[line]
    async with open_session(ANSWER) as session:
        for text in ("one", "two"):
            session.chain.plan.add(text, "user")
        answer = session.chain.submit(line)
        assert answer.what == "handled"
        assert answer.message.endswith(outcome)
        assert [t.state for t in session.chain.plan.tasks] == states
        assert session.state("L1") == "handled"
        await session.chain.wait_idle()
        assert (session.model.requests, session.of(events.RunStarted)) == ([], [])


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize(
    ("line", "written"),
    [
        ("todo:", "todo: add <task>, todo: complete <N>"),
        ("todo: add", "todo: add <task>"),
        ("todo: complete", "todo: complete <N>"),
        ("todo: complete x", "todo: complete <N>"),
        ("todo: done", "todo: complete <N>"),
        ("todo: fail", "todo: fail <N> [reason]"),
        ("todo: fail because", "todo: fail <N> [reason]"),
        ("todo: list all", "todo: list"),
        ("todo: clear it", "todo: clear"),
    ],
)
async def test_a_malformed_plan_command_is_answered_at_once_and_stays_the_users(
    line: str, written: str, active: bool
) -> None:
    gates = Gates()
    async with open_session(LOOK, tools=gates.tools) as session:
        session.chain.plan.add("one", "user")
        if active:
            await begin(session, gates, "a")
        answer = session.chain.submit(line)
        assert (answer.what, answer.id) == ("refused", "")
        assert f"write it as {written}" in answer.message
        assert session.chain.waiting == ()
        gates.let("a")
        await session.chain.wait_idle()
        assert [t.state for t in session.chain.plan.tasks] == ["PENDING"]
        assert len(session.model.requests) == (2 if active else 0)


@pytest.mark.parametrize("line", ["todo: complete 9", "todo: fail 9 because", "todo: done 0"])
async def test_a_task_number_that_does_not_exist_is_told_when_nothing_runs(line: str) -> None:
    async with open_session(ANSWER) as session:
        session.chain.plan.add("one", "user")
        answer = session.chain.submit(line)
        assert (answer.what, session.state("L1")) == ("handled", "handled")
        assert re.fullmatch(r"there is no task \d; the plan has 1", answer.message)
        assert session.model.requests == []


@pytest.mark.parametrize("line", ["todo: buy milk", "plan: let us think", "Todo: adding is fine"])
async def test_another_word_after_todo_goes_to_the_model(line: str) -> None:
    gates = Gates()
    async with open_session(LOOK, tools=gates.tools) as session:
        await begin(session, gates, "a", line)
        assert session.of(events.LineQueued)[0].kind == "redirect"
        await finish(session, gates)
        assert session.sent(1).endswith(f"USER INTERRUPTION: {line}")
        assert session.chain.plan.tasks == ()


@pytest.mark.parametrize("active", [False, True])
async def test_a_command_never_enters_the_channel(active: bool) -> None:
    gates = Gates()
    async with open_session(LOOK, tools=gates.tools) as session:
        if active:
            await begin(session, gates, "a")
        count = len(session.chain.receipts)
        for line in ("/help", "/no such command", "/drop L2"):
            assert (session.chain.submit(line).what, session.chain.submit(line).message) == ("local", line)
        assert (len(session.chain.receipts), session.chain.waiting) == (count, ())
        gates.let("a")
        await session.chain.wait_idle()
        assert session.of(events.LineQueued, events.LineRefused) == []


@pytest.mark.parametrize(
    ("line", "kind", "reads"),
    [
        ("CONTEXT: The SKU is X", "context", "[USER ADDED] The SKU is X"),
        ("Focus On SKU Data", "guidance", "Focus On SKU Data"),
        ("STATUS", "question", "STATUS"),
        ("Todo: Add The Licence", "todo", "Todo: Add The Licence (Done: task 1 added: The Licence)"),
        ("!Use The Other", "urgent", "Use The Other"),
        ("NEVER MIND!", "stop", None),
        ("THEN: Do The Next", "follow-up", None),
    ],
)
async def test_the_case_of_keywords_does_not_matter(line: str, kind: str, reads: str | None) -> None:
    gates = Gates()
    async with open_session(LOOK, tools=gates.tools) as session:
        await begin(session, gates, "a")
        session.chain.submit(line)
        await finish(session, gates)
        [record] = [r for r in session.records if r["type"] == "line" and r["id"] == "L2"]
        assert (record["text"], record["kind"]) == (line, kind)
        if reads is not None:
            assert session.model.requests[1].messages[-1].text == f"USER INTERRUPTION: {reads}"
        if kind == "follow-up":
            assert session.of(events.RunStarted)[1].query == "Do The Next"


@pytest.mark.parametrize("active", [False, True])
async def test_blank_lines_do_nothing(active: bool) -> None:
    gates = Gates()
    async with open_session(LOOK, tools=gates.tools) as session:
        if active:
            await begin(session, gates, "a")
        before = (len(session.records), len(session.events))
        for line in ("", " ", "\n", "\t \n"):
            answer = session.chain.submit(line)
            assert (answer.what, answer.message) == ("nothing", "")
        await wait_all_tasks_blocked()
        assert (len(session.records), len(session.events)) == before
        gates.let("a")
        await session.chain.wait_idle()
        assert len(session.of(events.RunStarted)) == active


# ------------------------------------------------------------------------------------------------- with no run active


@pytest.mark.parametrize("line", ["status", "STATUS"])
async def test_status_with_no_run_needs_no_model(line: str) -> None:
    async with open_session(ANSWER) as session:
        answer = session.chain.submit(line)
        assert (answer.what, session.state("L1")) == ("handled", "handled")
        assert answer.message == "nothing is running; 0 lines wait; plan 0/0; 0 tokens used"
        await session.chain.wait_idle()
        assert session.model.requests == []


async def test_a_stop_with_no_run_says_so_and_is_no_line() -> None:
    async with open_session(ANSWER) as session:
        count = len(session.records)
        for line in ("stop", "Never mind.", "!cancel"):
            answer = session.chain.submit(line)
            assert (answer.what, answer.message) == ("nothing", "Nothing is running.")
        assert (len(session.records), session.chain.receipts, session.events) == (count, (), [])


@pytest.mark.parametrize(
    ("line", "query"),
    [
        ("do the task", "do the task"),
        ("!do the task", "do the task"),
        ("what is it?", "what is it?"),
        ("focus on prices", "focus on prices"),
        ("context: it is late", "[USER ADDED] it is late"),
        ("then: do the next", "do the next"),
        (" stop", "stop"),
        (" todo: add x", "todo: add x"),
        ("todo: buy milk", "todo: buy milk"),
        ("stop using grep", "stop using grep"),
    ],
)
async def test_everything_else_starts_a_run(line: str, query: str) -> None:
    async with open_session(ANSWER) as session:
        assert session.chain.submit(line).what == "started"
        await session.chain.wait_idle()
        assert session.of(events.RunStarted)[0].query == query
        assert session.sent() == f"user: {query}"
        assert (session.result.status, session.state("L1")) == ("done", "delivered")
        check_invariants(session)


@pytest.mark.parametrize("query", ["stop", "todo: add x", "!now", "/help", "then: x", "context: x", "status", " x "])
async def test_a_query_that_is_an_argument_is_not_parsed(query: str) -> None:
    async with open_session(ANSWER) as session:
        assert session.chain.start(query).what == "started"
        await session.chain.wait_idle()
        assert session.sent() == f"user: {query.strip()}"
        assert session.chain.plan.tasks == ()
        check_invariants(session)


# ------------------------------------------------------------------------------------------------------ the safe points


async def test_lines_of_the_first_step_enter_at_a_after_the_query() -> None:
    async with open_session(ANSWER) as session:
        session.chain.submit("Do the task")
        session.chain.submit("use B")
        session.chain.submit("then: the next")
        session.chain.submit("!and C")
        await session.chain.wait_idle()
        [entered] = session.of(events.UserInterruption)
        assert (entered.point, entered.iteration, entered.ids, entered.remaining) == ("A", 0, ("L2", "L4"), 20)
        assert session.sent(0) == ("user: Do the task\nuser: USER INTERRUPTION: use B\n\nUSER INTERRUPTION: and C")
        assert len(session.model.requests) == 2, "one for each run"
        check_invariants(session)


@pytest.mark.parametrize("kind", [events.ToolResult, events.TextDelta])
async def test_no_line_is_delivered_where_the_budget_lets_no_call_answer_it(kind: type[events.Event]) -> None:
    model = """
rules:
  - {when: {user: ^look}, tools: [{name: gate, input: {at: a}}], usage: {input_tokens: 60, output_tokens: 60}}
  - {text: The answer., usage: {input_tokens: 60, output_tokens: 60}}
"""
    async with open_session(model, tools=Gates("a").tools, use=settings(budget_tokens=100)) as session:
        at(session, kind, lambda: session.chain.submit("use B"))
        result = await session.run("look" if kind is events.ToolResult else "answer")
        assert len(session.model.requests) == 1
        assert result.status == "limit_reached"
        assert session.state("L2") == "returned"
        check_invariants(session)


async def test_the_result_at_the_limit_is_what_the_model_said_last() -> None:
    gates = Gates("a", "b", "c")
    for said, result in (("text: So far so good.", "So far so good."), ("thinking: Hm.", "Stopped after 3 iterations")):
        model = f"""
rules:
  - {{when: {{step: 2}}, {said}, tools: [{{name: gate, input: {{at: b}}}}]}}
  - {{tools: [{{name: gate, input: {{at: a}}}}]}}
"""
        async with open_session(model, tools=gates.tools, use=settings(max_iterations=3)) as session:
            for n in (1, 2, 3):
                at(session, events.ToolResult, lambda session=session: session.chain.submit("use B"), n)
            ended = await session.run("Do the task")
            assert (ended.status, ended.iterations) == ("max_iterations", 3)
            assert ended.result.startswith(result)
            assert "is done" not in ended.result
            assert "use B" not in ended.result
            check_invariants(session, max_iterations=3)


# -------------------------------------------------------------------------------------------------- tools, stop reasons


async def test_the_journal_notes_the_start_and_the_end_of_each_tool() -> None:
    gates = Gates("a")
    async with open_session(THREE_TOOLS, tools=gates.tools) as session:
        await begin(session, gates, "b")
        session.chain.interrupt()
        await finish(session, gates)
        ids = [e.id for e in session.of(events.ToolResult)]
        noted = [(r["type"], r["id"]) for r in session.records if r["type"].startswith("tool_")]
        assert noted == [
            ("tool_started", ids[0]),
            ("tool_finished", ids[0]),
            ("tool_started", ids[1]),
            ("tool_finished", ids[1]),
        ]
        ends = [r["is_error"] for r in session.records if r["type"] == "tool_finished"]
        assert ends == [False, True]


async def test_a_call_that_max_tokens_cut_off_is_kept_without_input_and_the_loop_goes_on() -> None:
    model = """
rules:
  - {when: {step: 1}, text: Looking., tools: [{name: gate, input: {}, cut: true}]}
  - {text: The answer.}
"""
    async with open_session(model, tools=Gates("a").tools) as session:
        result = await session.run("Do the task")
        [call] = session.model.requests[1].messages[1].calls
        assert (call.name, dict(call.input)) == ("gate", {})
        [answer] = session.model.requests[1].messages[2].results
        assert answer.is_error
        assert "input was cut off by max_tokens" in answer.text
        assert (result.status, result.result) == ("done", "The answer.")
        check_invariants(session)


async def test_a_refusal_takes_back_all_since_the_last_reply_without_calls() -> None:
    gates = Gates("b")
    model = """
rules:
  - {when: {interruption: bad}, text: No., stop_reason: refusal}
  - {when: {user: look, step: 1}, text: Looking., tools: [{name: gate, input: {at: a}}]}
  - {text: The answer.}
"""
    async with open_session(model, tools=gates.tools) as session:
        await session.run("Do the task")
        assert session.chain.submit("look").what == "started"
        await gates.reached("a")
        session.chain.submit("something bad")
        session.chain.submit("todo: add x")
        result = await finish(session, gates)
        assert (result.status, result.exit_code) == ("refused", 1)
        assert [session.state(f"L{n}") for n in range(1, 5)] == ["delivered", "returned", "returned", "delivered"]
        [withdrawn] = [r for r in session.records if r["type"] == "withdrawn"]
        assert (withdrawn["messages"], withdrawn["reason"]) == (4, "refused")
        await session.run("Do another task")
        assert session.sent() == "user: Do the task\nassistant: The answer.\nuser: Do another task"
        check_invariants(session)


async def test_only_one_empty_reply_in_a_run_is_asked_to_continue() -> None:
    gates = Gates("a")
    model = """
rules:
  - {text: ' ', times: 1}
  - {when: {tool: gate}, text: ' '}
  - {tools: [{name: gate, input: {at: a}}]}
"""
    async with open_session(model, tools=gates.tools) as session:
        result = await session.run("Do the task")
        assert (result.status, result.iterations) == ("empty", 3)
        assert session.sent() == "user: Do the task\nuser: Please continue.\nassistant: ['gate']\nuser: a is done"
        check_invariants(session)


# ------------------------------------------------------------------------------------------------------------- endings


@dataclass(frozen=True)
class Ending:
    """How a run comes to a status.

    ``model``, ``use``: under which rules and settings. ``when``, ``n``: lines come at the n-th event of this kind, and
    then the user does ``act``.
    """

    code: int
    model: str = LOOK
    when: type[events.Event] = events.ToolCall
    n: int = 1
    act: Callable[[Session], object] = lambda session: None
    use: dict[str, Any] = field(default_factory=dict)

    @property
    def most(self) -> int:
        iterations: int = self.use.get("max_iterations", 20)
        return iterations


def stop(session: Session) -> object:
    return session.chain.submit("stop")


def interrupt(session: Session) -> object:
    return session.chain.interrupt()


def replying(reason: str) -> str:
    return f"rules: [{{when: {{turn: 1}}, text: So far., stop_reason: {reason}}}, {{text: The answer.}}]"


ENDINGS: dict[Status, Ending] = {
    "done": Ending(0, ANSWER, events.TextDelta),
    "cancelled": Ending(0, ANSWER, events.TextDelta, act=stop),
    "cancelled_with_partial": Ending(0, act=stop),
    "cancelled_during_synthesis": Ending(0, when=events.TextDelta, n=2, act=stop),
    "interrupted": Ending(130, act=interrupt),
    "max_iterations": Ending(4, use={"max_iterations": 1}),
    "limit_reached": Ending(4, LOOK.replace("at: a", "at: never"), use={"timeout_s": 30}),
    "truncated": Ending(1, replying("max_tokens"), events.TextDelta),
    "empty": Ending(1, "rules: [{text: ' '}]", events.IterationStarted, n=2),
    "refused": Ending(1, replying("refusal"), events.TextDelta),
    "context_full": Ending(1, replying("model_context_window_exceeded"), events.TextDelta),
    "error": Ending(1, "rules: [{text: So far., error: {message: away, after: 3}}]", events.TextDelta),
}


def test_every_status_has_an_ending() -> None:
    assert set(ENDINGS) == set(get_args(Status))


async def play(session: Session, ending: Ending, *lines: str) -> events.Result:
    """Bring a run to its ending, with lines that come as late as they can; the result of that run."""

    def come() -> None:
        for line in lines:
            assert session.chain.submit(line).what == "queued"
        ending.act(session)

    at(session, ending.when, come, ending.n)
    await session.run("Do the task")
    check_invariants(session, max_iterations=ending.most)
    first: events.Result = session.of(events.Result)[0]
    return first


@pytest.mark.parametrize("interactive", [False, True], ids=["headless", "interactive"])
@pytest.mark.parametrize("follows", [False, True], ids=["alone", "with a follow-up"])
@pytest.mark.parametrize("status", ENDINGS)
async def test_what_becomes_of_lines_that_wait(
    status: Status, follows: bool, interactive: bool, autojump_clock: MockClock
) -> None:
    ending = ENDINGS[status]
    lines = ["use B", "then: the next", "then: the last"] if follows else ["use B"]
    if status == "truncated":
        lines[0] = "then: use B"  # any other line goes on from there
    use = settings(**ending.use)
    async with open_session(ending.model, tools=Gates("a").tools, use=use, interactive=interactive) as session:
        result = await play(session, ending, *lines)
        assert result.status == status
        stays = status == "done" or (status == "max_iterations" and (follows or interactive))
        became = {r.text: r.state for r in session.chain.receipts if r.text in lines}
        assert became == dict.fromkeys(lines, "delivered" if stays else "returned")
        queries = [e.query for e in session.of(events.RunStarted)][1:]
        if not stays:
            assert queries == []
            reasons = {r.reason for r in session.chain.receipts if r.text in lines}
            assert reasons == {status}
        else:
            assert queries == (["the next", "the last"] if follows else [""] if status == "max_iterations" else [])
            points = [e.point for e in session.of(events.UserInterruption)]
            assert points == (["B"] if status == "done" else ["A"])


@pytest.mark.parametrize("max_iterations", [1, 2, 3])
async def test_a_line_that_waits_goes_on_from_a_reply_that_max_tokens_cut(
    max_iterations: int, autojump_clock: MockClock
) -> None:
    ending = ENDINGS["truncated"]
    async with open_session(ending.model, use=settings(max_iterations=max_iterations)) as session:
        at(session, ending.when, lambda: session.chain.submit("use B"))
        result = await session.run("Do the task")
        check_invariants(session, max_iterations=max_iterations)
        if max_iterations == 1:
            assert (result.status, session.state("L2")) == ("max_iterations", "returned")
            return
        assert (result.status, result.result, result.replies) == ("done", "The answer.", ("So far.", "The answer."))
        assert [e.point for e in session.of(events.UserInterruption)] == ["B"]


async def test_after_an_aside_a_reply_that_max_tokens_cut_ends_the_run(autojump_clock: MockClock) -> None:
    gates = Gates("a")
    model = """
rules:
  - {when: {interruption: why}, text: Becau, stop_reason: max_tokens}
  - {when: {user: task, step: 1}, tools: [{name: gate, input: {at: a}}]}
  - {text: The answer.}
"""
    async with open_session(model, tools=gates.tools) as session:
        at(session, events.ToolCall, lambda: session.chain.submit("why?"))
        gates.let("a")
        result = await session.run("Do the task")
        assert (result.status, result.result) == ("truncated", "Becau")
        check_invariants(session)


@pytest.mark.parametrize("status", ENDINGS)
async def test_each_ending_has_its_exit_code(status: Status, autojump_clock: MockClock) -> None:
    ending = ENDINGS[status]
    for lines in ((), ("use B",))[: 1 if status == "truncated" else 2]:  # a line that waits goes on from there
        async with open_session(ending.model, tools=Gates("a").tools, use=settings(**ending.use)) as session:
            result = await play(session, ending, *lines)
            came_back = bool(lines) and status != "done"
            assert result.status == status
            assert result.exit_code == (ending.code or 3 * came_back)
            assert session.chain.exit_code() == result.exit_code
            assert session.chain.exit_code(terminated=True) == 143
            session.chain.never_sent("use C", "its moment did not come")
            assert session.chain.exit_code() == (ending.code or 3)


@pytest.mark.parametrize("status", ENDINGS)
async def test_only_what_the_user_ended_is_marked_as_such(status: Status, autojump_clock: MockClock) -> None:
    ending = ENDINGS[status]
    async with open_session(ending.model, tools=Gates("a").tools, use=settings(**ending.use)) as session:
        result = await play(session, ending)
        found = (result.termination_reason, result.partial, result.phase_reached, result.partial_results)
        expected: dict[str, tuple[Any, ...]] = {
            "cancelled": ("user_cancelled", True, "answering", ()),
            "cancelled_with_partial": ("user_cancelled", True, "tools", ("a is done",)),
            "cancelled_during_synthesis": ("user_cancelled", True, "answering", ("a is done",)),
            "interrupted": ("user_interrupted", True, "tools", ()),
        }
        assert found == expected.get(status, (None, False, None, ()))
        told = events.to_json(result)
        assert [told[k] for k in ("termination_reason", "partial", "phase_reached")] == list(found[:3])
        assert told["partial_results"] == list(found[3])


async def test_of_several_runs_the_largest_problem_is_the_exit_code() -> None:
    gates = Gates("a")
    model = """
rules:
  - {when: {user: ^loop, tool: gate}, text: On., tools: [{name: gate, input: {at: a}}]}
  - {when: {user: ^loop}, text: On., tools: [{name: gate, input: {at: a}}]}
  - {when: {user: ^fail}, text: x, error: {message: away}}
  - {when: {user: ^look, step: 1}, tools: [{name: gate, input: {at: b}}]}
  - {text: The answer.}
"""
    codes = []
    async with open_session(model, tools=gates.tools, use=settings(max_iterations=2)) as session:
        for query, act in (("hello", None), ("look", stop), ("loop", None), ("fail", None), ("look", interrupt)):
            session.chain.submit(query)
            if act is not None:
                await gates.reached("b")
                session.chain.submit("use B")
                act(session)
                gates.let("b")
            await session.chain.wait_idle()
            codes.append(session.result.exit_code)
        await session.run("hello")
        assert codes == [0, 3, 4, 1, 130]
        assert session.result.exit_code == 130
        assert session.chain.exit_code(terminated=True) == 143
        check_invariants(session, max_iterations=2)
