"""What has to hold of a session that was killed and resumed, judged by what was seen. Pure.

Each check gives its complaints, in words. ``Record`` is a row of a journal, as JSON.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeAlias

from double import rules
from double.continuity import Said, broken, said

from chain.agent.window import PROMPT
from chain.journal import json as record_json
from chain.journal import records
from chain.lines.parse import parse_line
from chain.text.wording import COMPACTED, MAIN, SKIPPED

from .asked import HEADERS

Record: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Program:
    """What one program asked of the model, and whether a power cut came after its end."""

    asked: Sequence[Mapping[str, Any]]
    lost_power: bool


FINAL = {"delivered", "handled", "returned", "dropped"}
_INTERRUPTED = "[Interrupted"
_REFUSED = ["delivered", "returned"]
"""The one way out of a final state."""


@lru_cache(maxsize=32)
def rows(data: bytes) -> Sequence[Record]:
    """The records of a journal; rows that a kill has left torn, or a power cut empty, are passed over.

    A last row without its end is torn too, also if all else of it is there: whoever writes next makes it one. Each
    check reads them anew, so the latest journals are kept.
    """
    found: list[Record] = []
    for row in data.split(b"\n")[:-1]:
        try:
            record = json.loads(row)
        except ValueError:
            continue
        if isinstance(record, dict):
            found.append(record)
    return found


def lost(acknowledged: Iterable[str], answers: Mapping[str, str], journal: Sequence[Record]) -> Iterator[str]:
    """I6: what was acknowledged is on the disk."""
    there = {bare(r["text"]) for r in journal if r["type"] == "line"}
    for text in sorted({bare(text) for text in acknowledged} - there):
        yield f"the line {text!r} was acknowledged and is not in the journal"
    decided = {(r["id"], r["decision"]) for r in journal if r["type"] == "answer"}
    for id, decision in sorted(set(answers.items()) - decided):
        yield f"the answer to {id} ({decision}) was acknowledged and is not in the journal"


def unsettled(journal: Sequence[Record], *, may_wait: bool = False) -> Iterator[str]:
    """I1: every line has come to exactly one end."""
    for id, found in _receipts(journal).items():
        if found != [*found[:1]] and found != _REFUSED:
            yield f"line {id} has come to more than one end: {found}"
        elif not FINAL.issuperset(found):
            yield f"line {id} has come to no end: {found}"
        elif not found and not may_wait:
            yield f"line {id} still waits"


def repeated(journal: Sequence[Record]) -> Iterator[str]:
    """I6: no line is delivered twice, and no command about the plan is carried out twice, or not at all."""
    ends = _receipts(journal)
    lines = {r["id"]: r["text"] for r in journal if r["type"] == "line"}
    carried = Counter(id for r in journal if r["type"] == "message" for id in r["line_ids"])
    for id, times in carried.items():
        if times > 1:
            yield f"line {id} is in {times} messages"
        if id not in lines:
            yield f"line {id} is in a message and has no record"
    for id, found in ends.items():
        if ("delivered" in found) != bool(carried[id]):
            yield f"line {id} ends {found} and is in {carried[id]} messages"
    texts = [b["text"] for r in journal if r["type"] == "message" for b in _texts_of_user(r["message"])]
    sent = Counter(parse_line(lines[id]).message.strip() for id in carried if id in lines)
    for text, times in sent.items():
        if (found_times := sum(each.count(text) for each in texts)) > times:
            yield f"{text!r} is {found_times} times in the conversations, and was delivered {times} times"
    yield from _plan_repeated(journal, ends, lines)


def _plan_repeated(journal: Sequence[Record], ends: Mapping[str, list[str]], lines: Mapping[str, str]) -> Iterator[str]:
    wanted = Counter(
        added
        for id, text in lines.items()
        if (added := _added(text)) and ends[id] and ends[id][-1] in ("delivered", "handled")
    )
    done = Counter(r["text"] for r in journal if r["type"] == "plan" and r["by"] == "user" and r["change"] == "added")
    for task in sorted({*wanted, *done}):
        if wanted[task] != done[task]:
            yield f"the task {task!r} was added {done[task]} times by {wanted[task]} lines"
    closed = Counter(r["n"] for r in journal if r["type"] == "plan" and r["change"] == "closed")
    for n, times in closed.items():
        if times > 1:
            yield f"task {n} was closed {times} times"


def misjudged(before: Sequence[Record], after: Sequence[Record]) -> Iterator[str]:
    """What is told of the calls that were open when the program was killed.

    One that had started and not finished was interrupted, and one that had not started was skipped. One that had
    finished has its result, unless that had not come to the disk.
    """
    started = {r["id"] for r in before if r["type"] == "tool_started"}
    finished = {r["id"]: r.get("text", "") for r in before if r["type"] == "tool_finished"}
    told = {b["tool_use_id"]: b["content"] for b in _results(after)}
    for id in _open_calls(before):
        text = told.get(id)
        if text is None:
            yield f"the call {id} was open, and has no result"
        elif id not in started:
            if text != SKIPPED:
                yield f"the call {id} never started, and its result is {text!r:.80}"
        elif finished.get(id):
            if text != finished[id]:
                yield f"the call {id} had the result {finished[id]!r:.80}, and has {text!r:.80}"
        elif not text.startswith(_INTERRUPTED):
            yield f"the call {id} had started, and its result is {text!r:.80}"


def unallowed(journal: Sequence[Record]) -> Iterator[str]:
    """A call that needs an answer starts only once the answer that allows it is on the disk; all questions end."""
    asked: dict[str, Record] = {}
    decided: dict[str, str] = {}
    for r in journal:
        if r["type"] == "question":
            asked[r["id"]] = r
        elif r["type"] == "answer":
            if r["id"] in decided:
                yield f"the question {r['id']} has two answers"
            decided[r["id"]] = r["decision"]
        elif r["type"] == "tool_started":
            of_call = [q["id"] for q in asked.values() if q["tool_call_id"] == r["id"] and q["kind"] == "approval"]
            if of_call and decided.get(of_call[-1]) != "allowed":
                yield f"the call {r['id']} started before it was allowed"
    for id in asked.keys() - decided.keys():
        yield f"the question {id} is still open"


def unanswered_effects(made: Iterable[str], journal: Sequence[Record]) -> Iterator[str]:
    """What a call brings about comes after the answer that allows it is on the disk."""
    allowed = {r["id"] for r in journal if r["type"] == "answer" and r["decision"] == "allowed"}
    shown = [r["preview"] or r["diff"]["path"] for r in journal if r["type"] == "question" and r["id"] in allowed]
    for name in made:
        if not any(name in each for each in shown):
            yield f"{name} was written, and no answer in the journal allows it"


def unended(journal: Sequence[Record]) -> Iterator[str]:
    """Every agent that was started has ended."""
    open_ = Counter(r["name"] for r in journal if r["type"] == "agent_started")
    open_.subtract(r["name"] for r in journal if r["type"] == "agent_ended")
    for name, times in open_.items():
        if times:
            yield f"the agent {name} was started and ended, less {times} times"


def unfinished(journal: Sequence[Record]) -> Iterator[str]:
    """Every run has a result, also one that the program did not live to see the end of."""
    is_open = False
    for r in journal:
        if r["type"] == "message" and r["agent"] == MAIN:
            if is_open and r["point"] == "start":
                yield f"the run before {'and '.join(r['line_ids'])} has no result"
            is_open = True
        elif r["type"] == "result":
            is_open = False
    if is_open:
        yield "the last run has no result"


def withheld(journal: Sequence[Record]) -> Iterator[str]:
    """A line that a refusal has withdrawn goes back to the user, unless it was about the plan and was carried out."""
    ends = _receipts(journal)
    carried_out = {r.get("line_id") for r in journal if r["type"] == "plan"}
    delivered: dict[str, list[Sequence[str]]] = defaultdict(list)
    for r in journal:
        if r["type"] == "message":
            delivered[r["agent"]].append(r["line_ids"])
        elif r["type"] == "withdrawn" and r["messages"]:
            gone = [id for ids in delivered[r["agent"]][-r["messages"] :] for id in ids]
            for id in gone if r["reason"] == "refused" else []:
                if ends[id][-1:] != ["returned"] and id not in carried_out:
                    yield f"line {id} was withdrawn, and ends {ends[id]}"
            del delivered[r["agent"]][-r["messages"] :]


def unreadable(journal: Sequence[Record]) -> Iterator[str]:
    """Every record has the form of its type, and they are numbered from 1 on."""
    for n, record in enumerate(journal, 1):
        try:
            found = record_json.from_json(record)
        except ValueError as error:
            yield f"record {n} cannot be read: {error}"
            continue
        if isinstance(found.record, records.Unknown):
            yield f"record {n} is of an unknown type: {record['type']}"
        if found.seq != n:
            yield f"record {n} has the number {found.seq}"
            return


def invalid(asked: Iterable[Program], journal: Sequence[Record]) -> Iterator[str]:
    """I2: every request, and every conversation on record, is one that the Messages API takes."""
    for n, program in enumerate(asked, 1):
        for k, body in enumerate(program.asked, 1):
            fault = rules.check(body, HEADERS)
            if fault is not None:
                yield f"request {k} of program {n}: {fault.message}"
    for agent, messages in _conversations(journal).items():
        if messages and messages[-1]["role"] == "assistant":
            messages = [*messages, {"role": "user", "content": [{"type": "text", "text": "and on"}]}]
        fault = rules.check_messages(messages) if messages else None
        if fault is not None:
            yield f"the conversation of {agent}: {fault.message}"


def changed(asked: Iterable[Program], journal: Sequence[Record]) -> Iterator[str]:
    """I7: each request begins with the one before it in its conversation, also if that was another program's.

    A conversation is known by its first text. A power cut may take what was not synced, and a withdrawal is on record.
    """
    if any(r["type"] in ("withdrawn", "removed") for r in journal):
        return
    last: dict[str, Said] = {}
    for n, program in enumerate(asked, 1):
        for k, body in enumerate(program.asked, 1):
            first, now = body["messages"][0]["content"][0]["text"], said(body)
            before = last.get(first)
            why = None if before is None else broken(before, now, fixed=False)
            if why is not None:
                yield f"request {k} of program {n}: {why}"
            if not asks_for_summary(body):
                last[first] = now
        if program.lost_power:
            last.clear()


def forgotten(asked: Iterable[Program], journal: Sequence[Record]) -> Iterator[str]:
    """I10: after a compaction the next request still has all that the user had said, word for word.

    The sessions here are short, so that all of it has room.
    """
    compacted = [n for n, r in enumerate(journal) if r["type"] == "compacted" and r["summary"]]
    if not compacted:
        return
    delivered = {id for r in journal[: compacted[-1]] if r["type"] == "message" for id in r["line_ids"]}
    texts = [r["text"].strip() for r in journal if r["type"] == "line" and r["id"] in delivered]
    first = [body["messages"][0]["content"][0]["text"] for program in asked for body in program.asked]
    for said_then in [text for text in first if text.startswith(COMPACTED)][-1:]:
        yield from (f"a compaction lost {text!r}" for text in texts if text not in said_then)


def asks_for_summary(body: Mapping[str, Any]) -> bool:
    """Whether a request is that of a compaction, whose prompt does not stay in the conversation."""
    return bool(body["messages"][-1]["content"][-1].get("text", "").startswith(PROMPT.partition(".")[0]))


def bare(text: str) -> str:
    """A line's text without its marker, which its sender may have given in another way."""
    return text.lstrip("! ")


def _receipts(journal: Sequence[Record]) -> dict[str, list[str]]:
    ends: dict[str, list[str]] = {}
    for r in journal:
        if r["type"] == "line":
            ends.setdefault(r["id"], [])
        elif r["type"] == "receipt":
            ends.setdefault(r["id"], []).append(r["state"])
    return ends


def _added(text: str) -> str:
    _, is_add, task = text.partition("todo: add ")
    return task if is_add else ""


def _texts_of_user(message: Record) -> list[Record]:
    return [b for b in message["content"] if b["type"] == "text"] if message["role"] == "user" else []


def _results(journal: Sequence[Record]) -> Iterator[Record]:
    for r in journal:
        if r["type"] == "message":
            yield from (b for b in r["message"]["content"] if b["type"] == "tool_result")


def _open_calls(journal: Sequence[Record]) -> list[str]:
    answered = {b["tool_use_id"] for b in _results(journal)}
    found: list[str] = []
    for r in journal:
        if r["type"] == "message":
            found += [b["id"] for b in r["message"]["content"] if b["type"] == "tool_use"]
    return [id for id in found if id not in answered]


def _conversations(journal: Sequence[Record]) -> dict[str, list[Record]]:
    found: dict[str, list[Record]] = defaultdict(list)
    for r in journal:
        if r["type"] == "message":
            found[r["agent"]].append(r["message"])
        elif r["type"] == "withdrawn" and r["messages"]:
            del found[r["agent"]][-r["messages"] :]
    return found
