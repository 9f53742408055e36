"""Reads rule files: YAML checked against the language of ``rules``, with the line of every mistake."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from chain import yamlfile
from chain.errors import nearest
from chain.messages import StopReason
from chain.providers.scripted.rules import (
    NAMES,
    PARAMETERS,
    Collection,
    Failure,
    GoingOn,
    Marks,
    Pace,
    RuleFile,
    ScriptedCall,
    ScriptRule,
    Slot,
    Source,
    Template,
    When,
    groups,
)
from chain.text.search import BadPattern, Expressions

if TYPE_CHECKING:
    from chain.text.search import Pattern

_SLOT = re.compile(r"\$(?:(\$)|\{([A-Za-z0-9_.]+)(?:\|(number|list|indent|s|\d{1,3}))?(?::-([^}]*))?\})?")


def load(path: Path, within: Path | None = None) -> RuleFile:
    """Read a rule file, which must be in the folder ``within``. Raises ``ConfigError`` with file, line and key."""
    return _read(yamlfile.read(path, within))


def parse_rules(text: str, file: str) -> RuleFile:
    """Read rules from text; ``file`` is its name in errors. Raises ``ConfigError``."""
    return _read(yamlfile.parse(text, file))


_RESUME = r"\AYour reply was shown to the user\.|\APlease continue\.\Z"
_NOTE = r"\A\[The user (stopped|interrupted) the run here\]\Z"


def _read(top: yamlfile.Node) -> RuleFile:
    keys = top.mapping(("version", "description", "name", "marks", "pace", "terminal_pace", "rules"))
    if "rules" not in keys:
        raise top.error("there is no list of rules; write rules: and the rules under it")
    pace = _pace(keys["pace"], Pace()) if "pace" in keys else Pace()
    terminal_pace = _pace(keys["terminal_pace"], pace) if "terminal_pace" in keys else pace
    reader = _Reader(pace, terminal_pace)
    return RuleFile(
        file=top.file,
        name=keys["name"].text() if "name" in keys else Path(top.file).stem,
        rules=tuple(reader.rule(node, index) for index, node in enumerate(keys["rules"].items())),
        marks=reader.marks(keys.get("marks") or replace(top, value={}, key="marks")),
        pace=pace,
        terminal_pace=terminal_pace,
        places=reader.places,
    )


def _pace(node: yamlfile.Node, default: Pace) -> Pace:
    keys = node.mapping(("chunk", "delay_s", "think_s", "most_s"))
    seconds = {name: value.number() for name, value in keys.items() if name != "chunk"}
    return Pace(
        keys["chunk"].integer(minimum=1) if "chunk" in keys else default.chunk,
        seconds.get("delay_s", default.delay_s),
        seconds.get("think_s", default.think_s),
        seconds.get("most_s", default.most_s),
    )


_ACTIONS = ("thinking", "text", "tools", "stop_reason", "usage", "error", "and")


class _Reader:
    """Reads the parts that have expressions; ``places`` has the place of each."""

    def __init__(self, pace: Pace, terminal_pace: Pace) -> None:
        self.places: dict[Pattern, yamlfile.Node] = {}
        self._pace = pace
        self._terminal_pace = terminal_pace
        self._expressions = Expressions()

    def rule(self, node: yamlfile.Node, index: int) -> ScriptRule:
        """A rule; ``index`` counts from 0 in its file."""
        keys = node.mapping(("when", "times", "collect", "pace", "terminal_pace", *_ACTIONS))
        if not keys.keys() & set(_ACTIONS):
            raise node.error('a rule that does nothing: give it text (an empty reply is text: ""), tools or error')
        when = self._when(keys["when"]) if "when" in keys else When()
        known = {*NAMES, *groups(*when.patterns)}
        collect: dict[str, Collection] = {}
        for name, each in keys["collect"].mapping().items() if "collect" in keys else ():
            if name in known:
                raise each.error("this name is taken; call the list something else")
            collect[name] = self._collection(each, known)
        for name, collection in collect.items():
            own = groups(collection.match)
            known |= {name, f"{name}.count", *(f"{name}.{g}" for g in own), *(f"{name}.{g}.sum" for g in own)}

        go_on: GoingOn = "no"
        if "and" in keys:
            go_on = "work" if keys["and"].choice(("continue", "work")) == "work" else "continue"
        if go_on == "work" and when.interruption is None:
            raise keys["and"].error("work is for rules with an interruption; write continue here")

        def template(key: str) -> Template:
            return _template(keys[key], known) if key in keys else Template()

        return ScriptRule(
            index=index,
            when=when,
            times=keys["times"].integer(minimum=1) if "times" in keys else None,
            collect=collect,
            thinking=template("thinking"),
            text=template("text"),
            calls=tuple(_call(n, known, collect) for n in keys["tools"].items()) if "tools" in keys else (),
            go_on=go_on,
            stop_reason=_stop_reason(keys["stop_reason"]) if "stop_reason" in keys else None,
            usage=_usage(keys["usage"]) if "usage" in keys else {},
            pace=_pace(keys["pace"], self._pace) if "pace" in keys else None,
            terminal_pace=_pace(keys["terminal_pace"], self._terminal_pace) if "terminal_pace" in keys else None,
            failure=_failure(keys["error"]) if "error" in keys else None,
        )

    def marks(self, node: yamlfile.Node) -> Marks:
        """How messages are recognised."""
        keys = node.mapping(("interruption", "redirect", "resume", "note"))
        built_in = {"resume": replace(node, value=_RESUME), "note": replace(node, value=_NOTE)}
        given: dict[str, Any] = {
            name: self._regex(value) for name, value in {**built_in, **keys}.items() if name != "interruption"
        }
        if "interruption" in keys:
            given["interruption"] = keys["interruption"].text()
            if not given["interruption"].strip():
                raise keys["interruption"].error("must not be blank, or every message would be an interruption")
        return Marks(**given)

    def _when(self, node: yamlfile.Node) -> When:
        regexes = ("user", "interruption", "result", "tool", "tail", "system", "offered")
        keys = node.mapping((*regexes, "is_error", "aside", "turn", "step", "overrides"))
        given: dict[str, Any] = {name: self._regex(keys[name]) for name in regexes if name in keys}
        given |= {name: keys[name].boolean() for name in ("is_error", "aside") if name in keys}
        given |= {name: keys[name].integer(minimum=1) for name in ("turn", "step") if name in keys}
        if "overrides" in keys:
            given["overrides"] = frozenset(item.choice(PARAMETERS) for item in keys["overrides"].items())
        when = When(**given)
        names = [name for pattern in when.patterns for name in pattern.groupindex]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise node.error(f"the group {twice[0]} is in two of the expressions; give one of them another name")
        return when

    def _collection(self, node: yamlfile.Node, known: set[str]) -> Collection:
        keys = node.mapping(
            ("match", "from", "tool", "is_error", "within", "has", "unique", "row", "join", "limit", "empty")
        )
        if "match" not in keys:
            raise node.error("a list needs match, the regular expression of its items")
        match = self._regex(keys["match"])
        given: dict[str, Any] = {}
        if "from" in keys:
            given["source"] = keys["from"].choice(get_args(Source))
        given |= {name: self._regex(keys[name]) for name in ("tool", "within") if name in keys}
        if "is_error" in keys:
            given["is_error"] = keys["is_error"].boolean()
        if "unique" in keys:
            # YAML reads the group 1 as a number
            group = yamlfile.Node(str(keys["unique"].value), node.file, keys["unique"].line, keys["unique"].key)
            given["unique"] = group.choice(sorted(groups(match)))
        if "has" in keys:
            given["has"] = _template(keys["has"], known)
        if "row" in keys:
            given["row"] = _template(keys["row"], groups(match))
        given |= {name: keys[name].text() for name in ("join", "empty") if name in keys}
        if "limit" in keys:
            given["limit"] = keys["limit"].integer(minimum=1)
        return Collection(match, **given)

    def _regex(self, node: yamlfile.Node) -> Pattern:
        try:
            pattern = self._expressions.compile(node.text(), multiline=True)
        except BadPattern as error:
            raise node.error(str(error)) from None
        self.places.setdefault(pattern, node)
        return pattern


def _call(node: yamlfile.Node, known: set[str], collect: Mapping[str, Collection]) -> ScriptedCall:
    keys = node.mapping(("name", "input", "id", "cut", "for_each"))
    if "name" not in keys:
        raise node.error("a tool call needs the name of the tool")
    for_each = keys["for_each"].choice(collect or ("a list under collect",)) if "for_each" in keys else None
    names = known | groups(collect[for_each].match) if for_each else known
    if "input" in keys:
        keys["input"].mapping()
    return ScriptedCall(
        name=keys["name"].text(),
        input=_input(keys["input"], names) if "input" in keys else {},
        id=keys["id"].text() if "id" in keys else None,
        cut="cut" in keys and keys["cut"].boolean(),
        for_each=for_each,
    )


def _input(node: yamlfile.Node, known: set[str]) -> Any:  # noqa: ANN401 - JSON with templates in it
    match node.value:
        case dict():
            return {key: _input(item, known) for key, item in node.value.items()}
        case list():
            return [_input(item, known) for item in node.value]
        case str():
            return _template(node, known)
        case _:
            return node.value


def _stop_reason(node: yamlfile.Node) -> StopReason:
    options: dict[str, StopReason] = {name: name for name in get_args(StopReason)}
    return options[node.choice(options)]


def _usage(node: yamlfile.Node) -> dict[str, int]:
    keys = node.mapping(("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"))
    return {name: value.integer() for name, value in keys.items()}


def _failure(node: yamlfile.Node) -> Failure:
    readers: dict[str, Callable[[yamlfile.Node], Any]] = {
        "message": yamlfile.Node.text,
        "retryable": yamlfile.Node.boolean,
        "retry_after": yamlfile.Node.number,
        "times": lambda n: n.integer(minimum=1),
        "after": yamlfile.Node.integer,
        "refuses": lambda n: tuple(item.choice(PARAMETERS) for item in n.items()),
    }
    return Failure(**{name: readers[name](value) for name, value in node.mapping(readers).items()})


def _template(node: yamlfile.Node, known: set[str]) -> Template:
    text, parts, end = node.text(), list[str | Slot](), 0
    for slot in _SLOT.finditer(text):
        dollar, name, form, default = slot.groups()
        parts.append(text[end : slot.start()] + ("$" if dollar else ""))
        end = slot.end()
        if dollar:
            continue
        if not name:
            raise node.error("a $ must be written $$, or be part of ${name}")
        if name not in known and not name.startswith("input."):
            near = nearest(name, known, 0.5)
            names = ", ".join(sorted(known, key=lambda n: (n.isdecimal(), n)))
            raise node.error(f"unknown name ${{{name}}}: " + (f"did you mean {near}?" if near else f"here are {names}"))
        parts.append(Slot(name, default or "", form or ""))
    parts.append(text[end:])
    return Template(tuple(part for part in parts if part))
