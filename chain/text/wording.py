"""Fixed texts and names that the model or the user reads."""

from collections import Counter
from collections.abc import Iterable, Sequence

MAIN = "main"
"""The name of a session's first agent."""

ROOT = "root"
"""The parent id of the main agent, which has no tool call as its parent."""

SKIPPED = "[Skipped: user interrupted]"
"""The result of a tool call that never started."""

INTERRUPTED = "[Interrupted: stopped while running, it may have had effects]"
"""The result of a tool call that was cancelled while it ran."""

PROGRAM_ENDED = "[The program ended here]"

UNREADABLE = "[This could not be read from the session's journal]"
"""Replaces a message or a tool result whose record is lost."""

GO_ON = "Go on with what you were doing: the process that ran you ended in the middle of it, and this is another one."
STOP_NOTE = "[The user stopped the run here]"
INTERRUPT_NOTE = "[The user interrupted the run here]"

COMPACTED = "[The conversation until here was compacted to make room. Its summary:]"
USER_WORDS = "What the user said, word for word:"
"""The first row of a compacted conversation (``COMPACTED``), and of the user's own texts in it."""

PLEASE_CONTINUE = "Please continue."

RESUME = (
    "Your reply was shown to the user. Continue the task, as the user's messages changed it. "
    "If it is already complete, give the final answer."
)
"""The message by which the model resumes its task after it has answered an aside (SPEC section 5)."""

FOUND = "Here's what I found before you cancelled:"
QUESTION = "What would you like to do instead?"
INTERRUPTED_TEXT = "Interrupted. Tell the chain what to do instead."
STOPPED_BY_RULE = "a rule of the handler prompt makes it a stop"
"""The reason in the receipt of a line that a rule turned into a stop."""

STDIN_BEGIN, STDIN_END = "\n\n<stdin>\n", "\n</stdin>"
"""Enclose the piped input at the end of a query."""

FILE_BEGIN = '\n\n<file path="'
"""The start of a file that an editor embeds at the end of a line."""

FULL = "Interruption channel full, try again"

ASKED_EACH_TIME = " (asked each time)"
"""The end of a question for which the answer "always" allows only the call in question."""

QUESTION_WITHDRAWN = "The question was withdrawn: the user stopped, or wrote something else instead."
NO_USER_CHOOSES = "Nobody can be asked; decide, and say what you assumed."


def with_cause(cause: str, message: str) -> str:
    """Return an error message, prefixed with its short cause if there is one."""
    return f"{cause}: {message}" if cause else message


def truncate(text: str, limit: int) -> str:
    """Truncate a text to ``limit`` characters, and append an ellipsis if it was longer."""
    return text if len(text) <= limit else f"{text[: max(limit, 0)]}…"


def pluralize(n: int, thing: str, things: str = "") -> str:
    """Return a number with its noun: ``1 line``, ``2 lines``."""
    return f"{n:,} {thing}" if n == 1 else f"{n:,} {things or f'{thing}s'}"


def count_names(names: Iterable[str]) -> str:
    """Return the names as text, each once, with its count if it is more than 1: ``read_file, 3 × shell``."""
    return ", ".join(name if n == 1 else f"{n} × {name}" for name, n in Counter(names).items())


def join_first(names: Sequence[str], most: int) -> str:
    """Return the first ``most`` names as text, and say how many more names there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


def instructions_sentence(files: Sequence[str], *, is_change: bool = False) -> str:
    """Return a sentence that names the files of the project's instructions.

    With ``is_change``, it says that they changed. Otherwise it is empty if there are no files.
    """
    if is_change:
        return f"Project instructions changed: {', '.join(files) or 'there are none now'}."
    return f"Project instructions: {', '.join(files)}." if files else ""
