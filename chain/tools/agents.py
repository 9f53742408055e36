"""Tools that delegate a task to another agent.

There is one tool for each kind of agent, and ``agent_ask``, which asks a finished agent a further question.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache

from chain.tools.tool import Tool, ToolContext, tool

ASK = "agent_ask"

_BUILT_IN = {
    "explore": """Let a separate agent explore files and pages for you, and get its answer.

It only reads, and its reading does not fill your conversation: only its answer comes back. Say what you want to know,
where to look and what the answer should contain, since it knows nothing of your conversation. Ask for several
explorations in one reply if none depends on another: they run at the same time.""",
    "plan": """Let a separate agent study the files and work out the plan for a task.

It reads, and writes the tasks of the plan that you and the user see; it carries nothing out. Say what the
goal is and what you know already, since it knows nothing of your conversation.""",
    "agent": """Let a separate agent carry out a task, and get its answer.

It has the tools that you have. Use it for a piece of work that stands on its own. Say all that it needs to know: what
to do, where, and when it is done, since it knows nothing of your conversation.""",
}
"""For each built-in kind of agent, the description that the model reads."""


# No time limit: an agent has limits of its own, and the run that started it bounds its time.
@tool(name=ASK, timeout_s=math.inf, kind="delegate")
async def agent_ask(ctx: ToolContext, agent: str, question: str) -> str:
    """Ask a finished agent one more question; the agent remembers its work and its findings.

    `agent` is the agent's name: the tool that started it and a number, as in explore-1 and explore-2.
    """
    return await ctx.delegating.ask(agent, question, ctx.call_id)


def agent_tools(kinds: Iterable[tuple[str, str]]) -> tuple[Tool, ...]:
    """Return ``agent_ask`` and one tool for each kind of agent.

    ``kinds`` are pairs of a kind's name and its description for the model. An empty description is replaced by the
    built-in description of the kind.
    """
    return (*(_delegation_tool(kind, description or _BUILT_IN[kind]) for kind, description in kinds), agent_ask)


@lru_cache(maxsize=64)  # all sessions of the process share these tools
def _delegation_tool(kind: str, description: str) -> Tool:
    async def start(ctx: ToolContext, task: str) -> str:
        return await ctx.delegating.start(kind, task, ctx.call_id)

    start.__doc__ = description
    return tool(name=kind, timeout_s=math.inf, kind="delegate")(start)
