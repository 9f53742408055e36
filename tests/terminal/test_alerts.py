"""Titles and bells for a user who looks elsewhere."""

from __future__ import annotations

import pytest

from chain import events
from chain.messages import Usage
from chain.session.exit_codes import EXIT_CODES
from cli.terminal.alerts import LONG_S, Alert, Alerts


def ended(at: float, status: events.Status = "done") -> events.Result:
    return events.Result(
        time=at, status=status, result="", replies=(), iterations=1, usage=Usage(), exit_code=EXIT_CODES[status]
    )


@pytest.mark.parametrize(
    ("seconds", "status", "alert"),
    [
        (LONG_S, "done", None),
        (LONG_S + 0.1, "done", Alert("chain: done", rings=True)),
        (LONG_S + 0.1, "interrupted", None),
        (600, "max_iterations", Alert("chain: max iterations", rings=True)),
    ],
)
def test_only_the_end_of_a_long_run_rings(seconds: float, status: events.Status, alert: Alert | None) -> None:
    alerts = Alerts()
    assert alerts.next_alert(events.RunStarted(time=100, id="L1", query="Go")) == Alert()
    assert alerts.next_alert(ended(100 + seconds, status)) == alert
    assert alerts.next_alert(ended(900, status)) is None


def test_a_question_rings_and_names_the_window() -> None:
    alerts = Alerts()
    asked = events.Question(id="Q2", kind="choice", text="Which?", options=("a", "b"), tool_call_id="c", name="ask")
    assert alerts.next_alert(asked) == Alert("chain: Q2 asks", rings=True)
    assert alerts.next_alert(events.Answer(id="Q3", text="y", decision="allowed", by="config")) is None
    assert alerts.next_alert(events.Answer(id="Q2", text="a", decision="answered", by="user")) == Alert()
    assert alerts.next_alert(events.TextDelta(text="Hello")) is None
