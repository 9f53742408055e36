"""Who may import whom, as a table: a module's own row, then what the check finds in its source."""

import ast
from functools import cache
from pathlib import Path

from support.house import ROOT, modules

# Our own modules, plus the outside packages whose importers are limited. The standard library is free.
GUARDED = {
    "trio",
    "yaml",
    "prompt_toolkit",
    "anthropic",
    "coredis",
    "pydantic",
    "httpx2",
    "hypothesis",
    "jsonschema",
    "markdown_it",
    "mcp",
    "mcp_types",
    "pygments",
    "pytest",
    "regex",
    "selectolax",
}

# What may be imported by everything that is pure.
PURE = {"chain.errors", "chain.messages", "chain.text.wording"}
# The spine, from the foot up: each room may import those below it.
JOURNAL = {
    "chain.errors",
    "chain.events",
    "chain.fields",
    "chain.journal",
    "chain.messages",
    "chain.signal",
    "chain.threads",
    "trio",
}
LINES = PURE | {"chain.events", "chain.journal", "chain.lines", "chain.signal", "trio"}
TOOLS = PURE | {
    "chain.hunks",
    "chain.events",
    "chain.lines.parse",
    "chain.plan",
    "chain.signal",
    "chain.text.search",
    "chain.threads",
    "chain.tools",
    "trio",
}
AGENT = LINES | TOOLS | {"chain.agent", "chain.interruption", "chain.model", "chain.retries"}
SESSION = AGENT | {"chain.session", "chain.event_json", "chain.exit_codes", "chain.version"}

# Modules that stand elsewhere on the spine than the rest of their rooms.
APART = {"chain.lines.parse", "chain.text.phrases"}

# The row of a module comes before that of its package; who may import a package may import the modules in it.
MAY_IMPORT: dict[str, set[str]] = {
    "chain.errors": set(),
    "chain.version": set(),
    "chain.messages": set(),
    "chain.text.phrases": PURE | {"chain.events", "chain.lines.parse", "chain.text.plain"},
    "chain.text": set(),
    "chain.listed": set(),
    "chain.exit_codes": {"chain.events"},
    "chain.signal": {"trio"},
    "chain.text.search": {"regex"},
    "chain.threads": {"trio"},
    "chain.tasks": {"trio"},
    "chain.events": PURE | {"chain.hunks"},
    "chain.hunks": set(),
    "chain.fields": {"chain.messages"},
    "chain.event_json": {"chain.events", "chain.fields", "chain.messages"},
    "chain.model": PURE,
    "chain.lines.parse": PURE,
    "chain.agent.conversation": PURE,
    "chain.journal.records": {"chain.events", "chain.messages"},
    "chain.journal.json": {"chain.fields", "chain.journal.records", "chain.messages"},
    "chain.journal.reading": {"chain.journal"},
    "chain.journal.beside": set(),
    "chain.journal": JOURNAL,
    "chain.plan": PURE | {"chain.events", "chain.journal.records", "chain.lines.parse", "chain.text.phrases"},
    "chain.yamlfile": {"chain.errors", "yaml"},
    "chain.lines": LINES,
    "chain.interruption": PURE | {"chain.interruption", "chain.lines.parse", "chain.text.search", "chain.yamlfile"},
    "chain.tools.tool": TOOLS | {"pydantic"},
    "chain.tools.registry": TOOLS | {"pydantic"},
    "chain.tools.processes.lifeline": {"chain.tools.processes.fence"},
    "chain.tools.processes.fence": set(),  # this and the next two are the guard, a program of its own
    "chain.tools.processes.keeper": {"chain.tools.processes.fence"},
    "chain.tools.processes.guard": {"chain.tools.processes.fence", "chain.tools.processes.keeper"},
    "chain.tools.processes.environment": set(),
    "chain.tools.processes.probe": {"chain.tools.processes.environment", "chain.tools.processes.fence"},
    "chain.tools.processes.output": set(),
    "chain.tools.named_files": PURE | {"chain.threads", "chain.tools"},
    "chain.tools.paths": {"chain.errors"},
    "chain.tools.diff": PURE | {"chain.hunks"},
    "chain.tools.replace": {"chain.tools.paths"},
    "chain.tools.seen": {"trio"},
    "chain.tools.allowances": {"chain.errors", "chain.listed", "chain.tools.tool"},
    # These two are imported with the client of servers, when one is to be started.
    "chain.tools.mcp.server_connection": TOOLS | {"chain.servers", "chain.version", "httpx2", "mcp", "mcp_types"},
    "chain.tools.mcp.streams": TOOLS | {"chain.servers", "httpx2", "mcp", "mcp_types"},
    "chain.tools.research.course": {"chain.lines.parse"},
    "chain.tools.research.ranking": {"chain.tools.file_tree"},
    "chain.tools.research.page_text": {"chain.tools.processes.lifeline", "selectolax"},  # runs as a program of its own
    "chain.tools.research.addresses": {"chain.tools.research.hosts", "httpx2"},
    "chain.tools.research.pages": TOOLS | {"chain.version", "httpx2"},
    "chain.tools.mcp": TOOLS | {"chain.journal.records", "chain.servers", "chain.text.plain", "jsonschema"},
    "chain.tools": TOOLS,
    "chain.agent.window": PURE | {"chain.journal.records", "chain.model"},
    "chain.agent": AGENT,
    "chain.session": SESSION,
    "chain.redis": SESSION | {"chain.redis", "chain.tasks"},
    "chain.redis.redis_server": {"chain.errors", "chain.redis.scripts", "chain.tasks", "coredis", "trio"},
    "chain.export": SESSION | {"chain.export", "chain.text", "chain.version", "markdown_it"},
    "chain.app.whereabouts": {"chain.tools.paths"},
    "chain.instructions": {
        "chain.config",
        "chain.errors",
        "chain.journal.records",
        "chain.threads",
        "chain.tools.paths",
    }
    | {"trio"},
    "chain.values": {"chain.errors", "chain.yamlfile"},
    "chain.servers": {"chain.errors", "chain.values", "chain.yamlfile"},
    "chain.retries": set(),
    # Providers are found by name.
    "chain.provider": {"chain.errors", "chain.model", "chain.retries", "chain.values", "chain.yamlfile"},
    "chain.config": {
        "chain.config",
        "chain.errors",
        "chain.listed",
        "chain.provider",
        "chain.servers",
        "chain.values",
        "chain.yamlfile",
    },
    "chain.providers": PURE
    | {"chain.model", "chain.provider", "chain.providers", "chain.text.search", "chain.threads", "chain.values"}
    | {"chain.yamlfile", "trio"},
    "chain.providers.anthropic.client": PURE
    | {"chain.model", "chain.provider", "chain.providers.anthropic", "chain.threads"}
    | {"anthropic", "httpx2", "trio"},
    "chain.providers.anthropic.failures": PURE | {"chain.model", "chain.providers.anthropic", "httpx2"},
    "chain.app.explain": PURE
    | {"chain.app.prompt_files", "chain.config", "chain.interruption", "chain.lines.parse", "chain.plan"},
    "chain.app.prompt_files": {"chain.agent.window", "chain.config", "chain.errors", "chain.interruption"}
    | {"chain.values", "chain.yamlfile"},
    "chain.chain": SESSION | {"chain.version"},
    "chain": {"chain"},
    "chain.app.toolbox": TOOLS | {"chain.app.prompt_files", "chain.config", "chain.values"},
    "chain.sessions": SESSION | {"chain.export", "chain.redis"},
    "chain.replay": SESSION | {"chain.replay", "chain.chain"},
    "chain.replaying": SESSION | {"chain.replay"} | {"chain.app", "chain.chain", "chain.config"},
    "chain.app.kinds": AGENT | {"chain.config", "chain.app.prompt_files", "chain.provider", "chain.app.toolbox"},
    "chain.app": {"chain", "trio"},
}

EDITOR = {f"cli.screen.{name}" for name in ("editor", "keyboard", "page", "shown_text", "toolkit")}
PURE_INPUT = {f"cli.input.{name}" for name in ("address", "file_names", "moments", "json_rows", "splitter")}

PUBLIC = {"chain", "chain.app", "chain.chain", "chain.config", "chain.errors", "chain.events", "chain.exit_codes"}
PUBLIC |= {"chain.event_json", "chain.hunks"}
PUBLIC |= {
    "chain.instructions",
    "chain.lines.parse",
    "chain.text.phrases",
    "chain.text.plain",
    "chain.replaying",
    "chain.servers",
    "chain.sessions",
    "chain.signal",
    "chain.tasks",
    "chain.threads",
    "chain.version",
    "chain.text.wording",
}
"""What a front end may import: it speaks to a `Chain` and reads events."""


SHOWS_MARKDOWN = {
    "cli.show.blocks": {"markdown_it"},
    "cli.show.markdown_layout": {"markdown_it"},
    "cli.show.highlight": {"pygments"},
}
"""Rooms of `cli.show` that import a library, when it is first used."""


@cache
def imports(name: str, path: Path) -> set[str]:
    """The modules of ours and the guarded packages that a file imports, lazily or not."""
    ours = modules()
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} uses a relative import"
            assert node.module is not None
            found |= {
                f"{node.module}.{alias.name}" if f"{node.module}.{alias.name}" in ours else node.module
                for alias in node.names
            }
    return {m for m in found if m.split(".")[0] in GUARDED | {"chain", "cli"}}


def packages_of(name: str) -> list[str]:
    """A module and the packages that it is in, the nearest first; the top package counts only for itself."""
    parts = name.split(".")
    return [name, *(".".join(parts[:n]) for n in range(len(parts) - 1, 1, -1))]


def is_allowed(module: str, allowed: set[str]) -> bool:
    whole_house = "chain" in allowed and module.startswith("chain")
    return whole_house or any(name in allowed for name in packages_of(module))


def test_modules_import_only_what_their_rows_allow() -> None:
    for name in sorted(modules()):
        check_module(name)


def check_module(name: str) -> None:
    found = {m.split(".")[0] if m.split(".")[0] in GUARDED else m for m in imports(name, modules()[name])}
    if name.startswith("cli"):
        check_cli(name, found)
        return
    row = next((MAY_IMPORT[p] for p in packages_of(name) if p in MAY_IMPORT), None)
    assert row is not None, f"{name} needs a row in the table"
    refused = sorted(m for m in found if not is_allowed(m, row))
    assert not refused, f"{name} may not import {refused}"


def check_cli(name: str, found: set[str]) -> None:
    outside = (found & GUARDED) - SHOWS_MARKDOWN.get(name, set())
    assert outside <= ({"trio", "prompt_toolkit"} if name in EDITOR else {"trio"}), name
    if name.startswith("cli.show.") or name in {"cli.terminal.slash", *PURE_INPUT}:
        assert not outside, name
    private = {m for m in found if m.startswith("chain.") and not any(p in PUBLIC for p in packages_of(m))}
    assert not private, f"{name} reaches into {sorted(private)}"


def test_no_import_runs_in_a_circle() -> None:
    """Neither among modules nor among the packages of `chain`."""
    ours = modules()
    graph = {name: {m for m in imports(name, path) if m in ours} - {"chain", name} for name, path in ours.items()}
    rooms: dict[str, set[str]] = {}
    for name, found in graph.items():
        # `lines.parse` stands below `journal`, and `text.phrases` above `events`: they are rooms of their own.
        room, *inside = (m if m in APART else ".".join(m.split(".")[:2]) for m in (name, *found))
        rooms.setdefault(room, set()).update(set(inside) - {room})
    for which in (graph, rooms):
        for name in which:
            seen, left = set[str](), list(which[name])
            while left:
                reached = left.pop()
                assert reached != name, f"{name} imports itself by way of others"
                if reached not in seen:
                    seen.add(reached)
                    left += which.get(reached, ())


def test_the_table_names_only_modules_that_exist() -> None:
    assert set(MAY_IMPORT) <= set(modules())


def test_no_test_file_imports_from_another() -> None:
    for path in ROOT.glob("tests/**/test_*.py"):
        # An import stands at the beginning of a row, wherever it is indented to.
        rows = [row.split() for row in path.read_text(encoding="utf-8").splitlines() if "import" in row]
        names = [row[1] for row in rows if row[0] in ("from", "import") and len(row) > 1]
        assert not [name for name in names if name.split(".")[-1].startswith("test_")], path
