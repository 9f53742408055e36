"""Events of the agents of a session, for tests of what renders them."""

from dataclasses import dataclass, replace
from typing import Any

from chain import events
from chain.events import Event, Point

RUN = events.RunStarted(id="L1", query="look at it", time=100.0)
ITERATION = events.IterationStarted(iteration=1, max_iterations=20, time=100.0)


@dataclass(frozen=True)
class AgentEvents:
    """Creates the events of one agent. ``call`` is the tool call that it works for."""

    name: str
    call: str = "c1"
    parent: str = "main"
    task: str = "find the tests"
    start: float = 101.0
    end: float = 106.0

    def started(self, **changes: Any) -> events.AgentStarted:
        started = events.AgentStarted(
            agent=self.parent, name=self.name, kind="explore", parent_id=self.call, task=self.task, time=self.start
        )
        return replace(started, **changes)

    def ended(self, status: events.Status = "done") -> events.AgentEnded:
        return events.AgentEnded(
            agent=self.parent, name=self.name, kind="explore", parent_id=self.call, task=self.task, status=status,
            time=self.end,
        )  # fmt: skip

    def iteration(self, n: int = 1) -> events.IterationStarted:
        return events.IterationStarted(agent=self.name, iteration=n, max_iterations=20)

    def text_delta(self, text: str) -> events.TextDelta:
        return events.TextDelta(agent=self.name, text=text)

    def thinking_delta(self, text: str) -> events.ThinkingDelta:
        return events.ThinkingDelta(agent=self.name, text=text)

    def reply(self, text: str, tool_calls: int = 0) -> events.Reply:
        return events.Reply(agent=self.name, text=text, tool_calls=tool_calls)

    def tool_call(self, id: str = "t1", name: str = "read_file", **input: Any) -> events.ToolCall:
        return events.ToolCall(agent=self.name, id=id, name=name, input=input, parent_id=self.call)

    def progress(self, text: str, id: str = "t1") -> events.ToolProgress:
        return events.ToolProgress(agent=self.name, id=id, name="read_file", text=text)

    def tool_result(self, text: str = "hello") -> events.ToolResult:
        return events.ToolResult(agent=self.name, id="t1", name="read_file", text=text, is_error=False, seconds=0.2)

    def queued(self, text: str = "use B", id: str = "L2", **changes: Any) -> events.LineQueued:
        queued = events.LineQueued(
            agent=self.name, id=id, text=text, kind="redirect", urgency="next", target_agent=self.name, waiting=1,
            origin="prompt",
        )  # fmt: skip
        return replace(queued, **changes)

    def interruption(self, text: str = "use B", **changes: Any) -> events.UserInterruption:
        interruption = events.UserInterruption(
            agent=self.name, iteration=2, ids=("L2",), message=text, point=Point.AFTER_TOOLS, prompt_source="default",
            target_agent=self.name, parent_id=self.call, waited_s=1.2, remaining=3,
        )  # fmt: skip
        return replace(interruption, **changes)

    def receipt(
        self, state: events.State, text: str = "use B", reason: str = "", id: str = "L2", kind: str = "redirect"
    ) -> events.Receipt:
        return events.Receipt(agent=self.name, id=id, text=text, state=state, reason=reason, kind=kind)

    def question(self, preview: str = "ls -la") -> events.Question:
        return events.Question(
            agent=self.name, id="Q1", kind="approval", text="Run this command?", options=(), tool_call_id="t1",
            name="shell", preview=preview,
        )  # fmt: skip

    def answer(self) -> events.Answer:
        return events.Answer(agent=self.name, id="Q1", text="", decision="allowed", by="user")

    def usage(self, tokens: int) -> events.UsageReport:
        return events.UsageReport(
            agent=self.name, input_tokens=tokens, output_tokens=0, cache_read_tokens=0, cache_write_tokens=0,
            cost_usd=None,
        )  # fmt: skip

    def retry(self) -> events.Retry:
        return events.Retry(agent=self.name, attempt=2, delay_s=1.0, reason="overloaded")

    def notice(self, text: str = "no file") -> events.Notice:
        return events.Notice(agent=self.name, message=text)

    def error(self, text: str = "the service is gone") -> events.Error:
        return events.Error(agent=self.name, message=text, kind="model")

    def around(self, *stream: Event) -> list[Event]:
        """Return the tool call, the start of the agent, the given events, its end, and the result of the call."""
        call = events.ToolCall(agent=self.parent, id=self.call, name="explore", input={"task": self.task})
        result = events.ToolResult(
            agent=self.parent, id=self.call, name="explore", text="5 tests", is_error=False, seconds=5.0
        )
        return [call, self.started(), *stream, self.ended(), result]


MAIN = AgentEvents("main", call="root", parent="")
CHILD = AgentEvents("explore-1")
SECOND_CHILD = AgentEvents("explore-2", "c2", task="read the documents of the project and sum them up")
GRANDCHILD = AgentEvents("agent-1", "t2", "explore-1", "deeper into it", 102.0, 105.0)
GREAT_GRANDCHILD = AgentEvents("plan-1", "t3", "agent-1", "the deepest")

EXPLORATION = (
    CHILD.iteration(),
    CHILD.thinking_delta("Hm, "),
    CHILD.thinking_delta("yes.\n"),
    CHILD.text_delta("I lo"),
    CHILD.text_delta("ok."),
    CHILD.usage(1_200),
    CHILD.reply("I look.", 1),
    CHILD.tool_call(path="a"),
    CHILD.progress("half"),
    CHILD.queued(),
    CHILD.tool_result("\nfound\nmore"),
    CHILD.interruption(),
    CHILD.receipt("delivered"),
    CHILD.iteration(2),
    CHILD.reply("5 tests"),
    CHILD.usage(34),
)
"""The work of a child that reads a file, and receives a line of the user meanwhile."""
