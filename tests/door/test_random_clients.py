"""Random clients of one side door: each receives the events of its own lines, and a watcher receives all events."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio
from hypothesis import strategies as st
from support.checks import check_invariants
from support.doors import Client, OpenDoor, open_door
from support.examples import sharded
from support.headless_sessions import line_object
from support.models import ASKING_TOOLS, TOOLS, RandomModel, Step, asking_steps, steps
from support.sessions import Session, make_settings, open_session, wait_quiet
from support.users import DROP, INTERRUPT, LINE_MARK, LINES, ActingUser
from trio.testing import MockClock

from chain import events
from chain.session import event_json

Row = dict[str, Any]
Act = Row | bytes | str | float
"""A row for the door, as an object or as bytes; ``"leave"``; ``"watch"``; or seconds to wait."""

PAUSES = [0.0, 0.25, 1.0, 3.0]
"""Seconds. They must be floats, unlike other acts."""

ROWS: list[Row | bytes] = [
    *(line_object(text) for text in LINES),
    line_object("use the other file ‹›", urgent=True),
    line_object("use the other file ‹›", now=True),
    *(line_object("use the other file ‹›", id=id) for id in ("same", "same", "Q1", "L2", "L3")),
    *(line_object("then: Do the next task ‹›", id=id) for id in ("same", "same", "Q1")),
    *(line_object("use the other file ‹›", to=to) for to in ("main", "explore-1")),
    line_object("  "),
    line_object("\ud800 ‹›"),
    *({"type": "answer", "id": "Q1", "text": text} for text in ("y", "a", "n", "rather not", "1")),
    *({"type": "answer", "id": "Q2", "text": text} for text in ("y", "2", "")),
    *({"type": "hello", "answers": answers} for answers in (True, True, True, False)),
    *({"type": "drop", "id": id} for id in ("L1", "l2", "same", "Q1", "")),
    {"type": "interrupt"},
    *(b"no json", b"[]", b"\xff", b'{"type":"line","id":"same"}', b'{"type":"nonsense","id":"same"}', b""),
]
"""Rows of all kinds. ``‹›`` becomes the number of the line. An entry that is repeated is drawn more often."""
ACTS: list[Act] = [*ROWS * 2, *["watch"] * 5, *["leave"] * 4, *PAUSES * 3]
places, indexes_of_acts, event_numbers = st.integers(0, 3), st.sampled_from(range(len(ACTS))), st.integers(0, 40)
acts_at_places = st.lists(st.tuples(places, indexes_of_acts), min_size=1, max_size=20)
acts_at_events = st.lists(st.tuples(event_numbers, st.sampled_from([*LINES, DROP, INTERRUPT])), max_size=4)
models = st.one_of(st.lists(asking_steps, min_size=1, max_size=5), st.lists(steps, max_size=6))
limits = st.sampled_from([{}, {"inbox_size": 2}, {"max_iterations": 3, "inbox_size": 2}, {"inbox_size": 1}])


@dataclass(eq=False)
class Player:
    """A client and what it did."""

    client: Client
    keys: set[str] = field(default_factory=set)
    """The keys of its lines (``key_of``)."""
    watches_from: int | None = None
    """The number of the session's events before it watched."""
    bad_rows: int = 0
    has_left: bool = False


def key_of(row: Row) -> str:
    """Return what identifies a line: the number in its text, which no other line has, or else its id."""
    number = LINE_MARK.search(row["text"])
    return str(row["id"]) if number is None else number[0]


class Places:
    """Numbered places. A client connects at a free place when something is to be done there, until it leaves."""

    def __init__(self, session: Session, door: OpenDoor) -> None:
        self.players: list[Player] = []
        """All clients so far."""
        self._session, self._door = session, door
        self._at: dict[int, Player] = {}
        self._number = 100  # the user at the prompt counts from 0

    async def act(self, place: int, act: Act) -> None:
        if isinstance(act, float):
            await trio.sleep(act)
            return
        if place not in self._at:
            self._at[place] = Player(await self._door.connect())
            self.players.append(self._at[place])
        player = self._at[place]
        with suppress(trio.BrokenResourceError):
            match act:
                case "leave":
                    self._at.pop(place).has_left = True
                    await trio.aclose_forcefully(player.client.stream)
                case "watch":
                    await player.client.send({"type": "watch"})
                    player.watches_from = player.watches_from or len(self._session.events)
                case bytes():
                    player.bad_rows += act != b""  # an empty row is ignored
                    await player.client.stream.send_all(act + b"\n")
                case dict():
                    await player.client.stream.send_all(json.dumps(self._numbered(player, act)).encode() + b"\n")

    async def refuse_questions(self) -> None:
        for player in self._at.values():
            with suppress(trio.BrokenResourceError):
                await player.client.send({"type": "hello", "answers": False})

    def _numbered(self, player: Player, row: Row) -> Row:
        self._number += 1
        if row["type"] != "line":
            return row
        row = {**row, "text": row["text"].replace("‹›", f"‹{self._number}›")}
        if not LINE_MARK.search(row["text"]):
            row["id"] = f"c{self._number}"
        player.keys.add(key_of(row))
        return row


DELTAS = ("text_delta", "thinking_delta", "tool_progress")
"""Events with pieces of streaming text. The door may join pieces."""


def is_of_line(row: Row) -> bool:
    return row["type"] in ("line_queued", "line_refused", "receipt") and row.get("kind") != "answer"


def check_rows(player: Player, events_of_session: Sequence[Row]) -> None:
    """Check what a client received against the events of the session."""
    assert player.client.types[:1] in ([], ["init"])
    if player.has_left:
        return
    known = {json.dumps(row) for row in events_of_session}
    after_init = player.client.rows[1:]
    rows = [row for row in after_init if row["type"] not in DELTAS]
    received = [row for row in rows if json.dumps(row) in known]
    if player.watches_from is None:
        due = [row for row in events_of_session if is_of_line(row) and key_of(row) in player.keys]
        assert [row for row in received if is_of_line(row)] == due
        others = {row["type"] for row in received if not is_of_line(row)}
        assert others <= {"question", "answer", "line_refused"}, "events of questions and their answers"
    else:
        due = [row for row in events_of_session[player.watches_from :] if row["type"] not in DELTAS]
        since_watching = received[len(received) - len(due) :]
        assert since_watching == due
    # Other rows answer what could not be read or done, and lines that needed no run.
    assert {row["type"] for row in rows if row not in received} <= {"error", "receipt", "notice", "question"}
    assert sum(row["type"] == "error" for row in rows) >= player.bad_rows
    assert player.keys <= {key_of(row) for row in rows if is_of_line(row)}, "each line has an answer"


@sharded(2_000, models, acts_at_places, acts_at_events, limits)
def test_each_client_receives_what_concerns_it(
    model: list[Step], acts: list[tuple[int, int]], typed: list[tuple[int, str]], limit: dict[str, int]
) -> None:
    async def main() -> None:
        settings, tools = make_settings(**limit), [*TOOLS, *ASKING_TOOLS]
        async with open_session(RandomModel(list(model)), tools=tools, settings=settings, interactive=True) as session:
            with TemporaryDirectory() as folder:
                async with open_door(session, Path(folder)) as door:
                    places = Places(session, door)
                    session.chain.listen(user := ActingUser(session, typed, also_idle=True))
                    session.chain.submit("Do the task")
                    user.perform_first()
                    for place, index in acts:
                        await places.act(place, ACTS[index])
                    await places.refuse_questions()
                    await wait_quiet(session)
                    session.chain.submit("Do another task")
                    await wait_quiet(session)
            check_invariants(session, max_iterations=limit.get("max_iterations", 20))
            rows = [json.loads(json.dumps(event_json.to_json(event))) for event in session.events]
            for player in places.players:
                check_rows(player, rows)
            keys_of_clients = {key for player in places.players for key in player.keys}
            for event in session.of(events.LineQueued, events.LineRefused, events.Receipt):
                if is_of_line(row := event_json.to_json(event)):
                    assert event.origin == ("door" if key_of(row) in keys_of_clients else "prompt")

    random.seed(0)  # the jitter of the retries
    trio.run(main, clock=MockClock(autojump_threshold=0))
