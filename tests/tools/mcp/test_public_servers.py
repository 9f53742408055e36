"""The servers that everybody has, as far as they are installed here: ``CHAIN_TEST_SERVERS`` is a folder of programs."""

from __future__ import annotations

import json
import os
import shutil
import socket
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from support.processes import until_async
from support.servers import running, server

PORT = "39471"

pytestmark = pytest.mark.slow

FOLDERS = os.pathsep.join(filter(None, [os.environ.get("CHAIN_TEST_SERVERS", ""), os.environ["PATH"]]))


def entry(name: str, *args: str) -> dict[str, Any]:
    """The entry of a program; the test is skipped without it."""
    found = shutil.which(name, path=FOLDERS)
    if found is None:
        pytest.skip(f"there is no {name}: install it, and name its folder in CHAIN_TEST_SERVERS")
    return {"command": found, "args": list(args)}


async def test_everything(tmp_path: Path) -> None:
    async with running(tmp_path, server(entry("mcp-server-everything", "stdio"))) as made:
        assert {"h__echo", "h__get-tiny-image", "h__trigger-elicitation-request"} <= {*await made.tools()}
        assert await made.call("h__echo", message="hi") == "Echo: hi"
        assert "[image 1: image/png" in await made.call("h__get-tiny-image")
        assert tmp_path.as_uri() in await made.call("h__get-roots-list")
        assert json.loads(await made.call("h__get-structured-content", location="New York"))["temperature"]
        told: list[str] = []
        slow = await made.call("h__trigger-long-running-operation", told.append, duration=1, steps=4)
        assert "completed" in slow
        assert told[0] == "1 of 4"
        with trio.move_on_after(0.3):
            await made.call("h__trigger-long-running-operation", duration=60, steps=4)
        assert await made.call("h__echo", message="on") == "Echo: on"
        assert ("simple-prompt", "A prompt with no arguments") in made.servers.views[0].prompts


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # the client leaves generators open
async def test_everything_over_http(tmp_path: Path) -> None:
    program = entry("mcp-server-everything", "streamableHttp")
    command, environ = [program["command"], *program["args"]], {**os.environ, "PORT": PORT}
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(trio.run_process, command, env=environ, capture_stdout=True, capture_stderr=True))
        await until_async(_is_up)
        async with running(tmp_path, server({"url": f"http://127.0.0.1:{PORT}/mcp"})) as made:
            await made.tools()
            assert await made.call("h__echo", message="hi") == "Echo: hi"
            with trio.move_on_after(0.3):
                await made.call("h__trigger-long-running-operation", duration=60, steps=4)
            assert await made.call("h__echo", message="on") == "Echo: on"
        nursery.cancel_scope.cancel()


def _is_up() -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", int(PORT))) == 0


async def test_filesystem(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("alpha")
    async with running(tmp_path, server(entry("mcp-server-filesystem", str(tmp_path)))) as made:
        assert "h__read_text_file" in await made.tools()
        assert await made.call("h__read_text_file", path=str(tmp_path / "a.txt")) == "alpha"
        with pytest.raises(Exception, match="Access denied"):
            await made.call("h__read_text_file", path="/etc/passwd")


async def test_time(tmp_path: Path) -> None:
    async with running(tmp_path, server(entry("mcp-server-time"))) as made:
        assert await made.tools() == ["h__get_current_time", "h__convert_time"]
        assert json.loads(await made.call("h__get_current_time", timezone="UTC"))["timezone"] == "UTC"


async def test_git(tmp_path: Path) -> None:
    await trio.run_process(["git", "init", "-q", str(tmp_path)])
    async with running(tmp_path, server(entry("mcp-server-git", "--repository", str(tmp_path)))) as made:
        await made.tools()
        assert "On branch" in await made.call("h__git_status", repo_path=str(tmp_path))
