"""The agent's side of the Agent Client Protocol, version 1: its methods.

Methods that change a run (prompt, steering, cancel) are served in the step in which they are read, so that they keep
their order. Methods that take time (open, load, list, close) are served in tasks.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

import trio

from chain.config.servers import editor_servers
from chain.version import VERSION
from cli.acp import params
from cli.acp.editor_offer import CHAIN, MODEL
from cli.acp.editor_session import STEERING, EditorFeatures, EditorSession
from cli.acp.host import Host, Opener
from cli.acp.rpc import INVALID_REQUEST, METHOD_NOT_FOUND, RpcError
from cli.acp.wire import IncomingCall, Wire

PROTOCOL_VERSION = 1

_CAPABILITIES = {
    "loadSession": True,
    "promptCapabilities": {"embeddedContext": True, "image": True, "audio": False},
    "mcpCapabilities": {"http": True, "sse": False},
    "sessionCapabilities": {"list": {}, "resume": {}, "close": {}, "delete": {}},
}
_EXTENSIONS = {"steering": {"supported": True}, "receipts": {"supported": True}}


class EditorAgent:
    """The server of one editor."""

    def __init__(self, wire: Wire, opener: Opener, notify: Callable[[str], None]) -> None:
        self._wire = wire
        self._host = Host(wire, opener, notify)
        self._is_initialized = False
        self._reading = trio.CancelScope()
        self._methods: Mapping[str, Callable[[IncomingCall], None]] = {
            "initialize": self._initialize,
            "authenticate": self._authenticate,
            "session/new": self._open,
            "session/load": self._open,
            "session/resume": self._open,
            "session/list": lambda call: self._host.start(self._list, call),
            "session/close": lambda call: self._host.close(self._session(call), call),
            "session/delete": lambda call: self._host.start(self._delete, call),
            "session/set_config_option": self._set_option,
            "session/prompt": self._submit,
            STEERING: self._submit,
        }

    async def run(self) -> None:
        """Serve until the input ends, or ``leave`` is called; then close every session."""
        await self._host.run(self._read)

    def leave(self) -> None:
        """Stop reading, and end."""
        self._reading.cancel()

    async def _read(self) -> None:
        with self._reading:
            await self._wire.run(self._serve, self._hear)

    def _serve(self, call: IncomingCall) -> None:
        method = self._methods.get(call.method)
        if method is None:
            raise RpcError(METHOD_NOT_FOUND, f"there is no method {call.method!r:.200}")
        if not self._is_initialized and call.method != "initialize":
            raise RpcError(INVALID_REQUEST, "initialize comes first")
        method(call)

    def _hear(self, method: str, given: Mapping[str, Any]) -> None:
        id = given.get("sessionId")
        if method == "session/cancel" and isinstance(id, str) and id in self._host.sessions:
            self._host.sessions[id].cancel()

    def _initialize(self, call: IncomingCall) -> None:
        if self._is_initialized:
            raise RpcError(INVALID_REQUEST, "the connection is initialized already")
        if type(call.params.get("protocolVersion")) is not int:
            raise params.wrong("protocolVersion must be a whole number")
        self._is_initialized = True
        elicitation = params.mapping(call.params, "clientCapabilities", "elicitation")
        self._host.features = EditorFeatures(
            receipts=params.mapping(call.params, "_meta").get("receipts") is True,
            forms=isinstance(elicitation.get("form"), dict),
        )
        call.answer(
            {
                "protocolVersion": PROTOCOL_VERSION,
                "agentInfo": {"name": "chain", "title": "chain", "version": VERSION},
                "agentCapabilities": {**_CAPABILITIES, "_meta": _EXTENSIONS},
                "authMethods": [],
                "_meta": _EXTENSIONS,
            }
        )

    def _authenticate(self, call: IncomingCall) -> None:
        id = params.text(call.params, "methodId")
        raise params.wrong(f"methodId {id!r:.60}: there are no authentication methods")

    def _open(self, call: IncomingCall) -> None:
        id = None if call.method == "session/new" else params.text(call.params, "sessionId")
        workspace = params.absolute(call.params, "cwd")
        if not os.path.isdir(workspace):  # False where Path.is_dir raises
            raise params.wrong(f"cwd is not a folder: {workspace}")
        if id == "":
            raise params.wrong("sessionId is empty")
        servers, faults = editor_servers(params.array(call.params, "mcpServers"))
        self._host.open(call, workspace, id, faults, servers)

    async def _list(self, call: IncomingCall) -> None:
        cwd = None if call.params.get("cwd") is None else params.absolute(call.params, "cwd")
        call.answer(await self._host.list(cwd, params.text(call.params, "cursor", default="")))

    async def _delete(self, call: IncomingCall) -> None:
        await self._host.delete(params.text(call.params, "sessionId"), call)

    def _set_option(self, call: IncomingCall) -> None:
        session = self._session(call)
        id, value = params.text(call.params, "configId"), params.text(call.params, "value")
        if id == MODEL:
            session.offer.set_model(value)
            call.answer({"configOptions": session.offer.options})
        elif id == CHAIN:
            self._host.start(lambda call: self._host.switch(session, value, call), call)
        else:
            raise params.wrong(f"there is no option {id!r:.60}; there are {MODEL} and {CHAIN}")

    def _session(self, call: IncomingCall) -> EditorSession:
        return self._host.find(params.text(call.params, "sessionId"))

    def _submit(self, call: IncomingCall) -> None:
        session = self._session(call)
        steering = params.mapping(call.params, "_meta", "steering") if call.method == STEERING else {}
        behavior = steering.get("idleBehavior")
        if behavior not in (None, "startNewTurn", "promptRequired"):
            raise params.wrong("_meta.steering.idleBehavior must be startNewTurn or promptRequired")
        text, images = params.read_prompt(params.array(call.params, "prompt"), session.workspace)
        if behavior == "promptRequired" and not session.has_turn:
            call.answer({"outcome": "promptRequired", "reason": "noRunningTurn"})
        else:
            session.submit(call, text, images)
