"""What agents cost beside one agent alone: ``python agents.py AGENTS LINES``.

The main agent starts so many others in one reply, of which eight work at the same time, and lines are sent meanwhile as
fast as the channels take them: every other one by the address of an agent at work, the rest where they belong. One
agent alone has as many conversations of the same length one after the other, and as many lines.

It prints a list of rounds: CPU per iteration with agents and alone, and the seconds that the agents took; then the
peak of the process in bytes. The model is in the process and answers at once, so that all of the time is the chain's;
the journal is on the disk, and somebody reads the events. A line without a receipt that is final is an error.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import trio
from growth import discard
from memory import peak
from workload import looked_up, price

from chain.app.open import open_chain
from chain.chain import Chain
from chain.config.load import Settings, load_settings
from chain.messages import Text, ToolCall, assistant
from chain.model import Delta, Reply, Request

ROUNDS = 5
"""In one process, the two in turn."""

ITERATIONS = 20
"""Of each conversation: as many as an agent may have unless its configuration says otherwise."""

QUERY, TASK = "Let agents look up the prices.", "Look up the price of every part."
CONFIG = """\
models: {default: offline}
chains: {default: {tools: [agents], max_iterations: 10000000, timeout_s: 100000}}
"""


class Model:
    """Starts agents for ``QUERY``; calls a small tool in each iteration of any other conversation, then answers.

    ``replies`` counts the iterations of all conversations.
    """

    name = "agents"

    def __init__(self, agents: int) -> None:
        self._agents = agents
        self._calls = 0
        self.replies = 0

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        await trio.lowlevel.checkpoint()
        self.replies += 1
        request.memory[self] = done = request.memory.get(self, 0) + 1
        is_main = request.messages[0].text == QUERY
        on_delta(Delta("text", "The next part."))
        if done >= (2 if is_main else ITERATIONS):
            return Reply(assistant([Text("That is all.")]), "end_turn")
        calls = [self._call("agent", task=TASK) for _ in range(self._agents)] if is_main else [self._look_up()]
        return Reply(assistant([Text("The next part."), *calls]), "tool_use")

    def _look_up(self) -> ToolCall:
        return self._call(price.name, part="hinge 40x40")

    def _call(self, name: str, **input: str) -> ToolCall:
        self._calls += 1
        return ToolCall(f"call_{self._calls}", name, input)

    async def prepare(self) -> None:
        """There is nothing to prepare."""

    async def aclose(self) -> None:
        """There is nothing to give up."""


@asynccontextmanager
async def opened(settings: Settings, folder: Path, model: Model) -> AsyncIterator[Chain]:
    """A chain whose events somebody reads."""
    chain = open_chain(settings, workspace=folder, state=folder / "state", tools=[price], model=model)
    async with chain as opened, trio.open_nursery() as nursery:
        nursery.start_soon(discard, opened.feed())
        yield opened
        nursery.cancel_scope.cancel()


async def send(chain: Chain, lines: int) -> int:
    """Send so many lines while the run goes on, as fast as there is room. How many were sent."""
    for n in range(lines):
        text = f"prefer the parts made of steel, {n:06}"
        while True:
            at_work = [view for view in chain.agents if view.state == "executing"]
            if not at_work:
                return n
            children = [view.name for view in at_work if view.parent]
            to = children[n % len(children)] if children and n % 2 else ""
            if chain.has_room(text, to=to):
                break
            await chain.wait_for_change()
        submitted = chain.submit(text, to=to)
        if submitted.what != "queued":
            raise RuntimeError(f"line {n} was not queued: {submitted}")
        if n % ITERATIONS == 0:
            await trio.lowlevel.checkpoint()
    return lines


async def with_agents(settings: Settings, folder: Path, agents: int, lines: int) -> float:
    """CPU seconds per iteration of so many agents."""
    model = Model(agents)
    async with opened(settings, folder, model) as chain:
        begun = time.process_time()
        chain.start(QUERY)
        sent = await send(chain, lines)
        await chain.wait_idle()
        used = time.process_time() - begun
        check(chain, lines, sent, queries=1)
        if (kept := len(chain.agents)) != agents + 1:
            raise RuntimeError(f"{agents} agents were to work, and there are {kept}")
    return used / model.replies


async def alone(settings: Settings, folder: Path, conversations: int, lines: int) -> float:
    """CPU seconds per iteration of one agent in so many conversations, each in a session of its own."""
    model, used, left = Model(0), 0.0, lines
    for n in range(conversations):
        async with opened(settings, folder, model) as chain:
            begun = time.process_time()
            chain.start(TASK)
            sent = await send(chain, left)
            await chain.wait_idle()
            used += time.process_time() - begun
            left -= sent
            check(chain, sent + (left if n == conversations - 1 else 0), sent, queries=1)
    return used / model.replies


def check(chain: Chain, lines: int, sent: int, queries: int) -> None:
    """Raise an error unless every line was sent, and delivered once."""
    states = Counter(receipt.state for receipt in chain.receipts)
    ids = {receipt.id for receipt in chain.receipts}
    if sent != lines or states != {"delivered": lines + queries} or len(ids) != lines + queries or chain.waiting:
        raise RuntimeError(
            f"{sent} of {lines} lines were sent, and {queries} queries: {states}, {len(chain.waiting)} wait"
        )


async def measure(agents: int, lines: int) -> list[object]:
    with TemporaryDirectory() as name:
        folder = Path(name)
        path = folder / "config.yaml"
        path.write_text(CONFIG, encoding="utf-8")
        settings = load_settings(config=path, environ={}, cwd=folder, flags={})
        await with_agents(settings, folder, min(agents, 2), 4)  # what a process does once
        rounds = []
        for _ in range(ROUNDS):
            begun = time.perf_counter()
            ours = await with_agents(settings, folder, agents, lines)
            seconds = time.perf_counter() - begun
            rounds.append((ours, await alone(settings, folder, agents, lines), seconds))
        return [rounds, peak()]


if __name__ == "__main__":
    assert looked_up("a part")
    sys.stdout.write(json.dumps(trio.run(measure, int(sys.argv[1]), int(sys.argv[2]))) + "\n")
