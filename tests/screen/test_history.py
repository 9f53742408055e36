"""The file of what was typed: read from its end, appended to, and never in anybody's way."""

from __future__ import annotations

from pathlib import Path

import pytest

from cli.screen import toolkit


def keep(file: Path, entry: str) -> None:
    toolkit.SafeHistory(file).store_string(entry)


def kept(file: Path) -> list[str]:
    return list(toolkit.SafeHistory(file).load_history_strings())


def test_what_was_kept_is_read_the_newest_first(tmp_path: Path) -> None:
    file = tmp_path / "chain" / "history"
    for entry in ("one", "two rows\nof it", "日本語"):
        keep(file, entry)
    assert kept(file) == ["日本語", "two rows\nof it", "one"]
    assert (file.stat().st_mode & 0o777, file.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_of_a_long_file_the_latest_entries_are_read(tmp_path: Path) -> None:
    file = tmp_path / "history"
    file.write_text("".join(f"\n# 2026-11-28\n+{n}\n" for n in range(toolkit.MAX_ENTRIES + 9)))
    found = kept(file)
    assert found[0] == str(toolkit.MAX_ENTRIES + 8)
    assert len(found) == toolkit.MAX_ENTRIES


def test_an_entry_that_nobody_searches_for_is_not_kept(tmp_path: Path) -> None:
    keep(tmp_path / "history", "x" * (toolkit.MAX_ENTRY + 1))
    assert kept(tmp_path / "history") == []


@pytest.mark.parametrize("name", ["a folder", "a file/below"])
def test_a_file_that_cannot_be_used_is_in_nobodys_way(tmp_path: Path, name: str) -> None:
    (tmp_path / "a folder").mkdir()
    (tmp_path / "a file").write_text("")
    keep(tmp_path / name, "one")
    assert kept(tmp_path / name) == []
