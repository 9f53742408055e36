"""The prompt in a pseudo-terminal: external editors, searches, the menu, and how it is drawn."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from support.keys import (
    BACKSPACE,
    CTRL_C,
    CTRL_E,
    CTRL_G,
    CTRL_J,
    CTRL_L,
    CTRL_R,
    CTRL_S,
    CTRL_U,
    CTRL_X,
    CTRL_Z,
    DOWN,
    ESC,
)
from support.screen import Screen
from support.terminal import (
    COLOUR,
    WORDS,
    Start,
    editor_has,
    line_states,
    quit_program,
    send,
    shown_words,
    start_tool,
    wait_idle,
)

pytest_plugins = ["support.terminal"]

EDITOR = """\
#!/bin/sh
trap 'echo interrupted >> "$1"' INT
echo "the editor has: $(cat "$1")" > /dev/tty
read -r row < /dev/tty
if [ "$row" = fail ]; then exit 3; fi
echo "$row" >> "$1"
"""


@pytest.fixture
def editor(tmp_path: Path) -> dict[str, str]:
    """An environment with an editor that appends a row, or fails."""
    (tmp_path / "editor").write_text(EDITOR)
    (tmp_path / "editor").chmod(0o755)
    return {"VISUAL": str(tmp_path / "editor")}


def clear_editor(screen: Screen) -> Screen:
    """Clear the text in the editor."""
    screen.type(CTRL_C)
    return screen.until(editor_has(""))


def editor_starts_with(text: str) -> Callable[[Screen], bool]:
    """Return a condition: the text in the editor starts with ``text``."""
    return lambda screen: (screen.editor or "").startswith(text)


def test_an_external_editor_opens_during_a_run(start: Start, editor: dict[str, str]) -> None:
    screen = wait_idle(start(env=editor))
    start_tool(screen, "gate a").type(f"one{CTRL_X}{CTRL_E}")
    screen.until("the editor has: one").type("fail\n")
    screen.until("ended with 3; the text is unchanged").until(editor_has("one")).type(CTRL_G)
    screen.until(lambda s: s.everything.count("the editor has: one") == 2)
    screen.open_gate("a")
    screen.type(f"{CTRL_C}two\n")  # a SIGINT to the editor and to the program
    screen.until(editor_starts_with("one\n")).until("✓ done")
    assert "Interrupted" not in screen.everything
    assert list(line_states(screen)) == ["gate a"]
    quit_program(wait_idle(clear_editor(screen)))


@pytest.mark.slow
def test_ctrl_z_in_an_editor_suspends_the_job(start: Start, editor: dict[str, str]) -> None:
    shell = '"$@"; echo "stopped: $?"; read -r line; fg >/dev/null; echo "ended: $?"'
    screen = wait_idle(start(launcher=("/bin/sh", "-m", "-c", shell, "sh"), env=editor))  # -m: with job control
    screen.type(f"one{CTRL_G}")
    screen.until("the editor has: one").type(CTRL_Z)
    screen.until("stopped: ").type("\n")
    screen.type("two\n")
    screen.until(editor_has("one\ntwo")).type("\r")
    wait_idle(screen.until("▶ one"))
    send(screen, "/quit").until("ended: 0")
    assert screen.wait() == 0
    assert screen.left_behind == []


@pytest.mark.slow
def test_a_cancelled_search_restores_the_text(screen: Screen) -> None:
    for query in ("an alpha query", "an alpha again"):
        wait_idle(send(screen, query).until(f"Done: {query}"))
    screen.type(f"half{CTRL_R}alpha")
    screen.until(editor_starts_with("an alpha again")).type(CTRL_R)
    screen.until(editor_starts_with("an alpha query")).type(CTRL_G)
    screen.until(editor_has("half")).type(f"{CTRL_R}query\r")
    screen.until(editor_has("an alpha query")).type(f"{CTRL_S}zzz")
    screen.until("I-search").type(CTRL_G)
    screen.until(lambda s: "I-search" not in s.everything and s.editor == "an alpha query")
    # Lines that are returned during a search are added to the restored text.
    start_tool(clear_editor(screen), "gate a")
    send(screen, "use B").until("📤 Interrupting: use B")
    send(screen, "stop").until("⏹ Stopping after gate")
    screen.type(f"half{CTRL_R}alpha")
    screen.until("I-search backward: alpha").open_gate("a")
    screen.until("⏹ cancelled").until("I-search backward: alpha").type(CTRL_G)
    screen.until(editor_has("use B\nhalf")).type("x")
    quit_program(wait_idle(clear_editor(screen.until(editor_has("use B\nhalfx")))))


def menu_commands(screen: Screen) -> list[str]:
    """Return the commands in the menu, each with its argument and without its description."""
    return [re.split("  +", row.strip(), maxsplit=1)[0] for row in screen.menu]


@pytest.mark.slow
def test_a_menu_offers_commands_and_files(screen: Screen) -> None:
    screen.type("/")
    screen.until(lambda s: any(row.strip().startswith("/status ") and "state and usage" in row for row in s.menu))
    for typed, shown in (("mo", ["/model [NAME]", "/mode [MODE]"]), ("del", ["/model [NAME]"]), (" ", [])):
        screen.type(typed)
        screen.until(lambda s, shown=shown: menu_commands(s) == shown)
    screen.type(f"{CTRL_U}/st")
    screen.until(lambda s: len(s.menu) == 1).type(ESC)
    screen.until(lambda s: s.menu == []).until(editor_has("/st"))
    screen.type(f"{CTRL_U}/tox")
    screen.until(lambda s: s.menu == []).type(BACKSPACE)
    screen.until(lambda s: len(s.menu) > 1).type(DOWN)
    screen.until(editor_has("/todo")).type("\r")
    screen.until(lambda s: s.menu == []).until(editor_has("/todo")).type("\r")
    screen.until("» /todo").until(editor_has("")).type("todo: c\t")
    screen.until(lambda s: {"todo: clear", "todo: complete"} <= {row.strip() for row in s.display})
    work = clear_editor(screen).home / "work"
    (work / "papers").mkdir()
    for name in ("one.md", "two.md"):
        (work / "papers" / name).write_text("1\n2\n")
    screen.type("first\nread @pap")
    screen.until(lambda s: any(row.strip().startswith("papers/") for row in s.display))
    screen.type("\t")
    screen.until("papers/one.md").until("papers/two.md").type("o\t")
    screen.until(editor_has("first\nread @papers/one.md")).type("\r")
    quit_program(wait_idle(screen.until("with papers/one.md (2 lines)")))


@pytest.mark.slow
def test_the_prompt_is_as_high_as_its_text(screen: Screen) -> None:
    screen.type(CTRL_J.join(["one", "two", "three", "four"]))
    screen.until(editor_has("one\ntwo\nthree\nfour"))

    def is_above_the_toolbar(screen: Screen) -> bool:
        row, _ = screen.cursor
        return screen.display[row + 1].startswith("idle")

    for deleted_rows, rest in ((2, "one\ntwo"), (1, "one")):
        screen.type(f"{CTRL_U}{BACKSPACE}" * deleted_rows)
        screen.until(editor_has(rest)).until(is_above_the_toolbar)
    send(clear_editor(screen), "hello").until("Done: hello")
    screen.type("\n".join(f"row {n}" for n in range(60)))  # not as a paste, which would be one row
    screen.until(lambda s: "row 59" in "\n".join(s.display))
    assert "Done: hello" in "\n".join(screen.display)
    wait_idle(send(screen, "").until("Done: row 0"))
    row, _ = screen.cursor
    blank_rows_above = screen.display[:row].count("")
    assert blank_rows_above <= 1
    quit_program(screen)


@pytest.mark.slow
def test_ctrl_l_leaves_the_scrollback_of_tmux_alone(start: Start) -> None:
    screen = wait_idle(start(reflows=True))
    send(screen, "hello").until("Done: hello")
    first_row, *rows_before, _, _ = wait_idle(screen).rows  # without the prompt and the toolbar
    assert first_row.startswith("chain ")
    screen.type(f"{CTRL_L}more")
    screen.until(editor_has("more"))
    *rows_after, _, _ = screen.rows
    assert rows_after == [first_row, *rows_before]
    quit_program(wait_idle(clear_editor(screen)))


@pytest.mark.slow
def test_a_new_width_doubles_no_wrapped_row(start: Start) -> None:
    screen = wait_idle(start(columns=60, rows=24, reflows=True))
    send(screen, "stream 40 words in 8 seconds").until("w07").type("a text that is being typed meanwhile")
    for columns, word in ((22, "w12"), (70, "w17"), (33, "✓ done")):
        screen.resize(24, columns)
        screen.until(word).until(editor_starts_with("a text that is"))
    screen.until(lambda s: editor_starts_with("a text that is")(s) and "idle" in s.toolbar)
    assert shown_words(screen) == WORDS
    assert sum(row.startswith("> a text") for row in screen.rows) == 1, screen.everything
    screen.type(CTRL_U)
    screen.resize(24, 100)
    send(wait_idle(screen), "/quit")
    assert screen.wait() == 0, screen.everything


@pytest.mark.slow
@pytest.mark.parametrize(
    ("args", "env", "is_ascii"),
    [
        pytest.param(["--no-color", "-v"], {}, False, id="no colours"),
        pytest.param([], {"LANG": "de_DE.ISO-8859-1", "NO_COLOR": "1"}, True, id="no colours and no UTF-8"),
    ],
)
def test_the_output_fits_the_terminals_abilities(
    start: Start, args: list[str], env: dict[str, str], is_ascii: bool
) -> None:
    screen = wait_idle(start(*args, env=env))
    send(screen, "gate a").until("gate")
    send(screen, "hello there").until("Interrupting: hello there")
    screen.open_gate("a")
    screen.until("INTERRUPTION at iteration 1").until("done, ")
    if "-v" in args:
        screen.until("[1/100]").until("→ gate(").until("✓ Message injected (")
    send(wait_idle(screen), "/quit")
    assert screen.wait() == 0
    assert screen.raw.isascii() == is_ascii
    assert not COLOUR.search(screen.raw)
    assert screen.left_behind == []
