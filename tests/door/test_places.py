"""Where the sockets of side doors are, who can reach them, and which chain a command means."""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from support.processes import NOBODY

from chain.errors import UserError
from chain.journal.file import DiskFile
from chain.journal.journal import Journal
from chain.journal.records import Session
from cli.door import client as door_client
from cli.door import sockets
from cli.door.client import find_chain

ID = "20261123-1200-abcd"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    """Return a state folder that does not exist yet."""
    return tmp_path / "state"


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    folder = tmp_path / "runtime"
    folder.mkdir()
    return folder


def open_and_close(state: Path, **environ: str) -> Path:
    """Open a door, connect to it, and close it. Return its path, at which a stale socket remains."""
    listening, path = sockets.listen(state, environ, ID)
    with listening, sockets.connect(path) as client:
        accepted, _ = listening.accept()
        with accepted:
            client.sendall(b"x")
            assert accepted.recv(1) == b"x"
    return path


def give_away(path: Path) -> None:
    """Create a folder of another user, or a link to one if this user cannot do so."""
    if os.getuid():
        path.symlink_to("/")
    else:
        path.mkdir()
        os.chown(path, NOBODY, NOBODY)


@pytest.mark.parametrize(
    "value",
    [None, "", "runtime", "/no/such/folder", "/dev/null"],
    ids=["unset", "empty", "relative path", "no such folder", "no folder"],
)
def test_an_unusable_runtime_folder_is_ignored(
    value: str | None, state: Path, runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(runtime.parent)
    path = open_and_close(state, **({} if value is None else {"XDG_RUNTIME_DIR": value}))
    # If the variable is set, the system's own folder for this user may be used.
    system = {Path(f"/run/user/{os.getuid()}", sockets.NAME)} if value else set()
    assert path.parent in {state / sockets.FALLBACK, *system}
    assert not list(runtime.iterdir())


def test_the_runtime_folder_is_preferred(state: Path, runtime: Path) -> None:
    assert open_and_close(state, XDG_RUNTIME_DIR=str(runtime)) == runtime / sockets.NAME / ID
    assert not state.exists()


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o700], ids=oct)
def test_only_the_owner_can_enter_the_folder(mode: int, state: Path) -> None:
    folder = state / sockets.FALLBACK
    folder.mkdir(parents=True)
    folder.chmod(mode)
    open_and_close(state)
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_of_another_user_is_not_used(state: Path, runtime: Path) -> None:
    give_away(runtime / sockets.NAME)
    names = set(os.listdir(runtime / sockets.NAME))
    assert open_and_close(state, XDG_RUNTIME_DIR=str(runtime)) == state / sockets.FALLBACK / ID
    assert set(os.listdir(runtime / sockets.NAME)) == names


def test_there_may_be_no_usable_folder(state: Path) -> None:
    state.mkdir()
    give_away(state / sockets.FALLBACK)
    with pytest.raises(UserError, match="there is no side door"):
        sockets.listen(state, {}, ID)


@pytest.mark.skipif(os.getuid() != 0, reason="only root creates a socket in a folder of another user")
def test_a_door_of_another_user_is_not_listed(state: Path) -> None:
    listening, path = sockets.listen(state, {}, ID)
    with listening:
        assert list(sockets.sockets(state, {})) == [path]
        os.chown(path.parent, NOBODY, NOBODY)
        assert list(sockets.sockets(state, {})) == []


def test_a_path_may_be_long(state: Path) -> None:
    path = open_and_close(state.joinpath(*["a" * 60] * 4))  # the system binds at most 107 bytes
    with socket.socket(socket.AF_UNIX) as other, pytest.raises(OSError, match="too long"):
        other.bind(str(path))


def test_a_stale_socket_is_removed_by_a_client(state: Path) -> None:
    path = open_and_close(state)
    with pytest.raises(ConnectionRefusedError):
        sockets.connect(path)
    assert not path.exists()
    with pytest.raises(FileNotFoundError):
        sockets.connect(path)


def test_a_stale_socket_is_replaced_by_its_session(state: Path) -> None:
    path = open_and_close(state)
    (path.parent / f".{ID}").write_text("left by a chain that was killed while it opened")
    assert open_and_close(state) == path
    assert os.listdir(path.parent) == [ID]


def test_another_file_is_not_removed(state: Path) -> None:
    folder = state / sockets.FALLBACK
    folder.mkdir(parents=True)
    (folder / "notes").write_text("mine")
    assert list(sockets.sockets(state, {})) == []
    with pytest.raises(ConnectionRefusedError):
        sockets.connect(folder / "notes")
    assert (folder / "notes").read_text() == "mine"


@contextmanager
def answering_door(state: Path, *silent: str) -> Iterator[None]:
    """Open the door of the chain ``ID``, which greets its client, and doors of ``silent`` chains, which never do."""

    def greet(listening: socket.socket) -> None:
        peer, _ = listening.accept()
        with peer:
            row = {"type": "init", "session": ID, "workspace": str(state)}
            peer.sendall(json.dumps(row).encode() + b"\n")

    with ExitStack() as stack:
        doors = {id: stack.enter_context(sockets.listen(state, {}, id)[0]) for id in (*silent, ID)}
        thread = threading.Thread(target=greet, args=[doors[ID]])
        thread.start()
        yield
        thread.join()


@pytest.fixture
def _short_wait_for_silent_chains(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let only a greeting of the chain that is meant end the wait for silent chains, soon after it."""
    monkeypatch.setattr(door_client, "GREETING_S", 600)  # longer than a test may take
    monkeypatch.setattr(door_client, "OTHERS_S", 0.05)


@pytest.mark.usefixtures("_short_wait_for_silent_chains")
def test_silent_chains_do_not_delay_others(state: Path) -> None:
    with answering_door(state, "a-silent", "z-silent"), find_chain(state, {}, session="", workspace=state) as client:
        assert client.session == ID


@pytest.fixture
def _three_chains(state: Path, _short_wait_for_silent_chains: None) -> Iterator[None]:
    """Open the doors of the chain ``ID``, of a silent one in its workspace, and of a silent one in another."""
    (state / "sessions").mkdir(parents=True)
    for id, workspace in {"2026-0": state, "2026-1": state / "other"}.items():
        with closing(DiskFile(state / "sessions" / f"{id}.jsonl", is_new=True)) as file:
            Journal(file).record(Session(id=id, version="1", model="m", workspace=str(workspace)))
    with answering_door(state, "2026-0", "2026-1"):
        yield


@pytest.mark.usefixtures("_three_chains")
def test_a_whole_id_means_its_chain(state: Path) -> None:
    find_chain(state, {}, session=ID, workspace=state).close()


@pytest.mark.usefixtures("_three_chains")
@pytest.mark.parametrize(("session", "count"), [("", 2), ("2026", 3)], ids=["by workspace", "by an incomplete id"])
def test_silent_chains_may_be_meant(session: str, count: int, state: Path) -> None:
    with pytest.raises(UserError, match=rf"^{count} chains could be meant; .*2026-0 does not answer.*{ID} in"):
        find_chain(state, {}, session=session, workspace=state)


@pytest.mark.parametrize(
    ("session", "why"),
    [("", "no chain is running in .*/other"), ("2025", "no chain is running the session '2025'")],
    ids=["by workspace", "by id"],
)
def test_the_other_chains_are_named(session: str, why: str, state: Path) -> None:
    with answering_door(state), pytest.raises(UserError, match=f"^{why}; choose with --session ID: {ID} in {state}"):
        find_chain(state, {}, session=session, workspace=state / "other")


def test_a_silent_chain_is_named(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_client, "GREETING_S", 0.05)
    silent, _ = sockets.listen(state, {}, "silent")
    with silent, pytest.raises(UserError, match="the session silent does not answer"):
        find_chain(state, {}, session="", workspace=state)
