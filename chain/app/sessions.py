"""Stored sessions, for front ends: list them, read their events, export them."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

from chain.errors import SessionError
from chain.events import Event
from chain.journal.attachments import ReadAttachment
from chain.journal.reading import Reading
from chain.messages import Image, JsonObject, block_to_request_json
from chain.session.listing import Summary as Summary
from chain.session.memory_store import MemoryStore as MemoryStore
from chain.session.restored_state import events_of_journal
from chain.session.store import FileStore as FileStore
from chain.session.store import Store as Store

Format: TypeAlias = Literal["md", "json", "html"]

NOT_STORED = "this session is not stored"

MAX_RESUMABLE = 20
"""The number of sessions that are offered for resuming."""

Report: TypeAlias = Callable[[str], object]
"""A function that is called with each fault of a journal, as a sentence."""

FORMATS: tuple[Format, ...] = get_args(Format)

# Escapes all characters beyond ASCII: a journal may contain terminal control characters and lone surrogates.
_ENCODER = json.JSONEncoder(separators=(",", ":"))


def open_store(state: Path, address: str) -> Store:
    """Return the store of sessions: Redis if ``address`` is set, otherwise the state folder.

    Raise ``SessionError`` if the address is invalid.
    """
    if not address:
        return FileStore(state)
    from chain.redis.redis_store import RedisStore

    return RedisStore(address, source="the state")


def open_new_store(state: Path, address: str, *, is_stored: bool) -> tuple[Store, str]:
    """Return the store of a new session, and a note if the session is unexpectedly not stored.

    It is a ``MemoryStore`` if ``is_stored`` is false or the state folder is not writable. ``address`` is that of a
    Redis; empty for the state folder. Raise ``SessionError`` if it is invalid.
    """
    if not is_stored:
        return MemoryStore(), ""
    store = open_store(state, address)
    if address:
        return store, ""
    try:
        store.check()
    except SessionError as error:
        return MemoryStore(), f"{NOT_STORED}: {error}"
    return store, ""


def redacted_address(address: str) -> str:
    """Return the address of a store without credentials. Raise ``SessionError`` if it is invalid."""
    from chain.redis.redis_server import read_address

    return str(read_address(address, "the state"))


def latest_session(store: Store, workspace: Path) -> Summary | None:
    """Return the latest session of a workspace that was used, or the latest of all if none was used.

    Return ``None`` if the workspace has no session.
    """
    found = resumable_sessions(store, workspace)
    return next((each for each in found if each.was_used), next(iter(found), None))


def resumable_sessions(store: Store, workspace: Path) -> list[Summary]:
    """Return up to ``MAX_RESUMABLE`` sessions of a workspace, most recently changed first."""
    return store.summaries(latest=MAX_RESUMABLE, workspace=workspace)


def session_events(store: Store, id: str, report: Report = lambda what: None) -> Iterator[Event]:
    """Yield the events of a session from its journal.

    Raise ``SessionError`` if the session cannot be read. At the end, call ``report`` with each fault of the journal.
    """
    with store.rows(id) as rows:
        reading = Reading(rows)
        yield from events_of_journal(reading)
        for what in reading.complaints:
            report(what)


def export(store: Store, id: str, format: Format, report: Report = lambda what: None) -> Iterator[str]:
    """Yield a session as a document, in pieces.

    Raise ``SessionError`` if the session cannot be read. At the end, call ``report`` with each fault of the journal.
    """
    if format == "json":
        with store.rows(id) as rows:
            yield from json_document(id, rows, partial(store.attachment, id))
        for _ in session_events(store, id, report):
            pass  # only for the faults, which the document does not contain
    else:
        from chain.export.html import render_html
        from chain.export.markdown import render_markdown
        from chain.export.outline import outline_of

        render = render_markdown if format == "md" else render_html
        yield from render(outline_of(session_events(store, id, report)))


def json_document(id: str, rows: Iterable[bytes], read_attachment: ReadAttachment) -> Iterator[str]:
    """Yield a JSON document, in pieces, from the rows of a journal.

    The document is an object with the keys ``session`` and ``records``, and has one record per row. It contains the
    images that ``read_attachment`` returns. A row that is not a record, such as a torn one, is left out.
    """
    found = filter(None, (_parse_record(row, read_attachment) for row in rows))
    first = next(found, None)
    session: JsonObject = {"id": id}
    if first is not None and first["type"] == "session":
        own = {name: value for name, value in first.items() if name not in ("type", "seq", "time")}
        session = {**own, "began": first.get("time"), "id": id}
    yield f'{{"session": {_ENCODER.encode(session)},\n"records": ['
    if first is not None:
        yield f"\n{_ENCODER.encode(first)}"
    for record in found:
        yield f",\n{_ENCODER.encode(record)}"
    yield "\n]}\n"


def _parse_record(row: bytes, read_attachment: ReadAttachment) -> JsonObject | None:
    """Return the JSON of a record with its images, or ``None`` for a row that is not a record."""
    try:
        raw = json.loads(row)
    except (ValueError, RecursionError):
        return None
    if b'"type":"image"' in row:
        match raw:
            case {"type": "message", "message": {"content": list(content)}}:
                content[:] = [_embed_image(block, read_attachment) for block in content]
            case _:
                pass
    return raw if isinstance(raw, dict) and isinstance(raw.get("type"), str) else None


def _embed_image(block: Any, read_attachment: ReadAttachment) -> Any:  # noqa: ANN401 - the JSON edge
    """Return a block with the content of its image, if that is stored next to the journal."""
    match block:
        case {"type": "image", "source": {"digest": str(digest), "media_type": str(media_type)}}:
            content = read_attachment(digest)
            data = "" if content is None else b64encode(content).decode()
            return block_to_request_json(Image(media_type, digest, "", data))
        case {"type": "tool_result", "content": list(content)}:
            return {**block, "content": [_embed_image(each, read_attachment) for each in content]}
        case _:
            return block
