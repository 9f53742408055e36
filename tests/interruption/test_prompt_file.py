"""The handler prompt's file while it is edited, broken, repaired, replaced and deleted."""

import os
from pathlib import Path

import pytest

from chain.interruption.prompt import BUILT_IN_PROMPT
from chain.interruption.prompt_file import PromptFile

GOOD = "messages: [{role: system, content: 'Be brief.'}]\n"
BROKEN = "version: '1.0'\nmesages: []\n"
DEFAULT = (BUILT_IN_PROMPT.source, BUILT_IN_PROMPT.post_prompt)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "handler.yaml"


def save(path: Path, text: str) -> None:
    """Replace the file as an editor does: it gets a new inode, so the edit is seen even if its times are the same."""
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
    assert file.current() == (BUILT_IN_PROMPT, None), "the error is not reported again"


def test_edits_that_keep_size_and_time_are_seen(path: Path) -> None:
    save(path, GOOD)
    file = PromptFile(path)
    file.current()
    before = path.stat()

    # The change time cannot be set. On a coarse clock it may stay the same, so write until it differs.
    while path.stat().st_ctime_ns == before.st_ctime_ns:
        path.write_text(GOOD.replace("brief", "quick"), encoding="utf-8")
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    assert path.stat().st_mtime_ns == before.st_mtime_ns
    prompt, _ = file.current()
    assert prompt.post_prompt == "Be quick."


def test_each_error_is_reported_once(path: Path) -> None:
    missing = f"{path}: cannot be read: No such file or directory"
    broken = f"{path}:2: unknown key mesages: did you mean messages?"
    contents_and_errors = [
        (None, missing),  # there is no file
        (GOOD, ""),
        (BROKEN, broken),
        (GOOD, ""),
        (None, missing),
        (BROKEN, broken),
        (BROKEN + "# again\n", broken),
    ]
    file = PromptFile(path)
    for content, expected_error in contents_and_errors:
        if content is None:
            path.unlink(missing_ok=True)
        else:
            save(path, content)
        prompt, error = file.current()
        assert (prompt.source, prompt.post_prompt) == ((f"yaml:{path}", "Be brief.") if content == GOOD else DEFAULT)
        assert ("" if error is None else str(error)) == expected_error
        assert file.current() == (prompt, None), "the error is not reported again"


def test_links_are_followed(tmp_path: Path) -> None:
    first, second, link = tmp_path / "1.yaml", tmp_path / "2.yaml", tmp_path / "handler.yaml"
    save(first, GOOD)
    save(second, GOOD.replace("brief", "quick"))
    link.symlink_to(first)
    file = PromptFile(link)
    file.current()

    link.unlink()
    link.symlink_to(second)

    prompt, _ = file.current()
    assert prompt.post_prompt == "Be quick."


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param(b"", "is empty", id="empty"),
        pytest.param(b"messages:\n  - role: \xff\n", "not UTF-8", id="not UTF-8"),
        pytest.param(b"description: '" + b"x" * 200_000 + b"'", "larger than 128 kB", id="large"),
    ],
)
def test_unusable_files_are_reported(path: Path, content: bytes, message: str) -> None:
    path.write_bytes(content)
    prompt, error = PromptFile(path).current()
    assert prompt is BUILT_IN_PROMPT
    assert error is not None
    assert message in error.message
    assert error.file == str(path)


def test_special_files_are_refused(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    folder, invalid_name, below_a_file = tmp_path, tmp_path / "a\0b", fifo / "below"
    for path in [fifo, folder, Path("/dev/zero"), invalid_name, below_a_file]:
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

    prompt, _ = file.current()
    assert prompt.source == f"yaml:{path}"
