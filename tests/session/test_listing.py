"""The sessions in a folder: their summaries, the search by id, and damaged files."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from chain.app import sessions
from chain.errors import SessionError
from chain.session import listing

Row = dict[str, Any]
"""A record without its number and time, which ``write_journal`` adds."""

SESSION: Row = {"type": "session", "id": "x", "version": "0.2.0", "model": "offline", "workspace": "/home/me/here"}
USAGE = {"input_tokens": 100, "output_tokens": 20, "cache_read_tokens": 3, "cache_write_tokens": 0, "cost_usd": 0.25}


def line(id: str, text: str, **more: Any) -> Row:
    own = {"kind": "redirect", "urgency": "next", "agent": "main", "origin": "prompt"}
    return {"type": "line", "id": id, "text": text, **own, **more}


def receipt(id: str, state: str, point: str | None = None) -> Row:
    own = {"agent": "main", "iteration": 1, "waited_s": None, "reason": ""}
    return {"type": "receipt", "id": id, "state": state, "point": point, **own}


def result(**usage: Any) -> Row:
    return {"type": "result", "status": "done", "result": "Done.", "iterations": 2, "usage": {**USAGE, **usage}}


def message(text: str) -> Row:
    content = {"role": "assistant", "content": [{"type": "text", "text": text}]}
    return {"type": "message", "message": content, "agent": "main", "parent_id": "root"}


def start_of_run(id: str) -> list[Row]:
    """Return the first records of a run whose query is this line."""
    return [{"type": "run", "id": id}, receipt(id, "delivered", "start")]


RUN = [line("L1", "First row\nsecond row"), *start_of_run("L1"), message("Yes."), result()]
"""A whole run."""
RUN_TOKENS = 100 + 20 + 3


def write_journal(folder: Path, id: str, rows: Iterable[Row], *, start: float = 1000.0, tail: bytes = b"") -> Path:
    """Write a journal with a record a second after ``start``. ``tail`` are bytes after the last record."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{id}.jsonl"
    written = [
        json.dumps({"type": row["type"], "seq": n, "time": start + n, **row}, separators=(",", ":"))
        for n, row in enumerate(rows, 1)
    ]
    path.write_bytes("".join(f"{row}\n" for row in written).encode() + tail)
    return path


def only_summary(folder: Path) -> listing.Summary:
    (summary,) = listing.list_summaries(folder)
    return summary


def test_a_summary_counts_runs_tokens_and_costs(tmp_path: Path) -> None:
    second_run = [line("L2", "second"), *start_of_run("L2"), result(), {"type": "model", "name": "other"}]
    waiting = [line("L3", "then: x"), line("L4", "y")]
    write_journal(tmp_path, "20260101-000000-aaaaaa", [SESSION, *RUN, *second_run, *waiting])
    assert only_summary(tmp_path) == listing.Summary(
        id="20260101-000000-aaaaaa",
        changed=1013.0,  # of the last of 13 records
        workspace="/home/me/here",
        model="other",
        query="First row",
        runs=2,
        tokens=2 * RUN_TOKENS,
        cost_usd=0.5,
        open_lines=("L3", "L4"),
        is_open=False,
        was_used=True,
    )


LINE_OF_ANOTHER_AGENT = [line("L1", "a"), line("L1", "a", agent="explore-1")]
DROPPED_LINE = [line("L1", "x"), receipt("L1", "dropped")]
SUMMARIES: dict[str, tuple[list[Row], int, str, tuple[str, ...]]] = {
    "new session": ([], 0, "", ()),
    "waiting line": ([line("L1", "waits")], 0, "waits", ("L1",)),
    "run without a result": ([line("L1", "cut short"), *start_of_run("L1"), message("x")], 1, "cut short", ()),
    "run without a query": ([*RUN, {"type": "run"}], 2, "First row", ()),
    "returned line that had another agent": ([*LINE_OF_ANOTHER_AGENT, receipt("L1", "returned")], 0, "", ()),
    "blank rows": ([line("L1", "  \n\n text "), *start_of_run("L1"), result()], 1, "text", ()),
    "dropped line before the query": ([*DROPPED_LINE, line("L2", "y"), *start_of_run("L2")], 1, "y", ()),
}
"""Records after that of the session, the number of runs, the query, and the lines that wait."""


@pytest.mark.parametrize("case", SUMMARIES)
def test_a_summary_has_runs_query_and_waiting_lines(case: str, tmp_path: Path) -> None:
    rows, runs, query, waiting = SUMMARIES[case]
    write_journal(tmp_path, "a", [SESSION, *rows])
    summary = only_summary(tmp_path)
    assert (summary.runs, summary.query, summary.open_lines) == (runs, query, waiting)


HEAD = b'"seq":9,"time":1006.0'
UNUSABLE_ROWS = {
    "torn row": b'{"type":"line","seq":9,"time":2000.0,"id":"L9","te',
    "torn row that was ended": b'{"type":"line",' + HEAD + b',"id":"L9","te\0\n',
    "no JSON objects": b"no JSON at all\n\xff\xfe\n[]\n7\n\n",
    "missing fields": b'{"type":"result",' + HEAD + b',"status":"of another version"}\n',
    "field of another type": b'{"type":"line",' + HEAD + b',"id":7}\n',
    "type of a newer version": b'{"type":"of a newer version",' + HEAD + b"}\n",
    "end of an unknown task": (
        b'{"type":"plan",' + HEAD + b',"change":"closed","n":7,"state":"DONE","reason":"","by":"user"}\n'
    ),
    "deeply nested value": b'{"type":"line",' + HEAD + b',"id":' + b"[" * 30_000 + b"]" * 30_000 + b"}\n",
}


@pytest.mark.parametrize("row", UNUSABLE_ROWS)
def test_torn_and_foreign_rows_are_skipped(row: str, tmp_path: Path) -> None:
    write_journal(tmp_path, "a", [SESSION, *RUN], tail=UNUSABLE_ROWS[row])
    summary = only_summary(tmp_path)
    assert (summary.runs, summary.query, summary.tokens, summary.open_lines) == (1, "First row", RUN_TOKENS, ())
    assert summary.changed == 1006.0, "the time of the last record of RUN"


def test_files_that_are_no_journals_are_skipped(tmp_path: Path) -> None:
    write_journal(tmp_path, "20260101-real", [SESSION, *RUN])
    (tmp_path / "20260101-notes.jsonl").write_text("not one record\n")
    (tmp_path / "20260101-empty.jsonl").write_bytes(b"")
    (tmp_path / "20260101-folder.jsonl").mkdir()
    (tmp_path / "20260101-real.jsonl.bak").write_text("x")
    (tmp_path / "20260101-dangling.jsonl").symlink_to("nowhere")
    os.mkfifo(tmp_path / "20260101-pipe.jsonl")
    assert only_summary(tmp_path).id == "20260101-real"
    assert listing.find_journal(tmp_path, "2026").stem == "20260101-real"


def test_the_last_change_decides_the_order(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    (tmp_path / "link").symlink_to(here)
    folder = tmp_path / "sessions"
    sessions_of_test = (("third", 3000, here), ("first", 1000, here), ("second", 2000, here), ("last", 5000, there))
    for id, start, workspace in sessions_of_test:
        path = write_journal(folder, id, [{**SESSION, "workspace": str(workspace)}, *RUN], start=start)
        os.utime(path, (1, 1))  # a copy of the files has other times
    assert [each.id for each in listing.list_summaries(folder)] == ["last", "third", "second", "first"]
    latest_here = listing.list_summaries(folder, latest=2, workspace=tmp_path / "link")
    assert [each.id for each in latest_here] == ["third", "second"]
    assert listing.list_summaries(folder, workspace=tmp_path) == []


def test_a_session_belongs_to_its_last_workspace(tmp_path: Path) -> None:
    gone, here = tmp_path / "gone", tmp_path / "here"
    session_there, session_here = ({**SESSION, "workspace": str(folder)} for folder in (gone, here))
    write_journal(tmp_path, "a", [session_there, *RUN, session_here, *RUN])
    assert [each.workspace for each in listing.list_summaries(tmp_path, workspace=here)] == [str(here)]
    assert listing.list_summaries(tmp_path, workspace=gone) == []


def test_a_summary_is_cached_until_its_journal_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cached summary needs no ``load_journal``. It moves with its journal, whose name is the id."""
    path = write_journal(tmp_path, "a", [SESSION, *RUN])
    summary = only_summary(tmp_path)
    with monkeypatch.context() as patched:
        patched.delattr(listing, "load_journal")
        assert only_summary(tmp_path) == summary
        path = path.rename(tmp_path / "b.jsonl")
        listing.summary_path(tmp_path / "a.jsonl").rename(listing.summary_path(path))
        assert only_summary(tmp_path).id == "b"
    with path.open("ab") as file:
        file.write(b'{"type":"model","seq":7,"time":2000.0,"name":"other"}\n')
    assert (only_summary(tmp_path).model, only_summary(tmp_path).changed) == ("other", 2000.0)
    assert listing.summary_path(path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xff", id="no text"),
        pytest.param(b"[]", id="no object"),
        pytest.param(b"[" * 100_000, id="deeply nested"),
        pytest.param(b'{"at": "SIZE"}', id="no fields"),
        pytest.param(b'{"at": "SIZE", "id": 7}', id="field of another type"),
    ],
)
def test_a_damaged_summary_file_is_replaced(content: bytes, tmp_path: Path) -> None:
    path = write_journal(tmp_path, "a", [SESSION, *RUN])
    summary = only_summary(tmp_path)
    listing.summary_path(path).write_bytes(content.replace(b"SIZE", str(path.stat().st_size).encode()))
    assert only_summary(tmp_path) == summary
    assert b"First row" in listing.summary_path(path).read_bytes()


def test_a_list_does_not_need_its_summary_files(tmp_path: Path) -> None:
    path = write_journal(tmp_path, "a", [SESSION, *RUN])
    listing.summary_path(path).mkdir()
    assert only_summary(tmp_path).runs == 1
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "a.summary.json"]


@pytest.fixture
def two_sessions(tmp_path: Path) -> Path:
    """Write two journals into a folder, and one outside of it. Return the folder."""
    for path in (tmp_path / "sessions", tmp_path):
        write_journal(path, "20260101-a", [SESSION])
    write_journal(tmp_path / "sessions", "20260101-b", [SESSION])
    return tmp_path / "sessions"


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        pytest.param("0101-", "'0101-'", id="middle of two ids"),
        pytest.param("1-a", "'1-a'", id="end of an id, too short"),
        pytest.param("x", "'x'", id="in no id"),
        pytest.param("", "''", id="empty"),
        pytest.param("../20260101-a", "'../20260101-a'", id="path of another folder"),
        pytest.param("x" * 10_000, "'xxxxxxxxxx", id="long text, of which the start is shown"),
    ],
)
def test_an_unknown_id_is_an_error(part: str, shown: str, two_sessions: Path) -> None:
    with pytest.raises(SessionError, match="chain sessions list") as caught:
        listing.find_journal(two_sessions, part)
    message = str(caught.value)
    assert shown in message
    assert len(message) < 300


def test_an_ambiguous_id_is_an_error(two_sessions: Path) -> None:
    with pytest.raises(SessionError, match="2 sessions: 20260101-a, 20260101-b"):
        listing.find_journal(two_sessions, "2026")


def test_the_latest_session_is_one_with_lines(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    session = {**SESSION, "workspace": str(tmp_path / "work")}
    todo_line = [line("L1", "todo: add x"), receipt("L1", "handled")]
    write_journal(tmp_path / "sessions", "20260101-run", [session, *RUN], start=1_000)
    write_journal(tmp_path / "sessions", "20260102-line", [session, *todo_line], start=2_000)
    write_journal(tmp_path / "sessions", "20260103-empty", [session], start=3_000)
    latest = sessions.latest_session(sessions.FileStore(tmp_path), tmp_path / "work")
    assert latest is not None
    assert latest.id == "20260102-line"
