"""Slash commands, which are answered at once without a model, also during a run.

Answers are plain text. What a command has changed, such as a dropped line, is reported by the chain's events instead.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, NoReturn

from chain.config.commands import FoundCommands
from chain.config.servers import find_servers
from chain.errors import JournalError, UserError
from chain.lines.parse import STOP_PHRASES, is_typing_error, nearest_word
from chain.text.modes import MODE_MEANINGS, MODES, mode_named
from chain.text.plain import sanitize
from chain.text.wording import MAIN, pluralize
from cli.input.address import is_command
from cli.input.file_names import FileNames
from cli.screen.protocol import Choice, ScreenAbilities
from cli.screen.sequences import copyable
from cli.show import answers
from cli.show.aliases import INSTEAD, LEAVE, OTHER_NAMES
from cli.show.answers import SERVER_PROMPT
from cli.show.overview import OVERVIEW_TOPICS, overview, topic
from cli.show.session_list import resolve_choice, session_rows
from cli.show.table import table
from cli.show.text_rows import NARROWEST, flat
from cli.terminal.custom import CustomCommands, FindCustom
from cli.terminal.recipients import take_back, waiting_by_agent

if TYPE_CHECKING:
    from chain import Chain, Settings, Store, Task
    from chain.app.sessions import Summary
    from chain.chain import AgentView
    from chain.events import Origin, Question

MOST_SESSIONS = 10
"""The maximum number of sessions that ``/resume`` shows. ``chain sessions list`` shows all sessions."""
TAKEN_BACK = "taken back to edit"
DEFAULT_WIDTH = 80
"""The default width of answers, in columns."""

_SWITCH = ("on", "off")
_PLAN_VERBS = ("add ", "complete ", "fail ", "list", "clear")
_LINE_STARTS = ("status", "focus on ", "skip ", "also check ", "ignore ", "prefer ", "context: ", "then: ")
"""Starts of lines that are offered as completions, before the stop phrases, so that no stop phrase comes first."""

ALL_JOBS = "all"
"""The argument of ``/kill`` that ends all jobs."""
EFFORTS, DEFAULT_EFFORT = ("low", "medium", "high", "max"), "default"
"""Completions of ``/effort``. A user may name other levels, which the model's service may refuse."""

CLEAN = "--clean"
"""The argument of ``/new`` that drops the plan."""
CHOOSE = "/resume 1 resumes the first; the start or end of an id works too."


@dataclass(frozen=True, slots=True)
class NextSession:
    """The session to switch to: the stored session with the id ``resume``, or if that is empty, one with ``plan``."""

    plan: tuple[Task, ...] = ()
    resume: str = ""


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """The answer to a command: ``text`` to show, ``edit`` to put into the editor, ``copies`` for the clipboard.

    ``is_rejected``: the command was not understood and stays in the editor. ``question``: show its whole preview.
    ``agent``: show the transcript of this agent. ``thinking``: show thoughts in full, or else as one row; ``None``
    changes nothing. ``quit``: exit. ``opening``: switch to this session, then show ``text``.
    """

    text: str = ""
    question: Question | None = None
    agent: str = ""
    edit: str | None = None
    is_rejected: bool = False
    thinking: bool | None = None
    quit: bool = False
    opening: NextSession | None = None
    copies: str = ""


@dataclass(frozen=True, slots=True)
class _Command:
    """A command, whose argument is one word, or any text if ``takes_text``. ``description`` is shown in the menu.

    ``argument`` is the syntax of the argument, empty for none, and ``arguments`` returns its completions. ``run``
    returns an answer, or rows to show. A command that ``needs_terminal`` is not offered in a code editor.
    """

    description: str
    run: Callable[[str], CommandAnswer | Sequence[str]]
    argument: str = ""
    arguments: Callable[[], Iterable[str]] = tuple
    takes_text: bool = False
    needs_terminal: bool = False


class _CommandError(Exception):
    """An error in a typed command, which stays in the editor to be corrected."""


class Commands:
    """The slash commands of one chain. Call the methods in trio's thread, except those that say otherwise.

    ``model`` names the definition of the chain's model; ``None`` is the configured model. ``origin`` is the origin of
    the user's lines. ``screen`` is the terminal that shows the answers, if any. ``store`` contains the sessions that
    ``/resume`` offers; ``None`` offers none.
    """

    def __init__(
        self,
        chain: Chain,
        settings: Settings,
        *,
        model: str | None = None,
        origin: Origin = "prompt",
        screen: ScreenAbilities | None = None,
        store: Store | None = None,
        find_custom: FindCustom = lambda built_in: FoundCommands(),
    ) -> None:
        self._chain = chain
        self._settings = settings
        self._store = store
        self.model = settings.chain().model if model is None else model
        """The name of the model definition that the next run uses."""
        self._has_keys = screen is None or screen.has_keys
        self._can_copy = screen is not None and screen.has_clipboard
        self._origin = origin
        self._width = DEFAULT_WIDTH
        self.files = FileNames(chain.workspace, lambda: tuple(chain.state.added_directories))
        self._listed: list[Summary] = []
        """The sessions that the last ``/resume`` has listed. ``/resume N`` selects session number N of this list."""

        def shows(rows: Callable[[Chain, int], Sequence[str]]) -> Callable[[str], Sequence[str]]:
            return lambda _: rows(chain, self._width)

        def recipients() -> Iterable[str]:
            return (f"{name} " for name in waiting_by_agent(chain))

        def line_ids() -> Iterable[str]:
            return (accepted.id for accepted in chain.lines.waiting)

        def question_ids() -> Iterable[str]:
            return (question.id for question in chain.questions.log.latest)

        def session_ids() -> Iterable[str]:
            return (each.id for each in self._sessions())

        edits = "edits a waiting line" if self._has_keys else "drops a waiting line and shows its text"
        self._commands = {
            "/help": _Command(
                "more: lines or keys", self._do_help, "[TOPIC]", lambda: OVERVIEW_TOPICS, needs_terminal=True
            ),
            "/status": _Command("state and usage", self._do_status),
            "/queue": _Command("the waiting lines", shows(answers.queue_rows)),
            "/drop": _Command("drops a waiting line", self._do_drop, "[L3]", line_ids),
            "/edit": _Command(edits, self._do_edit, "[L3]", line_ids, needs_terminal=True),
            "/todo": _Command("the plan", lambda _: answers.plan_rows(chain)),
            "/to": _Command("a line for one agent", self._do_to, "AGENT TEXT", recipients, takes_text=True),
            "/agents": _Command("who is at work", self._do_agents, "[NAME]", self._known_agents),
            "/jobs": _Command("background jobs", shows(answers.job_rows)),
            "/kill": _Command("ends a background job", self._do_kill, "J1|all", self._running_jobs),
            "/diff": _Command("a question in full", self._do_diff, "[Q1]", question_ids, needs_terminal=True),
            "/thinking": _Command("thoughts in full", self._do_thinking, "[on]", lambda: _SWITCH, needs_terminal=True),
            "/context": _Command("what fills the window", shows(answers.context_rows)),
            "/compact": _Command("summarizes it", self._do_compact, "[...]", takes_text=True),
            "/tools": _Command("the model's tools", shows(answers.tool_rows)),
            "/mcp": _Command("servers of tools", self._do_servers, "[SERVER]", self._server_names),
            "/model": _Command("the models, or switch", self._do_model, "[NAME]", lambda: settings.model_names),
            "/mode": _Command("the mode (Shift-Tab)", self._do_mode, "[MODE]", lambda: MODES, takes_text=True),
            "/effort": _Command("the thinking effort", self._do_effort, "[high]", lambda: (*EFFORTS, DEFAULT_EFFORT)),
            "/resume": _Command("sessions, or switch", self._do_resume, "[ID]", session_ids, needs_terminal=True),
            "/undo": _Command("reverts the last run", self._do_undo, "[N]", lambda: ["files"], takes_text=True),
            "/add-dir": _Command("adds a folder", self._do_add_directory, "DIR", takes_text=True),
            "/new": _Command("a new conversation", self._do_new, f"[{CLEAN}]", lambda: [CLEAN], needs_terminal=True),
            "/copy": _Command("the last reply", self._do_copy, needs_terminal=True),
            "/debug": _Command("this session's files", shows(partial(answers.debug_rows, settings))),
            LEAVE: _Command("ends the program", lambda _: CommandAnswer(quit=True), needs_terminal=True),
        }
        built_in = {name.removeprefix("/") for name in (*self._commands, *OTHER_NAMES)}
        self.custom = CustomCommands(chain, settings, lambda: find_custom(built_in), origin)

    def run(self, text: str, *, width: int = DEFAULT_WIDTH) -> CommandAnswer:
        """Run a command. Return its answer, or the reason why it failed, formatted for ``width`` columns."""
        self._width = max(width, NARROWEST)
        try:
            answer = self._answer(text)
        except _CommandError as problem:
            answer = CommandAnswer(str(problem), is_rejected=True)
        except (UserError, JournalError) as error:
            answer = CommandAnswer(str(error))
        if not isinstance(answer, CommandAnswer):
            answer = CommandAnswer("\n".join(answer))
        return replace(answer, text=sanitize(answer.text))

    def _answer(self, text: str) -> CommandAnswer | Sequence[str]:
        name, argument = (*text.strip().split(None, 1), "", "")[:2]
        name = OTHER_NAMES.get(name.casefold(), name)
        if name.startswith(SERVER_PROMPT):
            return self._do_prompt(name, argument)
        command = self._commands.get(name.casefold())
        if command is None and (custom := self.custom.find(name)) is not None:
            is_accepted, note = self.custom.submit(custom, argument)
            return CommandAnswer(note if is_accepted else "", is_rejected=not is_accepted)
        if command is None:
            raise _CommandError(self._unknown(name))
        if argument and not command.argument:
            raise _CommandError(f"{name.casefold()} has no argument")
        if len(argument.split()) > 1 and not command.takes_text:
            raise _CommandError(f"write it as {name.casefold()} {command.argument}")
        return command.run(argument)

    def is_path(self, text: str) -> bool:
        """Return whether a text that looks like a command begins with an existing path, such as ``/tmp``."""
        name = text.partition(" ")[0]
        known = {*self._commands, *OTHER_NAMES, *INSTEAD, *(custom for custom, _, _ in self.custom.entries())}
        return len(name) > 1 and is_command(text) and name.casefold() not in known and os.path.lexists(name)

    def menu(self, text: str) -> list[Choice]:
        """Return the commands or files that complete ``text``, for the menu. Any thread may call this method."""
        # A command ends with a space, since prompt_toolkit drops a completion that equals the typed text.
        if not is_command(text):
            before, names = self.files.complete_name(text)
            return [Choice(before + name, name) for name in names if before + name != text]
        found = [
            Choice(f"{name} ", f"{name} {argument}".rstrip(), about)
            for name, argument, about in (*self._entries(), *self.custom.entries())
            if name.startswith(text.casefold())
        ]
        return found + [Choice(f"{n} ", n, about) for n, about in self.prompts if len(text) > 1 and n.startswith(text)]

    def _names(self) -> list[str]:
        """Return the names of the commands, without those about servers or jobs if there are no servers or no jobs."""
        has = {"/mcp": self._chain.servers, **dict.fromkeys(("/jobs", "/kill"), self._chain.jobs.views)}
        return [name for name in self._commands if has.get(name, True)]

    def _entries(self) -> list[tuple[str, str, str]]:
        """Return the name, the syntax of the argument and the description of each command in ``_names``."""
        return [(name, self._commands[name].argument, self._commands[name].description) for name in self._names()]

    @property
    def portable(self) -> list[tuple[str, str, str]]:
        """The name, argument syntax and description of each command that needs no terminal, including custom ones."""
        built_in = [entry for entry in self._entries() if not self._commands[entry[0]].needs_terminal]
        return [*built_in, *self.custom.entries()]

    def use(self, name: str) -> str:
        """Switch to a model for the next runs, and return its label.

        Raise ``UserError`` if the model cannot be used, and ``JournalError`` if the change cannot be stored.
        """
        folded = {known.casefold(): known for known in self._settings.model_names}
        name = name if name in self._settings.model_names else folded.get(name.casefold(), name)
        definition = self._settings.model(name)
        # Imported late, since the first prompt does not need it.
        from chain.app.open import build_model

        self._chain.use_model(build_model(definition, interactive=True), retries=definition.retries)
        self.model = name
        return definition.label

    def completions(self, text: str) -> list[str]:
        """Return the whole lines that complete ``text``, the text before the cursor."""
        if not is_command(text) and (files := self.files.completions(text)):
            return files
        if not text.strip() or "\n" in text:
            return []
        typed = text.casefold()
        if typed.startswith("/"):
            name, space, _ = typed.partition(" ")
            command = self._commands.get(name)
            if command is not None and (space or command.argument):
                known = [f"{name} {argument}" for argument in command.arguments()]
            else:
                known = [
                    *self._names(),
                    *(n for n, _, _ in self.custom.entries()),
                    *(n for n, _ in self.prompts),
                ]
        else:
            typed = re.sub(r"^(todo|plan):\s*", r"\1: ", typed)
            known = [f"{head}: {verb}" for head in ("todo", "plan") for verb in _PLAN_VERBS]
            known += [*_LINE_STARTS, *STOP_PHRASES]
        return [line for line in known if line.casefold().startswith(typed) and line != text and line.isprintable()]

    def _do_help(self, name: str) -> Sequence[str]:
        if not name:
            self.custom.refresh()
            return [
                *overview(self._entries(), self._width, has_keys=self._has_keys),
                *self.custom.help_rows(self._width),
            ]
        if name.casefold() not in OVERVIEW_TOPICS:
            raise _CommandError(
                f"there is no help on {flat(name)[:20]} here; try /help {' or /help '.join(OVERVIEW_TOPICS)}, "
                "or in a shell: chain help TOPIC"
            )
        return topic(name.casefold(), self._width, has_keys=self._has_keys)

    def _do_compact(self, focus: str) -> CommandAnswer:
        is_running = self._chain.is_running
        self._chain.runs.compact(focus)
        return CommandAnswer("The conversation is compacted at the next safe point." if is_running else "")

    def _do_undo(self, argument: str) -> CommandAnswer:
        count, *more = argument.split() if argument[:1].isdecimal() else ["1", *argument.split()]
        if not (count.isdecimal() and len(count) < 4 and int(count) and more in ([], ["files"])):
            raise _CommandError("write it as /undo, /undo N or /undo files (only the files, not the conversation)")
        self._chain.undo.undo(int(count), keeps_conversation=bool(more))
        return CommandAnswer()  # a notice shows what was undone

    def _do_kill(self, id: str) -> CommandAnswer:
        if id.casefold() == ALL_JOBS:
            return CommandAnswer(self._chain.jobs.kill_all() or "No background job is running.")
        if not id:
            raise _CommandError(f"write it as /kill J1 or /kill {ALL_JOBS}; /jobs shows them")
        self._chain.jobs.kill_job(id)
        return CommandAnswer()  # a row shows how it ended

    def _running_jobs(self) -> Iterable[str]:
        return (*self._chain.jobs.running, ALL_JOBS)

    def _do_add_directory(self, argument: str) -> CommandAnswer:
        path = argument.strip().strip("\"'")
        if not path:
            added = ", ".join(map(str, self._chain.state.added_directories)) or "none"
            raise _CommandError(f"write it as /add-dir DIR; added so far: {added}")
        if not self._chain.runs.add_directory(path):
            return CommandAnswer("Tools may use that directory already.")
        # A notice shows what was added.
        return CommandAnswer("The model is informed when the next run starts." if self._chain.is_running else "")

    def _do_drop(self, argument: str) -> CommandAnswer:
        self._on_waiting(argument, self._chain.lines.drop)
        return CommandAnswer()  # the line's receipt shows that it was dropped

    def _do_edit(self, argument: str) -> CommandAnswer:
        return CommandAnswer(edit=self._on_waiting(argument, lambda id: take_back(self._chain, id, TAKEN_BACK)))

    def _on_waiting(self, argument: str, act: Callable[[str], str]) -> str:
        id = argument or self._chain.lines.last_waiting(self._origin)
        if id is None:
            others = "None of your own lines is waiting; /queue shows the others."
            raise UserError(others if self._chain.lines.waiting else "No line is waiting.")
        try:
            return act(id)
        except UserError as error:
            raise _CommandError(flat(str(error))) from None

    def _do_to(self, argument: str) -> NoReturn:
        """Raise ``_CommandError`` for a malformed address. A line with a valid address is not run as a command."""
        if is_command(argument.partition(" ")[2]):
            raise _CommandError(
                "commands cannot be sent to an agent; put one more space before the / to send it as text"
            )
        there = ", ".join(waiting_by_agent(self._chain))
        raise _CommandError(f"write it as /to AGENT TEXT; lines can go to {flat(there)}")

    def _do_agents(self, typed: str) -> CommandAnswer:
        known = self._known_agents()
        name = _one_of(known, typed, "agent")
        rows = answers.tree_rows([known[name]] if name else list(known.values()), self._width, now=time.time())
        return CommandAnswer("\n".join(rows) or "No agent is at work.", agent=name)

    def _known_agents(self) -> dict[str, AgentView]:
        return {view.name: view for view in self._chain.agents if view.name != MAIN or self._chain.is_running}

    def _do_diff(self, id: str) -> CommandAnswer:
        asked = self._chain.questions.log.latest
        if not asked:
            return CommandAnswer("There was no question yet.")
        question = next((each for each in reversed(asked) if not id or each.id.casefold() == id.casefold()), None)
        if question is None:
            known = [each.id for each in asked]
            latest = f"the only question is {known[0]}" if len(known) == 1 else f"the latest are {', '.join(known)}"
            raise _CommandError(f"there is no {flat(id)[:20]}; {latest}")
        return CommandAnswer(f"{question.id} {question.text}", question=question)

    def _do_thinking(self, argument: str) -> CommandAnswer:
        if argument.casefold() not in ("", *_SWITCH):
            raise _CommandError("write it as /thinking on or /thinking off")
        is_on = argument.casefold() != "off"
        shown = "shown in full" if is_on else "one row each"
        return CommandAnswer(f"Thoughts are now {shown}.", thinking=is_on)

    def _do_servers(self, typed: str) -> Sequence[str]:
        if not self._chain.servers:
            _, faults = find_servers(self._chain.workspace)
            return faults or ["No server is set up; see chain help mcp."]
        return answers.server_rows(self._chain, _one_of(self._server_names(), typed, "server"), self._width)

    def _server_names(self) -> list[str]:
        return [view.name for view in self._chain.servers]

    @property
    def prompts(self) -> list[tuple[str, str]]:
        """The prompts that servers offer: each as the name of a command, with its description."""
        views = self._chain.servers
        return [(f"{SERVER_PROMPT}{view.name}:{name}", flat(about)) for view in views for name, about in view.prompts]

    def _do_prompt(self, name: str, argument: str) -> CommandAnswer:
        if name not in dict(self.prompts):
            near = nearest_word(name, (each for each, _ in self.prompts))
            raise _CommandError(f"there is no {name[:60]}{f'; did you mean {near}?' if near else ''}")
        server, _, prompt = name.removeprefix(SERVER_PROMPT).partition(":")
        self._require_idle()
        self._chain.start_prompt(server, prompt, argument.split())
        return CommandAnswer()

    def _do_model(self, name: str) -> CommandAnswer | Sequence[str]:
        if not name:
            return answers.model_rows(self._chain, self._settings, self.model, self._width)
        try:
            label = self.use(name)
        except UserError as error:
            return CommandAnswer(
                str(error), is_rejected=name.casefold() not in map(str.casefold, self._settings.model_names)
            )
        when = "from the next run on" if self._chain.is_running else "from now on"
        return CommandAnswer(f"{self.model} ({label}) answers {when}.")

    def _do_mode(self, name: str) -> CommandAnswer | Sequence[str]:
        if not name:
            marked = [("*" if mode == self._chain.mode else "", mode, MODE_MEANINGS[mode]) for mode in MODES]
            return table(marked, self._width, indent="")
        mode = mode_named(name)
        if mode is None:
            raise _CommandError(f"there is no mode {flat(name)[:20]}; the modes are {', '.join(MODES)}")
        self._chain.use_mode(mode)
        return CommandAnswer()  # a notice shows it

    def _do_status(self, _: str) -> Sequence[str]:
        price = None
        with suppress(UserError):
            price = self._settings.model(self.model).values.get("price")
        return answers.status_rows(self._chain, self._width, prices_of=getattr(price, "as_of", ""))

    def _do_effort(self, typed: str) -> CommandAnswer:
        level = typed.casefold()
        if not level:
            own = self._settings.model(self.model).values.get("effort")
            return CommandAnswer(_effort_in_words(self._chain.effort, own))
        if not re.fullmatch("[a-z]{2,20}", level) or (near := nearest_word(level, EFFORTS)) not in ("", level):
            hint = (
                f"did you mean {near}?"
                if level.isalpha() and near
                else f"write {', '.join(EFFORTS)} or {DEFAULT_EFFORT}"
            )
            raise _CommandError(f"there is no effort {flat(typed)[:20]}; {hint}")
        self._chain.use_effort("" if level == DEFAULT_EFFORT else level)
        when = "from the next run on" if self._chain.is_running else "from now on"
        what = "that of the model's definition" if level == DEFAULT_EFFORT else level
        return CommandAnswer(f"The effort is {what} {when}.")

    def _do_copy(self, _: str) -> CommandAnswer:
        reply = self._chain.last_reply
        if not self._can_copy:
            raise UserError("this terminal has no clipboard that chain can reach")
        if not reply:
            raise UserError("there is no reply yet")
        copied, count = copyable(reply), pluralize(len(reply), "character")
        some = count if copied == reply else f"the first {len(copied):,} of {count}"
        # By default tmux ignores it, and nothing reports that.
        hint = " tmux needs: set -g set-clipboard on" if "TMUX" in os.environ else ""
        return CommandAnswer(f"Sent to the clipboard: {some}.{hint}", copies=copied)

    def _do_new(self, option: str) -> CommandAnswer:
        if option not in ("", CLEAN):
            raise _CommandError(f"write it as /new, which keeps the plan, or /new {CLEAN}")
        self._require_idle()
        closed, count = self._chain.plan.counts
        if option or not count:
            return CommandAnswer("New conversation.", opening=NextSession())
        text = f"New conversation with the same plan ({closed}/{count}); /new {CLEAN} starts without a plan."
        return CommandAnswer(text, opening=NextSession(self._chain.plan.tasks))

    def _do_resume(self, id: str) -> CommandAnswer | Sequence[str]:
        if not id:
            there = self._listed = self._sessions()
            if not there:
                return ["There is no other session here."]
            here, now = str(self._chain.workspace), time.time()
            # In ASCII, like all answers to commands.
            return [*session_rows(there, self._width, ascii=True, here=here, now=now, is_numbered=True), CHOOSE]
        self._require_idle()
        id = resolve_choice(id, self._listed or self._sessions())
        id = id if self._store is None else self._store.whole_id(id)
        if id == self._chain.session_id:
            raise _CommandError("this session is already open")
        return CommandAnswer("Session resumed.", opening=NextSession(resume=id))

    def _sessions(self) -> list[Summary]:
        """Return the other sessions of this workspace, the latest first, at most ``MOST_SESSIONS``."""
        if self._store is None:
            return []
        # Imported late, since the first prompt does not need it.
        from chain.app.sessions import resumable_sessions

        found = resumable_sessions(self._store, self._chain.workspace)
        return [each for each in found if each.id != self._chain.session_id][:MOST_SESSIONS]

    def _require_idle(self) -> None:
        if self._chain.is_running:
            raise UserError("a run is active; stop it first")

    def _unknown(self, name: str) -> str:
        typed = name.casefold()
        if instead := INSTEAD.get(typed):
            return f"there is no {typed}: {instead}"
        near = [known for known in self._commands if len(typed) > 1 and known.startswith(typed)]
        if did_mean := " or ".join(near or [known for known in self._commands if is_typing_error(typed, known)]):
            return f"there is no {name[:40]}; did you mean {did_mean}?"
        return f"there is no {name[:40]}; /help lists all commands; put a space before the / to send it as text"


def _effort_in_words(asked: str, own: object) -> str:
    if asked:
        return (
            f"Effort: {asked}. /effort {DEFAULT_EFFORT} is that of the model's definition{f', {own}' if own else ''}."
        )
    change = f"/effort changes it: {', '.join(EFFORTS)}."
    present = f"{own}, as the model's definition says" if own else "the model's default"
    return f"Effort: {present}. {change}"


def _one_of(names: Iterable[str], typed: str, kind: str) -> str:
    """Return the name that equals ``typed`` except for case; empty if nothing was typed.

    Raise ``_CommandError`` if no name does. Its message calls the named things ``kind``.
    """
    found = next((name for name in names if name.casefold() == typed.casefold()), "")
    if typed and not found:
        known = flat(", ".join(names))
        raise _CommandError(f"there is no {kind} {flat(typed)[:40]}{f'; the {kind}s are {known}' if known else ''}")
    return found
