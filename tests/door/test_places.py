"""Where the sockets of side doors are: which folder is taken, who may reach it, and what a killed chain has left."""

from __future__ import annotations

import json
import os
import socket
import threading
from contextlib import ExitStack, closing
from pathlib import Path

import pytest
from support.processes import NOBODY

from chain.errors import UserError
from chain.journal.file import DiskFile
from chain.journal.journal import Journal
from chain.journal.records import Session
from cli.door import sockets
from cli.door.client import find_chain

ID = "20261123-1200-abcd"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """A state folder that is not there yet."""
    return tmp_path / "state"


def opened(state: Path, **environ: str) -> Path:
    """Open a door, and see that it is one; its path."""
    listening, path = sockets.listen(state, environ, ID)
    with listening, sockets.connect(path) as client:
        accepted, _ = listening.accept()
        with accepted:
            client.sendall(b"x")
            assert accepted.recv(1) == b"x"
    return path


def of_somebody_else(path: Path) -> None:
    """Make a folder somebody else's: by a link where this user cannot give one away."""
    if os.getuid():
        path.symlink_to("/")
    else:
        path.mkdir()
        os.chown(path, NOBODY, NOBODY)


@pytest.mark.parametrize("runtime", [None, "", "runtime", "/no/such/folder", "/dev/null"])
def test_what_is_no_runtime_folder_is_not_taken_for_one(
    runtime: str | None, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.mkdir()
    (state / "runtime").mkdir()
    monkeypatch.chdir(state)
    path = opened(state, **({} if runtime is None else {"XDG_RUNTIME_DIR": runtime}))
    # The system's own folder for this user is taken if there is one, but not unasked.
    system = {Path(f"/run/user/{os.getuid()}", sockets.NAME)} if runtime else set()
    assert path.parent in {state / sockets.FALLBACK, *system}
    assert not list((state / "runtime").iterdir())


def test_a_runtime_folder_is_taken(state: Path) -> None:
    runtime = state.parent / "runtime"
    runtime.mkdir()
    assert opened(state, XDG_RUNTIME_DIR=str(runtime)) == runtime / sockets.NAME / ID
    assert not state.exists()


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o700])
def test_only_its_owner_can_enter_the_folder(mode: int, state: Path) -> None:
    folder = state / sockets.FALLBACK
    folder.mkdir(parents=True)
    folder.chmod(mode)
    opened(state)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_somebody_else_is_not_used(state: Path) -> None:
    runtime = state.parent / "runtime"
    runtime.mkdir()
    of_somebody_else(runtime / sockets.NAME)
    before = sorted(os.listdir(runtime / sockets.NAME))
    assert opened(state, XDG_RUNTIME_DIR=str(runtime)) == state / sockets.FALLBACK / ID
    assert sorted(os.listdir(runtime / sockets.NAME)) == before
    (state / sockets.FALLBACK).rename(state / "away")
    of_somebody_else(state / sockets.FALLBACK)
    with pytest.raises(UserError, match="there is no side door"):
        sockets.listen(state, {}, ID)


@pytest.mark.skipif(os.getuid() != 0, reason="only root makes a socket in a folder of somebody else")
def test_a_chain_of_somebody_else_is_no_chain_to_write_to(state: Path) -> None:
    listening, path = sockets.listen(state, {}, ID)
    with listening:
        assert list(sockets.sockets(state, {})) == [path]
        os.chown(path.parent, NOBODY, NOBODY)
        assert list(sockets.sockets(state, {})) == []


def test_a_path_may_be_longer_than_that_of_a_socket(state: Path) -> None:
    path = opened(state.joinpath(*["a" * 60] * 4))
    with socket.socket(socket.AF_UNIX) as other, pytest.raises(OSError, match="too long"):
        other.bind(str(path))


def test_what_a_killed_chain_has_left_is_removed_when_somebody_looks(state: Path) -> None:
    path = opened(state)
    assert path.is_socket()
    with pytest.raises(ConnectionRefusedError):
        sockets.connect(path)
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        sockets.connect(path)


def test_what_is_left_goes_when_its_session_is_opened_again(state: Path) -> None:
    path = opened(state)
    (path.parent / f".{ID}").write_text("left by one that was killed as it began")
    assert opened(state) == path
    assert [each.name for each in path.parent.iterdir()] == [ID]


def test_what_is_no_socket_stays_where_it_is(state: Path) -> None:
    folder = state / sockets.FALLBACK
    folder.mkdir(parents=True)
    (folder / "notes").write_text("mine")
    assert list(sockets.sockets(state, {})) == []
    with pytest.raises(ConnectionRefusedError):
        sockets.connect(folder / "notes")
    assert (folder / "notes").read_text() == "mine"


def test_chains_that_do_not_answer_hold_up_nobody_who_means_another(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cli.door.client.GREETING_S", 600)
    monkeypatch.setattr("cli.door.client.OTHERS_S", 0.05)
    with ExitStack() as stack:
        for id in ("a-silent", "z-silent"):
            stack.enter_context(sockets.listen(state, {}, id)[0])
        answering = stack.enter_context(sockets.listen(state, {}, ID)[0])
        thread = threading.Thread(target=_say_who, args=(answering, state))
        thread.start()
        with find_chain(state, {}, session="", workspace=state) as client:
            assert client.session == ID
        thread.join()


@pytest.mark.parametrize("session", ["", pytest.param("2026", marks=pytest.mark.slow), ID])
def test_one_that_does_not_answer_may_be_meant(session: str, state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # All of it passes only where one that is named by a part of its id may be one of those that are silent.
    monkeypatch.setattr("cli.door.client.GREETING_S", 5 if session == "2026" else 600)
    monkeypatch.setattr("cli.door.client.OTHERS_S", 0.05)
    (state / "sessions").mkdir(parents=True)
    for n, workspace in enumerate([state, state / "other"]):
        path = state / "sessions" / f"2026-{n}.jsonl"
        with closing(DiskFile(path, is_new=True)) as file:
            Journal(file).record(Session(path.stem, "1", "m", str(workspace)))
    with ExitStack() as stack:
        for n in range(2):
            stack.enter_context(sockets.listen(state, {}, f"2026-{n}")[0])
        answering = stack.enter_context(sockets.listen(state, {}, ID)[0])
        thread = threading.Thread(target=_say_who, args=(answering, state))
        thread.start()
        if session == ID:
            find_chain(state, {}, session=ID, workspace=state).close()
        else:
            several = "3 chains" if session else "2 chains"
            with pytest.raises(UserError, match=rf"^{several} could be meant; .*2026-0 does not answer.*{ID} in"):
                find_chain(state, {}, session=session, workspace=state)
        thread.join()


@pytest.mark.parametrize(
    ("session", "why"), [("", "no chain runs in .*/other"), ("2025", "no chain runs the session '2025'")]
)
def test_who_is_not_meant_is_named(session: str, why: str, state: Path) -> None:
    answering, _ = sockets.listen(state, {}, ID)
    with answering:
        thread = threading.Thread(target=_say_who, args=(answering, state))
        thread.start()
        with pytest.raises(UserError, match=f"^{why}; name one by --session ID: {ID} in {state}"):
            find_chain(state, {}, session=session, workspace=state / "other")
        thread.join()


def _say_who(listening: socket.socket, workspace: Path) -> None:
    there, _ = listening.accept()
    with there:
        there.sendall(json.dumps({"type": "init", "session": ID, "workspace": str(workspace)}).encode() + b"\n")


def test_one_that_does_not_say_who_it_is_is_named(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.door.client.GREETING_S", 0.05)
    silent, _ = sockets.listen(state, {}, "silent")
    with silent, pytest.raises(UserError, match="the session silent does not answer"):
        find_chain(state, {}, session="", workspace=state)
