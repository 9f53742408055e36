"""``chain help editors`` agrees with the program."""

import json
import re
from pathlib import Path
from typing import get_args

import pytest
from support.documents import code_block, table_rows, text_of
from support.editor import RULES, open_editor, open_uninitialized_editor, opener

from chain.events import Status
from cli import options
from cli.acp.rpc import INVALID_REQUEST
from cli.acp.turns import STOP_REASONS
from cli.acp.wire import MAX_REQUESTS, MAX_RPC_ROW


@pytest.mark.parametrize("editor", ["zed", "jetbrains"])
def test_the_settings_of_an_editor_start_the_command(editor: str) -> None:
    server = json.loads(code_block("editors", editor))["agent_servers"]["chain"]
    assert server["command"] == "chain"
    assert options.parse_arguments(server["args"]).command == "acp"


def test_the_stop_reasons_are_complete() -> None:
    documented: dict[str, str] = {}
    for statuses, reason in table_rows("editors", "a run that ends"):
        for status in re.findall(r"`(\w+)`", statuses):
            documented[status] = reason.strip("`")
    reason_of_others = "an error with the reason"
    assert documented == {status: STOP_REASONS.get(status, reason_of_others) for status in get_args(Status)}


async def test_the_methods_are_complete(tmp_path: Path) -> None:
    documented = {method.strip("`") for method, *_ in table_rows("editors", "method")}
    async with open_uninitialized_editor(opener(tmp_path / "home", RULES)) as editor:
        for method in sorted(documented - {"initialize"}):
            # A known method needs "initialize" first. The error of an unknown one would be METHOD_NOT_FOUND.
            assert (await editor.error_of(method)).code == INVALID_REQUEST
        result = await editor.initialize()
    with_capability = {f"session/{name}" for name in result["agentCapabilities"]["sessionCapabilities"]}
    without_capability = {"session/load", "session/new", "session/prompt", "session/set_config_option"}
    assert with_capability | without_capability == {method for method in documented if method.startswith("session/")}


async def test_the_commands_are_complete(tmp_path: Path) -> None:
    paragraph = text_of("editors").partition("These commands")[2]
    listed, _, _ = paragraph.partition("Other text after")
    async with open_editor(opener(tmp_path / "home", RULES)) as editor:
        await editor.new_session(tmp_path)
        await editor.wait_until(lambda: editor.updates("available_commands_update"))
        [offer] = editor.updates("available_commands_update")
    assert re.findall(r"`/([\w-]+)", listed) == [command["name"] for command in offer["availableCommands"]]


def test_the_limits_are_correct() -> None:
    assert f"{MAX_RPC_ROW // 2**20} MiB and {MAX_REQUESTS} requests" in " ".join(text_of("editors").split())
