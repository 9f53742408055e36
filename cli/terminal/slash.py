"""Slash commands: answered at once, also while a run is busy, and without a model.

What a command changes (a dropped line, a new conversation, another model) is also told by the chain's events; an answer
contains only what the events do not say. It is plain text.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

from chain.errors import JournalError, UserError, nearest
from chain.lines.parse import STOP_PHRASES, AddTask, ClearTasks, CompleteTask, FailTask
from chain.text.phrases import cost as cost_of
from chain.text.plain import sanitize
from chain.text.wording import MAIN, counted
from chain.version import VERSION
from cli.input.file_names import FileNames
from cli.show.bare_words import LEAVE
from cli.show.child_agents import tree_rows
from cli.show.overview import TOPICS, overview, topic
from cli.show.session_list import chosen, session_rows
from cli.show.signs import written
from cli.show.table import table
from cli.show.text_rows import cut_to_row, flat
from cli.terminal.recipients import take_back, waiting_by_agent

if TYPE_CHECKING:
    from chain import Chain, Settings, Task, Tool
    from chain import sessions as kept
    from chain.chain import AgentView
    from chain.events import Origin

MOST_SHOWN = 200
"""Characters of a waiting line that ``/queue`` shows: enough to recognise it, and ten pasted files fit on a screen."""
MOST_SESSIONS = 10
"""Sessions that ``/resume`` shows: more would fill the screen, and are found with ``chain sessions list``."""
TAKEN_BACK = "taken back to edit"
WIDTH, NARROWEST = 80, 20
"""Columns that answers are made for: unless another width is given, and at least."""

_SWITCH = ("on", "off")
_PLAN_VERBS = ("add ", "complete ", "fail ", "list", "clear")
_BEGINNINGS = ("status", "focus on ", "skip ", "also check ", "ignore ", "prefer ", "context: ", "then: ")
"""What else a line can be or begin with. The stop phrases come after them: the first completion is never a stop."""

_SENTENCE = re.compile(r".+?[.!?](?=\s+[^a-z\s]|\s*\Z)", re.S)

OTHER_NAMES = {
    **dict.fromkeys(("/?", "/commands"), "/help"),
    **dict.fromkeys(("/cost", "/tokens", "/usage"), "/status"),
    **dict.fromkeys(("/plan", "/todos"), "/todo"),
    "/permissions": "/tools",
    "/models": "/model",
    "/sessions": "/resume",
    **dict.fromkeys(("/clear", "/reset"), "/new"),
    **dict.fromkeys(("/bye", "/exit"), LEAVE),
}
"""Names that other programs have for a command: they do the same."""

PROMPT = "/mcp:"
"""What a command begins with that is a prompt of a server: ``/mcp:SERVER:PROMPT``."""
WAITS_AS = {"redirect": "line", "verbatim": "line"}
"""What ``/queue`` calls lines of a kind that only the grammar has a name for."""
CLEAN = "--clean"
"""``/new`` without the plan."""
CHOOSE = "/resume 1 goes on with the first; the beginning or the end of an id does as well."

INSTEAD = {
    "/add": "name the file in a line with an @ before it, and it goes along",
    "/config": "/debug names the file of the configuration, and in a shell chain check shows what is in it",
    "/continue": "/resume lists the sessions to go on with, and in a shell chain -c goes on with the latest",
    "/export": "in a shell, chain sessions export ID writes a session as a document; /debug shows the id",
    "/history": "Ctrl-R searches what you typed, and /resume lists the earlier sessions",
    "/init": "in a shell, chain init writes a configuration to change",
    "/load": "/resume lists the sessions to go on with",
    "/login": "a key is read from the environment, and in a shell chain help models says which",
    "/redo": "what was typed is in the history, by the key Up",
    "/rewind": "nothing is undone; git has the files as they were, and /new begins afresh",
    "/run": "write what is to be run in a line, and the model asks before it runs it",
    "/save": "a session is kept while it runs; /debug says where",
    "/settings": "/debug names the file of the configuration, and in a shell chain check shows what is in it",
    "/stop": "the line stop ends the run, and Esc interrupts it",
    "/undo": "nothing is undone; git has the files as they were, and /edit takes a waiting line back",
    "/version": "/debug shows it",
}
"""What does what is meant by a command of other programs that there is not."""


@dataclass(frozen=True, slots=True)
class NextSession:
    """The session to go on with: the one with the id ``resume``, or a new one with this plan."""

    plan: tuple[Task, ...] = ()
    resume: str = ""


@dataclass(frozen=True, slots=True)
class CommandAnswer:
    """The answer to a command: ``text`` to show, and ``edit`` to put into the editor.

    ``keeps``: what was typed stays there, as it was not understood. ``preview`` is what a call would do, ``agent`` one
    whose work is shown whole. ``thinking``: whether thoughts are shown whole from now on. With an ``opening`` the text
    is for when that session is open.
    """

    text: str = ""
    preview: str = ""
    agent: str = ""
    edit: str | None = None
    keeps: bool = False
    thinking: bool | None = None
    quit: bool = False
    opening: NextSession | None = None


@dataclass(frozen=True, slots=True)
class _Command:
    """A command; ``argument`` is how help writes what may follow its name, one word unless it ``takes_text``.

    ``anywhere``: it needs no terminal, so that an editor offers it too.
    """

    about: str
    run: Callable[[str], CommandAnswer]
    argument: str = ""
    arguments: Callable[[], Iterable[str]] = tuple
    takes_text: bool = False
    anywhere: bool = False


class Commands:
    """The slash commands of one chain, for trio's thread. ``has_keys``: the screen has an editor.

    ``origin`` is where the user's own lines are from. ``model`` is the definition that the chain was opened with, by
    default the configured one. ``summaries`` finds the sessions to resume, ``whole_id`` the one whose id begins or ends
    so, or raises ``UserError``.
    """

    def __init__(
        self,
        chain: Chain,
        settings: Settings,
        *,
        model: str | None = None,
        has_keys: bool = True,
        origin: Origin = "prompt",
        summaries: Callable[[], Sequence[kept.Summary]] = tuple,
        whole_id: Callable[[str], str] = str,
    ) -> None:
        self._chain = chain
        self._settings = settings
        self._summaries = summaries
        self._whole_id = whole_id
        self.model = settings.chain().model if model is None else model
        """The name of the definition whose model the next run asks."""
        self._has_keys = has_keys
        self._origin = origin
        self._width = WIDTH
        self._files = FileNames(chain.workspace)
        self._listed: list[kept.Summary] = []
        """The sessions that ``/resume`` has shown last, which a number chooses from."""
        self._commands = {
            "/help": _Command("more: lines or keys", self._help, "[TOPIC]", lambda: TOPICS),
            "/status": _Command("what is going on", self._status, anywhere=True),
            "/queue": _Command("the lines that wait", self._queue, anywhere=True),
            "/drop": _Command("drops a waiting line", self._drop, "[L3]", self._ids, anywhere=True),
            "/edit": _Command(
                "edits a waiting line" if has_keys else "shows a line, dropped", self._edit, "[L3]", self._ids
            ),
            "/todo": _Command("the plan", self._todo, anywhere=True),
            "/to": _Command(
                "a line for one agent", self._to, "AGENT TEXT", self._recipients, takes_text=True, anywhere=True
            ),
            "/agents": _Command("who is at work", self._agents, "[NAME]", self._names_of_agents, anywhere=True),
            "/diff": _Command("what was asked, whole", self._diff, "[Q1]", self._questions),
            "/thinking": _Command("thoughts whole, or off", self._thinking, "[on]", lambda: _SWITCH),
            "/context": _Command("what fills the window", self._context, anywhere=True),
            "/compact": _Command("makes it shorter", self._compact, "[...]", takes_text=True, anywhere=True),
            "/tools": _Command("what the model may use", self._tools, anywhere=True),
            "/mcp": _Command("servers of tools", self._servers, "[SERVER]", self._server_names, anywhere=True),
            "/model": _Command(
                "the models, or switch", self._switch, "[NAME]", lambda: self._settings.model_names, anywhere=True
            ),
            "/resume": _Command("sessions, or switch", self._resume, "[ID]", self._session_ids),
            "/new": _Command("a fresh conversation", self._new, f"[{CLEAN}]", lambda: [CLEAN]),
            "/debug": _Command("this session's files", self._debug, anywhere=True),
            LEAVE: _Command("ends the program", lambda _: CommandAnswer(quit=True)),
        }

    def run(self, text: str, *, width: int = WIDTH) -> CommandAnswer:
        """Carry out a command. If that is not possible, the answer says why; its rows are for ``width`` columns."""
        self._width = max(width, NARROWEST)
        name, argument = (*text.strip().split(None, 1), "", "")[:2]
        name = OTHER_NAMES.get(name.casefold(), name)
        if name.startswith(PROMPT):
            return self._prompt(name, argument)
        command = self._commands.get(name.casefold())
        if command is None:
            return _not_understood(self._unknown(name))
        if argument and not command.argument:
            return _not_understood(f"{name.casefold()} has no argument")
        if len(argument.split()) > 1 and not command.takes_text:
            return _not_understood(f"write it as {name.casefold()} {command.argument}")
        try:
            answer = command.run(argument)
        except (UserError, JournalError) as error:
            answer = CommandAnswer(str(error))
        return replace(answer, text=sanitize(answer.text))

    def menu(self, typed: str) -> list[tuple[str, str]]:
        """The commands that begin like what is typed, and what each does, or the files; any thread may call it."""
        if not typed.startswith("/"):
            return [(name, "") for name in self._files.begun(typed)[1]]
        folded = typed.casefold()
        found = [(f"{n} {self._commands[n].argument}".rstrip(), self._commands[n].about) for n in self._offered()]
        found = [entry for entry in found if entry[0].startswith(folded)]
        return [*found, *((n, about) for n, about in self.prompts if len(typed) > 1 and n.startswith(typed))]

    def _offered(self) -> list[str]:
        """The commands that are of use here: that for servers is, where there are some."""
        return [name for name in self._commands if name != "/mcp" or self._chain.servers]

    @property
    def anywhere(self) -> list[tuple[str, str, str]]:
        """The commands that need no terminal, each with how its argument is written and what it does."""
        known = [(name, self._commands[name]) for name in self._offered()]
        return [(name, each.argument, each.about) for name, each in known if each.anywhere]

    @property
    def models(self) -> list[tuple[str, bool, str]]:
        """The models: whether each can be asked, and what people know it by or why it cannot."""
        found = []
        for name in self._settings.model_names:
            try:
                definition = self._settings.model(name)
                definition.require_key()
                found.append((name, True, definition.label))
            except UserError as error:
                found.append((name, False, str(error)))
        return found

    def use(self, name: str) -> str:
        """Ask a model from the next run on; what people know it by. Raises ``UserError`` and ``JournalError``."""
        folded = {known.casefold(): known for known in self._settings.model_names}
        name = name if name in self._settings.model_names else folded.get(name.casefold(), name)
        definition = self._settings.model(name)
        # Imported late, since the first prompt does not need it.
        from chain.app.open import build_model

        self._chain.use_model(build_model(definition, interactive=True), retries=definition.retries)
        self.model = name
        return definition.label

    def completions(self, text: str) -> list[str]:
        """The whole lines that ``text``, the text before the cursor, can be completed to."""
        if not text.startswith("/") and (files := self._files.completions(text)):
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
                known = [*self._offered(), *(name for name, _ in self.prompts)]
        else:
            typed = re.sub(r"^(todo|plan):\s*", r"\1: ", typed)
            known = [f"{head}: {verb}" for head in ("todo", "plan") for verb in _PLAN_VERBS]
            known += [*_BEGINNINGS, *STOP_PHRASES]
        return [line for line in known if line.casefold().startswith(typed) and line != text and line.isprintable()]

    def _help(self, name: str) -> CommandAnswer:
        if not name:
            known = [entry for entry in self.menu("/") if not entry[0].startswith(PROMPT)]
            return CommandAnswer("\n".join(overview(known, self._width, has_keys=self._has_keys)))
        if name.casefold() not in TOPICS:
            return _not_understood(
                f"there is no help on {flat(name)[:20]} here; there is /help {' and /help '.join(TOPICS)}, "
                "and in a shell chain help TOPIC"
            )
        return CommandAnswer("\n".join(topic(name.casefold(), self._width, has_keys=self._has_keys)))

    def _status(self, _: str) -> CommandAnswer:
        used = self._chain.usage
        tokens = (
            f"{used.input_tokens:,} input, {used.output_tokens:,} output, {used.cache_read_tokens:,} cache read, "
            f"{used.cache_write_tokens:,} cache write (runs that ended)"
        )
        rows = [("model", self._chain.model_name), ("session", self._chain.session_id), ("tokens", tokens)]
        if used.cost_usd is not None:
            rows.append(("cost", f"{cost_of(used.cost_usd)} (runs that ended)"))
        return CommandAnswer("\n".join([self._chain.status(), *table(rows, self._width)]))

    def _context(self, _: str) -> CommandAnswer:
        view = self._chain.window
        of = (
            f" of {view.window:,} ({100 * view.tokens / view.window:.0f} %)"
            if view.window
            else ", of an unknown window"
        )
        rows = [(name, f"{tokens:,}") for name, tokens in view.parts if tokens]
        if view.window:
            rows.append(("free", f"{max(view.window - view.tokens, 0):,}"))
        return CommandAnswer("\n".join([f"About {view.tokens:,} tokens{of}", *table(rows, self._width)]))

    def _compact(self, focus: str) -> CommandAnswer:
        is_running = self._chain.is_running
        self._chain.compact(focus)
        return CommandAnswer("At the next safe point." if is_running else "")

    def _queue(self, _: str) -> CommandAnswer:
        rows = []
        for accepted in self._chain.waiting:
            line = accepted.line
            named = WAITS_AS.get(line.kind, line.kind)
            kind = named if line.urgency == "next" else f"{line.urgency} {named}"
            target = "" if accepted.agent == MAIN else f" for {flat(accepted.agent)}"
            rows.append((accepted.id, kind + target, cut_to_row(line.text, MOST_SHOWN)))
        return CommandAnswer("\n".join(table(rows, self._width)) or "Nothing waits.")

    def _drop(self, argument: str) -> CommandAnswer:
        # The line's receipt shows that it was dropped.
        return self._on_waiting(argument, lambda id: CommandAnswer(self._chain.drop(id) and ""))

    def _edit(self, argument: str) -> CommandAnswer:
        return self._on_waiting(argument, lambda id: CommandAnswer(edit=take_back(self._chain, id, TAKEN_BACK)))

    def _on_waiting(self, argument: str, act: Callable[[str], CommandAnswer]) -> CommandAnswer:
        id = argument or self._chain.last_waiting(self._origin)
        if id is None:
            others = "None of your own lines waits; /queue shows the others."
            return CommandAnswer(others if self._chain.waiting else "Nothing waits.")
        try:
            return act(id)
        except UserError as error:
            return _not_understood(flat(str(error)))

    def _todo(self, _: str) -> CommandAnswer:
        return CommandAnswer("\n".join([self._chain.plan.render(), *self._waiting_for_the_plan()]))

    def _waiting_for_the_plan(self) -> list[str]:
        rows = []
        for accepted in self._chain.waiting:
            match accepted.line.command:
                case AddTask(text):
                    change = f"add {text}"
                case CompleteTask(n):
                    change = f"complete {n}"
                case FailTask(n, why):
                    change = f"fail {n} {why}"
                case ClearTasks():
                    change = "clear"
                case _:
                    continue
            rows.append(f"[+] {cut_to_row(change, MOST_SHOWN)} (waiting, {accepted.id})")
        return rows

    def _to(self, argument: str) -> CommandAnswer:
        """A line with an address is sent as a line, so what comes here is not well-formed."""
        if argument.partition(" ")[2].startswith("/"):
            return _not_understood("a command goes to no agent; with one more space before the / it is text")
        there = ", ".join(waiting_by_agent(self._chain))
        return _not_understood(f"write it as /to AGENT TEXT; lines can go to {flat(there)}")

    def _recipients(self) -> list[str]:
        return [f"{name} " for name in waiting_by_agent(self._chain)]

    def _agents(self, name: str) -> CommandAnswer:
        every = self._known_agents()
        agents = [view for view in every if not name or view.name.casefold() == name.casefold()]
        if name and not agents:
            known = ", ".join(view.name for view in every) or "none"
            return _not_understood(f"there is no agent {flat(name)[:40]}; there is {flat(known)}")
        rows = tree_rows(agents, self._width, now=time.time())
        return CommandAnswer("\n".join(rows) or "No agent is at work.", agent=agents[0].name if name else "")

    def _names_of_agents(self) -> list[str]:
        return [view.name for view in self._known_agents()]

    def _known_agents(self) -> list[AgentView]:
        return [view for view in self._chain.agents if view.name != MAIN or self._chain.is_running]

    def _diff(self, id: str) -> CommandAnswer:
        asked = self._chain.questions
        if not asked:
            return CommandAnswer("Nothing was asked yet.")
        found = [question for question in asked if question.id.casefold() == id.casefold()] if id else asked
        if not found:
            known = self._questions()
            latest = f"the only question is {known[0]}" if len(known) == 1 else f"the latest are {', '.join(known)}"
            return _not_understood(f"there is no {flat(id)[:20]}; {latest}")
        question = found[-1]
        return CommandAnswer(f"{question.id} {question.text}", preview=question.preview)

    def _questions(self) -> list[str]:
        return [question.id for question in self._chain.questions]

    def _thinking(self, argument: str) -> CommandAnswer:
        if argument.casefold() not in ("", *_SWITCH):
            return _not_understood("write it as /thinking on or /thinking off")
        is_on = argument.casefold() != "off"
        shown = "are shown whole" if is_on else "are one row each"
        return CommandAnswer(f"From now on thoughts {shown}.", thinking=is_on)

    def _tools(self, _: str) -> CommandAnswer:
        rows = [(tool.name, self._permission(tool), _first_sentence(tool.description)) for tool in self._chain.tools]
        return CommandAnswer("\n".join(table(rows, self._width)) or "The model has no tools.")

    def _servers(self, name: str) -> CommandAnswer:
        views = [view for view in self._chain.servers if not name or view.name.casefold() == name.casefold()]
        if not views:
            known = ", ".join(self._server_names())
            none = "There is no server; chain help mcp says how one is set up."
            return (
                _not_understood(f"there is no server {flat(name)[:40]}; there is {known}")
                if known
                else CommandAnswer(none)
            )
        rows = [(view.name, view.state, counted(len(view.tools), "tool"), flat(view.error)) for view in views]
        found = table(rows, self._width)
        for view in views if name else ():
            about = {tool.name: _first_sentence(tool.description) for tool in self._chain.tools}
            found += [
                f"  {flat(view.written)}",
                *table([(tool, about.get(tool, "")) for tool in view.tools], self._width),
            ]
            found += table(
                [(f"{PROMPT}{view.name}:{prompt}", flat(said)) for prompt, said in view.prompts], self._width
            )
        return CommandAnswer("\n".join(found))

    def _server_names(self) -> list[str]:
        return [view.name for view in self._chain.servers]

    @property
    def prompts(self) -> list[tuple[str, str]]:
        """The commands that servers' prompts are, and what each does."""
        views = self._chain.servers
        return [(f"{PROMPT}{view.name}:{name}", flat(about)) for view in views for name, about in view.prompts]

    def _prompt(self, name: str, argument: str) -> CommandAnswer:
        if name not in dict(self.prompts):
            near = nearest(name, [each for each, _ in self.prompts])
            return _not_understood(f"there is no {name[:60]}{f'; did you mean {near}?' if near else ''}")
        server, _, prompt = name.removeprefix(PROMPT).partition(":")
        self._require_idle()
        self._chain.start_prompt(server, prompt, argument.split())
        return CommandAnswer()

    def _switch(self, name: str) -> CommandAnswer:
        if not name:
            return CommandAnswer("\n".join([f"Model: {self._chain.model_name}", *self._models()]))
        try:
            label = self.use(name)
        except UserError as error:
            return CommandAnswer(str(error), keeps=name.casefold() not in map(str.casefold, self._settings.model_names))
        when = "from the next run on" if self._chain.is_running else "from now on"
        return CommandAnswer(f"{self.model} ({label}) answers {when}.")

    def _new(self, option: str) -> CommandAnswer:
        if option not in ("", CLEAN):
            return _not_understood(f"write it as /new, which keeps the plan, or /new {CLEAN}")
        self._require_idle()
        closed, count = self._chain.plan.counts
        if option or not count:
            return CommandAnswer("The conversation begins afresh.", opening=NextSession())
        kept = f"the plan is kept ({closed}/{count}), which /new {CLEAN} does not do"
        return CommandAnswer(f"The conversation begins afresh; {kept}.", opening=NextSession(self._chain.plan.tasks))

    def _resume(self, id: str) -> CommandAnswer:
        if not id:
            there = self._listed = self._sessions()
            if not there:
                return CommandAnswer("There is no other session here.")
            here, plain = str(self._chain.workspace), partial(written, ascii=True)  # as all answers to commands are
            rows = session_rows(there, self._width, plain, here=here, home="", now=time.time(), is_numbered=True)
            return CommandAnswer("\n".join([*rows, CHOOSE]))
        self._require_idle()
        id = self._whole_id(chosen(id, self._listed or self._sessions()))
        if id == self._chain.session_id:
            return _not_understood("that session is the one that is open")
        return CommandAnswer("The session goes on.", opening=NextSession(resume=id))

    def _sessions(self) -> list[kept.Summary]:
        """The other sessions of this workspace that changed last, the last one first."""
        here = str(self._chain.workspace)
        found = [each for each in self._summaries() if each.workspace == here and each.id != self._chain.session_id]
        return sorted(found, key=lambda each: each.changed, reverse=True)[:MOST_SESSIONS]

    def _session_ids(self) -> list[str]:
        return [each.id for each in self._sessions()]

    def _require_idle(self) -> None:
        if self._chain.is_running:
            raise UserError("a run is active; stop it first")

    def _debug(self, _: str) -> CommandAnswer:
        handler = self._settings.chain().interruption_prompt
        rows = (
            ("session", self._chain.session_id),
            ("journal", str(self._chain.journal_path or "none")),
            ("last trace", self._chain.trace_path or "none"),
            ("configuration", str(self._settings.file or "the built-in one")),
            ("handler prompt", str(handler or "the built-in one")),
            ("version", VERSION),
        )
        return CommandAnswer("\n".join(table(rows, self._width)))

    def _unknown(self, name: str) -> str:
        typed = name.casefold()
        if instead := INSTEAD.get(typed):
            return f"there is no {typed}: {instead}"
        near = [known for known in self._commands if len(typed) > 1 and known.startswith(typed)]
        if did_mean := " or ".join(near) or nearest(typed, self._commands):
            return f"there is no {name[:40]}; did you mean {did_mean}?"
        return f"there is no {name[:40]}; /help lists all, and a space before the / makes it text"

    def _ids(self) -> list[str]:
        return [accepted.id for accepted in self._chain.waiting]

    def _permission(self, tool: Tool) -> str:
        if tool.needs_approval:
            return "allowed" if self._chain.needs_no_asking(tool.name) else "asks for approval"
        return "read-only" if tool.read_only else ""

    def _models(self) -> list[str]:
        asked = self.model
        rows = [("*" if is_usable and name == asked else " ", name, about) for name, is_usable, about in self.models]
        return table(rows, self._width, indent="")


def _not_understood(text: str) -> CommandAnswer:
    return CommandAnswer(text, keeps=True)


def _first_sentence(text: str) -> str:
    paragraph = text.strip().partition("\n\n")[0]
    found = _SENTENCE.match(paragraph)
    return flat(found[0] if found else paragraph)
