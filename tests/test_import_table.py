"""Who may import whom, as a table: a module's own row, then what the check finds in its source."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# Our own modules, plus the outside packages whose importers are limited. The standard library is free.
GUARDED = {"trio", "yaml", "prompt_toolkit", "anthropic", "pydantic", "httpx2", "hypothesis", "pytest"}

PURE = {"chain.errors", "chain.messages"}
TOOLS = {"chain.errors", "chain.messages", "chain.events", "chain.lines", "chain.plan", "chain.tools"}
EXECUTOR = TOOLS | {
    "chain.conversation",
    "chain.endings",
    "chain.inbox",
    "chain.interruption",
    "chain.model",
}
TRIO = {"trio"}

MAY_IMPORT: dict[str, set[str]] = {
    "chain.errors": set(),
    "chain.messages": set(),
    "chain.lines": set(),
    "chain.plan": {"chain.errors", "chain.lines"},
    "chain.events": PURE,
    "chain.conversation": PURE,
    "chain.model": PURE,
    "chain.endings": PURE | {"chain.events"},
    "chain.yamlfile": {"chain.errors", "yaml"},
    "chain.interruption": PURE | {"chain.lines", "chain.yamlfile"},
    "chain.promptfile": {"chain.errors", "chain.interruption", "chain.yamlfile"},
    "chain.inbox": {"chain.errors", "chain.events", "chain.lines"} | TRIO,
    "chain.tools": TOOLS | TRIO | {"pydantic"},
    "chain.executor": EXECUTOR | TRIO,
    "chain.session": PURE | {"chain.events", "chain.lines"} | TRIO,
    "chain.config": {"chain.errors", "chain.yamlfile"},
    "chain.providers": PURE | {"chain.model", "chain.yamlfile"} | TRIO,
}


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


def row(name: str) -> set[str] | None:
    """The row of a module, or of the package that it is in."""
    while name:
        if name in MAY_IMPORT:
            return MAY_IMPORT[name]
        name = name.rpartition(".")[0]
    return None


@pytest.mark.parametrize("name", sorted(modules()))
def test_module_imports_only_what_its_row_allows(name: str) -> None:
    found = imports(name, modules()[name])
    guarded = {m.split(".")[0] if m.split(".")[0] in GUARDED else m for m in found}
    if name in {"chain", "chain.app"}:
        assert not {m for m in guarded if m.startswith("cli")}
        assert guarded <= set(modules()) | TRIO
        return
    if name.startswith("cli"):
        check_cli(name, guarded)
        return
    allowed = row(name)
    assert allowed is not None, f"{name} needs a row in the table"
    if name.startswith("chain.tools."):
        allowed = allowed - {"pydantic"}
    if name == "chain.providers.anthropic":
        allowed = allowed | {"anthropic", "httpx2"}
    assert guarded <= allowed, f"{name} may not import {sorted(guarded - allowed)}"


def check_cli(name: str, guarded: set[str]) -> None:
    outside = guarded & GUARDED
    assert outside <= ({"trio", "prompt_toolkit"} if name == "cli.terminal" else {"trio"})
    if name in {"cli.render", "cli.moments", "cli.commands"}:
        assert not outside
    private = {m for m in guarded if m.startswith("chain.") and m.split(".")[1] in PRIVATE}
    assert not private, f"{name} reaches into {sorted(private)}"


PRIVATE = {"conversation", "executor", "inbox", "providers", "session", "trace", "model"}
"""The parts of chain that are its own business: a front end speaks to `app` and reads events."""


def test_the_table_names_only_modules_that_exist() -> None:
    assert set(MAY_IMPORT) <= set(modules())
