"""The keys of the prompt that mean something here; prompt_toolkit has the others, which are those of readline."""

from __future__ import annotations

from collections.abc import Callable

from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.filters import Condition, Filter, has_focus, has_selection, is_searching
from prompt_toolkit.input.ansi_escape_sequences import ANSI_SEQUENCES
from prompt_toolkit.key_binding import KeyBindings, KeyPressEvent
from prompt_toolkit.keys import Keys

from cli.screen.keyboard import Keyboard


def bindings(keyboard: Keyboard) -> KeyBindings:
    """The keys, bound to what they do."""
    # Shift-Enter, as kitty and xterm report it, is the same as Alt-Enter.
    for sequence in ("\x1b[13;2u", "\x1b[27;2;13~"):
        ANSI_SEQUENCES[sequence] = (Keys.Escape, Keys.ControlM)
    keys = KeyBindings()
    editing = has_focus(DEFAULT_BUFFER)
    is_empty = Condition(lambda: keyboard.is_empty)

    def bind(*sequence: Keys | str, to: Callable[[KeyPressEvent], None], when: Filter = editing) -> None:
        keys.add(*sequence, filter=when)(to)

    bind("enter", to=lambda _: keyboard.enter())
    bind("escape", "enter", to=lambda _: keyboard.enter_urgent())
    bind("c-j", to=lambda _: keyboard.newline())
    bind("escape", to=lambda _: keyboard.escape())
    bind("c-c", to=lambda _: keyboard.ctrl_c())
    bind("c-d", to=lambda _: keyboard.ctrl_d(), when=editing & is_empty)
    bind("up", to=lambda _: keyboard.up())
    bind("down", to=lambda _: keyboard.down())
    bind("tab", to=lambda _: keyboard.tab())
    bind("c-l", to=lambda _: keyboard.clear())
    for key in ("c-r", "c-s"):
        bind(key, to=keyboard.search)
    bind("c-g", to=keyboard.end_search, when=is_searching)
    bind("c-c", to=keyboard.end_search, when=is_searching)
    for key in ("c-u", "c-k"):
        bind(key, to=lambda _: keyboard.paste_over(""), when=editing & has_selection)
    bind(Keys.BracketedPaste, to=lambda event: keyboard.paste_over(event.data), when=editing & has_selection)
    keys.add("c-z")(lambda _: keyboard.suspend())
    return keys
