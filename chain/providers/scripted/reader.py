"""Parses rule files into ``rules``. Errors name the file, the line and the key."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from chain.config.yamlfile import Node
from chain.errors import did_you_mean
from chain.messages import StopReason
from chain.providers.scripted import rules
from chain.providers.scripted.rules import Collection, Pace, RuleFile, ScriptRule, Template, When, group_names
from chain.text.search import BadPattern, Expressions

if TYPE_CHECKING:
    from chain.text.search import Pattern

_RESUME = r"\AYour reply was shown to the user\.|\APlease continue\.\Z"
_NOTE = r"\A\[The user (stopped|interrupted) the run here\]\Z"

_ACTIONS = ("thinking", "text", "tools", "stop_reason", "usage", "error", "and")


def read_rules(top: Node, *, at_terminal: bool = False) -> RuleFile:
    """Parse the content of a rule file. Raise ``ConfigError`` if it is not valid.

    ``at_terminal`` selects the pace for a person at a terminal.
    """
    keys = top.mapping(("version", "description", "name", "marks", "pace", "terminal_pace", "rules"))
    if "rules" not in keys:
        raise top.error("there is no list of rules; write rules: and the rules below it")
    pace_key = "terminal_pace" if at_terminal else "pace"
    reader = _Reader(keys, pace_key)
    return RuleFile(
        file=top.file,
        name=keys["name"].text() if "name" in keys else Path(top.file).stem,
        rules=tuple(reader.read_rule(node, index) for index, node in enumerate(keys["rules"].items())),
        marks=reader.read_marks(keys.get("marks") or replace(top, value={}, key="marks")),
        pace=reader.paces[pace_key],
        places=reader.places,
    )


class _Reader:
    """A parser for a rule file. ``places`` has the YAML node of each pattern, ``paces`` the paces by their keys."""

    def __init__(self, keys: Mapping[str, Node], pace_key: str) -> None:
        self.places: dict[Pattern, Node] = {}
        self._expressions = Expressions()
        self._pace_key = pace_key
        pace = self._read_pace(keys["pace"], Pace()) if "pace" in keys else Pace()
        terminal_pace = self._read_pace(keys["terminal_pace"], pace) if "terminal_pace" in keys else pace
        self.paces = {"pace": pace, "terminal_pace": terminal_pace}

    def read_rule(self, node: Node, index: int) -> ScriptRule:
        """Parse a rule. ``index`` is the rule's position in the file, counted from 0."""
        keys = node.mapping(("when", "times", "collect", "pace", "terminal_pace", *_ACTIONS))
        if not keys.keys() & set(_ACTIONS):
            raise node.error('a rule without an effect: give it text (an empty reply is text: ""), tools or error')
        when = self._read_when(keys.pop("when")) if "when" in keys else When()
        known = {*rules.RULE_NAMES, *group_names(*when.patterns.values())}
        collect: dict[str, Collection] = {}
        for name, each in keys.pop("collect").mapping().items() if "collect" in keys else ():
            if name in known:
                raise each.error("this name is taken; call the list something else")
            collect[name] = self._read_collection(each, known)
        for name, collection in collect.items():
            own = group_names(collection.match)
            known |= {name, f"{name}.count", *(f"{name}.{g}" for g in own), *(f"{name}.{g}.sum" for g in own)}

        if "and" in keys and keys["and"].choice(("continue", "work")) == "work" and when.interruption is None:
            raise keys["and"].error('"work" is only for rules with an interruption; write "continue" here')
        paces = {key: self._read_pace(keys.pop(key), default) for key, default in self.paces.items() if key in keys}
        given = self._read_fields(
            ScriptRule,
            keys,
            thinking=partial(_read_template, known=known),
            text=partial(_read_template, known=known),
            tools=lambda n: tuple(self._read_call(item, known, collect) for item in n.items()),
            stop_reason=lambda n: n.choice(get_args(StopReason)),
            usage=_read_usage,
            error=self._read_failure,
            and_=Node.text,
        )
        pace = paces.get(self._pace_key, paces.get("pace"))
        return ScriptRule(index=index, when=when, collect=collect, pace=pace, **given)

    def read_marks(self, node: Node) -> rules.Marks:
        built_in = {"resume": replace(node, value=_RESUME), "note": replace(node, value=_NOTE)}
        marks = rules.Marks(**self._read_fields(rules.Marks, {**built_in, **_keys(rules.Marks, node)}))
        if not marks.interruption.strip():
            raise node.value["interruption"].error("must not be blank, or every message would be an interruption")
        return marks

    def _read_when(self, node: Node) -> When:
        when = When(**self._read_fields(When, _keys(When, node), overrides=lambda n: frozenset(_read_parameters(n))))
        names = [name for pattern in when.patterns.values() for name in pattern.groupindex]
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise node.error(f"the group {twice[0]} is in two of the expressions; give one of them another name")
        return when

    def _read_collection(self, node: Node, known: set[str]) -> Collection:
        keys = _keys(Collection, node)
        if "match" not in keys:
            raise node.error("a list needs match, the regular expression of its items")
        match = self._compile(keys.pop("match"))
        own = group_names(match)
        given = self._read_fields(
            Collection,
            keys,
            from_=lambda n: n.choice(get_args(rules.Source)),
            has=partial(_read_template, known=known),
            # YAML reads the group 1 as a number.
            unique=lambda n: replace(n, value=str(n.value)).choice(sorted(own)),
            row=partial(_read_template, known=own),
        )
        return Collection(match, **given)

    def _read_call(self, node: Node, known: set[str], collect: Mapping[str, Collection]) -> rules.ScriptedCall:
        keys = _keys(rules.ScriptedCall, node)
        if "name" not in keys:
            raise node.error("a tool call needs the name of the tool")
        for_each = keys["for_each"].choice(collect or ("a list under collect",)) if "for_each" in keys else None
        names = known | group_names(collect[for_each].match) if for_each else known
        if "input" in keys:
            keys["input"].mapping()
        given = self._read_fields(rules.ScriptedCall, keys, input=partial(_read_input, known=names))
        return rules.ScriptedCall(**given)

    def _read_failure(self, node: Node) -> rules.Failure:
        keys = _keys(rules.Failure, node)
        return rules.Failure(**self._read_fields(rules.Failure, keys, after=Node.integer, refuses=_read_parameters))

    def _read_pace(self, node: Node, default: Pace) -> Pace:
        return replace(default, **self._read_fields(Pace, _keys(Pace, node)))

    def _read_fields(self, kind: type, keys: Mapping[str, Node], **parsers: Callable[[Node], Any]) -> dict[str, Any]:
        """Return the values of the fields of the class ``kind`` that the file sets, by name.

        ``parsers`` has parsers by field name. Any other field is parsed by its type.
        """
        simple = {"str": Node.text, "bool": Node.boolean, "int": _read_count, "float": Node.number}
        by_type = {**simple, "Pattern": self._compile}
        found = {}
        for each in fields(kind):
            if (node := keys.get(each.name.rstrip("_"))) is not None:
                read = parsers.get(each.name) or by_type[str(each.type).removesuffix(" | None")]
                found[each.name] = read(node)
        return found

    def _compile(self, node: Node) -> Pattern:
        try:
            pattern = self._expressions.compile(node.text(), multiline=True)
        except BadPattern as error:
            raise node.error(str(error)) from None
        self.places.setdefault(pattern, node)
        return pattern


def _keys(kind: type, node: Node) -> dict[str, Node]:
    return node.mapping(each.name.rstrip("_") for each in fields(kind))


def _read_count(node: Node) -> int:
    return node.integer(minimum=1)


def _read_parameters(node: Node) -> tuple[str, ...]:
    return tuple(item.choice(rules.PARAMETERS) for item in node.items())


def _read_usage(node: Node) -> dict[str, int]:
    keys = node.mapping(("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens"))
    return {name: value.integer() for name, value in keys.items()}


def _read_input(node: Node, known: set[str]) -> Any:  # noqa: ANN401 - JSON with templates for its texts
    match node.value:
        case dict():
            return {key: _read_input(item, known) for key, item in node.value.items()}
        case list():
            return [_read_input(item, known) for item in node.value]
        case str():
            return _read_template(node, known)
        case _:
            return node.value


def _read_template(node: Node, known: set[str]) -> Template:
    for slot in rules.SLOT.finditer(node.text()):
        name = slot["name"]
        if slot[0] == "$":
            raise node.error("a $ must be written $$, or be part of ${name}")
        if name and name not in known and not name.startswith("input."):
            names = ", ".join(sorted(known, key=lambda n: (n.isdecimal(), n)))
            raise node.error(f"unknown name ${{{name}}}: {did_you_mean(name, known, f'here are {names}', 0.5)}")
    return node.text()
