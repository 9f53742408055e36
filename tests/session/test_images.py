"""Images that lines name: kept once beside the journal, before their record, sent, resumed, exported, deleted."""

from __future__ import annotations

import errno
import json
import os
from base64 import b64decode, b64encode
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from double import check_messages
from support import FullDisk, Recorder, check_invariants, open_session, settings
from support.disks import files_at_most
from support.replays import check_replays

from chain.app import sessions as kept
from chain.app.open import open_chain
from chain.errors import JournalError
from chain.journal import json as record_json
from chain.journal import records
from chain.journal.attachments import attachments_folder, read_attachment, store_attachment
from chain.journal.file import DiskFile
from chain.journal.journal import Journal
from chain.messages import NO_IMAGE, Image, Message, Text, sent_form
from chain.model import Request
from chain.providers.scripted.scripted_model import ScriptedModel

PIXEL = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
DIGEST = sha256(PIXEL).hexdigest()
RULES = "rules: [{text: A pixel.}]"


@pytest.fixture
def workspace() -> Path:
    """The folder in which the sessions of these tests work, with a picture."""
    folder = settings().file
    assert folder is not None
    (folder.parent / "dot.png").write_bytes(PIXEL)
    return folder.parent


def images(messages: Sequence[Message]) -> list[Image]:
    return [image for message in messages for image in message.images]


class Kept:
    """A session with a journal on the disk, which can be opened again."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.requests: list[Request] = []
        self.id = ""

    async def run(self, query: str, resume: str = "") -> None:
        chosen, model = settings(), Recorder(ScriptedModel.parse(RULES))
        self.requests = model.requests
        assert chosen.file is not None
        async with open_chain(
            chosen, workspace=chosen.file.parent, state=self.state, model=model, resume=resume
        ) as chain:
            self.id = chain.session_id
            chain.submit(query)
            await chain.wait_idle()

    @property
    def journal(self) -> Path:
        return self.state / "sessions" / f"{self.id}.jsonl"

    @property
    def file(self) -> Path:
        return attachments_folder(self.journal) / DIGEST


async def test_an_image_goes_along_as_one_and_the_request_is_valid(workspace: Path) -> None:
    async with open_session(RULES) as session:
        await session.run("What is on @dot.png?")
        messages = session.model.requests[-1].messages
        assert [type(block) for block in messages[0].blocks] == [Text, Text, Image]
        (image,) = images(messages)
        assert (image.media_type, image.name, b64decode(image.data)) == ("image/png", "dot.png", PIXEL)
        sent = [{"role": m.role, "content": [sent_form(b) for b in m.blocks]} for m in messages]
        assert check_messages(sent) is None
        assert next(r for r in session.chain.lines.receipts).reason == f"with dot.png (PNG, {len(PIXEL):,} bytes)"
        check_invariants(session)
    check_replays(session)


async def test_the_journal_holds_its_digest_alone(workspace: Path) -> None:
    async with open_session(RULES) as session:
        await session.run("What is on @dot.png?")
        await session.run("And on @dot.png?")
        assert session.file.beside == {DIGEST: PIXEL}
        assert b"iVBORw0KGgo" not in session.file.data
        (first, second) = [r for r in session.records if r["type"] == "message" and r["point"] == "start"]
        assert first["message"]["content"][2]["source"]["digest"] == DIGEST
        assert second["message"]["content"][2] == first["message"]["content"][2]


async def test_no_record_names_an_image_that_could_not_be_kept(workspace: Path) -> None:
    class NoRoom(FullDisk):
        def store_attachment(self, digest: str, content: bytes) -> None:
            raise OSError(28, "No space left on device")

    async with open_session(RULES, file=NoRoom()) as session:
        session.chain.submit("What is on @dot.png?")
        await session.chain.wait_idle()
        assert session.result.status == "error"
        assert session.state("L1") == "returned"
        assert not [r for r in session.records if r["type"] == "message"]
        assert not session.model.requests


async def test_it_is_there_again_when_the_session_is_resumed(workspace: Path, tmp_path: Path) -> None:
    one = Kept(tmp_path)
    await one.run("What is on @dot.png?")
    assert one.file.read_bytes() == PIXEL
    assert (one.file.stat().st_mode & 0o777, one.file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    await one.run("Sure?", resume=one.id)
    (image,) = images(one.requests[-1].messages)
    assert b64decode(image.data) == PIXEL


@pytest.mark.parametrize("content", [None, b"another"])
async def test_one_that_is_gone_is_a_text(content: bytes | None, workspace: Path, tmp_path: Path) -> None:
    one = Kept(tmp_path)
    await one.run("What is on @dot.png?")
    one.file.unlink()
    if content is not None:
        one.file.write_bytes(content)
    await one.run("Sure?", resume=one.id)
    (image,) = images(one.requests[-1].messages)
    assert sent_form(image) == {"type": "text", "text": NO_IMAGE}
    text = "".join(kept.export(kept.FileStore(tmp_path), one.id, "json"))
    assert NO_IMAGE in text


async def test_export_has_it_and_deleting_removes_it(workspace: Path, tmp_path: Path) -> None:
    one = Kept(tmp_path)
    await one.run("What is on @dot.png?")
    found: dict[str, Any] = json.loads("".join(kept.export(kept.FileStore(tmp_path), one.id, "json")))
    (content,) = [
        r["message"]["content"] for r in found["records"] if r["type"] == "message" and r["message"]["role"] == "user"
    ]
    assert b64decode(content[2]["source"]["data"]) == PIXEL
    assert "Delivered with dot.png (PNG" in "".join(kept.export(kept.FileStore(tmp_path), one.id, "md"))
    kept.FileStore(tmp_path).delete(one.id)
    assert not one.file.parent.exists()
    assert not one.journal.exists()


def test_a_file_beside_a_journal_is_written_once_and_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, synced, sync = tmp_path / "s.jsonl", list[tuple[Path, int]](), os.fsync

    def note(fd: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        synced.append((path.parent, os.fstat(fd).st_size) if path.is_file() else (path, 0))
        sync(fd)

    monkeypatch.setattr(os, "fsync", note)
    store_attachment(journal, DIGEST, PIXEL)
    folder = attachments_folder(journal)
    assert synced == [(folder, len(PIXEL)), (folder, 0), (tmp_path, 0)], "the content, then its name, then the folder's"
    before = (attachments_folder(journal) / DIGEST).stat()
    store_attachment(journal, DIGEST, PIXEL)
    assert (attachments_folder(journal) / DIGEST).stat().st_ino == before.st_ino
    assert read_attachment(journal, DIGEST) == PIXEL
    assert [path.name for path in attachments_folder(journal).iterdir()] == [DIGEST]
    assert read_attachment(journal, "../s.jsonl") is None


def test_nothing_is_left_of_a_file_for_which_there_is_no_room(tmp_path: Path) -> None:
    journal = tmp_path / "s.jsonl"
    with files_at_most(len(PIXEL) - 1), pytest.raises(OSError, match="File too large"):
        store_attachment(journal, DIGEST, PIXEL)
    assert list(attachments_folder(journal).iterdir()) == []


# ---------------------------------------------------------------------------------------- sent along with a line


async def test_what_its_sender_sends_along_is_kept_with_the_line_and_delivered() -> None:
    async with open_session(RULES) as session:
        assert session.chain.submit("What is [it]?", images=[("it", PIXEL)]).what == "started"
        assert session.file.beside == {DIGEST: PIXEL}
        await session.chain.wait_idle()
        (line,) = [r for r in session.records if r["type"] == "line"]
        assert line["images"][0]["source"]["digest"] == DIGEST
        (image,) = images(session.model.requests[-1].messages)
        assert b64decode(image.data) == PIXEL
        assert next(r for r in session.chain.lines.receipts).reason == f"with it (PNG, {len(PIXEL):,} bytes)"
        check_invariants(session)
    check_replays(session)


async def test_one_of_a_line_that_still_waits_is_there_again(tmp_path: Path) -> None:
    from chain.session.resume import with_stored_images

    journal = tmp_path / "s.jsonl"
    store_attachment(journal, DIGEST, PIXEL)
    line = records.Line("L1", "see", "redirect", "next", "main", images=(Image("image/png", DIGEST, "it"),))
    read = with_stored_images(
        record_json.from_json({"type": "line", "seq": 1, "time": 0, **record_json.to_json(line)}),
        partial(read_attachment, journal),
    )
    assert isinstance(read.record, records.Line)
    assert b64decode(read.record.images[0].data) == PIXEL


@pytest.mark.parametrize(
    ("sent", "why"),
    [
        ([("it", b"text")], "it is not an image that can be sent"),
        ([("it", PIXEL + bytes(5 * 2**20))], "the limit of an image is"),
        ([("it", PIXEL)] * 21, "the limit is 20"),
        ([("it", PIXEL + bytes(4 * 2**20))] * 5, "more than 16,777,216 bytes"),
    ],
)
async def test_what_cannot_be_sent_refuses_the_line(sent: list[tuple[str, bytes]], why: str) -> None:
    async with open_session(RULES) as session:
        said = session.chain.submit("What is it?", images=sent)
        assert said.what == "refused"
        assert why in said.message
        assert not session.file.beside


def message_record() -> records.Message:
    image = Image("image/png", DIGEST, "dot.png", b64encode(PIXEL).decode())
    return records.Message(Message("user", (Text("see"), image)), "main", "root")


async def test_a_disk_without_room_for_the_image_takes_no_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(journal: Path, digest: str, content: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    path = tmp_path / "s.jsonl"
    with closing(DiskFile(path, is_new=True)) as file:
        journal = Journal(file, path=path)
        with monkeypatch.context() as patched:
            patched.setattr("chain.journal.file.store_attachment", full)
            with pytest.raises(JournalError):
                journal.record(message_record())
        assert (path.read_bytes(), journal.seq) == (b"", 0)
        journal.record(message_record())
        assert path.read_bytes().count(b"\n") == 1
