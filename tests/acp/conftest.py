"""An editor in memory with one agent. No time limit of the program decides how a test ends."""

import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.editor import RULES, TOOL_GROUPS, Editor, open_editor, opener
from support.gate import Gate

from cli.acp import methods


@pytest.fixture(autouse=True)
def _without_time_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    for limit in ("CLOSING_S", "UPDATES_GRACE_S"):
        monkeypatch.setattr(methods, limit, math.inf)


@pytest.fixture
def gate() -> Gate:
    return Gate()


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "ws"
    folder.mkdir()
    return folder


@pytest.fixture
def config(request: pytest.FixtureRequest) -> dict[str, Any]:
    """Return the parameter of a test: other keys of the configuration."""
    return getattr(request, "param", {})


@pytest.fixture
async def editor(tmp_path: Path, gate: Gate, config: dict[str, Any]) -> AsyncIterator[Editor]:
    """Yield an editor. Of its four chains, ``broken`` has no prompt, and the model of ``unpaid`` has no key."""
    session_opener = opener(tmp_path / "home", RULES, tools=[gate.tool], groups=TOOL_GROUPS, **config)
    path = tmp_path / "home/config.yaml"
    settings: dict[str, Any] = json.loads(path.read_text())
    (tmp_path / "home/other.yaml").write_text("rules: [{text: Another here.}]")
    settings["models"]["definitions"] |= {
        "other": {"provider": "scripted", "script": "other.yaml"},
        "keyless": {"provider": "anthropic", "model": "claude-sonnet-5-5", "api_key": "${SOME_KEY}"},
    }
    default = settings["chains"]["default"]
    settings["chains"] |= {
        "review": {**default, "model": "other", "tools": ["todo"]},
        "broken": {**default, "system_prompt": "nowhere.yaml"},
        "unpaid": {**default, "model": "keyless"},
    }
    path.write_text(json.dumps(settings))
    async with open_editor(session_opener, _meta={"receipts": True}) as editor:
        yield editor


@pytest.fixture
async def session(editor: Editor, workspace: Path) -> str:
    """Return the id of an open session."""
    return await editor.new_session(workspace)


@pytest.fixture
async def waiting_prompt(editor: Editor, session: str, gate: Gate) -> int:
    """Return the id of a prompt whose run waits until the gate is open."""
    id = editor.prompt(session, "wait")
    await gate.started.wait()
    return id
