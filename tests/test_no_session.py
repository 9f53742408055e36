"""Sessions that are not stored: with ``--no-session``, or because the state folder cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.program import call_program, environ
from support.terminal import Start, send, wait_idle

from chain.app.sessions import MemoryStore
from chain.errors import SessionError

pytest_plugins = ["support.terminal"]

RUN = ("-p", "list the files", "--model", "offline")


@pytest.fixture
def work(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_no_session_writes_no_file(tmp_path: Path, work: Path) -> None:
    variables = environ(tmp_path, {"CHAIN_TRACE": "1"})
    done = call_program(*RUN, "--no-session", cwd=work, environ=variables)
    assert (done.returncode, "chain -r" in done.stderr) == (0, False)
    assert done.stdout
    assert not files(tmp_path)


def test_an_unwritable_state_folder_gives_a_notice(tmp_path: Path, work: Path) -> None:
    (tmp_path / "file").touch()
    variables = environ(tmp_path, {"XDG_STATE_HOME": str(tmp_path / "file"), "CHAIN_TRACE": "1"})
    done = call_program(*RUN, cwd=work, environ=variables)
    assert done.returncode == 0
    assert "this session is not stored: " in done.stderr
    assert "make it writable or set XDG_STATE_HOME" in " ".join(done.stderr.split())
    assert not [path for path in files(tmp_path) if path.name != "file"]


@pytest.mark.parametrize("option", [["-c"], ["-r", "abcd"]])
def test_no_session_excludes_resuming(tmp_path: Path, work: Path, option: list[str]) -> None:
    done = call_program(*RUN, "--no-session", *option, cwd=work, environ=environ(tmp_path, {}))
    assert done.returncode == 2
    assert "--no-session stores nothing" in done.stderr


def test_a_prompt_without_a_session_writes_no_file(start: Start, tmp_path: Path) -> None:
    screen = wait_idle(start("--no-session", env={"CHAIN_TRACE": "1"}))
    send(screen, "hello").until("✓ done")
    send(screen, "/new").until("New conversation")
    send(wait_idle(screen), "/resume").until("There is no other session here.")
    send(screen, "/quit")
    assert screen.wait() == 0
    assert screen.left_behind == []
    assert "chain -r" not in screen.everything
    assert not files(tmp_path / "state")


async def test_a_memory_store_finds_no_session(tmp_path: Path) -> None:
    store = MemoryStore()
    store.check()
    async with store.open_new(tmp_path) as opened:
        assert opened.journal.path is None
        assert not store.summaries()
        with pytest.raises(SessionError, match="--no-session stores none"):
            store.whole_id(opened.journal.id)
