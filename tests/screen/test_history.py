"""The file of the history, which is private and never blocks the prompt."""

import stat
from pathlib import Path

import pytest

from cli.screen.toolkit import MAX_ENTRIES, MAX_ENTRY, SafeHistory


def test_entries_are_stored_privately_and_read_newest_first(tmp_path: Path) -> None:
    file = tmp_path / "chain" / "history"
    for entry in ("one", "two rows\nof it", "日本語", "x" * (MAX_ENTRY + 1)):
        SafeHistory(file).store_string(entry)
    assert list(SafeHistory(file).load_history_strings()) == ["日本語", "two rows\nof it", "one"]
    assert stat.filemode(file.stat().st_mode) == "-rw-------"
    assert stat.filemode(file.parent.stat().st_mode) == "drwx------"


def test_only_the_latest_entries_are_read(tmp_path: Path) -> None:
    file = tmp_path / "history"
    file.write_text("".join(f"\n# 2026-11-28\n+{n}\n" for n in range(MAX_ENTRIES + 9)))
    latest, *others = SafeHistory(file).load_history_strings()
    assert latest == str(MAX_ENTRIES + 8)
    assert len(others) == MAX_ENTRIES - 1


@pytest.mark.parametrize("name", ["a folder", "a file/below"])
def test_an_unusable_file_is_ignored(tmp_path: Path, name: str) -> None:
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a file").write_text("")
    SafeHistory(tmp_path / name).store_string("one")
    assert list(SafeHistory(tmp_path / name).load_history_strings()) == []
