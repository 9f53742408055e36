"""The keys of the prompt: how they are recognised, what they do to the text, and what Enter sends."""

from __future__ import annotations

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
PAUSE = "a second without a key"
FLAG, FAMILY, KEYCAP = "\U0001f1e9\U0001f1ea", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "1\ufe0f\u20e3"


class Listener:
    """A session with an open approval. ``answers`` are its answers to lines that it does not accept."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.answers: dict[str, Acceptance] = {}

    def accept(self, text: str, *, at: str = "", again: bool = False) -> Acceptance:
        is_answer = bool(at) and answers_question(text)
        self.log.append(f"{at if is_answer else 'line'} {text}")
        trio.lowlevel.current_trio_token().run_sync_soon(self.log.append, "another task")
        return self.answers.get(text, "answered" if is_answer else "accepted")

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
        return [whole for whole in ("/status", "/stop", "todo: add ") if whole.startswith(text)]

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
        ask = self.keyboard.ask
        completer = WholeTextCompleter(lambda text: (), lambda text: ask(lambda heard: heard.completions(text)) or ())
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
        """Press keys, with a moment after each read. Return the text and the log of the session."""

        async def press() -> None:
            with set_app(self.app):
                for read in reads:
                    if read == PAUSE:
                        self.loop.now += 1
                        await asyncio.sleep(0)  # in which the loop finds what is due
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
        """The entries of the history, the latest last."""
        return list(self.buffer.history.get_strings())

    def ask(self, id: str) -> None:
        """Show an approval, for longer than a moment."""
        self.draft.question, self.page._keys, self.page._asked_at = id, "ywoan", 0.0


@pytest.fixture(autouse=True, scope="module")
def loop() -> Iterator[None]:
    """The loop of the editor's thread."""
    with closing(Loop()) as Editor.loop:
        yield


UNBOUND = {
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


@pytest.mark.parametrize("sent", UNBOUND.values(), ids=UNBOUND)
async def test_sequences_without_a_binding_do_nothing(sent: str) -> None:
    editor = Editor()
    for at in range(len(sent)):  # wherever two reads divide them
        if sent[at - 1 : at] != ESC:  # an Esc that nothing follows is a key
            assert await editor.press("a", sent[:at], sent[at:], "b") == ("ab", [])
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
)
async def test_only_a_lone_esc_is_esc(reads: list[str], log: list[str]) -> None:
    assert await Editor().press(*reads) == ("", log)


@pytest.mark.parametrize("sent", ["\x1b[Z", "\x1b[9;2u", "\x1b[27;2;9~"])
async def test_shift_tab_changes_the_mode(sent: str) -> None:
    editor = Editor()
    assert await editor.press("a text", sent, "!") == ("a text!", ["mode"])


@pytest.mark.parametrize("begun", ["\x1b[", "\x1b[1;", "\x1bO", "\x1b]11;rgb", "\x1bP1$"])
def test_a_control_key_ends_a_sequence(begun: str) -> None:
    found = list[KeyPress]()
    KeyParser(found.append, ()).feed(f"{begun}\x03\rx")
    assert [press.data for press in found] == ["\x03", "\r", "x"]


@pytest.mark.parametrize("sent", ["\x1b\r", "\x1b[13;2u", "\x1b[27;2;13~", "\n"])
async def test_keys_for_a_new_line(sent: str) -> None:
    assert await Editor().press("a", sent, "b\x1b[27;2;67~\x1b[200~x\ry\x1b[201~") == ("a\nbCx\ny", [])


@pytest.mark.parametrize(
    ("keys", "text"),
    [
        ("one two\x1bb\x1b[3~", "one wo"),
        ("one two\x1b[1;5D\x0b", "one "),
        ("one two\x1b\x7f", "one "),
        ("one two\x17\x19\x19", "one twotwo"),
        ("one\x01\x1bd", ""),
        ("ab\x02\x04c\x05d", "acd"),
        ("ab\ncd\x10x\x0ey", "abx\ncdy"),
        ("one two\x7f\x1f", "one two"),
        ("aaaa\\\r", "aaaa\n"),
        ("/sta\t!", "/status!"),
        ("tod\t", "todo: add "),
        ("x\x16y", "xy"),
    ],
)
async def test_the_keys_of_a_shell_edit_the_text(keys: str, text: str) -> None:
    assert (await Editor().press(keys))[0] == text


@pytest.mark.parametrize("sign", [FLAG, FAMILY, KEYCAP, "\U0001f44d\U0001f3fd", "e\u0301", "\u0915\u094d\u0937\u093f"])
async def test_keys_move_and_delete_by_graphemes(sign: str) -> None:
    for keys, text in {
        "\x7f": f"a{sign}",
        f"{LEFT}x": f"a{sign}x{sign}",
        f"{LEFT}{LEFT}{DELETE}": f"a{sign}",
        f"{LEFT}{LEFT}{RIGHT}x": f"a{sign}x{sign}",
        f"{LEFT}\x04": f"a{sign}",
        f"{SHIFT_LEFT}x": f"a{sign}x",
        f"{LEFT * 9}\x7f": f"a{sign}{sign}",
    }.items():
        assert (await Editor().press(f"a{sign}{sign}", keys))[0] == text


@pytest.mark.parametrize(
    ("keys", "chosen"),
    [("", "/st"), (DOWN, "/status"), (UP, "/stop"), (DOWN + UP, "/st"), (DOWN + DOWN + "\x1b[Z", "/status")],
)
async def test_arrows_choose_in_a_menu_that_esc_closes(keys: str, chosen: str) -> None:
    editor = Editor()
    await editor.press("/st")
    editor.buffer._set_completions([Completion(text, -3) for text in ("/status", "/stop")])
    assert await editor.press(keys) == (chosen, [])
    assert await editor.press(ESC) == ("/st", [])
    assert await editor.press(ESC) == ("/st", ["interrupt"])


@pytest.mark.parametrize(
    ("typed", "log", "left"),
    [
        (["y"], [], "y"),
        (["y", PAUSE], ["Q1 y"], ""),
        (["y", "\r"], ["Q1 y"], ""),
        (["y", "e", "s", "\r"], ["Q1 yes"], ""),
        (["y", "o", "u should not", "\r"], ["Q1 you should not"], ""),
        (["y", PAUSE, "e", "s", "\r"], ["Q1 y"], ""),
        (["y", PAUSE, "e", "s", PAUSE], ["Q1 y"], ""),
        (["y", PAUSE, "e", "st", PAUSE], ["Q1 y"], "est"),
        (["y", PAUSE, PAUSE, PAUSE, "es", PAUSE], ["Q1 y"], "es"),
        (["y", PAUSE, PAUSE, PAUSE, "es war so\r"], ["Q1 y", "line es war so"], ""),
        (["y", "\x7f", "y", PAUSE], ["Q1 y"], ""),
        (["y", ESC, PAUSE], ["interrupt"], "y"),
        (["n", PAUSE, "O", "\r", "x\r"], ["Q1 n", "line x"], ""),
        (["a", PAUSE, "lways \r"], ["Q1 a"], ""),
        (["w", "h", "y not use B", "\r"], ["Q1 why not use B"], ""),
        (["w", PAUSE, "ith network", "\r"], ["Q1 w"], ""),
        (["o", "k", "\r"], ["Q1 ok"], ""),
        (["a", "l", "ways", "\r"], ["Q1 always"], ""),
        (["a", "bort", "\r"], ["line abort"], ""),
        (["a", "lso use B", "\r"], ["Q1 also use B"], ""),
        (["a", "\x7f", PAUSE], [], ""),
        (["n", PAUSE, "o, use B\r"], ["Q1 n", "line use B"], ""),
        (["n", PAUSE, "otes are wrong\r"], ["Q1 n", "line otes are wrong"], ""),
        (["n", "ot now\r"], ["Q1 not now"], ""),
        (["todo: add x\r"], ["line todo: add x"], ""),
        (["context: x\r"], ["line context: x"], ""),
        (["/to main x\r"], ["line /to main x"], ""),
        (["/srv/app.py is not mine\r"], ["Q1 /srv/app.py is not mine"], ""),
    ],
)
async def test_keys_at_an_approval(typed: list[str], log: list[str], left: str) -> None:
    editor = Editor()
    editor.ask("Q1")
    for read in typed:
        found = await editor.press(read)
    assert found == (left, log)


@pytest.mark.parametrize("next", [PAUSE, "\r", "es\r"])
@pytest.mark.parametrize("came_back", [[], ["use A"]])
async def test_a_delayed_key_answers_no_later_question(next: str, came_back: list[str]) -> None:
    editor = Editor()
    editor.ask("Q1")
    await editor.press("y")
    for line in came_back:
        editor.keyboard.put_above(line)
    editor.ask("Q2")
    await editor.press(next)
    assert not [entry for entry in editor.listener.log if entry.startswith("Q2")]
    assert editor.draft.at == "Q1" or not editor.buffer.text


async def test_a_key_just_after_the_question_is_text() -> None:
    editor = Editor()
    editor.ask("Q1")
    editor.page._asked_at = math.inf
    assert await editor.press("y", PAUSE) == ("y", [])


async def test_a_words_rest_answers_no_later_question() -> None:
    editor = Editor()
    editor.ask("Q1")
    await editor.press("n", PAUSE)
    editor.ask("Q2")
    assert await editor.press("o, use B\r") == ("", ["Q1 n", "line use B"])
    assert editor.history == ["use B"], "answers are not in it"


async def test_enter_before_the_session_is_shown_sends_nothing() -> None:
    editor = Editor()
    editor.keyboard.is_ready.clear()
    await editor.press("\r")
    editor.keyboard.is_ready.set()
    assert await editor.press("x\r") == ("", ["line x"])


@pytest.mark.parametrize("key", ["\x1bP", "\x1b]", "\x1bO", "\x1b["])
async def test_text_long_after_an_alt_key_is_text(key: str) -> None:
    editor = Editor()
    await editor.press(key)
    editor.parser._fed_at -= LONGEST_GAP_S
    assert await editor.press("2 files") == ("2 files", [])


PASTED = "\x1b[200~/out/a.png \x1b[201~"


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ([PASTED, "y"], ("", ["attach /out/a.png"])),
        (["see ", PASTED, "y", "y"], ("see y", ["attach /out/a.png"])),
        ([PASTED, "n", "y"], ("/out/a.png y", [])),
        ([PASTED, "x", "y"], ("/out/a.png xy", [])),
        ([PASTED, "\r", "y"], ("y", ["line /out/a.png "])),
        (["\x1b[200~/in/a.png\x1b[201~", "y"], ("/in/a.pngy", [])),
        (["\x16"], ("", ["image"])),
    ],
)
async def test_pasted_paths_and_images_are_attached(typed: list[str], found: tuple[str, list[str]]) -> None:
    assert await Editor().press(*typed) == found


async def test_a_pasted_path_asks_except_at_a_question() -> None:
    editor = Editor()
    await editor.press("see ", PASTED)
    assert editor.keyboard.sign == "[attach /out/a.png? y/n] "
    await editor.press("n")
    assert editor.keyboard.sign == "> "
    asked = Editor()
    asked.ask("Q1")
    assert await asked.press(PASTED, "y") == ("/out/a.png y", [])


async def test_attachments_are_inserted_at_the_cursor() -> None:
    editor = Editor()
    await editor.press(f"ab{LEFT}")
    editor.keyboard.insert("[a.png]")
    assert (await editor.press("c"))[0] == "a[a.png] cb"


async def test_enter_sends_all_lines_in_one_step() -> None:
    editor = Editor()
    for line in ("use A", "use B"):
        editor.keyboard.put_above(line)
    await editor.press("why?\r")
    assert editor.listener.log[:4] == ["line use A", "line use B", "line why?", "another task"]
    assert (editor.buffer.text, editor.history) == ("", ["use A", "use B", "why?"])


async def test_lines_from_the_refused_one_on_stay() -> None:
    editor = Editor()
    editor.listener.answers["use B"] = "later"
    for line in ("use A", "use B", "use C"):
        editor.keyboard.put_above(line)
    assert await editor.press("\r") == ("use B\nuse C", ["line use A", "line use B"])
    assert editor.history == ["use A"]


@pytest.mark.parametrize(
    ("answer", "keys", "text"),
    [
        ("replace", "x", "x"),
        ("replace", f"{LEFT}x", "/sttauxs"),
        ("replace", "\x7f", ""),
        ("replace", "\x1b[200~a\rb\x1b[201~", "a\nb"),
        ("keep", "x", "x"),
        ("later", "x", "/sttaus\nx"),
    ],
)
async def test_the_next_key_replaces_a_failed_command(answer: Acceptance, keys: str, text: str) -> None:
    editor = Editor()
    editor.listener.answers["/sttaus"] = answer
    assert (await editor.press("/sttaus\r", keys))[0] == text


@pytest.mark.parametrize(("answer", "left"), [("accepted", "use A\n"), ("later", "use A\nstop")])
async def test_a_stop_overtakes_lines_that_came_back(answer: Acceptance, left: str) -> None:
    editor = Editor()
    editor.listener.answers["stop"] = answer
    editor.keyboard.put_above("use A")
    assert await editor.press("stop\r") == (left, ["line stop"])


async def test_up_restores_what_ctrl_c_cleared() -> None:
    editor = Editor()
    assert (await editor.press("half a thought\x03"))[0] == ""
    assert editor.history == ["half a thought"]
    await editor.press("x\x7f")  # as ``Buffer`` loads its history
    editor.buffer._working_lines.appendleft("half a thought")
    assert await editor.press(UP) == ("half a thought", [])
    assert (await editor.press("\x0e", "\x04"))[1] == ["leave"]


async def test_up_takes_the_latest_waiting_line_back() -> None:
    editor = Editor()
    assert (await editor.press("wait\r", UP))[0] == "waiting"
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
    ("script", "text"),
    [
        ("echo two >> $1", "one\ntwo"),
        ("exit 3", "one"),
        ("printf 'w %.0s' $(seq 20000) > $1", "[pasted 40,000 characters]"),
        (r"printf '\377' > $1", "one"),
    ],
)
async def test_an_external_editor_changes_the_text(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, text: str
) -> None:
    (tmp_path / "editor").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "editor").chmod(0o755)
    monkeypatch.setenv("VISUAL", str(tmp_path / "editor"))
    editor = Editor()
    await editor.press("one\x07")
    assert "".join(map(editor.keyboard.pastes.shown, editor.buffer.text)) == text
    assert bool(editor.page._last) == (text == "one"), "an error is shown"


async def test_ctrl_o_opens_the_session_in_the_pager(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAGER", f"tee {tmp_path}/paged")
    assert await Editor().press("a\x0fb") == ("ab", [])
    assert (tmp_path / "paged").read_text() == "a row\n"
