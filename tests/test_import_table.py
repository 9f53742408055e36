"""Who may import whom, as a table: a module's own row, then what the check finds in its source."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Our own modules, plus the outside packages whose importers are limited. The standard library is free.
GUARDED = {"trio", "yaml", "prompt_toolkit", "anthropic", "pydantic", "httpx2", "hypothesis", "pytest", "regex"}

PURE = {"chain.errors", "chain.messages"}
TRIO = {"trio"}
TOOLS = PURE | {"chain.events", "chain.lines", "chain.plan", "chain.threads", "chain.tools"} | TRIO
# What a run is made of: everything below the executor, in the order in which it is built up.
RUN = PURE | {"chain.events", "chain.endings", "chain.inbox"} | TRIO
ASKING = RUN | {"chain.conversation", "chain.model", "chain.run"}
TOOLRUN = RUN | TOOLS | {"chain.conversation", "chain.run"}
DELIVERY = RUN | {"chain.interruption", "chain.plan", "chain.run"}
EXECUTOR = ASKING | TOOLRUN | DELIVERY | {"chain.asking", "chain.toolrun", "chain.delivery"}

# The row of a package holds for the modules in it, and who may import a package may import those.
MAY_IMPORT: dict[str, set[str]] = {
    "chain.errors": set(),
    "chain.version": set(),
    "chain.messages": set(),
    "chain.lines": set(),
    "chain.plan": {"chain.errors", "chain.lines"},
    "chain.events": PURE,
    "chain.conversation": PURE,
    "chain.model": PURE,
    "chain.endings": {"chain.events"},
    "chain.yamlfile": {"chain.errors", "yaml"},
    "chain.search": {"regex"},
    "chain.threads": TRIO,
    "chain.interruption": PURE | {"chain.lines", "chain.search", "chain.yamlfile"},
    "chain.promptfile": {"chain.errors", "chain.interruption", "chain.yamlfile"},
    "chain.feed": {"chain.events"} | TRIO,
    "chain.inbox": {"chain.errors", "chain.events", "chain.lines"} | TRIO,
    "chain.tools": TOOLS | {"pydantic"},
    "chain.run": RUN,
    "chain.asking": ASKING,
    "chain.toolrun": TOOLRUN,
    "chain.delivery": DELIVERY,
    "chain.executor": EXECUTOR,
    "chain.account": RUN | {"chain.run"},
    "chain.runs": EXECUTOR | {"chain.executor", "chain.account", "chain.session", "chain.trace"},
    "chain.session": {"chain.errors", "chain.threads"} | TRIO,
    "chain.settings": {"chain.errors"},
    "chain.overlay": {"chain.yamlfile"},
    "chain.values": {"chain.errors", "chain.settings", "chain.yamlfile"},
    "chain.trust": {"chain.errors", "chain.values", "chain.yamlfile"},
    "chain.config": {
        "chain.errors",
        "chain.overlay",
        "chain.settings",
        "chain.trust",
        "chain.values",
        "chain.yamlfile",
    },
    "chain.providers": PURE
    | {"chain.model", "chain.search", "chain.threads", "chain.yamlfile", "chain.providers"}
    | TRIO,
    "chain.providers.anthropic": PURE
    | {"chain.model", "chain.providers", "chain.threads", "anthropic", "httpx2"}
    | TRIO,
    "chain.trace": PURE | {"chain.events", "chain.model"} | TRIO,
    "chain.chain": EXECUTOR
    | {"chain.executor", "chain.account", "chain.runs", "chain.feed", "chain.promptfile", "chain.session"}
    | {"chain.trace", "chain.version"},
    "chain": {"chain"},
    "chain.app": {"chain"} | TRIO,
}

PRIVATE = {"conversation", "asking", "delivery", "executor", "toolrun", "account", "runs", "inbox", "providers"}
PRIVATE |= {"session", "trace", "model"}
"""The parts of chain that are its own business: a front end speaks to a `Chain` and reads events."""


def modules() -> dict[str, Path]:
    found = {}
    for path in sorted([*ROOT.glob("chain/**/*.py"), *ROOT.glob("cli/**/*.py")]):
        parts = path.relative_to(ROOT).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


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


@pytest.mark.parametrize("name", sorted(modules()))
def test_module_imports_only_what_its_row_allows(name: str) -> None:
    found = {m.split(".")[0] if m.split(".")[0] in GUARDED else m for m in imports(name, modules()[name])}
    if name.startswith("cli"):
        check_cli(name, found)
        return
    row = next((MAY_IMPORT[p] for p in packages_of(name) if p in MAY_IMPORT), None)
    assert row is not None, f"{name} needs a row in the table"
    refused = sorted(m for m in found if not is_allowed(m, row))
    assert not refused, f"{name} may not import {refused}"


def check_cli(name: str, found: set[str]) -> None:
    outside = found & GUARDED
    assert outside <= ({"trio", "prompt_toolkit"} if name == "cli.terminal" else {"trio"})
    if name in {"cli.render", "cli.moments", "cli.commands"}:
        assert not outside
    private = {m for m in found if m.startswith("chain.") and m.split(".")[1] in PRIVATE}
    assert not private, f"{name} reaches into {sorted(private)}"


def test_the_table_names_only_modules_that_exist() -> None:
    assert set(MAY_IMPORT) <= set(modules())
