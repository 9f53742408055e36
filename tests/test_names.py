"""No two classes, modules or public functions of one name. Run as a script, this lists what is doubled."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

from support.house import modules

# What may share a name, each with the reason.
MEANT = {
    "class AgentEnded": "a record and the event that is made of it are one fact",
    "class AgentStarted": "the same",
    "class Answer": "the same",
    "class Question": "the same",
    "class Receipt": "the same",
    "class Result": "the same",
    "class Line": "a record is named after what it keeps",
    "class Message": "the same",
    "class Model": "the same",
    "class ToolCall": "an event is named after the block of a message that it tells of",
    "class ToolResult": "the same",
    "class Reply": "what a model gives, and the event that tells of it; both are documented names",
    "function from_json": "the module says of what: event_json.from_json",
    "function to_json": "the same",
    "function main": "what a program that is run by its path begins with",
    "module journal": "a room and the module that it is named after",
    "module acp": "a subcommand's module has the command's name",
    "module explain": "the same",
    "module replay": "the same",
    "module sessions": "the same",
    "module worker": "the same",
}


def doubles() -> dict[str, list[str]]:
    """The kinds and names that are there twice, with their places. An underscore before it makes no other name."""
    places: dict[str, list[str]] = {}
    for module, path in modules().items():
        for named in names_in(module, path):
            places.setdefault(named, []).append(module)
    return {named: found for named, found in sorted(places.items()) if len(found) > 1}


def names_in(module: str, path: Path) -> Iterator[str]:
    if "." in module and not module.endswith(".__main__"):
        yield f"module {module.rpartition('.')[2]}"
    names = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef):
            names.add(f"class {node.name.lstrip('_')}")
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            names.add(f"function {node.name}")
    yield from sorted(names)  # an overloaded function counts once


def test_no_name_is_there_twice() -> None:
    unknown = {named: places for named, places in doubles().items() if named not in MEANT}
    assert not unknown, "give one of them another name"


if __name__ == "__main__":
    for named, places in doubles().items():
        sys.stdout.write(f"{named}: {', '.join(places)}{' (meant)' if named in MEANT else ''}\n")
