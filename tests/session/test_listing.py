"""The sessions in a folder: their summaries, the search for an id, and files that are skipped."""

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


def run(id: str) -> list[Row]:
    """The beginning of a run with this line as its query."""
    return [{"type": "run", "id": id}, receipt(id, "delivered", "start")]


RUN = [line("L1", "First row\nsecond row"), *run("L1"), message("Yes."), result()]


def journal(folder: Path, id: str, rows: Iterable[Row], *, start: float = 1000.0, tail: bytes = b"") -> Path:
    """A journal as the program writes one, a record a second."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{id}.jsonl"
    written = [
        json.dumps({"type": row["type"], "seq": n, "time": start + n, **row}, separators=(",", ":"))
        for n, row in enumerate(rows, 1)
    ]
    path.write_bytes("".join(f"{row}\n" for row in written).encode() + tail)
    return path


def only(folder: Path) -> listing.Summary:
    (found,) = listing.list_summaries(folder)
    return found


def test_a_summary_adds_up_the_records(tmp_path: Path) -> None:
    more = [line("L2", "second"), *run("L2"), result(), {"type": "model", "name": "other"}]
    journal(tmp_path, "20260101-000000-aaaaaa", [SESSION, *RUN, *more, line("L3", "then: x"), line("L4", "y")])
    assert only(tmp_path) == listing.Summary(
        id="20260101-000000-aaaaaa",
        changed=1013.0,
        workspace="/home/me/here",
        model="other",
        query="First row",
        runs=2,
        tokens=246,
        cost_usd=0.5,
        open_lines=("L3", "L4"),
        is_open=False,
        was_used=True,
    )


@pytest.mark.parametrize(
    ("rows", "runs", "query", "waiting"),
    [
        ([], 0, "", ()),
        ([line("L1", "waits")], 0, "waits", ("L1",)),
        ([line("L1", "cut short"), *run("L1"), message("x")], 1, "cut short", ()),
        ([*RUN, {"type": "run"}], 2, "First row", ()),
        ([line("L1", "a"), line("L1", "a", agent="explore-1"), receipt("L1", "returned")], 0, "", ()),
        ([line("L1", "  \n\n text "), *run("L1"), result()], 1, "text", ()),
        ([line("L1", "x"), receipt("L1", "dropped"), line("L2", "y"), *run("L2")], 1, "y", ()),
    ],
)
def test_runs_query_and_waiting_lines(
    rows: list[Row], runs: int, query: str, waiting: tuple[str, ...], tmp_path: Path
) -> None:
    journal(tmp_path, "a", [SESSION, *rows])
    found = only(tmp_path)
    assert (found.runs, found.query, found.open_lines) == (runs, query, waiting)


@pytest.mark.parametrize(
    "tail",
    [
        b'{"type":"line","seq":9,"time":2000.0,"id":"L9","te',
        b'{"type":"line","seq":9,"time":1006.0,"id":"L9","te\0\n',
        b"no JSON at all\n\xff\xfe\n[]\n7\n\n",
        b'{"type":"result","seq":9,"time":1006.0,"status":"of another version"}\n',
        b'{"type":"line","seq":9,"time":1006.0,"id":7}\n',
        b'{"type":"of a newer version","seq":9,"time":1006.0}\n',
        b'{"type":"plan","seq":9,"time":1006.0,"change":"closed","n":7,"state":"DONE","reason":"","by":"user"}\n',
        b'{"type":"line","seq":9,"time":1006.0,"id":' + b"[" * 30_000 + b"]" * 30_000 + b"}\n",
    ],
)
def test_torn_and_foreign_rows_are_skipped(tail: bytes, tmp_path: Path) -> None:
    journal(tmp_path, "a", [SESSION, *RUN], tail=tail)
    found = only(tmp_path)
    assert (found.runs, found.query, found.tokens, found.open_lines) == (1, "First row", 123, ())
    assert found.changed == 1006.0


def test_files_that_are_no_journals_are_skipped(tmp_path: Path) -> None:
    journal(tmp_path, "20260101-real", [SESSION, *RUN])
    (tmp_path / "20260101-notes.jsonl").write_text("not one record\n")
    (tmp_path / "20260101-empty.jsonl").write_bytes(b"")
    (tmp_path / "20260101-folder.jsonl").mkdir()
    (tmp_path / "20260101-real.jsonl.bak").write_text("x")
    (tmp_path / "20260101-dangling.jsonl").symlink_to("nowhere")
    os.mkfifo(tmp_path / "20260101-pipe.jsonl")
    assert only(tmp_path).id == "20260101-real"
    assert listing.find_journal(tmp_path, "2026").stem == "20260101-real"


def test_the_last_change_decides_the_order(tmp_path: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    (tmp_path / "link").symlink_to(here)
    folder = tmp_path / "sessions"
    for id, start, workspace in (("a", 3000, here), ("b", 1000, here), ("c", 2000, here), ("d", 5000, there)):
        path = journal(folder, id, [{**SESSION, "workspace": str(workspace)}, *RUN], start=start)
        os.utime(path, (1, 1))  # a copy of the files has other times
    assert [each.id for each in listing.list_summaries(folder)] == ["d", "a", "c", "b"]
    assert [each.id for each in listing.list_summaries(folder, latest=2, workspace=tmp_path / "link")] == ["a", "c"]
    assert listing.list_summaries(folder, workspace=tmp_path) == []


def test_a_session_belongs_to_its_last_workspace(tmp_path: Path) -> None:
    gone, here = tmp_path / "gone", tmp_path / "here"
    opened = [{**SESSION, "workspace": str(each)} for each in (gone, here)]
    journal(tmp_path, "a", [opened[0], *RUN, opened[1], *RUN])
    assert [each.workspace for each in listing.list_summaries(tmp_path, workspace=here)] == [str(here)]
    assert listing.list_summaries(tmp_path, workspace=gone) == []


def test_a_summary_is_cached_until_its_journal_grows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = journal(tmp_path, "a", [SESSION, *RUN])
    made = only(tmp_path)
    with monkeypatch.context() as patched:
        patched.delattr(listing, "load_journal")
        assert only(tmp_path) == made
        path = path.rename(tmp_path / "b.jsonl")
        listing.summary_path(tmp_path / "a.jsonl").rename(listing.summary_path(path))
        assert only(tmp_path).id == "b"
    with path.open("ab") as file:
        file.write(b'{"type":"model","seq":7,"time":2000.0,"name":"other"}\n')
    assert (only(tmp_path).model, only(tmp_path).changed) == ("other", 2000.0)
    assert listing.summary_path(path).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    "content", [b"", b"\xff", b"[]", b"[" * 100_000, b'{"at": "SIZE"}', b'{"at": "SIZE", "id": 7}']
)
def test_a_damaged_summary_file_is_replaced(content: bytes, tmp_path: Path) -> None:
    path = journal(tmp_path, "a", [SESSION, *RUN])
    made = only(tmp_path)
    listing.summary_path(path).write_bytes(content.replace(b"SIZE", str(path.stat().st_size).encode()))
    assert only(tmp_path) == made
    assert b"First row" in listing.summary_path(path).read_bytes()


def test_a_list_does_not_need_its_summary_files(tmp_path: Path) -> None:
    path = journal(tmp_path, "a", [SESSION, *RUN])
    listing.summary_path(path).mkdir()
    assert only(tmp_path).runs == 1
    assert sorted(os.listdir(tmp_path)) == ["a.jsonl", "a.summary.json"]


@pytest.mark.parametrize("part", ["0101-", "1-a", "x", "", "../20260101-a", "x" * 10_000])
def test_an_unclear_id_is_an_error(part: str, tmp_path: Path) -> None:
    for id in ("20260101-a", "20260101-b"):
        journal(tmp_path / "sessions", id, [SESSION])
    journal(tmp_path, "20260101-a", [SESSION])
    with pytest.raises(SessionError, match="chain sessions list") as caught:
        listing.find_journal(tmp_path / "sessions", part)
    assert repr(part[:10])[:-1] in str(caught.value)
    assert len(str(caught.value)) < 300
    with pytest.raises(SessionError, match="2 sessions: 20260101-a, 20260101-b"):
        listing.find_journal(tmp_path / "sessions", "2026")


def test_the_latest_session_is_one_with_lines(tmp_path: Path) -> None:
    names = ("20260101-000000-aaaaaa", "20260102-000000-bbbbbb", "20260103-000000-cccccc")
    todo = [line("L1", "todo: add x"), receipt("L1", "handled")]
    (tmp_path / "work").mkdir()
    here = {**SESSION, "workspace": str(tmp_path / "work")}
    for name, rows in zip(names, ([here, *RUN], [here, *todo], [here]), strict=True):
        journal(tmp_path / "sessions", name, rows, start=1000.0 * float(name[:8]))
    found = sessions.latest_session(sessions.FileStore(tmp_path), tmp_path / "work")
    assert found is not None
    assert found.id == names[1]
