"""The tool by which the model asks the user to choose an option."""

from __future__ import annotations

import math

from chain.errors import ToolError
from chain.tools.tool import Tool, ToolContext, tool

MAX_OPTIONS = 5
"""The most options of a question: more options are hard to compare."""

MAX_QUESTION = 4_000
"""The most characters of a question with its options: a longer question does not fit on a screen."""


# No time limit: the deadlines of the call and of the run are paused until there is an answer.
@tool(kind="ask", read_only=True, timeout_s=math.inf)
async def ask_user_question(ctx: ToolContext, question: str, options: list[str]) -> str:
    """Ask the user to choose one of 1 to 5 options, when you cannot continue sensibly without the answer.

    The user may choose one or answer something else. Ask one thing, and make each option a short text.
    """
    texts = [option.strip() for option in options]
    if not question.strip():
        raise ToolError("The question is empty.")
    if not 1 <= len(texts) <= MAX_OPTIONS or not all(texts):
        raise ToolError(f"Give 1 to {MAX_OPTIONS} options, none of them empty; there are {len(texts)}.")
    if len({text.casefold() for text in texts}) < len(texts):
        raise ToolError("Two of the options are the same.")
    if len(question) + sum(map(len, texts)) > MAX_QUESTION:
        raise ToolError(f"The question and its options are longer than {MAX_QUESTION:,} characters; shorten them.")
    return f"The user answered: {await ctx.asking.choose(question.strip(), texts)}"


TOOLS: tuple[Tool, ...] = (ask_user_question,)
