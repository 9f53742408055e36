"""Random clients of one session: each is told of its own and no more, and the terminal's own user notices nothing.

A client's texts have numbers of their own, as the user's have, or else ids: so it is known of every event whose it is.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import trio
from hypothesis import strategies as st
from support import (
    DROP,
    INTERRUPT,
    LINES,
    MARKED,
    Acts,
    MemoryFile,
    Session,
    check_heard,
    check_invariants,
    check_silence,
    open_session,
    sharded,
    wait_quiet,
)
from support import settings as chain_settings
from support.doors import Client, Entrance, open_door
from support.models import ASKING_TOOLS, TOOLS, RandomModel, Step, asking_steps, steps
from trio.testing import MockClock

from chain import events
from chain.session import event_json
from chain.session.snapshot import Snapshot
from chain.text.wording import FULL

Row = dict[str, Any]

# ----------------------------------------------------------------------------------------------- what is drawn

LEAVE = "(leave)"
CUT = "(leave in the middle of three rows)"
DEAF = "(come anew, and never read)"
WATCH = "(watch)"


def line(text: str, **more: Any) -> Row:
    return {"type": "line", "text": text, **more}


def answer(text: str, id: str = "Q1") -> Row:
    return {"type": "answer", "id": id, "text": text}


ROWS: list[Row | bytes] = [
    *(line(text) for text in LINES),
    line("use the other file ‹›", urgent=True),
    line("use the other file ‹›", now=True),
    *(line("use the other file ‹›", id=id) for id in ("same", "same", "Q1", "L2", "L3")),
    *(line("then: Do the next task ‹›", id=id) for id in ("same", "same", "Q1")),
    *(line("use the other file ‹›", to=to) for to in ("main", "explore-1")),
    line("  "),
    line("\ud800 ‹›"),
    *(answer(text) for text in ("y", "a", "n", "rather not", "1")),
    *(answer(text, "Q2") for text in ("y", "2", "")),
    *({"type": "hello", "answers": answers} for answers in (True, True, True, False)),
    *({"type": "drop", "id": id} for id in ("L1", "l2", "same", "Q1", "")),
    {"type": "interrupt"},
    b"no json",
    b"[]",
    b"\xff",
    b"[" * 3_000,
    b'{"type":"line","id":"same"}',
    b'{"type":"line","text":7}',
    b'{"type":"hello","answers":"yes"}',
    b'{"type":"nonsense","id":"same"}',
    b"",
]
SECONDS = [0.0, 0.25, 1.0, 3.0]
DOES: list[Row | bytes | str | float] = [*ROWS, *[WATCH] * 5, *[LEAVE, CUT] * 3, DEAF, *SECONDS * 3, *ROWS]
acts = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(range(len(DOES))), st.integers(0, 230)), min_size=1, max_size=20
)
own = st.lists(st.tuples(st.integers(0, 40), st.sampled_from([*LINES, DROP, INTERRUPT])), max_size=4)
models = st.one_of(st.lists(asking_steps, min_size=1, max_size=5), st.lists(steps, max_size=6))


@dataclass(frozen=True)
class Setting:
    """What a session is opened with."""

    max_iterations: int = 6
    inbox_size: int = 10
    interactive: bool = True
    sync_s: float = 0.0


SETTINGS = [Setting(), Setting(inbox_size=2), Setting(3, 2, False), Setting(2, 1), Setting(4, 3, sync_s=0.3)]

# ------------------------------------------------------------------------------------------------- the clients


@dataclass(eq=False)
class Player:
    """A client, what it sent, and when it began to watch."""

    client: Client
    keys: set[str] = field(default_factory=set)
    """By which its lines and answers are known."""
    bad: int = 0
    """Rows that cannot be read."""
    watch: tuple[int, int] | None = None
    """How many events there were at the least and at the most when it began to watch."""
    is_gone: bool = False

    @property
    def is_listening(self) -> bool:
        return self.client.reads and not self.is_gone


class Clients:
    """Four places at which clients come and go."""

    def __init__(self, session: Session, entrance: Entrance) -> None:
        self.players: list[Player] = []
        self._session = session
        self._entrance = entrance
        self._at: dict[int, Player] = {}
        self._number = 100

    async def do(self, place: int, what: Row | bytes | str | float, cut: int) -> None:
        """One thing, now."""
        if isinstance(what, float):
            await trio.sleep(what)
            return
        if what == DEAF:
            await self._leave(place)
        player = self._at.get(place) or await self._come(place, reads=what != DEAF)
        with suppress(trio.BrokenResourceError):  # it was cut off
            match what:
                case "(leave)":
                    await self._leave(place)
                case "(leave in the middle of three rows)":
                    rows = [self._numbered(player, line("use the other file ‹›")) for _ in range(3)]
                    whole = b"".join(rows)[:cut].count(b"\n")
                    player.keys.difference_update(key_of(json.loads(row)) for row in rows[whole:])
                    await player.client.stream.send_all(b"".join(rows)[:cut])
                    await self._leave(place)
                case "(watch)":
                    await self._watch(player)
                case bytes():
                    player.bad += bool(what)
                    await player.client.stream.send_all(what + b"\n")
                case dict():
                    await player.client.stream.send_all(self._numbered(player, what))

    async def end(self) -> None:
        """Nobody answers any more."""
        for player in self._at.values():
            with suppress(trio.BrokenResourceError):
                await player.client.send({"type": "hello", "answers": False})

    async def _come(self, place: int, *, reads: bool) -> Player:
        player = self._at[place] = Player(await self._entrance.client(reads=reads))
        self.players.append(player)
        return player

    async def _leave(self, place: int) -> None:
        if player := self._at.pop(place, None):
            player.is_gone = True
            await trio.aclose_forcefully(player.client.stream)

    async def _watch(self, player: Player) -> None:
        # What it has sent before is done before, and belongs to the time before.
        begun = len(self._session.events)
        await player.client.send({"type": "watch"})
        player.watch = player.watch or (begun, len(self._session.events))

    def _numbered(self, player: Player, row: Row) -> bytes:
        self._number += 1
        row = dict(row)
        if row["type"] == "line":
            row["text"] = row["text"].replace("‹›", f"‹{self._number}›")
            if not MARKED.search(row["text"]):
                row["id"] = f"c{self._number}"
        if row["type"] == "answer":
            row["text"] = row["text"].ljust(self._number)  # blanks at its end mean nothing
        if row["type"] in ("line", "answer"):
            player.keys.add(key_of(row))
        return json.dumps(row).encode() + b"\n"


def key_of(row: Row) -> str:
    """By what it is known whose line or answer a row is about."""
    if row["type"] == "answer" or row.get("kind") == "answer":
        return f"answer {len(row['text'])}"
    marked = MARKED.search(row["text"])
    return str(row["id"]) if marked is None else marked[0]


# ------------------------------------------------------------------------------------------ what each was told

OF_LINES = ("line_queued", "line_refused", "receipt")
OF_QUESTIONS = ("question", "answer")
DELTAS = ("text_delta", "thinking_delta", "tool_progress")


def joined(rows: Iterable[Row]) -> list[Any]:
    """The rows, with the pieces of running text between two others put together: how many they are means nothing."""
    found: list[Any] = []
    texts: dict[tuple[object, ...], str] = {}
    for row in rows:
        if row["type"] in DELTAS:
            key = row["type"], row["agent"], row["iteration"], row.get("id")
            end = "\n" if row["type"] == "tool_progress" and not row["text"].endswith("\n") else ""
            texts[key] = texts.get(key, "") + row["text"] + end
            continue
        if texts:
            found.append(texts)
            texts = {}
        found.append(row)
    return [*found, texts] if texts else found


class Told:
    """All that was told in a session, as rows, and what each client was to hear of it."""

    def __init__(self, session: Session) -> None:
        self._events = session.events
        self.rows = [json.loads(json.dumps(event_json.to_json(event))) for event in session.events]
        self._known = {json.dumps(row) for row in self.rows}

    def check(self, player: Player) -> None:
        """It was told of its own lines, and from when it watches of everything, once and in order."""
        init, *rows = player.client.rows or [{"type": "init"}]
        assert init["type"] == "init"
        heard = [row for row in rows if row["type"] in DELTAS or json.dumps(row) in self._known]
        self._check_answers(player, [row for row in rows if row not in heard])
        first, last = player.watch or (len(self.rows), len(self.rows))
        if player.watch is None:
            assert {row["type"] for row in heard} <= {*OF_LINES, *OF_QUESTIONS}
        assert any(self._fits(player, heard, at) for at in range(first, last + 1)), (
            [(row["type"], row.get("id"), row.get("state")) for row in heard],
            [(row["type"], row.get("id"), row.get("state")) for row in self.rows[first:]],
        )

    def _fits(self, player: Player, heard: list[Row], at: int) -> bool:
        """Whether it was told what it is to be told if it watches since there were so many events."""
        before = [row for row in self.rows[:at] if row["type"] in OF_LINES and key_of(row) in player.keys]
        standing = Snapshot()
        for event in self._events[:at]:
            standing.update(event)
        stands = [json.loads(json.dumps(event_json.to_json(event))) for event in standing.events]
        due = [*before, *(stands if player.watch else []), *self.rows[at:]]
        # Whoever answers is told of questions too, before it watches.
        asked = [row for row in heard if row["type"] in OF_QUESTIONS]
        earlier = asked[: max(0, len(asked) - sum(row["type"] in OF_QUESTIONS for row in due))]
        assert len(earlier) == len({row["type"] + row["id"] for row in earlier}), "told twice"
        told = heard[:]
        for row in earlier:
            told.remove(row)
        if player.is_listening:
            return joined(told) == joined(due)
        whole = [row for row in told if row["type"] not in DELTAS]
        return whole == [row for row in due if row["type"] not in DELTAS][: len(whole)]

    def _check_answers(self, player: Player, rows: Sequence[Row]) -> None:
        """What it was told besides: what could not be read or done, and what needed no run."""
        for row in rows:
            match row["type"]:
                case "error":
                    assert row["kind"] == "door"
                case "receipt":
                    assert (row["state"], key_of(row) in player.keys) == ("handled", True)
                case _:
                    assert row["type"] in ("notice", "question")
        if player.is_listening:
            assert sum(row["type"] == "error" for row in rows) >= player.bad
            told = {key_of(row) for row in player.client.rows if row["type"] in OF_LINES}
            assert {key for key in player.keys if not key.startswith("answer")} <= told, "it was told of each line"


# ------------------------------------------------------------------------------------------------ the session


def note_interrupts(session: Session) -> None:
    """Note the interrupts of clients, as ``Session.interrupt`` notes the user's: no event tells of one."""
    interrupt = session.chain.interrupt

    def noted() -> bool:
        if session.chain.is_running:
            session.interrupted_at.append(len(session.events))
            session.mark(None)
        return interrupt()

    session.chain.interrupt = noted  # type: ignore[method-assign]


def check_own(session: Session, players: Sequence[Player], inbox_size: int) -> None:
    """The terminal's own user fares as without clients, and every line of a client is a client's."""
    theirs = {key for player in players for key in player.keys}
    came_back = False
    done = {key_of(event_json.to_json(event)) for event in session.of(events.LineRefused, events.Receipt)}
    assert {key for key in theirs if MARKED.fullmatch(key)} <= done, "what was sent is done, also when its sender left"
    for event in session.of(events.LineQueued, events.LineRefused, events.Receipt):
        key = key_of(event_json.to_json(event))
        assert event.origin == ("door" if key in theirs else "prompt")
        if isinstance(event, events.LineRefused) and event.origin == "prompt":
            assert event.reason != FULL or event.waiting >= inbox_size, "there was room"
        came_back |= event.origin == "prompt" and getattr(event, "state", "") in ("returned", "refused")
    assert came_back or session.chain.runs.exit_code() != 3


async def drive(
    drawn: Sequence[Step], does: Sequence[tuple[int, int, int]], said: Sequence[tuple[int, str]], setting: Setting
) -> None:
    use = chain_settings(max_iterations=setting.max_iterations, inbox_size=setting.inbox_size)
    model = RandomModel(list(drawn))
    with TemporaryDirectory() as folder:
        async with open_session(
            model,
            tools=[*TOOLS, *ASKING_TOOLS],
            use=use,
            interactive=setting.interactive,
            file=MemoryFile(setting.sync_s),
        ) as session:
            note_interrupts(session)
            async with open_door(session, Path(folder)) as entrance:
                clients = Clients(session, entrance)
                session.chain.listen(user := Acts(session, said, also_idle=True))
                session.chain.submit("Do the task")
                user.at_once()
                for place, what, cut in does:
                    await clients.do(place, DOES[what], cut)
                await clients.end()
                await wait_quiet(session)
                session.chain.submit("Do another task")
                await wait_quiet(session)
            check_invariants(session, max_iterations=setting.max_iterations)
            check_silence(session, session.interrupted_at)
            check_heard(session)
            check_own(session, clients.players, setting.inbox_size)
            told = Told(session)
            for player in clients.players:
                told.check(player)
            assert all(player.client.is_closed for player in clients.players if player.is_listening)


@sharded(2_000, models, acts, own, st.sampled_from(SETTINGS))
def test_each_client_is_told_of_its_own_and_nobody_else_notices(
    drawn: list[Step], does: list[tuple[int, int, int]], said: list[tuple[int, str]], setting: Setting
) -> None:
    async def main() -> None:
        await drive(drawn, does, said, setting)

    random.seed(0)  # the jitter of the retries
    trio.run(main, clock=MockClock(autojump_threshold=0))
