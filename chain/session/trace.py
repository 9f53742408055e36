"""Debug traces: one JSON file for each run, with every request, reply and tool call and their times.

A request is written without the messages of the previous request in the same conversation. The file is valid JSON after
every step. An error such as a full disk ends the trace, not the run. A trace contains no API keys or HTTP headers.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import trio

from chain import events
from chain.agent.spec import Ask
from chain.messages import Message, to_json
from chain.model import Delta, Model, Reply, Request, ToolSpec
from chain.session import event_json
from chain.text.plain import escape_json

_END = b"\n]}\n"


@dataclass(frozen=True, slots=True)
class _TracedPart:
    """The part of a conversation that the trace file ``path`` contains. Stored in the conversation's memory."""

    path: Path | None
    messages: Sequence[Message] = ()
    system: str | None = None
    tools: Sequence[ToolSpec] | None = None


class Trace:
    """The writer of debug traces. The first run creates ``folder``."""

    def __init__(self, folder: Path, session: str) -> None:
        self._folder = folder
        self._session = session
        self._fd: int | None = None
        self._path: Path | None = None
        self._is_first = True
        self._number = 1
        """The lowest number that the next file may have."""

    @property
    def path(self) -> str | None:
        """The path of the trace file of the active run, or of the last run. ``None`` if there is no trace file."""
        return None if self._path is None else str(self._path)

    def on_event(self, event: events.Event) -> None:
        """Append an event as a step. The start and the end of a run open and close the file."""
        match event:
            case events.RunStarted():
                self._open_file(event)
            case events.TextDelta() | events.ThinkingDelta() | events.Init() | events.UsageReport():
                pass  # the step ``response`` contains the whole reply
            case events.Result():
                self.step(event.type, event_json.to_json(event))
                self.close()
            case _:
                self.step(event.type, event_json.to_json(event))

    def tracer(self, agent: str, model: Model) -> Ask:
        """Return a function that calls the model for this agent, and traces the request and the reply."""

        async def ask(request: Request, on_delta: Callable[[Delta], None]) -> Reply:
            self._trace_request(request, agent)
            started_at = trio.current_time()
            reply = await model.reply(request, on_delta)
            self._trace_reply(reply, trio.current_time() - started_at, agent)
            return reply

        return ask

    def step(self, type: str, fields: Mapping[str, Any]) -> None:
        """Append one step. Errors end the trace."""
        if self._fd is None:
            return
        text = json.dumps({**fields, "type": type}, ensure_ascii=False, default=str)
        data = (b"\n" if self._is_first else b",\n") + escape_json(text).encode() + _END
        try:
            _append(self._fd, data)
        except OSError:
            self.close()
        self._is_first = False

    def _trace_request(self, request: Request, agent: str) -> None:
        """Append a request as a step, without the messages that an earlier step of the conversation contains."""
        written: _TracedPart | None = request.memory.get(self)
        if written is None or written.path != self._path:
            written = _TracedPart(self._path)  # a new file starts with the whole conversation
        same = written.system is request.system and written.tools is request.tools
        constant = {} if same else {"system": request.system, "tools": [asdict(tool) for tool in request.tools]}
        before = len(written.messages)
        if request.messages[:before] != written.messages:  # a withdrawal or a compaction has changed the conversation
            pairs = zip(written.messages, request.messages, strict=False)
            before = sum(1 for _ in takewhile(lambda pair: pair[0] is pair[1], pairs))
        request.memory[self] = _TracedPart(self._path, request.messages, request.system, request.tools)
        fields = {
            "agent": agent,
            "time": time.time(),
            **constant,
            "messages_before": before,
            "messages": [to_json(m) for m in request.messages[before:]],
            "tail": list(request.tail),
            "overrides": asdict(request.overrides),
        }
        self.step("request", fields)

    def _trace_reply(self, reply: Reply, seconds: float, agent: str) -> None:
        fields = {"agent": agent, "time": time.time(), "seconds": seconds, "message": to_json(reply.message)}
        self.step("response", {**fields, "stop_reason": reply.stop_reason, "usage": asdict(reply.usage)})

    def close(self) -> None:
        """Close the file."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):
                os.close(fd)

    def _open_file(self, event: events.RunStarted) -> None:
        self.close()
        self._is_first, self._path = True, None
        with suppress(OSError):
            self._path, self._fd = self._new_file(event.query)

    def _new_file(self, query: str) -> tuple[Path, int]:
        """Create the file of the next run, and return its path and descriptor. Raise ``OSError`` if that fails."""
        while (path := self._folder / f"{self._session}-{self._number}.json").exists():
            self._number += 1
        head = json.dumps({"session": self._session, "run": self._number, "query": query}, ensure_ascii=False)
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.write(fd, escape_json(head[:-1]).encode() + b', "steps": [' + _END)
        except OSError:
            os.close(fd)
            raise
        return path, fd


def _append(fd: int, data: bytes) -> None:
    """Overwrite the closing brackets (``_END``) of the file with ``data``, which ends with them too.

    If the disk is full, restore the previous content and raise ``OSError``.
    """
    end = os.lseek(fd, -len(_END), os.SEEK_END)
    if os.write(fd, data) < len(data):
        # A valid file without this step is better than an invalid one with a part of it.
        os.ftruncate(fd, end)
        os.lseek(fd, end, os.SEEK_SET)
        os.write(fd, _END)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
