"""Events from records: what neither a session that runs nor one that is read again shows by itself."""

from __future__ import annotations

from chain import events
from chain.journal import records
from chain.journal.records import Entry, Record, Unknown
from chain.messages import ToolCall, ToolResult, assistant, tool_results
from chain.session.projection import Projection

CALLS = (ToolCall("c1", "look", {"at": 1}), ToolCall("c2", "find", {}))


def of(projection: Projection, *happened: Record) -> list[events.Event]:
    return [event for record in happened for event in projection.of(Entry(1, 5.0, record))]


def test_a_record_that_is_named_as_its_event_needs_no_rule_of_its_own() -> None:
    (answer,) = of(Projection(), records.Answer("Q1", "yes", "allowed", "user", "explore-1", is_for_always=True))
    assert answer == events.Answer(
        agent="explore-1", iteration=0, time=5.0, id="Q1", text="yes", decision="allowed", by="user", is_for_always=True
    )


def test_what_this_version_does_not_know_has_no_event_even_if_an_event_has_its_name() -> None:
    projection = Projection()
    assert projection.of(Entry(1, 5.0, Unknown("notice", {"message": "hello"}))) == []
    assert projection.reading(Entry(2, 5.0, Unknown("line", {}))) == []


def test_each_result_is_told_once_be_it_with_its_call_or_with_those_of_the_others() -> None:
    projection = Projection()
    of(projection, records.Message(assistant(CALLS), "main", "root"), records.ToolStarted("c1", "look", "main"))
    (first,) = of(projection, records.ToolFinished("c1", "main", False, 1.5, "Seen."))
    assert of(projection, records.ToolFinished("c2", "main", True, 2.5)) == []
    results = tool_results([ToolResult("c1", "Seen."), ToolResult("c2", "Lost.", is_error=True)])
    (second,) = of(projection, records.Message(results, "main", "root"))
    told = [e for e in (first, second) if isinstance(e, events.ToolResult)]
    assert [(e.id, e.name, e.text, e.is_error, e.seconds) for e in told] == [
        ("c1", "look", "Seen.", False, 1.5),
        ("c2", "find", "Lost.", True, 2.5),
    ]


def test_while_a_session_runs_lines_have_the_ids_that_their_senders_know() -> None:
    line = records.Line("L3", "focus on B", "guidance", "next", "main", "door", iteration=2, waiting=4)
    projection, ids = Projection(), dict[str, str]()
    projection.go_live(ids, lambda: "trace.json")
    ids["L3"] = "c1"
    (queued,) = of(projection, line)
    receipt = records.Receipt("L3", "delivered", "main", 2, "D", 0.5)
    (settled,) = of(projection, receipt)
    assert isinstance(queued, events.LineQueued)
    assert (queued.id, queued.iteration, queued.waiting, queued.origin) == ("c1", 2, 4, "door")
    assert queued.adjustment == events.AdjustmentView("focus_query", "B")
    assert isinstance(settled, events.Receipt)
    assert (settled.id, settled.text, settled.origin, settled.waited_s) == ("c1", "focus on B", "door", 0.5)
