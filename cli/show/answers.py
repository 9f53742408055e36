"""The rows that slash commands show about a chain. Pure, plain text."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

from chain.errors import UserError
from chain.lines.parse import AddTask, ClearTasks, CompleteTask, FailTask
from chain.text import phrases
from chain.text.phrases import duration
from chain.text.wording import MAIN, pluralize
from chain.version import VERSION
from cli.show.child_agents import STEP, indent, tree_order
from cli.show.session_list import short_time
from cli.show.table import table
from cli.show.text_rows import columns, cut, cut_to_row, flat, pad

if TYPE_CHECKING:
    from chain import Chain, Settings
    from chain.chain import AgentView, Checkpoint

MOST_SHOWN = 200
"""The number of characters of a waiting line that ``/queue`` shows: enough to recognise the line."""

MOST_ENDED = 8
"""The maximum number of ended jobs that ``/jobs`` shows, besides all running jobs."""

SERVER_PROMPT = "/mcp:"
"""The prefix of commands that are prompts of a server: ``/mcp:SERVER:PROMPT``."""

MOST_PATHS = 3
"""The maximum number of changed files that the list of runs to undo names for each run."""
BESIDE_QUERY, LEAST_QUERY = 50, 20
"""In the list of runs to undo: the columns of a row beside its query, and the minimum columns of the query."""

_MARK = "..."
_KIND_WORDS = {"redirect": "line", "verbatim": "line"}
"""The words in ``/queue`` for those kinds of lines whose internal name a user does not know."""
_SENTENCE = re.compile(r".+?[.!?](?=\s+[^a-z\s]|\s*\Z)", re.S)


def status_rows(chain: Chain, width: int, *, prices_of: str = "") -> list[str]:
    """Return the rows of ``/status``: run and usage. ``prices_of``: the date of the prices; empty if unknown."""
    used = chain.state.usage
    tokens = (
        f"{used.input_tokens:,} input, {used.output_tokens:,} output, {used.cache_read_tokens:,} cache read, "
        f"{used.cache_write_tokens:,} cache write (runs that ended)"
    )
    rows = [("model", chain.init.model), ("session", chain.session_id), ("tokens", tokens)]
    if used.cost_usd is not None:
        of = f", at the prices of {prices_of}" if prices_of else ""
        rows.append(("cost", f"{phrases.cost(used.cost_usd)} (runs that ended{of})"))
    return [chain.status(), *table(rows, width)]


def context_rows(chain: Chain, width: int) -> list[str]:
    """Return the rows of ``/context``: the contents of the context window."""
    view = chain.window
    rows = [(name, f"{tokens:,}") for name, tokens in view.parts if tokens]
    of = ", of an unknown window"
    if view.window:
        of = f" of {view.window:,} ({100 * view.tokens / view.window:.0f} %)"
        rows.append(("free", f"{max(view.window - view.tokens, 0):,}"))
    return [f"About {view.tokens:,} tokens{of}", *table(rows, width)]


def queue_rows(chain: Chain, width: int) -> list[str]:
    """Return the rows of ``/queue``: the waiting lines."""
    rows = []
    for accepted in chain.lines.waiting:
        line = accepted.line
        named = _KIND_WORDS.get(line.kind, line.kind)
        kind = named if line.urgency == "next" else f"{line.urgency} {named}"
        target = "" if accepted.agent == MAIN else f" for {flat(accepted.agent)}"
        rows.append((accepted.id, kind + target, cut_to_row(line.text, MOST_SHOWN)))
    return table(rows, width) or ["No line is waiting."]


def plan_rows(chain: Chain) -> list[str]:
    """Return the rows of ``/todo``: the plan, and the waiting lines that will change it."""
    rows = [chain.plan.render()]
    for accepted in chain.lines.waiting:
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


def job_rows(chain: Chain, width: int) -> list[str]:
    """Return the rows of ``/jobs``: the running background jobs, and the latest ones that have ended."""
    ended = [job for job in chain.jobs.views if not job.is_running][-MOST_ENDED:]
    shown = [*ended, *(job for job in chain.jobs.views if job.is_running)]
    rows = [(job.id, flat(job.state), cut_to_row(job.command, MOST_SHOWN)) for job in shown]
    return table(rows, width) or ["There are no background jobs."]


def tool_rows(chain: Chain, width: int) -> list[str]:
    """Return the rows of ``/tools``: the model's tools, and which calls need approval."""
    rows = []
    for tool in chain.tools:
        permission = "read-only" if tool.read_only else ""
        if tool.needs_approval:
            permission = "allowed" if chain.questions.allows(tool.name) else "asks for approval"
        if chain.questions.denies(tool):
            permission = "denied"
        rows.append((tool.name, permission, _first_sentence(tool.description)))
    return table(rows, width) or ["The model has no tools."]


def server_rows(chain: Chain, name: str, width: int) -> list[str]:
    """Return the rows of ``/mcp``: one for each server, or the details of the server ``name`` if a name is given."""
    views = [view for view in chain.servers if name in ("", view.name)]
    rows = [(view.name, view.state, pluralize(len(view.tools), "tool"), flat(view.error)) for view in views]
    found = table(rows, width)
    about = {tool.name: _first_sentence(tool.description) for tool in chain.tools}
    for view in views if name else ():
        found.append(f"  {flat(view.target)}")
        found += table([(tool, about.get(tool, "")) for tool in view.tools], width)
        found += table([(f"{SERVER_PROMPT}{view.name}:{prompt}", flat(said)) for prompt, said in view.prompts], width)
    return found


def model_rows(chain: Chain, settings: Settings, current: str, width: int) -> list[str]:
    """Return the rows of ``/model``: the models, with ``*`` before the ``current`` one."""
    rows = [("*" if is_usable and name == current else " ", name, about) for name, is_usable, about in models(settings)]
    return [f"Model: {chain.init.model}", *table(rows, width, indent="")]


def models(settings: Settings) -> list[tuple[str, bool, str]]:
    """Return each configured model: its name, whether it is usable, and its label or the reason why it is unusable."""
    found = []
    for name in settings.model_names:
        try:
            definition = settings.model(name)
            definition.require_key()
            found.append((name, True, definition.label))
        except UserError as error:
            found.append((name, False, str(error)))
    return found


def undo_rows(points: Sequence[Checkpoint], width: int, *, now: float) -> list[str]:
    """Return the rows of ``/undo``: each run that can be undone, with its number, time, query and changed files."""
    if not points:
        return ["No run can be undone."]
    rows = []
    for number, point in enumerate(points, 1):
        query = cut_to_row(point.query, max(width - BESIDE_QUERY, LEAST_QUERY)) or "(no query)"
        first, more = point.paths[:MOST_PATHS], len(point.paths) - MOST_PATHS
        changed = ", ".join(map(flat, first)) + (f" and {more} more" if more > 0 else "")
        rows.append((str(number), short_time(point.began, now), query, changed or "no file"))
    return [
        "/undo N goes back to before run N and restores the files changed since:",
        *table(rows, width),
    ]


def debug_rows(settings: Settings, chain: Chain, width: int) -> list[str]:
    """Return the rows of ``/debug``: the session's id, the paths of its files, and the version."""
    rows = (
        ("session", chain.session_id),
        ("journal", str(chain.journal_path or "none")),
        ("last trace", chain.state.trace_path() or "none"),
        ("configuration", str(settings.file or "the built-in one")),
        ("handler prompt", str(settings.chain().interruption_prompt or "the built-in one")),
        ("version", VERSION),
    )
    return table(rows, width)


def tree_rows(agents: Sequence[AgentView], width: int, *, now: float) -> list[str]:
    """Return the rows of ``/agents``: the agents at work, then the finished ones that can be asked again."""
    # The main agent is not listed as finished, since lines always go to it.
    finished = [agent for agent in agents if agent.state == "finished" and agent.name != MAIN]
    named = {agent.name: agent for agent in agents if agent not in finished}
    order = tree_order({agent.name: agent.parent for agent in named.values()})
    names = {name: indent(depth, width) + flat(name) for depth, name in order}
    room = max(map(columns, names.values()), default=0)
    rows = [_tree_row(names[n], room, _agent_facts(named[n], now), named[n].task, width) for n in names]
    if finished:
        rows.append(cut("Finished, can be asked again:", width, _MARK))
    room = STEP + max((columns(flat(agent.name)) for agent in finished), default=0)
    return rows + [_tree_row(" " * STEP + flat(agent.name), room, "", agent.task, width) for agent in finished]


def _agent_facts(agent: AgentView, now: float) -> str:
    if agent.state == "finished":
        return "idle"
    parts = [duration(now - agent.since, whole=True)]
    if agent.iteration:
        parts.append(f"{agent.iteration}/{agent.max_iterations}")
    if agent.state == "completing":
        parts.append("ends")
    if agent.waiting:
        parts.append(f"{pluralize(agent.waiting, 'line')} waiting")
    return ", ".join([*parts, pluralize(agent.tokens, "token")])


def _tree_row(name: str, room: int, facts: str, task: str, width: int) -> str:
    return cut("  ".join(part for part in (pad(name, room), facts, flat(task)) if part), width, _MARK).rstrip()


def _first_sentence(text: str) -> str:
    paragraph = text.strip().partition("\n\n")[0]
    found = _SENTENCE.match(paragraph)
    return flat(found[0] if found else paragraph)
