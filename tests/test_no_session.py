"""Sessions that are not stored: with ``--no-session``, or because the state folder cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.program import call_program, make_environ
from support.terminal import Start, send, wait_idle

from chain.app.sessions import MemoryStore
from chain.errors import SessionError

pytest_plugins = ["support.terminal"]

RUN_QUERY = ("-p", "list the files", "--model", "offline")


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    (tmp_path / "work").mkdir()
    return tmp_path / "work"


def files_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_no_session_writes_no_file(tmp_path: Path, workspace: Path) -> None:
    variables = make_environ(tmp_path, {"CHAIN_TRACE": "1"})
    done = call_program(*RUN_QUERY, "--no-session", cwd=workspace, environ=variables)
    assert done.returncode == 0
    assert done.stdout
    assert "chain -r" not in done.stderr, "there is no session to resume"
    assert not files_in(tmp_path)


def test_an_unwritable_state_folder_gives_a_notice(tmp_path: Path, workspace: Path) -> None:
    no_folder = tmp_path / "file"
    no_folder.touch()
    variables = make_environ(tmp_path, {"XDG_STATE_HOME": str(no_folder), "CHAIN_TRACE": "1"})
    done = call_program(*RUN_QUERY, cwd=workspace, environ=variables)
    assert done.returncode == 0
    assert "this session is not stored: " in done.stderr
    assert "make the folder writable or set XDG_STATE_HOME" in " ".join(done.stderr.split())
    assert files_in(tmp_path) == [no_folder]


@pytest.mark.parametrize("options", [["-c"], ["-r", "abcd"]], ids=" ".join)
def test_no_session_excludes_resuming(tmp_path: Path, workspace: Path, options: list[str]) -> None:
    done = call_program(*RUN_QUERY, "--no-session", *options, cwd=workspace, environ=make_environ(tmp_path, {}))
    assert done.returncode == 2
    assert "--no-session stores nothing" in done.stderr


def test_no_session_at_a_terminal_writes_no_file(start: Start, tmp_path: Path) -> None:
    screen = wait_idle(start("--no-session", env={"CHAIN_TRACE": "1"}))
    send(screen, "hello").until("✓ done")
    send(screen, "/new").until("New conversation")
    send(wait_idle(screen), "/resume").until("There is no other session here.")
    send(screen, "/quit")
    assert screen.wait() == 0
    assert screen.left_behind == []
    assert "chain -r" not in screen.everything
    assert not files_in(tmp_path / "state")


async def test_a_memory_store_finds_no_session(tmp_path: Path) -> None:
    store = MemoryStore()
    store.check()
    async with store.open_new(tmp_path) as opened:
        assert opened.journal.path is None
        assert not store.summaries()
        with pytest.raises(SessionError, match="--no-session stores none"):
            store.whole_id(opened.journal.id)
