"""The question whether to trust a file: nothing of it is hidden or can deceive."""

import re
from pathlib import Path

import pytest

from chain.config.trust import Sensitive
from cli.show.text_rows import columns
from cli.show.trust_rows import CHOICES, DANGER, DEEPER, TRUST_INDENT, declined_rows, question

FILE = Path("/home/ana/team/config.yaml")


@pytest.mark.parametrize("width", [1, 24, 40, 80, 200])
@pytest.mark.parametrize("value", ["https://e.example/" + "path/" * 60, "a  b" * 99, "日本語" * 50, "x" * 38 + " y"])
def test_a_value_is_whole_at_any_width(width: int, value: str) -> None:
    rows = question(FILE, [Sensitive("k", "models.definitions.claude.base_url", value, 12)], width)
    joined = "".join(row.removeprefix(DEEPER) for row in rows)
    assert re.search(r"line 12  models\.definitions\.claude\.base_url: ?" + re.escape(value), joined)
    assert max(columns(row) for row in rows) <= max(width, 20)


def test_the_values_precede_the_danger_and_the_choices() -> None:
    asked = [Sensitive("k", f"key{n}", f"value{n}", n) for n in range(1, 61)]
    assert question(FILE, asked, 200) == [
        f"{FILE} came with this folder and sets:",
        *(f"  line {n}  key{n}: value{n}" for n in range(1, 61)),
        DANGER,
        CHOICES,
    ]


def test_a_value_has_its_place_and_its_target() -> None:
    each = Sensitive("agents.a.prompt", "agents.a.prompt.interruption_prompt", "../x", 4, "/x\x1b", "/w/p\u202e.yaml:2")
    assert question(FILE, [each], 60)[1:5] == [
        "  line 4  agents.a.prompt.interruption_prompt: ../x",
        r"      in /w/p\u202e.yaml:2",
        r"      leads to /x\x1b",
        question(FILE, [], 60)[1],
    ]


def test_no_value_looks_like_another_row() -> None:
    value = "safe\x1b[2J\u202e\u200b\xa0\n  line 3  tools.allow: []" + " " * 60 + "  line 4  x: y"
    rows = question(Path("/w\x1b/a\nb.yaml"), [Sensitive("k", "k\n\te", value, 2)], 60)
    assert all(row.isprintable() for row in rows)
    assert [row for row in rows if row.startswith(f"{TRUST_INDENT}line")] == rows[1:2]
    for shown in (r"\x1b", r"\u202e", r"\u200b", r"\xa0", r"\n"):
        assert shown in "".join(rows)


def test_a_no_names_the_configuration_used_instead() -> None:
    assert "built-in" in "".join(declined_rows(FILE, None, 80))
    assert "/home/me/config.yaml" in "".join(declined_rows(FILE, Path("/home/me/config.yaml"), 80))
