"""The question whether to trust a file, on rows: all of it, and nothing that could deceive."""

import re
from pathlib import Path

import pytest

from chain.config.trust import Sensitive
from cli.show.text_rows import columns
from cli.show.trust_rows import CHOICES, DANGER, DEEPER, TRUST_INDENT, declined, question

FILE = Path("/home/ana/team/config.yaml")


def said(rows: list[str]) -> str:
    """The values without the ends of their rows."""
    return "".join(row.removeprefix(DEEPER) for row in rows)


@pytest.mark.parametrize("width", [1, 24, 40, 80, 200])
@pytest.mark.parametrize("value", ["https://e.example/" + "path/" * 60, "a  b" * 99, "日本語" * 50, "x" * 38 + " y"])
def test_nothing_of_a_value_is_cut_at_any_width(width: int, value: str) -> None:
    rows = question(FILE, [Sensitive("k", "models.definitions.claude.base_url", value, 12)], width)
    assert re.search(r"line 12  models\.definitions\.claude\.base_url: ?" + re.escape(value), said(rows))
    assert max(columns(row) for row in rows) <= max(width, 20)


def test_every_value_has_a_row_then_come_the_danger_and_the_choices() -> None:
    asked = [Sensitive("k", f"key{n}", f"value{n}", n, "/etc/passwd" if n == 7 else "") for n in range(1, 61)]
    rows = question(FILE, asked, 200)
    assert str(FILE) in rows[0]
    assert [row for row in rows if row.startswith("  line")] == [f"  line {n}  key{n}: value{n}" for n in range(1, 61)]
    assert "/etc/passwd" in rows[rows.index("  line 7  key7: value7") + 1]
    assert rows[-2:] == [DANGER, CHOICES]


def test_a_value_that_does_not_fit_beside_its_key_is_on_rows_of_its_own() -> None:
    rows = question(FILE, [Sensitive("k", "models.definitions.claude.base_url", "https://evil.example/v1", 4)], 60)
    assert rows[1:3] == ["  line 4  models.definitions.claude.base_url:", "      https://evil.example/v1"]


def test_a_value_from_another_file_is_shown_with_its_place() -> None:
    each = Sensitive("agents.a.prompt", "agents.a.prompt.interruption_prompt", "../x", 4, "/x\x1b", "/w/p\u202e.yaml:2")
    assert question(FILE, [each], 80)[1:4] == [
        "  line 4  agents.a.prompt.interruption_prompt: ../x",
        r"      in /w/p\u202e.yaml:2",
        r"      leads to /x\x1b",
    ]


def test_what_is_hidden_is_an_escape_and_no_value_looks_like_a_row_of_its_own() -> None:
    value = "safe\x1b[2J\u202e\u200b\xa0\n  line 3  tools.allow: []" + " " * 60 + "  line 4  x: y"
    rows = question(Path("/w\x1b/a\nb.yaml"), [Sensitive("k", "k\n\te", value, 2)], 60)
    assert all(row.isprintable() for row in rows)
    assert [row for row in rows if row.startswith(f"{TRUST_INDENT}line")] == rows[1:2]
    for shown in (r"\x1b", r"\u202e", r"\u200b", r"\xa0", r"\n"):
        assert shown in "".join(rows)


def test_a_no_says_what_holds_instead() -> None:
    assert "built-in" in "".join(declined(FILE, None, 80))
    assert "/home/me/config.yaml" in "".join(declined(FILE, Path("/home/me/config.yaml"), 80))
