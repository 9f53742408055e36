"""Comparison of a journal with the current configuration ("today's"). Pure: no tool or clock is used.

In one pass over the records, these parts are computed again from today's configuration, by the functions that a run
uses, and compared:

- the kind and urgency of each line
- the messages that contain queries or delivered lines, and those that resume a task
- the system prompt, the tools, the settings and the tail (texts after the conversation) of each request

A value that cannot be computed from the journal is not compared, so that every reported difference is real.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol, get_args

from chain.agent.delivery import expectation_after
from chain.agent.spec import AgentSpec, tools_text
from chain.agent.state import ReplyExpectation
from chain.events import Point, Status
from chain.interruption.prompt import Arrival, Situation, compose
from chain.journal import records
from chain.journal.records import Entry, text_digest
from chain.lines.parse import Line, Urgency, parse_line
from chain.messages import Overrides, Text
from chain.plan import outcome_of
from chain.session.difference import NOTHING, Difference, line_difference, request_difference
from chain.session.restored_state import RestoredState
from chain.text.wording import INTERRUPT_NOTE, MAIN, PROGRAM_ENDED, STOP_NOTE
from chain.tools.registry import Registry

_NOTES = frozenset({STOP_NOTE, INTERRUPT_NOTE, PROGRAM_ENDED})
"""Messages about the end of a run. They are not composed from a prompt, so they are not compared."""

_URGENCIES: dict[str, Urgency] = {each: each for each in get_args(Urgency)}


class Today(Protocol):
    """An interface to today's configuration and prompts."""

    main: AgentSpec
    """The spec of the main agent. It has no session context, no instructions and no tools of servers yet."""

    def make_spec(self, kind: str, name: str, parent: AgentSpec, call_id: str) -> AgentSpec | None:
        """Return the spec of an agent below ``parent``; ``None`` if its kind does not exist today.

        The spec has no session context yet.
        """

    def use_server_tools(self, offered: records.ServerTools) -> Registry:
        """Use these tools of servers for new agents, and return the main agent's registry, which contains the tools."""

    def instructions(self, workspace: Path) -> str | None:
        """Return the project's instructions for a workspace; ``None`` if the folder does not exist here."""


@dataclass(eq=False)
class _Call:
    """A model call with all its attempts.

    ``tail`` is the expected tail of its requests. ``dropped`` are the settings that later attempts omit.
    ``knows_settings`` and ``knows_tools``: the records say which settings or tools the next attempt omits. ``is_open``:
    the last attempt has no recorded end.
    """

    tail: tuple[str, ...] = ()
    dropped: tuple[str, ...] = ()
    knows_settings: bool = True
    knows_tools: bool = True
    is_open: bool = False


@dataclass(eq=False)
class _Agent:
    """The expected state of an agent. ``spec`` is ``None`` if the agent's kind does not exist today.

    ``unanswered`` are the lines delivered since the agent's last reply. ``is_effort_refused``: the service refused the
    user's effort in this run. ``is_after_reply``: the conversation ends with a reply without tool calls.
    ``has_answered``: this reply is complete. ``sent`` is the last request.
    """

    spec: AgentSpec | None = None
    query: str = ""
    unanswered: list[Arrival] = field(default_factory=list)
    expected: ReplyExpectation = field(default_factory=ReplyExpectation)
    is_effort_refused: bool = False
    is_after_reply: bool = False
    has_answered: bool = False
    call: _Call = field(default_factory=_Call)
    sent: records.RequestSent | None = None

    def reset_for_run(self, query: str) -> None:
        """Reset the state for a new run with this query or task."""
        self.query, self.expected, self.unanswered, self.has_answered = query, ReplyExpectation(), [], False
        self.is_effort_refused = False

    @property
    def overrides(self) -> Overrides:
        """The settings that the agent's next model call should have."""
        expected = self.expected.overrides
        return expected if self.spec is None or self.is_effort_refused else self.spec.with_effort(expected)


class Replay:
    """A comparison of the records of a journal with today's configuration, from the first record on."""

    def __init__(self, today: Today, entries: Sequence[Entry]) -> None:
        self._today = today
        self._entries = entries
        self._state = RestoredState()
        self._agents: dict[str, _Agent] = {}
        self._digests: dict[tuple[int, frozenset[str]], str] = {}
        self._registry = today.main.registry
        self._effort = ""
        # If the instructions changed during the session, the last ones are compared.
        read = [e.record for e in entries if isinstance(e.record, records.InstructionsRead)]
        self._last_instructions = read[-1] if read else None

    @property
    def complaints(self) -> tuple[str, ...]:
        """A sentence about records that do not follow from earlier records, or nothing if there are none."""
        return self._state.complaints

    def first_difference(self) -> Difference | None:
        """Return the first difference, or ``None``.

        The comparison ends at a record that does not follow from earlier records, because some of them are lost.
        """
        for entry in self._entries:
            found = self._check(entry)
            if found is not None or self._state.misfits:
                return found
        return None

    def _check(self, entry: Entry) -> Difference | None:
        """Apply one record. Return its difference from what today's configuration gives, or ``None``."""
        record = entry.record
        is_new = isinstance(record, records.Line) and record.id not in self._state.lines.on_record
        if isinstance(record, records.RequestSent):
            self._begin_request(record)
        self._state.read(entry)
        if self._state.misfits:
            return None
        match record:
            case records.Session():
                self._reset_agents()
            case records.InstructionsRead():
                self._make_main()
                return self._check_instructions(record)
            case records.ServerTools():
                self._registry = self._today.use_server_tools(record)
                self._make_main()
            case records.Line() if is_new:
                return self._check_line(record)
            case records.DirectoryAdded() if not self._state.is_running:
                self._make_main()
            case records.RunBegun(id=id):
                self._effort = self._state.effort
                self._make_main()
                lines = self._parsed_lines([id])
                self._agent(MAIN).reset_for_run(lines[0].message if lines else "")
            case records.AgentStarted():
                self._start_agent(record)
            case records.Message():
                return self._check_message(record)
            case records.RequestSent():
                return self._check_request(record)
            case records.RequestEnded():
                self._end_request(record)
            case records.Result(status=status, iterations=iterations):
                return self._check_end(MAIN, status, iterations)
            case records.AgentEnded(name=name, status=status, iterations=iterations):
                return self._check_end(name, status, iterations)
            case _:
                pass
        return None

    # ----------------------------------------------------------------------------------------------------- the agents

    def _agent(self, name: str) -> _Agent:
        if name not in self._agents:
            self._agents[name] = _Agent()
        return self._agents[name]

    def _reset_agents(self) -> None:
        """Reset the state of all agents' runs, as happens when a process opens the session."""
        for name in self._state.agents:
            self._agent(name).reset_for_run("")
        self._make_main()

    def _make_main(self) -> None:
        """Build the main agent's spec from today's configuration, with the recorded context, tools and effort."""
        spec = replace(self._today.main, registry=self._registry, instructions=self._state.system_instructions)
        spec = replace(spec, effort=self._effort)
        self._agent(MAIN).spec = spec.with_context(self._session_context)

    @property
    def _session_context(self) -> str:
        return "" if self._state.session is None else self._state.session.whereabouts

    def _start_agent(self, record: records.AgentStarted) -> None:
        """Build the spec of a started agent from today's configuration."""
        agent, parent = self._agent(record.name), self._agent(record.agent).spec
        agent.reset_for_run(record.task)
        made = None if parent is None else self._today.make_spec(record.kind, record.name, parent, record.parent_id)
        agent.spec = None if made is None else made.with_context(self._session_context)

    # ----------------------------------------------------------------------------------------------------- comparing

    def _check_instructions(self, record: records.InstructionsRead) -> Difference | None:
        """Compare recorded instructions with today's instructions, if ``record`` is the last record of instructions.

        Empty instructions are not compared, since the session may have been opened by a program that reads none.
        """
        opened = self._state.session
        if record is not self._last_instructions or not record.text or opened is None:
            return None
        text = self._today.instructions(Path(opened.workspace))
        if text is None or text == record.text:
            return None
        recorded, today = record.text.splitlines(), text.splitlines()
        return Difference(MAIN, 0, "the project instructions are different", recorded, today)

    def _check_line(self, line: records.Line) -> Difference | None:
        """Compare the kind and urgency of a line with those that today's rules give to the line."""
        if line.kind == "job":
            return None  # no user wrote it
        if line.kind == "verbatim" and not line.text.startswith(" "):
            return None  # a query that was not parsed
        marked: Urgency = "next" if line.by_rule else _URGENCIES.get(line.urgency, "next")
        typed = parse_line(line.text, urgency=marked, local=False)
        found = [typed]
        if line.effect == "waits" or line.kind == "stop":
            names = [line.agent]
            if line.kind == "stop" and line.agent == MAIN:
                # A stop without an address goes to the main agent, but the rules of an agent at work were applied.
                names += [agent.name for agent in self._state.children if agent.is_at_work]
            specs = [spec for name in names if (spec := self._agent(name).spec) is not None]
            found = [spec.prompts.apply_rules(typed)[0] for spec in specs]
        if not found or any((each.kind, each.urgency) == (line.kind, line.urgency) for each in found):
            return None
        return line_difference(line, replace(line, kind=found[0].kind, urgency=found[0].urgency))

    def _check_message(self, record: records.Message) -> Difference | None:
        """Update the state of an agent by a message. Compare the message if it was composed from a prompt."""
        agent, message = self._agent(record.agent), record.message
        was_after_reply, had_answered = agent.is_after_reply, agent.has_answered
        agent.is_after_reply = message.role == "assistant" and not message.calls
        agent.has_answered = agent.is_after_reply and not record.is_cut
        if message.role == "assistant":
            agent.unanswered.clear()
            agent.expected = agent.expected.after_reply() if record.is_cut else agent.expected
        elif message.results:
            agent.expected = agent.expected.after_reply()
        elif record.point is not None:
            lines = self._parsed_lines(record.line_ids)
            if record.point == Point.START:
                return self._compare_text(record, agent.query) if lines else None
            if lines and agent.spec is not None:
                return self._compare_text(record, self._deliver(record, agent, lines, is_after_reply=was_after_reply))
        elif had_answered and message.text not in _NOTES:
            resume, agent.expected = agent.expected.resume, agent.expected.after_reply()
            return self._compare_text(record, resume) if agent.spec is not None else None
        return None

    def _compare_text(self, record: records.Message, today: str | None) -> Difference | None:
        """Compare the text of a message, without attached files, with the text that the message would have today.

        ``today`` is this text, or ``None`` if no message would be sent today.
        """
        first = record.message.blocks[0]
        recorded = first.text if isinstance(first, Text) else ""
        if recorded == today:
            return None
        sent = self._agent(record.agent).sent
        at = record.iteration or (0 if sent is None or record.point == Point.START else sent.iteration)
        rows = NOTHING if today is None else today.splitlines()
        return Difference(record.agent, at, "the message to the model is different", recorded.splitlines(), rows)

    def _parsed_lines(self, ids: Sequence[str]) -> list[Line]:
        """Return the parsed lines with these ids; an empty list if any of their records is missing."""
        known = self._state.lines.on_record
        return [known[id].line for id in ids] if all(id in known for id in ids) else []

    def _deliver(self, record: records.Message, agent: _Agent, lines: Sequence[Line], *, is_after_reply: bool) -> str:
        """Deliver lines to an agent, and return the message that today's handler prompt composes from them.

        Also update the agent's unanswered lines and what is expected of its next reply.
        """
        assert agent.spec is not None
        assert record.point is not None
        prompt, _ = agent.spec.prompts.current()
        outcomes = record.outcomes or [""] * len(lines)
        arrivals = [Arrival(line) for line in lines]
        if prompt.todo_direct:
            arrivals = [self._arrival_of(line, outcome) for line, outcome in zip(lines, outcomes, strict=False)]
        at, remaining, skipped = record.iteration, record.remaining, record.skipped
        situation = Situation(at, record.point, remaining, skipped, record.agent, agent.query)
        composed = compose(prompt, arrivals, situation, agent.unanswered)
        agent.unanswered += arrivals
        agent.expected = expectation_after(
            agent.expected,
            situation,
            composed,
            agent.unanswered,
            source=prompt.source,
            is_after_reply=is_after_reply,
        )
        return composed.text

    def _arrival_of(self, line: Line, outcome: str) -> Arrival:
        """Return a line with the outcome of its plan command.

        If no outcome is recorded, since the command was left to the model, compute the outcome that code would give.
        """
        if line.command is not None and not outcome:
            outcome = outcome_of(line.command, self._state.plan.tasks)
        return Arrival(line, outcome)

    def _begin_request(self, record: records.RequestSent) -> None:
        """Prepare the check of a request, and compose its expected tail.

        Must be called before the record is applied to the state: the record marks the plan as known to the model.
        """
        agent = self._agent(record.agent)
        if record.attempt == 1:
            agent.call = _Call()
            if not record.compacts:
                news = self._state.agent(record.agent).news.pending(self._state.plan, record.agent)
                agent.call.tail = tuple(text for text in (agent.expected.post_prompt, news) if text)
        elif agent.call.is_open:
            agent.call.knows_settings = agent.call.knows_tools = False

    def _check_request(self, record: records.RequestSent) -> Difference | None:
        """Compare the system prompt, the tools, the tail and the settings of a request."""
        agent = self._agent(record.agent)
        call, spec, agent.sent = agent.call, agent.spec, record
        call.is_open = True
        if spec is None:
            return None
        today = replace(record, system=text_digest(spec.whole_system))
        if call.knows_tools:
            today = replace(today, tools=self._tools_digest(spec, self._state.refused_tools))
        if not record.compacts:
            today = replace(today, tail=call.tail)
            if call.knows_settings:
                today = replace(today, overrides=agent.overrides.without(*call.dropped))
        return None if today == record else request_difference(record, today)

    def _tools_digest(self, spec: AgentSpec, omitted: Set[str]) -> str:
        key = id(spec.registry), frozenset(omitted)
        if key not in self._digests:
            self._digests[key] = text_digest(tools_text(spec.offered_tools(omitted)))
        return self._digests[key]

    def _end_request(self, record: records.RequestEnded) -> None:
        """Store which settings the next attempt will omit."""
        agent = self._agent(record.agent)
        call, sent = agent.call, agent.sent
        call.is_open = False
        call.dropped += record.parameters
        agent.is_effort_refused |= "effort" in record.parameters and agent.expected.overrides.effort is None
        if record.refused:
            call.knows_tools = False
        is_cut_off = record.stop_reason == "max_tokens"
        if is_cut_off and sent is not None and sent.overrides.max_tokens is not None:
            call.dropped += ("max_tokens",)

    def _check_end(self, name: str, status: Status, iterations: int) -> Difference | None:
        """Return a difference if a run ended here, but today the model would be asked to resume its task."""
        agent = self._agent(name)
        resume, spec, most = agent.expected.resume, agent.spec, 0 if agent.sent is None else agent.sent.max_iterations
        had_answered, agent.has_answered = agent.has_answered, False
        if status != "done" or not had_answered or resume is None or iterations >= most or spec is None:
            return None
        if spec.limits.max_tokens is not None or spec.limits.max_cost_usd is not None:
            return None  # the budget may not have left another call
        return Difference(name, iterations, "the run would continue", NOTHING, resume.splitlines())
