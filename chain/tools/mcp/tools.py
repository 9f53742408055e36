"""Checks the tools and prompts that a server lists.

A model service refuses a whole request if one of its tools is invalid. So every tool that a service may refuse is left
out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import count, islice
from typing import Any, TypeAlias

from chain.config.servers import ToolServer
from chain.errors import ToolError
from chain.events import OfferedTool
from chain.text.plain import sanitize
from chain.text.wording import join_first
from chain.tools.allowances import SERVER_PREFIX
from chain.tools.mcp.content import one_row

MAX_TOOLS = 200
"""The most tools of one server: more tools would fill the model's context window."""
MAX_DESCRIPTION = 10_000
MAX_SCHEMA = 30_000
"""The most characters of a tool's description, and of its schema."""
MAX_OFFER_CHARS = 300_000
"""The most characters of all descriptions and schemas of one server."""
MAX_SCHEMA_VALUES, MAX_ALL_VALUES = 2_000, 10_000
"""The most values in one schema, and in all schemas of a server. Checking this many takes 2 s at most."""
MAX_CHECKED_TOOLS = 2 * MAX_TOOLS
"""The most tools of a server's list that are checked."""
MAX_LEVELS = 30
"""The most nested levels of a schema."""
MAX_PROMPTS = 200
"""The most prompts of one server."""
MAX_SERVER_TEXT = 300
"""The most characters shown of a prompt's description, of an error and of a progress message."""
MAX_NAMED_TOOLS = 3
"""The most names in the sentence about tools that were left out."""

_OTHER = re.compile(r"[^a-zA-Z0-9_-]")
"""Matches a character that services do not accept in a name. Each such character is replaced by ``_``."""
_MAX_NAME = 64
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_UNIONS = ("oneOf", "anyOf", "allOf")

_Json: TypeAlias = Mapping[str, Any]


def tools_of(server: ToolServer, listed: Iterable[_Json]) -> tuple[tuple[OfferedTool, ...], str]:
    """Return a server's usable tools, and a sentence on the tools left out, if any. Slow: call it in a thread."""
    found: dict[str, OfferedTool] = {}
    first: dict[str, _Json] = {}
    faults: list[str] = []
    chars = values = 0
    for n, raw in enumerate(listed):
        name, hints = raw.get("name"), raw.get("annotations")
        name = name if isinstance(name, str) else ""
        # Truncated, because a name of megabytes would take a second.
        full = mapped = f"{SERVER_PREFIX}{server.name}__{_OTHER.sub('_', name[: _MAX_NAME + 1])}"
        others = count(2)
        while full in found and found[full].tool != name:
            full = f"{mapped}_{next(others)}"
        if first.get(full) == raw:
            continue  # the server repeats its list
        try:
            if len(found) == MAX_TOOLS or n >= MAX_CHECKED_TOOLS:
                raise ToolError(f"the server has more than {MAX_TOOLS} tools")
            if full in found:
                raise ToolError("its name is used twice")
            if len(full) > _MAX_NAME:
                raise ToolError(f"its name with the prefix has more than {_MAX_NAME} characters")
            if not _OTHER.sub("", name):
                raise ToolError("its name has none of the characters a-z, A-Z, 0-9, _ and -")
            description, schema = _description(server, raw), raw.get("inputSchema")
            size, parts = _measure(schema)
            chars += len(description) + size
            values += parts
            if chars > MAX_OFFER_CHARS or values > MAX_ALL_VALUES:
                raise ToolError("all tools of the server together are too large")
            assert isinstance(schema, dict)
            description, schema = _without_unions(description, schema)
            _check_schema(schema)
        except ToolError as fault:
            faults.append(f"{name[:40]!r} ({fault})")
            continue
        only_reads = server.trust_hints and isinstance(hints, dict) and hints.get("readOnlyHint") is True
        first[full] = raw
        found[full] = OfferedTool(full, description, schema, only_reads, not only_reads, server.name, name)
    left_out = f"Some tools of {server.name} were left out: {join_first(faults, MAX_NAMED_TOOLS)}." if faults else ""
    return tuple(found.values()), left_out


def prompts_of(listed: Iterable[_Json]) -> tuple[tuple[_Json, ...], tuple[tuple[str, str], ...]]:
    """Return the usable prompts in a server's list, and the name and the description of each."""
    found = tuple(islice(filter(_is_prompt, listed), MAX_PROMPTS))
    return found, tuple((p["name"], one_row(str(p.get("description", "")), MAX_SERVER_TEXT)) for p in found)


def _is_prompt(raw: _Json) -> bool:
    name = raw.get("name")
    return isinstance(name, str) and 0 < len(name) <= 100 and name.isprintable() and " " not in name


def _description(server: ToolServer, raw: _Json) -> str:
    """Return a tool's description or, if it has none, its title or its name. Raise ``ToolError`` if it is too long."""
    texts = (text for key in ("description", "title") if isinstance(text := raw.get(key), str) and text.strip())
    if len(text := next(texts, f"{raw.get('name')}, a tool of {server.name}.")) > MAX_DESCRIPTION:
        raise ToolError(f"its description has more than {MAX_DESCRIPTION:,} characters")
    return text


def _measure(schema: object) -> tuple[int, int]:
    """Count the characters and values of a schema. Raise ``ToolError`` if it is too large or describes no object."""
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        raise ToolError("its schema does not describe an object")
    levels = [level for _, level in _nested_values(schema)]
    if max(levels) > MAX_LEVELS:  # first, because the following checks are recursive
        raise ToolError(f"its schema has more than {MAX_LEVELS} levels")
    if len(levels) > MAX_SCHEMA_VALUES:
        raise ToolError(f"its schema has more than {MAX_SCHEMA_VALUES:,} values")
    if (size := len(json.dumps(schema))) > MAX_SCHEMA:
        raise ToolError(f"its schema has more than {MAX_SCHEMA:,} characters")
    return size, len(levels)


def _without_unions(description: str, schema: _Json) -> tuple[str, _Json]:
    """Move unions, which services refuse at a schema's top level, to the description. Return description and schema."""
    unions = {key: schema[key] for key in _UNIONS if key in schema}
    if unions:
        description += f"\n\nThe input must fit this as well: {json.dumps(unions, ensure_ascii=False)}"
    rest = {key: value for key, value in schema.items() if key not in ("$schema", *_UNIONS)}
    return description, {"type": "object", "properties": {}, **rest}


def _check_schema(schema: _Json) -> None:
    """Raise ``ToolError`` if a model service could refuse a schema. The check is slow: call it in a thread."""
    properties = schema.get("properties", {})
    if isinstance(properties, dict) and not all(map(_PROPERTY.fullmatch, properties)):
        raise ToolError("a parameter has a name with other characters than a-z, A-Z, 0-9, _, . and -")
    # Imported late, because it is slow. It is a dependency of the client.
    from jsonschema import Draft202012Validator, SchemaError  # type: ignore[import-untyped]

    try:
        # Formats are not checked: a pattern is not in Python's syntax, and compiling it can take minutes.
        Draft202012Validator.check_schema(schema, format_checker=None)
    except SchemaError as error:
        raise ToolError(f"its schema is wrong: {sanitize(error.message)[:100]}") from None
    references = (part["$ref"] for part, _ in _nested_values(schema) if isinstance(part, dict) and "$ref" in part)
    if any(isinstance(ref, str) and _is_broken_reference(ref, schema) for ref in references):
        raise ToolError("its schema has a broken reference")


def _nested_values(value: object) -> Iterator[tuple[object, int]]:
    """Yield a JSON value and all values inside it, each with its nesting level; the value itself has level 1."""
    left = [(value, 1)]
    while left:
        value, level = left.pop()
        yield value, level
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        left += [(each, level + 1) for each in inside]


def _is_broken_reference(ref: str, schema: _Json) -> bool:
    """Return whether a reference leads out of the schema, to a missing value, or in a circle."""
    seen: set[str] = set()
    while True:
        if ref in seen or not ref.startswith("#"):
            return True
        seen.add(ref)
        place: Any = schema
        for part in ref[1:].split("/")[1:]:
            key = part.replace("~1", "/").replace("~0", "~")
            if isinstance(place, dict) and key in place:
                place = place[key]
            elif isinstance(place, list) and key.isdecimal() and int(key) < len(place):
                place = place[int(key)]
            else:
                return True
        if not (isinstance(place, dict) and isinstance(place.get("$ref"), str)):
            return False
        ref = place["$ref"]
