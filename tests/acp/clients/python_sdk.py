"""An editor with the official Python SDK. It prints what it received as JSON.

Usage: python_sdk.py WORKSPACE GATE COMMAND...   GATE is the pipe at which the tool of the prompt ``gate`` waits.
"""

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

from acp import spawn_agent_process, text_block
from acp.interfaces import Client
from acp.schema import (
    AcceptElicitationResponse,
    AllowedOutcome,
    ClientCapabilities,
    ElicitationCapabilities,
    ElicitationFormCapabilities,
    RequestPermissionResponse,
)

WORKSPACE, GATE, *COMMAND = sys.argv[1:]


class Editor(Client):  # type: ignore[misc]
    """An editor that stores what it receives, and gives every permission."""

    def __init__(self) -> None:
        self.updates: list[dict[str, Any]] = []
        self.permissions: list[dict[str, Any]] = []
        self.receipts: list[dict[str, Any]] = []
        self.changed = asyncio.Condition()

    async def _store(self, messages: list[dict[str, Any]], message: dict[str, Any]) -> None:
        async with self.changed:
            messages.append(message)
            self.changed.notify_all()

    async def until(self, kind: str) -> None:
        """Wait for an update of this kind."""
        async with self.changed:
            await self.changed.wait_for(lambda: any(update["sessionUpdate"] == kind for update in self.updates))

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        await self._store(self.updates, update.model_dump(exclude_none=True, by_alias=True))

    async def request_permission(self, options: Any, session_id: str, tool_call: Any, **kwargs: Any) -> Any:
        await self._store(self.permissions, tool_call.model_dump(exclude_none=True, by_alias=True))
        return RequestPermissionResponse(outcome=AllowedOutcome(outcome="selected", option_id=options[0].option_id))

    async def create_elicitation(self, message: str, mode: Any, **kwargs: Any) -> Any:
        choice = mode.requested_schema.properties["choice"]
        return AcceptElicitationResponse(action="accept", content={"choice": choice.one_of[-1].const})

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        if method in ("chain/receipt", "_chain/receipt"):
            await self._store(self.receipts, params)

    async def ext_method(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        return {}

    def on_connect(self, conn: Any) -> None:
        """Nothing is to be done."""


async def play(editor: Editor, agent: Any) -> dict[str, Any]:
    received: dict[str, Any] = {}
    forms = ClientCapabilities(elicitation=ElicitationCapabilities(form=ElicitationFormCapabilities()))
    first = await agent.initialize(protocol_version=1, client_capabilities=forms, **{"receipts": True})
    received["initialize"] = [first.protocol_version, first.agent_info.name, first.agent_capabilities.load_session]
    session = (await agent.new_session(cwd=WORKSPACE, mcp_servers=[])).session_id
    received["new"] = bool(session)

    def prompt(text: str) -> "asyncio.Task[Any]":
        return asyncio.create_task(agent.prompt(session_id=session, prompt=[text_block(text)]))

    async def text_of(kind: str) -> str:
        return "".join(update["content"]["text"] for update in editor.updates if update["sessionUpdate"] == kind)

    received["prompt"] = (await prompt("hello")).stop_reason
    received["updates"] = await text_of("agent_message_chunk")
    received["permission"] = [(await prompt("write")).stop_reason, editor.permissions[0]["content"][0]["newText"]]
    editor.updates.clear()
    streaming = prompt("stream")
    await editor.until("agent_message_chunk")
    await agent.cancel(session_id=session)
    received["cancel"] = (await streaming).stop_reason
    editor.updates.clear()
    waiting = prompt("gate")
    await editor.until("tool_call")
    block = {"type": "text", "text": "steered"}
    steered = await agent.ext_method("session/steering", {"sessionId": session, "prompt": [block]})
    second = prompt("and this")
    await asyncio.to_thread(Path(GATE).write_text, "open")
    received["steer"] = steered["outcome"]
    received["second"] = [(await each).stop_reason for each in (waiting, second)]
    line = steered["_meta"]["chain"]["lineId"]
    received["receipt"] = [receipt["state"] for receipt in editor.receipts if receipt["id"] == line]
    await agent.close_session(session_id=session)
    editor.updates.clear()
    await agent.load_session(session_id=session, cwd=WORKSPACE, mcp_servers=[])
    received["load"] = (await text_of("user_message_chunk")).startswith("hello")
    listed = await agent.list_sessions(cwd=WORKSPACE)
    received["list"] = [each.session_id for each in listed.sessions] == [session]
    return received | await play_offers(editor, agent)


async def play_offers(editor: Editor, agent: Any) -> dict[str, Any]:
    """Return what a session offers: options, commands, forms and its deletion."""
    received: dict[str, Any] = {}

    def current(options: Any) -> dict[str, str]:
        return {option.id: option.current_value for option in options}

    async def said(text: str) -> str:
        editor.updates.clear()
        await agent.prompt(session_id=session, prompt=[text_block(text)])
        chunks = [update for update in editor.updates if update["sessionUpdate"] == "agent_message_chunk"]
        return "".join(chunk["content"]["text"] for chunk in chunks)

    editor.updates.clear()
    new = await agent.new_session(cwd=WORKSPACE, mcp_servers=[])
    session = new.session_id
    await editor.until("available_commands_update")
    offered = next(each for each in editor.updates if each["sessionUpdate"] == "available_commands_update")
    set_to = await agent.set_config_option(session_id=session, config_id="model", value="other")
    received["options"] = [current(new.config_options), current(set_to.config_options)]
    received["commands"] = [offered["availableCommands"][0]["name"], "nothing is running" in await said("/status")]
    received["form"] = await said("ask")
    changed = await agent.set_config_option(session_id=session, config_id="chain", value="review")
    received["chain"] = current(changed.config_options)
    first = (await agent.list_sessions(cwd=WORKSPACE)).sessions
    for each in first:  # the SDK has no function for it yet
        await agent._conn.send_request("session/delete", {"sessionId": each.session_id})
    received["delete"] = [each.session_id for each in (await agent.list_sessions(cwd=WORKSPACE)).sessions]
    return received


async def main() -> None:
    editor = Editor()
    # The SDK counts forms as unstable; the protocol does not any more.
    started = spawn_agent_process(editor, COMMAND[0], *COMMAND[1:], env=dict(os.environ), use_unstable_protocol=True)
    async with started as (agent, _):
        received = await asyncio.wait_for(play(editor, agent), 60)
    sys.stdout.write(f"{json.dumps(received)}\n")


asyncio.run(main())
