"""Converts a server's list of tools. This can take long: call it in a thread.

A service refuses a whole request because of one bad tool, so tools that may be bad are left out.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import count, islice
from typing import Any, TypeAlias

from chain.config.servers import ToolServer
from chain.events import OfferedTool
from chain.text.plain import sanitize
from chain.text.wording import first_of
from chain.tools.allowances import SERVER_PREFIX
from chain.tools.mcp.content import in_a_row

MAX_TOOLS = 200
"""Tools of a server: more would fill the model's context window."""
MAX_DESCRIPTION = 10_000
MAX_SCHEMA = 30_000
"""Characters of each."""
MAX_OFFER_CHARS = 300_000
"""Characters of all descriptions and schemas of a server."""
MAX_SCHEMA_VALUES, MAX_ALL_VALUES = 2_000, 10_000
"""Values in a schema, and in all schemas of a server: checking this many takes 2 s at most."""
MAX_CHECKED_TOOLS = 2 * MAX_TOOLS
"""Tools of a list that are checked."""
MAX_LEVELS = 30
"""Levels of a schema."""
MAX_PROMPTS = 200
"""Prompts of a server: as many as tools."""
MAX_SERVER_TEXT = 300
"""Characters that are shown of what a prompt does, of an error and of progress."""
MAX_NAMED_TOOLS = 3
"""Tools that are named of those that were left out."""

_OTHER = re.compile(r"[^a-zA-Z0-9_-]")
"""Characters that services do not accept in a name, although the protocol allows some: each becomes _."""
_MAX_NAME = 64
_PROPERTY = re.compile(r"[a-zA-Z0-9_.-]{1,64}")
_UNIONS = ("oneOf", "anyOf", "allOf")
_LEFT_OUT = ("$schema", *_UNIONS)
"""Keys at the top of a schema that are not sent to the model."""

_Json: TypeAlias = Mapping[str, Any]


def tools_of(server: ToolServer, listed: Iterable[_Json]) -> tuple[tuple[OfferedTool, ...], str]:
    """Return the tools, and a sentence on those left out, or an empty string."""
    found: dict[str, OfferedTool] = {}
    first: dict[str, _Json] = {}
    faults: list[str] = []
    chars = values = 0
    for n, raw in enumerate(listed):
        name, hints = raw.get("name"), raw.get("annotations")
        schema: Any = raw.get("inputSchema")
        name = name if isinstance(name, str) else ""
        # One character too many is enough to see that a name is too long: one of megabytes would take a second.
        full = mapped = f"{SERVER_PREFIX}{server.name}__{_OTHER.sub('_', name[: _MAX_NAME + 1])}"
        others = count(2)
        while full in found and found[full].tool != name:
            full = f"{mapped}_{next(others)}"
        description = _description(server, raw)
        if first.get(full) == raw:
            continue  # the server repeats its list
        if len(found) == MAX_TOOLS or n >= MAX_CHECKED_TOOLS:
            fault = f"there are more than {MAX_TOOLS}"
        elif full in found:
            fault = "it is one more of that name"
        elif not (fault := _form_fault(full, raw, description)):
            description += _union_text(schema)
            schema = {
                "type": "object",
                "properties": {},
                **{key: value for key, value in schema.items() if key not in _LEFT_OUT},
            }
            text = json.dumps(schema)
            chars += len(description) + len(text)
            values += sum(1 for _ in _parts(schema))
            is_much = chars > MAX_OFFER_CHARS or values > MAX_ALL_VALUES
            fault = "there is too much of them all" if is_much else _schema_fault(text)
        if fault:
            faults.append(f"{name[:40]!r} ({fault})")
            continue
        only_reads = server.trust_hints and isinstance(hints, dict) and hints.get("readOnlyHint") is True
        first[full] = raw
        found[full] = OfferedTool(full, description, schema, only_reads, not only_reads, server.name, name)
    left_out = f"Of the tools of {server.name} were left out: {first_of(faults, MAX_NAMED_TOOLS)}." if faults else ""
    return tuple(found.values()), left_out


def prompts_of(listed: Iterable[_Json]) -> tuple[tuple[_Json, ...], tuple[tuple[str, str], ...]]:
    """Return the usable prompts of a list, and for each its name and what it does."""
    found = tuple(islice(filter(_is_prompt, listed), MAX_PROMPTS))
    return found, tuple((p["name"], in_a_row(str(p.get("description", "")), MAX_SERVER_TEXT)) for p in found)


def _is_prompt(raw: _Json) -> bool:
    name = raw.get("name")
    return isinstance(name, str) and 0 < len(name) <= 100 and name.isprintable() and " " not in name


def _description(server: ToolServer, raw: _Json) -> str:
    texts = (text for key in ("description", "title") if isinstance(text := raw.get(key), str) and text.strip())
    return next(texts, f"{raw.get('name')}, a tool of {server.name}.")


def _union_text(schema: _Json) -> str:
    """Describe unions at the top of a schema, where services refuse them. The server checks its input itself."""
    unions = {key: schema[key] for key in _UNIONS if key in schema}
    return f"\n\nThe input must fit this as well: {json.dumps(unions, ensure_ascii=False)}" if unions else ""


def _form_fault(full: str, raw: _Json, description: str) -> str:
    """Return why a tool is left out by its name or sizes, or an empty string."""
    name, schema = raw.get("name"), raw.get("inputSchema")
    if len(full) > _MAX_NAME or not isinstance(name, str) or not _OTHER.sub("", name):
        return f"a whole name has at most {_MAX_NAME} characters, and some of a-z, A-Z, 0-9, _ and -"
    if len(description) > MAX_DESCRIPTION:
        return f"its description has more than {MAX_DESCRIPTION:,} characters"
    if not isinstance(schema, dict) or schema.get("type", "object") != "object":
        return "its input is no object"
    levels = [level for _, level in _parts(schema)]
    if max(levels) > MAX_LEVELS:
        return f"its schema has more than {MAX_LEVELS} levels"
    if len(levels) > MAX_SCHEMA_VALUES:
        return f"its schema has more than {MAX_SCHEMA_VALUES:,} values"
    return f"its schema has more than {MAX_SCHEMA:,} characters" if len(json.dumps(schema)) > MAX_SCHEMA else ""


@lru_cache(maxsize=MAX_CHECKED_TOOLS)  # a restarted or changed server has most schemas again
def _schema_fault(text: str) -> str:
    """Return why a tool is left out by its schema, or an empty string. This is slow."""
    schema = json.loads(text)
    properties = schema.get("properties", {})
    if isinstance(properties, dict) and not all(map(_PROPERTY.fullmatch, properties)):
        return "a parameter has a name with other characters than a-z, A-Z, 0-9, _, . and -"
    # Imported late: it comes with the client, and takes a while.
    from jsonschema import Draft202012Validator, SchemaError  # type: ignore[import-untyped]

    try:
        # Without formats: a pattern is not one of Python's, and compiling it can take minutes.
        Draft202012Validator.check_schema(schema, format_checker=None)
    except SchemaError as error:
        return f"its schema is wrong: {sanitize(error.message)[:100]}"
    references = (part["$ref"] for part, _ in _parts(schema) if isinstance(part, dict) and "$ref" in part)
    if any(isinstance(ref, str) and _ends_nowhere(ref, schema) for ref in references):
        return "its schema refers to what is not there"
    return ""


def _parts(value: object) -> Iterator[tuple[object, int]]:
    """Yield a value and all values inside it, each with its level."""
    left = [(value, 1)]
    while left:
        value, level = left.pop()
        yield value, level
        inside = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
        left += [(each, level + 1) for each in inside]


def _ends_nowhere(ref: str, schema: _Json) -> bool:
    """Return whether a reference leads out of the schema, to nothing, or in a circle."""
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


def mistake(name: str, schema: _Json, input: _Json) -> str:
    """Return which keys of an input are missing or unknown, or an empty string. The server checks the rest."""
    properties = schema.get("properties", {})
    missing = [key for key in schema.get("required", ()) if key not in input]
    is_closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
    unknown = [key for key in input if key not in properties] if is_closed else []
    faults = [f"{key} is missing" for key in missing] + [f"there is no {key}" for key in unknown]
    return f"The input of {name} does not fit its schema: {'; '.join(faults)}." if faults else ""
