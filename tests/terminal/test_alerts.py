"""Titles and bells for a user who may not be looking at the window."""

from __future__ import annotations

import pytest

from chain import events
from chain.messages import Usage
from chain.session.exit_codes import EXIT_CODES
from cli.terminal.alerts import LONG_S, Alert, Alerts

STARTED_AT = 100.0


def end_of_run(seconds: float, status: events.Status = "done") -> events.Result:
    """Return the end of a run that took this long."""
    code = EXIT_CODES[status]
    time = STARTED_AT + seconds
    return events.Result(time=time, status=status, result="", replies=(), iterations=1, usage=Usage(), exit_code=code)


@pytest.mark.parametrize(
    ("seconds", "status", "alert"),
    [
        pytest.param(LONG_S, "done", None, id="a short run"),
        pytest.param(LONG_S + 0.1, "done", Alert("chain: done", rings=True), id="a long run"),
        pytest.param(LONG_S + 0.1, "interrupted", None, id="a long run that the user interrupted"),
        pytest.param(600, "max_iterations", Alert("chain: max iterations", rings=True), id="a run at its limit"),
    ],
)
def test_only_the_end_of_a_long_run_rings(seconds: float, status: events.Status, alert: Alert | None) -> None:
    alerts = Alerts()
    assert alerts.next_alert(events.RunStarted(time=STARTED_AT, id="L1", query="Go")) == Alert()
    assert alerts.next_alert(end_of_run(seconds, status)) == alert
    assert alerts.next_alert(end_of_run(seconds + 100, status)) is None, "no run was active"


def test_a_question_changes_the_title_until_answered() -> None:
    alerts = Alerts()
    question = events.Question(id="Q2", kind="choice", text="Which?", options=("a", "b"), tool_call_id="c", name="ask")
    assert alerts.next_alert(question) == Alert("chain: Q2 asks", rings=True)
    answer_to_another = events.Answer(id="Q3", text="y", decision="allowed", by="config")
    assert alerts.next_alert(answer_to_another) is None
    assert alerts.next_alert(events.TextDelta(text="Hello")) is None
    assert alerts.next_alert(events.Answer(id="Q2", text="a", decision="answered", by="user")) == Alert()
