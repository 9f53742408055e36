"""The question whether to trust a file: nothing in it is hidden or can deceive."""

import re
from pathlib import Path

import pytest

from chain.config.trust import Sensitive
from cli.show.text_rows import NARROWEST, columns
from cli.show.trust_rows import CHOICES, DANGER, DEEPER, TRUST_INDENT, declined_rows, question

FILE = Path("/home/ana/team/config.yaml")


@pytest.mark.parametrize("width", [1, 24, 40, 80, 200])
@pytest.mark.parametrize(
    "value",
    [
        pytest.param("https://e.example/" + "path/" * 60, id="no space"),
        pytest.param("a  b" * 99, id="double spaces"),
        pytest.param("日本語" * 50, id="wide characters"),
        pytest.param("x" * 38 + " y", id="space at the cut"),
    ],
)
def test_a_value_is_whole_at_any_width(width: int, value: str) -> None:
    rows = question(FILE, [Sensitive("k", "models.definitions.claude.base_url", value, line=12)], width)
    joined = "".join(row.removeprefix(DEEPER) for row in rows)
    assert re.search(r"line 12  models\.definitions\.claude\.base_url: ?" + re.escape(value), joined)
    assert max(columns(row) for row in rows) <= max(width, NARROWEST)


def test_the_values_precede_the_danger_and_the_choices() -> None:
    settings = [Sensitive("k", f"key{n}", f"value{n}", line=n) for n in range(1, 61)]
    assert question(FILE, settings, 200) == [
        f"{FILE} came with this folder and sets:",
        *(f"  line {n}  key{n}: value{n}" for n in range(1, 61)),
        DANGER,
        CHOICES,
    ]


def test_a_value_has_its_place_and_its_target() -> None:
    key = "agents.a.prompt"
    setting = Sensitive(key, f"{key}.interruption_prompt", "../x", line=4, leads_to="/x\x1b", place="/w/p\u202e.yaml:2")
    assert question(FILE, [setting], 200) == [
        f"{FILE} came with this folder and sets:",
        "  line 4  agents.a.prompt.interruption_prompt: ../x",
        r"      in /w/p\u202e.yaml:2",
        r"      leads to /x\x1b",
        DANGER,
        CHOICES,
    ]


def test_no_value_looks_like_another_row() -> None:
    value = "safe\x1b[2J\u202e\u200b\xa0\n  line 3  tools.allow: []" + " " * 60 + "  line 4  x: y"
    _, row_of_key, *others = question(Path("/w\x1b/a\nb.yaml"), [Sensitive("k", "k\n\te", value, line=2)], 60)
    assert row_of_key.startswith(f"{TRUST_INDENT}line 2")
    assert not [row for row in others if row.startswith(f"{TRUST_INDENT}line")]


def test_invisible_characters_are_shown_as_escapes() -> None:
    rows = question(Path("/w\x1b/a\nb.yaml"), [Sensitive("k", "k\n\te", "\x1b[2J\u202e\u200b\xa0\n", line=2)], 60)
    assert all(row.isprintable() for row in rows)
    assert rows[:2] == [
        r"/w\x1b/a\nb.yaml came with this folder and sets:",
        r"  line 2  k\n\te: \x1b[2J\u202e\u200b\xa0\n",
    ]


@pytest.mark.parametrize(
    ("replacement", "words"),
    [(None, "the built-in defaults are"), (Path("/home/me/config.yaml"), "/home/me/config.yaml is")],
    ids=["built-in", "file of the user"],
)
def test_a_no_names_the_configuration_used_instead(replacement: Path | None, words: str) -> None:
    assert declined_rows(FILE, replacement, 80) == [f"config.yaml is not used; {words}."]
