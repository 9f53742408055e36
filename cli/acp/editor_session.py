"""One session of an editor: submits the editor's prompts to a chain, and sends the chain's events as updates.

One task sends the updates in order, as fast as the editor reads. The same task answers the prompts, so that the answer
to a prompt follows all updates of the prompt's run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import trio

from chain import events
from chain.chain import Chain, SubmitResult
from chain.config.load import Settings
from chain.config.servers import ToolServer
from chain.errors import UserError
from chain.session.event_json import to_json
from cli.acp import turns
from cli.acp.editor_offer import EditorOffer
from cli.acp.rpc import CANCELLED, INTERNAL_ERROR, RpcError
from cli.acp.shown_calls import question_answer, question_request
from cli.acp.turns import PendingPrompt, cancelled_response
from cli.acp.updates import Update, UpdateBuilder
from cli.acp.wire import IncomingCall, Wire
from cli.input.address import split_address
from cli.terminal.custom import FindCustom

STEERING = "_session/steering"
"""The method that submits a line as a prompt does, but is answered before the run ends."""

Images: TypeAlias = Sequence[tuple[str, bytes]]
"""The images of a line, each as a pair of name and content."""


@dataclass(frozen=True, slots=True)
class EditorFeatures:
    """Optional features of an editor: whether it wants ``receipts`` of lines, and whether it can show ``forms``."""

    receipts: bool = False
    forms: bool = False


class EditorSession:
    """An open session of an editor. ``kinds`` has the kind of each tool by name. ``log`` writes to standard error."""

    def __init__(
        self,
        chain: Chain,
        settings: Settings,
        wire: Wire,
        kinds: Mapping[str, str],
        log: Callable[[str], None],
        features: EditorFeatures,
        find_custom: FindCustom,
    ) -> None:
        self.chain = chain
        self.offer = EditorOffer(chain, settings, find_custom)
        self.id = chain.session_id
        self.workspace = chain.workspace
        self.leaving = trio.Event()
        """Set to request that the session is closed."""
        self.ended = trio.Event()
        """Set when the chain is closed and the last update is sent."""
        self.servers: Sequence[ToolServer] = ()
        """The MCP servers that the editor named."""
        self._wire = wire
        self._log = log
        self._features = features
        self._builder = UpdateBuilder(chain.workspace, kinds)
        self._pending: dict[IncomingCall, PendingPrompt] = {}
        self._feed = chain.feed()
        self._ending: float | None = None
        """The start time of the run that was last interrupted or stopped; ``None`` if there was none."""
        self._held: dict[IncomingCall, tuple[str, Images]] = {}
        """The text and images of each request to submit after the active run, oldest request first."""
        self._asking: dict[str, trio.CancelScope] = {}
        """The cancel scopes of requests that wait for the user's answer, by the ids of their questions."""

    async def send_updates(self) -> None:
        """Send updates for the chain's events until the chain is closed."""
        with self.chain.answering():
            async with trio.open_nursery() as nursery:
                while batch := await self._feed.batch():
                    for event in batch:
                        await self._on_event(event, nursery)
                nursery.cancel_scope.cancel()

    async def send_past(self, past: Iterable[events.Event]) -> None:
        """Send updates for the stored events of a session that is being loaded."""
        for event in past:
            await self._send(self._builder.updates(event))

    def end(self) -> None:
        """Answer all open requests, which no run will answer any more, and set ``ended``."""
        for call, pending in self._pending.items():
            call.answer(pending.answer or RpcError(INTERNAL_ERROR, "the session has ended"))
        self._withdraw_held()
        self.ended.set()

    def submit(self, call: IncomingCall, text: str, images: Images) -> None:
        """Submit the text of a prompt or steering request, or run its command. Raise ``RpcError`` if it is refused.

        While a run is ending, store the text and submit it after the run.
        """
        call.on_cancel = partial(self._cancel_prompt, call)
        if self.offer.has_command(text):
            self._carry_out(call, text)
        elif call.method == STEERING or not self._start_server_prompt(call, text):
            if self._held or self._is_ending:
                self._held[call] = text, images  # a run that is ending would return it
            else:
                self._submit(call, text, images)

    @property
    def has_turn(self) -> bool:
        """Whether a run is active and was not asked to stop."""
        return self._run_start is not None and not self._is_ending

    @property
    def is_busy(self) -> bool:
        """Whether a run is active, or lines of this session wait for the end of a run."""
        return self._run_start is not None or bool(self._held)

    def cancel(self) -> None:
        """Interrupt the active run, and withdraw the lines that wait for the end of that run."""
        self._withdraw_held()
        self._interrupt()

    @property
    def _run_start(self) -> float | None:
        """The start time of the active run, which identifies it; ``None`` if no run is active."""
        return self.chain.agents[0].since if self.chain.is_running else None

    @property
    def _is_ending(self) -> bool:
        return self._run_start is not None and self._run_start == self._ending

    def _interrupt(self) -> None:
        if self.chain.interrupt():
            self._ending = self._run_start

    def _cancel_prompt(self, call: IncomingCall) -> None:
        """Cancel a prompt: drop its line if the line waits, else interrupt its run if the run is active."""
        prompt = self._pending.get(call)
        if call in self._held:
            self._withdraw(call)
        elif prompt is not None and prompt.answer is None and not self._drop(prompt.line_id):
            start = prompt.run_start
            if self._run_start == start if start else self._is_of_active_run(prompt.line_id):
                self._interrupt()

    def _drop(self, line_id: str) -> bool:
        """Drop a waiting line. Return ``False`` if no line with this id waits."""
        try:
            if line_id:
                self.chain.lines.drop(line_id, "cancelled")
        except UserError:
            return False
        return bool(line_id)

    def _is_of_active_run(self, line_id: str) -> bool:
        """Return whether a submitted line belongs to the active run, and not to an earlier run."""
        run = self._run_start
        if run is None:
            return False
        if not line_id:  # a stop that could not be recorded
            return self._is_ending
        last = next(receipt for receipt in self.chain.lines.receipts if receipt.id == line_id)
        return last.state == "queued" or last.time >= run

    def _withdraw(self, call: IncomingCall) -> None:
        """Remove a request's line that waits for the end of a run, and answer the request as cancelled."""
        del self._held[call]
        withdrawn = RpcError(CANCELLED, "the run was cancelled before this line was submitted")
        call.answer(withdrawn if call.method == STEERING else cancelled_response(""))

    def _withdraw_held(self) -> None:
        for call in [*self._held]:
            self._withdraw(call)

    def _submit_held(self) -> None:
        """Submit the lines that waited for the end of a run. Stop if a run is ending or the session is closing."""
        while self._held and not self._is_ending and not self.leaving.is_set():
            call = next(iter(self._held))
            text, images = self._held.pop(call)
            try:
                self._submit(call, text, images)
            except RpcError as error:
                call.answer(error)

    def _carry_out(self, call: IncomingCall, text: str) -> None:
        """Run a command at once. Answer a prompt after the run that the command starts; if it starts none, at once."""
        was_running = self.chain.is_running
        said = self.offer.carry_out(text)
        run = None if was_running else self._run_start
        if call.method == STEERING:
            _answer_steering(call, "", "injected" if run is None else "startedNewTurn", "handled")
        elif run is not None:
            self._pending[call] = PendingPrompt("", run)
        if run is None:
            self._answer_without_run(SubmitResult("handled", message=said), call)

    def _start_server_prompt(self, call: IncomingCall, text: str) -> bool:
        """Start a run with the server prompt that ``text`` names. Return ``False`` if ``text`` names none.

        The result of the run answers the request. Raise ``RpcError`` if the prompt cannot be requested.
        """

        def start_run(text: str) -> None:
            answer = self.chain.start(text, origin="acp", names_files=False)
            if answer.what == "refused":
                fail(answer.message)
            else:
                self._builder.omit_query(answer.id)
                self._pending[call] = PendingPrompt(answer.id)

        def fail(reason: str) -> None:
            call.answer(RpcError(INTERNAL_ERROR, reason))

        return self.offer.request_prompt(text, start_run, fail)

    def _submit(self, call: IncomingCall, text: str, images: Images) -> None:
        to, line = split_address(text)
        answer = self.chain.submit(line, local=False, origin="acp", to=to, images=images)
        if answer.what == "refused":
            raise RpcError(INTERNAL_ERROR, answer.message, {"chain": {"state": "refused"}})
        if answer.what == "started":
            self._builder.omit_query(answer.id)
        if answer.what == "stopping":
            self._ending = self._run_start
        if call.method == STEERING:
            _answer_steering(call, answer.id, "startedNewTurn" if answer.what == "started" else "injected", answer.what)
            if answer.message:
                self._answer_without_run(answer, call)
        elif answer.what in ("started", "queued", "stopping"):
            self._pending[call] = PendingPrompt(answer.id)
        else:
            self._answer_without_run(answer, call)

    def _answer_without_run(self, answer: SubmitResult, call: IncomingCall) -> None:
        """Answer a prompt whose line needs no run. The answer is sent after the updates that the line caused."""
        is_returned = answer.what == "returned"
        result = cancelled_response(answer.id) if is_returned else turns.prompt_response("end_turn", answer.id)
        notice = None if answer.id else events.Notice(message=answer.message)
        self._pending[call] = PendingPrompt(answer.id, text=answer.message, answer=result, notice=notice)
        if notice is not None:
            self._feed.put(notice)

    async def _on_event(self, event: events.Event, nursery: trio.Nursery) -> None:
        await self._send(self.offer.changes())
        match event:
            case events.Result():
                answers_prompt = any(each.ends_with_run for each in self._pending.values())
                await self._send(self._builder.updates(event, includes_errors=not answers_prompt))
            case events.Question():
                await self._ask(event, nursery)
            case events.Answer(id=id):
                if (scope := self._asking.pop(id, None)) is not None:
                    scope.cancel()
            case events.Receipt() | events.LineQueued():
                await self._send_receipt(event)
            case events.Notice():
                if all(each.notice is not event for each in self._pending.values()):
                    self._log(f"{self.id}: {event.message}")
            case _:
                await self._send(self._builder.updates(event))
        # After the updates: the answer to a prompt comes last.
        for call, pending in [*self._pending.items()]:
            if (answer := pending.answer_by(event)) is not None:
                del self._pending[call]
                if pending.text:
                    await self._send([self._builder.message(pending.text)])
                call.answer(answer)
        if isinstance(event, events.Result):
            self._submit_held()

    async def _send(self, updates: Sequence[Update]) -> None:
        for update in updates:
            await self._wire.notify("session/update", {"sessionId": self.id, "update": update})

    async def _send_receipt(self, event: events.Receipt | events.LineQueued) -> None:
        if self._features.receipts:
            fields = to_json(event) | ({} if isinstance(event, events.Receipt) else {"state": "queued"})
            del fields["type"]
            await self._wire.notify("_chain/receipt", {"sessionId": self.id, **fields})

    async def _ask(self, question: events.Question, nursery: trio.Nursery) -> None:
        updates = self._builder.updates(question)
        await self._send(updates)
        # The configuration or another client may have answered it already.
        if self.chain.questions.open_id == question.id:
            scope = self._asking[question.id] = trio.CancelScope()
            nursery.start_soon(self._fetch_answer, question, updates[0], scope)

    async def _fetch_answer(self, question: events.Question, call: Mapping[str, Any], scope: trio.CancelScope) -> None:
        method, asked = question_request(question, call, has_forms=self._features.forms)
        with scope:
            result = await self._wire.request(method, {"sessionId": self.id, **asked})
            answer = question_answer(question, result)
            self.chain.answer(question.id, answer, origin="acp")


def _answer_steering(call: IncomingCall, line_id: str, outcome: str, state: str) -> None:
    call.answer({"outcome": outcome, "_meta": {"chain": {"lineId": line_id, "state": state}}})
