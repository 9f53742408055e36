"""Images of lines are stored once next to the journal, before their record. They are sent, exported and deleted."""

from __future__ import annotations

import errno
import os
from base64 import b64decode, b64encode
from collections.abc import Sequence
from functools import partial
from hashlib import sha256
from pathlib import Path

import pytest
from double import check_messages
from support.checks import check_invariants, check_replays
from support.disks import FullDisk, limit_file_size
from support.places import Place
from support.sessions import Session, make_settings, open_session

from chain import events
from chain.app.sessions import FileStore, export
from chain.journal import json as record_json
from chain.journal import records
from chain.journal.attachments import attachments_folder, read_attachment, store_attachment
from chain.messages import NO_IMAGE, Image, Message, Text, block_to_request_json
from chain.session.resume import with_stored_images

PIXEL = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
DIGEST = sha256(PIXEL).hexdigest()
RULES = "rules: [{text: A pixel.}]"


@pytest.fixture
def workspace() -> Path:
    """Return the workspace of the default settings, with an image in it."""
    folder = make_settings().file
    assert folder is not None
    (folder.parent / "dot.png").write_bytes(PIXEL)
    return folder.parent


@pytest.fixture
def place(workspace: Path, tmp_path: Path) -> Place:
    return Place(workspace, tmp_path, RULES)


def only_image(messages: Sequence[Message]) -> Image:
    (image,) = (image for message in messages for image in message.images)
    return image


def only_receipt(session: Session) -> events.Receipt:
    (receipt,) = session.chain.lines.receipts
    return receipt


async def run(place: Place, query: str, resume: str = "") -> Path:
    """Run a query in a new or resumed session. Return the path at which ``PIXEL`` is stored."""
    async with place.open(resume=resume) as chain:
        await place.ask(chain, query)
        assert chain.journal_path is not None
        return attachments_folder(chain.journal_path) / DIGEST


async def test_an_image_is_recorded_by_its_digest(workspace: Path) -> None:
    async with open_session(RULES) as session:
        await session.run("What is on @dot.png?")
        [query] = session.model.requests[-1].messages
        assert [type(block) for block in query.blocks] == [Text, Text, Image]
        image = only_image([query])
        assert (image.media_type, image.name, b64decode(image.data)) == ("image/png", "dot.png", PIXEL)
        assert check_messages([{"role": "user", "content": [block_to_request_json(b) for b in query.blocks]}]) is None
        assert only_receipt(session).reason == f"with dot.png (PNG, {len(PIXEL):,} bytes)"
        await session.run("And on @dot.png?")
        assert session.file.attachments == {DIGEST: PIXEL}
        assert b64encode(PIXEL) not in session.file.data
        blocks = [block for r in session.records if r["type"] == "message" for block in r["message"]["content"]]
        assert [block["source"]["digest"] for block in blocks if block["type"] == "image"] == [DIGEST, DIGEST]
        check_invariants(session)
    check_replays(session)


async def test_an_unstorable_image_is_not_recorded(workspace: Path) -> None:
    class NoRoom(FullDisk):
        def store_attachment(self, digest: str, content: bytes) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

    async with open_session(RULES, file=NoRoom()) as session:
        assert (await session.run("What is on @dot.png?")).status == "error"
        assert session.state("L1") == "returned"
        assert not [r for r in session.records if r["type"] == "message"]
        assert not session.model.requests


async def test_a_resumed_session_has_the_image(place: Place) -> None:
    file = await run(place, "What is on @dot.png?")
    assert file.read_bytes() == PIXEL
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    await run(place, "Sure?", resume=place.id)
    assert b64decode(only_image(place.model.requests[-1].messages).data) == PIXEL


@pytest.mark.parametrize("content", [None, b"another"], ids=["file missing", "file changed"])
async def test_a_lost_image_is_sent_as_text(content: bytes | None, place: Place) -> None:
    file = await run(place, "What is on @dot.png?")
    file.unlink()
    if content is not None:
        file.write_bytes(content)
    await run(place, "Sure?", resume=place.id)
    image = only_image(place.model.requests[-1].messages)
    assert block_to_request_json(image) == {"type": "text", "text": NO_IMAGE}
    assert NO_IMAGE in "".join(export(FileStore(place.state), place.id, "json"))


async def test_an_image_is_exported_and_deleted(place: Place) -> None:
    file, store = await run(place, "What is on @dot.png?"), FileStore(place.state)
    document = "".join(export(store, place.id, "json"))
    assert b64encode(PIXEL).decode() in document
    assert "Delivered with dot.png (PNG" in "".join(export(store, place.id, "md"))
    store.delete(place.id)
    sessions_folder = file.parent.parent
    assert list(sessions_folder.iterdir()) == []


def test_an_attachment_is_written_once_and_synced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal, synced, sync = tmp_path / "s.jsonl", list[tuple[Path, int]](), os.fsync

    def record_sync(fd: int) -> None:
        """Record the folder of a file and the file's size, or a folder and 0."""
        path = Path(os.readlink(f"/proc/self/fd/{fd}"))
        synced.append((path.parent, os.fstat(fd).st_size) if path.is_file() else (path, 0))
        sync(fd)

    monkeypatch.setattr(os, "fsync", record_sync)
    store_attachment(journal, DIGEST, PIXEL)
    folder = attachments_folder(journal)
    content, its_name, name_of_folder = (folder, len(PIXEL)), (folder, 0), (tmp_path, 0)
    assert synced == [content, its_name, name_of_folder]
    before = (folder / DIGEST).stat()
    store_attachment(journal, DIGEST, PIXEL)
    assert (folder / DIGEST).stat().st_ino == before.st_ino
    assert [path.name for path in folder.iterdir()] == [DIGEST]


def test_only_attachments_are_read(tmp_path: Path) -> None:
    journal = tmp_path / "s.jsonl"
    journal.touch()
    store_attachment(journal, DIGEST, PIXEL)
    assert read_attachment(journal, DIGEST) == PIXEL
    assert read_attachment(journal, "../s.jsonl") is None


def test_an_incomplete_attachment_is_removed(tmp_path: Path) -> None:
    journal = tmp_path / "s.jsonl"
    with limit_file_size(len(PIXEL) - 1), pytest.raises(OSError, match="File too large"):
        store_attachment(journal, DIGEST, PIXEL)
    assert list(attachments_folder(journal).iterdir()) == []


# ------------------------------------------------------------------------------ images that a program adds to a line


async def test_an_image_sent_with_a_line_is_stored() -> None:
    async with open_session(RULES) as session:
        assert session.chain.submit("What is [it]?", images=[("it", PIXEL)]).what == "started"
        assert session.file.attachments == {DIGEST: PIXEL}
        await session.chain.wait_idle()
        (line,) = [r for r in session.records if r["type"] == "line"]
        assert [image["source"]["digest"] for image in line["images"]] == [DIGEST]
        assert b64decode(only_image(session.model.requests[-1].messages).data) == PIXEL
        assert only_receipt(session).reason == f"with it (PNG, {len(PIXEL):,} bytes)"
        check_invariants(session)
    check_replays(session)


async def test_a_waiting_line_has_its_image_after_resuming(tmp_path: Path) -> None:
    journal = tmp_path / "s.jsonl"
    store_attachment(journal, DIGEST, PIXEL)
    images = (Image("image/png", DIGEST, "it"),)
    line = records.Line("L1", "see", kind="redirect", urgency="next", agent="main", images=images)
    read = with_stored_images(
        record_json.from_json({"type": "line", "seq": 1, "time": 0, **record_json.to_json(line)}),
        partial(read_attachment, journal),
    )
    assert isinstance(read.record, records.Line)
    assert [b64decode(image.data) for image in read.record.images] == [PIXEL]


@pytest.mark.parametrize(
    ("images", "error"),
    [
        pytest.param([("it", b"text")], "it is not an image that can be sent", id="no image"),
        pytest.param([("it", PIXEL + bytes(5 * 2**20))], "the limit of an image is", id="over 5 MiB"),
        pytest.param([("it", PIXEL)] * 21, "the limit is 20", id="one image too many"),
        pytest.param([("it", PIXEL + bytes(4 * 2**20))] * 5, "more than 16,777,216 bytes", id="too large in all"),
    ],
)
async def test_an_unusable_image_refuses_the_line(images: list[tuple[str, bytes]], error: str) -> None:
    async with open_session(RULES) as session:
        answer = session.chain.submit("What is it?", images=images)
        assert answer.what == "refused"
        assert error in answer.message
        assert not session.file.attachments
