"""The keys of the prompt: how they are recognised, what they do to the text, and what Enter sends."""

import asyncio
import io
import math
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, ClassVar

import pytest
import trio
from prompt_toolkit.application import Application
from prompt_toolkit.application.current import set_app
from prompt_toolkit.buffer import Buffer
from prompt_toolkit.completion import Completion
from prompt_toolkit.data_structures import Size
from prompt_toolkit.enums import DEFAULT_BUFFER
from prompt_toolkit.input import DummyInput
from prompt_toolkit.key_binding import KeyBindings, KeyPress
from prompt_toolkit.layout import BufferControl, Layout, Window
from prompt_toolkit.output import DummyOutput

from cli.screen.draft import Draft
from cli.screen.keyboard import Keyboard
from cli.screen.protocol import Acceptance
from cli.screen.row_output import RowOutput
from cli.screen.toolkit import LONGEST_GAP_S, HeldOutput, KeyParser, WholeTextCompleter
from cli.show.toolbar import answers_question

UP, DOWN = "\x1b[A", "\x1b[B"
LEFT, RIGHT, DELETE, SHIFT_LEFT, ESC = "\x1b[D", "\x1b[C", "\x1b[3~", "\x1b[1;2D", "\x1b"
SHIFT_TAB, BACKSPACE, ENTER = "\x1b[Z", "\x7f", "\r"
CTRL_C, CTRL_D, CTRL_G, CTRL_N, CTRL_O, CTRL_V = "\x03", "\x04", "\x07", "\x0e", "\x0f", "\x16"
PASTE = "\x1b[200~{}\x1b[201~"
PAUSE = "a second without a key"  # longer than ANSWER_KEY_PAUSE_S; three are longer than REST_OF_WORD_S


class Listener:
    """A session that logs what it is asked to do. ``acceptances`` has the lines that it does not accept."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.acceptances: dict[str, Acceptance] = {}

    def accept(self, text: str, *, question_id: str = "", again: bool = False) -> Acceptance:
        is_answer = bool(question_id) and answers_question(text)
        self.log.append(f"{question_id if is_answer else 'line'} {text}")
        trio.lowlevel.current_trio_token().run_sync_soon(self.log.append, "another task")
        return self.acceptances.get(text, "answered" if is_answer else "accepted")

    def on_escape(self, *, has_text: bool) -> None:
        self.log.append("interrupt")

    def on_ctrl_c(self, *, has_text: bool) -> bool:
        return has_text

    def next_mode(self) -> None:
        self.log.append("mode")

    def leave(self) -> None:
        self.log.append("leave")

    def take_back(self) -> str | None:
        return "waiting" if "line wait" in self.log else None

    def target(self, typed: str) -> str:
        return ""

    def completions(self, text: str) -> list[str]:
        return [line for line in ("/status", "/stop", "todo: add ") if line.startswith(text)]

    def session_rows(self) -> Iterator[str]:
        return iter(["a row"])

    def paste_image(self) -> None:
        self.log.append("image")

    def outside_path(self, pasted: str) -> str:
        return pasted.strip() if pasted.startswith("/out") else ""

    def attach_path(self, path: str, pasted: str) -> None:
        self.log.append(f"attach {path}")


class Loop(asyncio.SelectorEventLoop):
    """An event loop whose time passes only where a test says so."""

    now = 0.0

    def time(self) -> float:
        return self.now


class Editor:
    """The text and the keys of the prompt, without a terminal."""

    loop: ClassVar[Loop]

    def __init__(self) -> None:
        self.draft, self.listener, self.presses = Draft(), Listener(), list[KeyPress]()
        self.page = RowOutput(HeldOutput(io.StringIO(), lambda: Size(rows=24, columns=80)), self.draft)
        self.keyboard = Keyboard(self.draft, self.page)

        def completions(text: str) -> list[str]:
            return self.keyboard.ask(lambda listener: listener.completions(text)) or []

        completer = WholeTextCompleter(lambda text: (), completions)
        self.buffer = Buffer(name=DEFAULT_BUFFER, multiline=True, completer=completer)
        bindings = self.keyboard.bindings()
        window = Window(BufferControl(self.buffer))
        self.app: Application[Any] = Application(
            Layout(window), key_bindings=bindings, input=DummyInput(), output=DummyOutput()
        )
        self.page.watch(self.app, window)
        self.app.timeoutlen, self.app._default_bindings = None, KeyBindings()
        self.keyboard.attach(self.app, self.buffer)
        self.keyboard.token = trio.lowlevel.current_trio_token()
        self.keyboard.listener = self.listener  # type: ignore[assignment]
        self.keyboard.is_ready.set()
        bound = {binding.keys[0] for binding in bindings.bindings if len(binding.keys) == 1}
        self.parser = KeyParser(self.presses.append, bound)

    async def press(self, *reads: str) -> tuple[str, list[str]]:
        """Press keys: each argument arrives in one read. Return the text and the log of the session."""

        async def press() -> None:
            with set_app(self.app):
                for read in reads:
                    if read == PAUSE:
                        self.loop.now += 1
                        await asyncio.sleep(0)  # the loop runs the timers that are due
                        continue
                    self.parser.feed(read)
                    self.parser.flush()
                    self.app.key_processor.feed_multiple(self.presses)
                    self.presses.clear()
                    self.app.key_processor.process_keys()

        await trio.to_thread.run_sync(self.loop.run_until_complete, press())
        return self.buffer.text, [entry for entry in self.listener.log if entry != "another task"]

    @property
    def history(self) -> list[str]:
        """The entries of the history, the latest one last."""
        return list(self.buffer.history.get_strings())

    def show_approval(self, id: str) -> None:
        """Show an approval, which single keys answer, long before the next key is pressed."""
        self.draft.question, self.page._keys, self.page._asked_at = id, "ywoan", 0.0


async def text_after(*reads: str) -> str:
    """Return the text of a new editor after these reads."""
    text, _ = await Editor().press(*reads)
    return text


@pytest.fixture(autouse=True, scope="module")
def loop() -> Iterator[None]:
    """Create the loop of the editor's thread."""
    with closing(Loop()) as Editor.loop:
        yield


UNBOUND_SEQUENCES = {
    "focus": "\x1b[I\x1b[O",
    "a cursor position": "\x1b[12;40R",
    "device attributes": "\x1b[?62;22c\x1b[>0;276;0c",
    "a mode": "\x1b[?2026;2$y",
    "the size": "\x1b[8;24;80t",
    "a mouse": "\x1b[<0;10;5M\x1b[<0;10;5m\x1b[M !!",
    "the background": "\x1b]11;rgb:1e1e/1e1e/1e1e\x07\x1b]10;rgb:f/f/f\x1b\\",
    "a clipboard": "\x1b]52;c;aGVsbG8=\x07",
    "a version": "\x1bP>|xterm(388)\x1b\\",
    "a graphics reply": "\x1b_Gi=31;OK\x1b\\",
    "a keypad": "\x1bOq\x1bO5P",
    "Alt and a key": "\x1bx\x1b.\x1b5\x1b\x0f\x1b]\x1bP",
    "Alt and an arrow": "\x1b\x1b[A\x1b[1;3A\x1b[1;4B",
    "functions": "\x1b[15~\x1b[24;5~\x1b[[A\x1bOP",
    "Ctrl with a sign": "\x1b[27;5;49~\x1b[49;6u",
    "keys of Emacs": "\x11\x18\x00\x1d\x1e",
}


@pytest.mark.parametrize("sequence", UNBOUND_SEQUENCES.values(), ids=UNBOUND_SEQUENCES)
async def test_sequences_without_a_binding_do_nothing(sequence: str) -> None:
    editor = Editor()
    for index in range(len(sequence)):  # wherever two reads divide them
        if sequence[index - 1 : index] != ESC:  # an Esc that nothing follows is a key
            assert await editor.press("a", sequence[:index], sequence[index:], "b") == ("ab", [])
            editor.buffer.reset()


@pytest.mark.parametrize(
    ("reads", "log"),
    [
        ([ESC], ["interrupt"]),
        ([ESC, "[I"], ["interrupt"]),
        ([ESC + ESC], ["interrupt", "interrupt"]),
        (["\x1b[", "I"], []),
        (["\x1bO", "q"], []),
    ],
    ids=["Esc", "Esc before text", "twice", "start of a sequence", "start of a keypad's sequence"],
)
async def test_only_a_lone_esc_is_esc(reads: list[str], log: list[str]) -> None:
    assert await Editor().press(*reads) == ("", log)


@pytest.mark.parametrize("key", ["\x1b[Z", "\x1b[9;2u", "\x1b[27;2;9~"], ids=["xterm", "kitty", "modifyOtherKeys"])
async def test_shift_tab_changes_the_mode(key: str) -> None:
    assert await Editor().press("a text", key, "!") == ("a text!", ["mode"])


@pytest.mark.parametrize("unfinished_sequence", ["\x1b[", "\x1b[1;", "\x1bO", "\x1b]11;rgb", "\x1bP1$"])
def test_a_control_key_ends_a_sequence(unfinished_sequence: str) -> None:
    presses = list[KeyPress]()
    KeyParser(presses.append, ()).feed(f"{unfinished_sequence}\x03\rx")
    assert [press.data for press in presses] == ["\x03", "\r", "x"]


NEWLINE_KEYS = {
    "Alt-Enter": "\x1b\r", "Shift-Enter of kitty": "\x1b[13;2u", "Shift-Enter": "\x1b[27;2;13~", "Ctrl-J": "\n",
}  # fmt: skip


@pytest.mark.parametrize("key", NEWLINE_KEYS.values(), ids=NEWLINE_KEYS)
async def test_keys_for_a_new_line(key: str) -> None:
    assert await Editor().press("a", key, "b") == ("a\nb", [])


async def test_pasted_line_ends_and_modified_letters_are_text() -> None:
    shift_c = "\x1b[27;2;67~"
    assert await text_after(PASTE.format("x\ry"), shift_c) == "x\nyC"


SHELL_KEYS = {
    "Alt-B, Delete": ("one two\x1bb\x1b[3~", "one wo"),
    "Ctrl-Left, Ctrl-K": ("one two\x1b[1;5D\x0b", "one "),
    "Alt-Backspace": ("one two\x1b\x7f", "one "),
    "Ctrl-W, Ctrl-Y, Ctrl-Y": ("one two\x17\x19\x19", "one twotwo"),
    "Ctrl-A, Alt-D": ("one\x01\x1bd", ""),
    "Ctrl-B, Ctrl-D, Ctrl-E": ("ab\x02\x04c\x05d", "acd"),
    "Ctrl-P, Ctrl-N": ("ab\ncd\x10x\x0ey", "abx\ncdy"),
    "Backspace, Ctrl-_": ("one two\x7f\x1f", "one two"),
    "backslash, Enter": ("aaaa\\\r", "aaaa\n"),
    "Tab after a command": ("/sta\t!", "/status!"),
    "Tab after a word": ("tod\t", "todo: add "),
    "Ctrl-V": ("x\x16y", "xy"),
}


@pytest.mark.parametrize(("keys", "text"), SHELL_KEYS.values(), ids=SHELL_KEYS)
async def test_the_keys_of_a_shell_edit_the_text(keys: str, text: str) -> None:
    assert await text_after(keys) == text


GRAPHEMES = {
    "flag": "\U0001f1e9\U0001f1ea", "family": "\U0001f468\u200d\U0001f469\u200d\U0001f467",
    "keycap": "1\ufe0f\u20e3", "skin tone": "\U0001f44d\U0001f3fd", "accent": "e\u0301",
    "conjunct": "\u0915\u094d\u0937\u093f",
}  # fmt: skip


@pytest.mark.parametrize("sign", GRAPHEMES.values(), ids=GRAPHEMES)
async def test_keys_move_and_delete_by_graphemes(sign: str) -> None:
    for keys, text in {
        BACKSPACE: f"a{sign}",
        f"{LEFT}x": f"a{sign}x{sign}",
        f"{LEFT}{LEFT}{DELETE}": f"a{sign}",
        f"{LEFT}{LEFT}{RIGHT}x": f"a{sign}x{sign}",
        f"{LEFT}{CTRL_D}": f"a{sign}",
        f"{SHIFT_LEFT}x": f"a{sign}x",
        f"{LEFT * 9}{BACKSPACE}": f"a{sign}{sign}",
    }.items():
        assert await text_after(f"a{sign}{sign}", keys) == text


@pytest.mark.parametrize(
    ("keys", "text"),
    [("", "/st"), (DOWN, "/status"), (UP, "/stop"), (DOWN + UP, "/st"), (DOWN + DOWN + SHIFT_TAB, "/status")],
    ids=["no key", "Down", "Up", "Down and Up", "Down twice and Shift-Tab"],
)
async def test_arrows_choose_in_a_menu_that_esc_closes(keys: str, text: str) -> None:
    editor = Editor()
    await editor.press("/st")
    editor.buffer._set_completions([Completion(line, -len("/st")) for line in ("/status", "/stop")])
    assert await editor.press(keys) == (text, [])
    assert await editor.press(ESC) == ("/st", [])
    assert await editor.press(ESC) == ("/st", ["interrupt"])


# The reads, the log of the session, and the text that stays in the editor.
APPROVAL_KEYS: dict[str, tuple[list[str], list[str], str]] = {
    "key without a pause": (["y"], [], "y"),
    "key and a pause": (["y", PAUSE], ["Q1 y"], ""),
    "key and Enter": (["y", ENTER], ["Q1 y"], ""),
    "word": (["y", "e", "s", ENTER], ["Q1 yes"], ""),
    "reason that starts with a key": (["y", "o", "u should not", ENTER], ["Q1 you should not"], ""),
    "rest of a word and Enter": (["y", PAUSE, "e", "s", ENTER], ["Q1 y"], ""),
    "rest of a word and a pause": (["y", PAUSE, "e", "s", PAUSE], ["Q1 y"], ""),
    "another word after a key": (["y", PAUSE, "e", "st", PAUSE], ["Q1 y"], "est"),
    "rest of a word too late": (["y", PAUSE, PAUSE, PAUSE, "es", PAUSE], ["Q1 y"], "es"),
    "line much later": (["y", PAUSE, PAUSE, PAUSE, "es war so\r"], ["Q1 y", "line es war so"], ""),
    "corrected key": (["y", BACKSPACE, "y", PAUSE], ["Q1 y"], ""),
    "key and Esc": (["y", ESC, PAUSE], ["interrupt"], "y"),
    "line after an answer": (["n", PAUSE, "O", ENTER, "x\r"], ["Q1 n", "line x"], ""),
    "rest of always": (["a", PAUSE, "lways \r"], ["Q1 a"], ""),
    "rest of with network": (["w", PAUSE, "ith network", ENTER], ["Q1 w"], ""),
    "ok": (["o", "k", ENTER], ["Q1 ok"], ""),
    "always": (["a", "l", "ways", ENTER], ["Q1 always"], ""),
    "stop that starts with a key": (["a", "bort", ENTER], ["line abort"], ""),
    "reason that starts with a": (["a", "lso use B", ENTER], ["Q1 also use B"], ""),
    "deleted key": (["a", BACKSPACE, PAUSE], [], ""),
    "line after no": (["n", PAUSE, "o, use B\r"], ["Q1 n", "line use B"], ""),
    "line that starts like no": (["n", PAUSE, "otes are wrong\r"], ["Q1 n", "line otes are wrong"], ""),
    "plan command": (["todo: add x\r"], ["line todo: add x"], ""),
    "context command": (["context: x\r"], ["line context: x"], ""),
    "command": (["/to main x\r"], ["line /to main x"], ""),
    "path": (["/srv/app.py is not mine\r"], ["Q1 /srv/app.py is not mine"], ""),
}


@pytest.mark.parametrize(("reads", "log", "text"), APPROVAL_KEYS.values(), ids=APPROVAL_KEYS)
async def test_keys_at_an_approval(reads: list[str], log: list[str], text: str) -> None:
    editor = Editor()
    editor.show_approval("Q1")
    for read in reads:
        text_and_log = await editor.press(read)
    assert text_and_log == (text, log)


@pytest.mark.parametrize("next_key", [PAUSE, ENTER, "es\r"], ids=["pause", "Enter", "rest of the word"])
@pytest.mark.parametrize("returned_lines", [[], ["use A"]], ids=["alone", "below a returned line"])
async def test_a_delayed_key_answers_no_later_question(next_key: str, returned_lines: list[str]) -> None:
    editor = Editor()
    editor.show_approval("Q1")
    await editor.press("y")
    for line in returned_lines:
        editor.keyboard.put_above(line)
    editor.show_approval("Q2")
    await editor.press(next_key)
    assert not [entry for entry in editor.listener.log if entry.startswith("Q2")]
    assert editor.draft.question_id == "Q1" or not editor.buffer.text, "text that stays answers only Q1"


async def test_a_key_just_after_the_question_is_text() -> None:
    editor = Editor()
    editor.show_approval("Q1")
    editor.page._asked_at = math.inf  # it is not drawn yet
    assert await editor.press("y", PAUSE) == ("y", [])


async def test_a_words_rest_answers_no_later_question() -> None:
    editor = Editor()
    editor.show_approval("Q1")
    await editor.press("n", PAUSE)
    editor.show_approval("Q2")
    assert await editor.press("o, use B\r") == ("", ["Q1 n", "line use B"])
    assert editor.history == ["use B"], "answers are not in it"


async def test_enter_before_the_session_is_shown_sends_nothing() -> None:
    editor = Editor()
    editor.keyboard.is_ready.clear()
    await editor.press(ENTER)
    editor.keyboard.is_ready.set()
    assert await editor.press("x\r") == ("", ["line x"])


@pytest.mark.parametrize("key", ["\x1bP", "\x1b]", "\x1bO", "\x1b["])
async def test_text_long_after_an_alt_key_is_text(key: str) -> None:
    editor = Editor()
    await editor.press(key)
    editor.parser._fed_at -= LONGEST_GAP_S
    assert await editor.press("2 files") == ("2 files", [])


PASTED_PATH = PASTE.format("/out/a.png ")
# The reads, the text, and the log of the session.
PASTES: dict[str, tuple[list[str], str, list[str]]] = {
    "yes": ([PASTED_PATH, "y"], "", ["attach /out/a.png"]),
    "yes, then text": (["see ", PASTED_PATH, "y", "y"], "see y", ["attach /out/a.png"]),
    "no": ([PASTED_PATH, "n", "y"], "/out/a.png y", []),
    "text": ([PASTED_PATH, "x", "y"], "/out/a.png xy", []),
    "Enter": ([PASTED_PATH, ENTER, "y"], "y", ["line /out/a.png "]),
    "path in the workspace": ([PASTE.format("/in/a.png"), "y"], "/in/a.pngy", []),
    "image": ([CTRL_V], "", ["image"]),
}


@pytest.mark.parametrize(("reads", "text", "log"), PASTES.values(), ids=PASTES)
async def test_pasted_paths_and_images_are_attached(reads: list[str], text: str, log: list[str]) -> None:
    assert await Editor().press(*reads) == (text, log)


async def test_the_prompt_asks_about_a_pasted_path() -> None:
    editor = Editor()
    await editor.press("see ", PASTED_PATH)
    assert editor.keyboard.sign == "[attach /out/a.png? y/n] "
    await editor.press("n")
    assert editor.keyboard.sign == "> "


async def test_a_path_pasted_at_a_question_is_text() -> None:
    editor = Editor()
    editor.show_approval("Q1")
    assert await editor.press(PASTED_PATH, "y") == ("/out/a.png y", [])


async def test_attachments_are_inserted_at_the_cursor() -> None:
    editor = Editor()
    await editor.press(f"ab{LEFT}")
    editor.keyboard.insert("[a.png]")
    assert await editor.press("c") == ("a[a.png] cb", [])


async def test_enter_sends_all_lines_in_one_step() -> None:
    editor = Editor()
    for line in ("use A", "use B"):
        editor.keyboard.put_above(line)
    await editor.press("why?\r")
    # No other task runs until all three lines are accepted.
    assert editor.listener.log == ["line use A", "line use B", "line why?", *["another task"] * 3]
    assert editor.buffer.text == ""
    assert editor.history == ["use A", "use B", "why?"]


async def test_lines_from_the_refused_one_on_stay() -> None:
    editor = Editor()
    editor.listener.acceptances["use B"] = "later"
    for line in ("use A", "use B", "use C"):
        editor.keyboard.put_above(line)
    assert await editor.press("\r") == ("use B\nuse C", ["line use A", "line use B"])
    assert editor.history == ["use A"]


@pytest.mark.parametrize(
    ("answer", "keys", "text"),
    [
        ("replace", "x", "x"),
        ("replace", f"{LEFT}x", "/sttauxs"),
        ("replace", BACKSPACE, ""),
        ("replace", PASTE.format("a\rb"), "a\nb"),
        ("keep", "x", "x"),
        ("later", "x", "/sttaus\nx"),
    ],
    ids=["letter", "arrow", "Backspace", "paste", "to correct", "full queue"],
)
async def test_the_next_key_replaces_a_failed_command(answer: Acceptance, keys: str, text: str) -> None:
    editor = Editor()
    editor.listener.acceptances["/sttaus"] = answer
    assert await editor.press("/sttaus\r", keys) == (text, ["line /sttaus"])


@pytest.mark.parametrize(
    ("answer", "text"), [("accepted", "use A\n"), ("later", "use A\nstop")], ids=["accepted", "refused"]
)
async def test_a_stop_overtakes_returned_lines(answer: Acceptance, text: str) -> None:
    editor = Editor()
    editor.listener.acceptances["stop"] = answer
    editor.keyboard.put_above("use A")
    assert await editor.press("stop\r") == (text, ["line stop"])


async def test_up_restores_what_ctrl_c_cleared() -> None:
    editor = Editor()
    assert await editor.press("half a thought", CTRL_C) == ("", [])
    assert editor.history == ["half a thought"]
    await editor.press("x", BACKSPACE)
    editor.buffer._working_lines.appendleft("half a thought")  # as ``Buffer`` loads its history
    assert await editor.press(UP) == ("half a thought", [])
    assert await editor.press(CTRL_N) == ("", [])


async def test_ctrl_d_leaves_from_an_empty_editor() -> None:
    assert await Editor().press("x", CTRL_D, BACKSPACE, CTRL_D) == ("", ["leave"])


async def test_up_takes_the_latest_waiting_line_back() -> None:
    editor = Editor()
    assert await editor.press("wait\r", UP) == ("waiting", ["line wait"])
    editor.keyboard.edit_or_put_above("another")
    assert editor.draft.lines(editor.buffer.text) == ["another", "waiting"]


async def test_a_draft_replaced_by_an_entry_is_stored() -> None:
    editor = Editor()
    await editor.press("half a thought")
    editor.buffer._working_lines.appendleft("use A")  # as ``Buffer`` loads its history
    editor.buffer.cursor_position = 0
    await editor.press("\r")
    assert editor.history == ["use A", "half a thought"]


@pytest.mark.parametrize(
    ("script", "text", "shows_error"),
    [
        ("echo two >> $1", "one\ntwo", False),
        ("exit 3", "one", True),
        ("printf 'w %.0s' $(seq 20000) > $1", "[pasted 40,000 characters]", False),  # 'w ' for each number
        (r"printf '\377' > $1", "one", True),
    ],
    ids=["changed", "failed", "long text", "not UTF-8"],
)
async def test_an_external_editor_changes_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, text: str, shows_error: bool
) -> None:
    (tmp_path / "editor").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "editor").chmod(0o755)
    monkeypatch.setenv("VISUAL", str(tmp_path / "editor"))
    editor = Editor()
    await editor.press("one", CTRL_G)
    assert "".join(map(editor.keyboard.pastes.shown, editor.buffer.text)) == text
    assert bool(editor.page._last) == shows_error


async def test_ctrl_o_opens_the_session_in_the_pager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER", f"tee {tmp_path}/paged")
    assert await Editor().press("a", CTRL_O, "b") == ("ab", [])
    assert (tmp_path / "paged").read_text() == "a row\n"
