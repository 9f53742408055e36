"""An editor in memory with one agent. No time limit of the program decides how a test ends."""

import json
import math
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.editor import GROUPS, RULES, Editor, connected, opener
from support.gate import Gate

from cli.acp import methods


@pytest.fixture(autouse=True)
def _patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give sessions that close, and their last updates, all the time that they need."""
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
    """Return more keys of the configuration: the parameter of a test."""
    return getattr(request, "param", {})


@pytest.fixture
async def editor(tmp_path: Path, gate: Gate, config: dict[str, Any]) -> AsyncIterator[Editor]:
    """Yield an editor. Its configuration has three models and four chains, one of them broken."""
    use = opener(tmp_path / "home", RULES, tools=[gate.tool], groups=GROUPS, **config)
    path = tmp_path / "home/config.yaml"
    found: dict[str, Any] = json.loads(path.read_text())
    (tmp_path / "home/other.yaml").write_text("rules: [{text: Another here.}]")
    keyless = {"provider": "anthropic", "model": "claude-sonnet-5-5", "api_key": "${SOME_KEY}"}
    other = {"provider": "scripted", "script": "other.yaml"}
    found["models"]["definitions"] |= {"other": other, "keyless": keyless}
    plain = found["chains"]["default"]
    found["chains"] |= {
        "review": {**plain, "model": "other", "tools": ["todo"]},
        "broken": {**plain, "system_prompt": "nowhere.yaml"},
        "unpaid": {**plain, "model": "keyless"},
    }
    path.write_text(json.dumps(found))
    async with connected(use) as editor:
        await editor.initialize(_meta={"receipts": True})
        yield editor


@pytest.fixture
async def session(editor: Editor, workspace: Path) -> str:
    """Return an open session."""
    return await editor.new(workspace)


@pytest.fixture
async def waiting(editor: Editor, session: str, gate: Gate) -> int:
    """Return a prompt of the session whose run is inside of the gate's tool."""
    id = editor.prompt(session, "wait")
    await gate.started.wait()
    return id
