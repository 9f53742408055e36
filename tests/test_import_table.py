"""The order of the packages: imports go down one list, and some packages have few importers."""

import ast
from collections.abc import Iterable
from functools import cache
from graphlib import TopologicalSorter

from support.project import modules

ORDER = """
chain.errors chain.messages chain.text chain.concurrency chain.regular_file
chain.network
chain.config.extras chain.config.retries chain.config.yamlfile chain.events chain.lines.parse chain.model chain.version
chain.config.values chain.interruption chain.journal chain.session.exit_codes chain.text.phrases
chain.config.provider chain.config.servers chain.lines chain.plan chain.session.event_json
chain.config chain.providers chain.tools
chain.agent chain.app.instructions
chain.session
chain.chain chain.export
chain.redis
chain.app.sessions
chain.app
chain
cli.options cli.writing cli.event_rows cli.outbox
cli.input
cli.door cli.show
cli.screen
cli.ending cli.headless_output cli.pager
cli.command_output
cli.headless
cli.arguments
cli.terminal
cli.acp
cli.subcommands
cli.main
cli
cli.__main__
"""
"""The packages, lowest first. A module may import packages of the rows above its own, and its own package."""

HEIGHT = {name: height for height, row in enumerate(ORDER.splitlines()) for name in row.split()}
FRONT = "chain chain.app chain.chain"  # the modules that put the others together
ONLY_FROM = {
    "chain.config": f"chain.app.instructions {FRONT} cli",
    "chain.providers": "",  # imported by name, not by a statement
    "chain.export": "chain.app.sessions",
    "chain.redis": FRONT,
    "chain.config.yamlfile": "chain.interruption chain.config chain.providers chain.app",
    "chain.interruption": "chain.agent chain.session chain.app",
    "chain.lines": f"chain.agent chain.session chain.redis {FRONT}",
    "chain.tools": f"chain.agent chain.session {FRONT}",
    "chain.agent": f"chain.session {FRONT}",
    "chain.session": f"chain.redis {FRONT}",
    # Libraries.
    "anthropic": "chain.providers.anthropic.checking",
    "coredis": "chain.redis",
    "httpx2": "chain.network chain.providers.anthropic chain.tools.mcp chain.tools.research",
    "jsonschema": "chain.tools.mcp.tools",
    "markdown_it": "chain.export.escaping cli.show.markdown_layout",
    "mcp": "chain.tools.mcp.connection chain.tools.mcp.streams",
    "mcp_types": "chain.tools.mcp.connection chain.tools.mcp.streams chain.tools.mcp.traffic",
    "prompt_toolkit": "cli.screen",
    "pydantic": "chain.tools.tool",
    "pygments": "cli.show.highlight",
    "regex": "chain.text.search",
    "selectolax": "chain.tools.research.page_text",
    "shtab": "cli.subcommands.completion",
    "yaml": "chain.config.yamlfile",
}
"""The modules that may import some packages and libraries, apart from the package itself."""

PURE = """
chain.errors chain.events chain.export chain.interruption chain.journal.fields chain.journal.json
chain.journal.reading chain.journal.records chain.lines.parse chain.messages chain.agent.conversation
chain.agent.refusals chain.agent.window chain.plan chain.session.state chain.text chain.config
cli.show cli.terminal.slash cli.input.address cli.input.file_names cli.input.moments cli.input.json_rows
cli.input.splitter
"""
"""Modules of plain functions, which import no trio."""

PROGRAMS = {
    "chain.tools.processes.fence": "",
    "chain.tools.processes.keeper": "chain.tools.processes.fence",
    "chain.tools.processes.guard": "chain.tools.processes.fence chain.tools.processes.keeper",
    "chain.tools.processes.environment": "",
    "chain.tools.processes.probe": "chain.tools.processes.environment chain.tools.processes.fence",
    "chain.tools.research.page_text": "chain.tools.processes.fence",
}
"""Modules that run as programs of their own, with all modules of ours that they import."""

PUBLIC = f"""
chain.concurrency chain.config chain.errors chain.events chain.lines.parse chain.session.event_json
chain.session.exit_codes chain.text.escalations chain.text.hunks chain.text.modes chain.text.phrases chain.text.plain
chain.text.wording chain.version {FRONT}
"""
"""The modules that a front end may import: it uses a `Chain` and reads events."""


@cache
def imports(name: str) -> frozenset[str]:
    """Return the modules and outside packages that a module imports, lazily or not."""
    ours, imported = modules(), set[str]()
    for node in ast.walk(ast.parse(ours[name].read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.module is not None, f"{name} uses a relative import"
            inside = {f"{node.module}.{alias.name}" for alias in node.names} & {*ours}
            imported |= inside or {node.module}
    return frozenset(imported)


def is_in(name: str, packages: Iterable[str]) -> bool:
    """Return whether a module is one of the packages or is in one. ``chain`` stands only for its own ``__init__``."""
    return any(name == each or (each != "chain" and name.startswith(f"{each}.")) for each in packages)


def package(name: str) -> str:
    """Return the entry of ORDER that a module belongs to."""
    return max((each for each in HEIGHT if is_in(name, [each])), key=len)


def test_imports_go_down_the_list() -> None:
    for name in modules():
        for each in imports(name) & {*modules()}:
            own, other = package(name), package(each)
            assert own == other or HEIGHT[other] < HEIGHT[own], f"{name} may not import {each}"
    TopologicalSorter({name: imports(name) - {"chain", name} for name in modules()}).prepare()


def test_some_packages_have_few_importers() -> None:
    for name in modules():
        for each in imports(name):
            limited = package(each) if each in modules() else each.split(".")[0]
            if limited in ONLY_FROM:
                assert is_in(name, [limited, *ONLY_FROM[limited].split()]), f"{name} may not import {each}"


def test_pure_modules_import_no_trio() -> None:
    assert [name for name in modules() if is_in(name, PURE.split()) and "trio" in imports(name)] == []


def test_separate_programs_import_little() -> None:
    for name, allowed in PROGRAMS.items():
        assert imports(name) & {*modules()} <= {*allowed.split()}, name


def test_front_ends_import_public_packages() -> None:
    for name in modules():
        if name.startswith("cli"):
            ours = {each for each in imports(name) if each.startswith("chain")}
            assert all(is_in(each, PUBLIC.split()) for each in ours), name
