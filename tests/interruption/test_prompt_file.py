"""The handler prompt's file while it is edited, broken, mended, replaced and taken away."""

import os
from pathlib import Path

import pytest

from chain.interruption.prompt import BUILT_IN_PROMPT
from chain.interruption.prompt_file import PromptFile

GOOD = "messages: [{role: system, content: 'Be brief.'}]\n"
BROKEN = "version: '1.0'\nmesages: []\n"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "handler.yaml"


def save(path: Path, text: str) -> None:
    """Replace the file as an editor does, so that its state differs however coarse the clock of the disk is."""
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def test_a_missing_path_is_reported_once(path: Path) -> None:
    file = PromptFile(None)

    prompt, error = file.current()

    assert prompt is BUILT_IN_PROMPT
    assert error is not None
    assert "no file is configured" in error.message
    assert error.file is None
    assert file.current() == (BUILT_IN_PROMPT, None)


def test_edits_that_keep_size_and_time_are_seen(path: Path) -> None:
    save(path, GOOD)
    file = PromptFile(path)
    file.current()
    before = path.stat()

    # The change time cannot be set back. A coarse clock may give the same one again, so write until it moves on.
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        path.write_text(GOOD.replace("brief", "quick"), encoding="utf-8")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert file.current()[0].post_prompt == "Be quick."


def test_each_breakage_is_reported_once(path: Path) -> None:
    file = PromptFile(path)
    errors: list[str] = []
    sources = []
    for text in [None, GOOD, BROKEN, GOOD, None, BROKEN, BROKEN + "# again\n"]:
        if text is None:
            path.unlink(missing_ok=True)
        else:
            save(path, text)
        for _ in range(2):
            prompt, error = file.current()
            errors.append("" if error is None else str(error))
            sources.append((prompt.source, prompt.post_prompt == "Be brief."))

    used, default = (f"yaml:{path}", True), ("default", False)
    missing = f"{path}: cannot be read: No such file or directory"
    broken = f"{path}:2: unknown key mesages: did you mean messages?"
    assert errors == [missing, "", "", "", broken, "", "", "", missing, "", broken, "", broken, ""]
    assert sources == [default] * 2 + [used] * 2 + [default] * 2 + [used] * 2 + [default] * 6


def test_links_are_followed(tmp_path: Path) -> None:
    first, second, link = tmp_path / "1.yaml", tmp_path / "2.yaml", tmp_path / "handler.yaml"
    save(first, GOOD)
    save(second, GOOD.replace("brief", "quick"))
    link.symlink_to(first)
    file = PromptFile(link)
    file.current()

    link.unlink()
    link.symlink_to(second)

    assert file.current()[0].post_prompt == "Be quick."


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "is empty"),
        (b"messages:\n  - role: \xff\n", "not UTF-8"),
        (b"description: '" + b"x" * 200_000 + b"'", "larger than 128 kB"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_unusable_files_are_reported(path: Path, raw: bytes, words: str) -> None:
    path.write_bytes(raw)

    prompt, error = PromptFile(path).current()

    assert prompt is BUILT_IN_PROMPT
    assert error is not None
    assert words in error.message
    assert error.file == str(path)


def test_special_files_are_refused(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    for path in [fifo, tmp_path, Path("/dev/zero"), tmp_path / "a\0b", fifo / "below"]:
        prompt, error = PromptFile(path).current()
        assert prompt is BUILT_IN_PROMPT
        assert error is not None


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser can read everything")
def test_a_file_that_becomes_readable_is_used(path: Path) -> None:
    save(path, GOOD)
    path.chmod(0)
    file = PromptFile(path)
    _, error = file.current()
    assert error is not None
    assert "Permission denied" in error.message

    path.chmod(0o600)

    assert file.current()[0].source == f"yaml:{path}"
