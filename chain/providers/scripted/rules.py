r"""The language of rule files: YAML read into frozen rules.

One module, though a long one: the types, the reader and this manual of the language change together or not at all.

::

    name: offline                  # shown to people; default: the file's name
    pace: {chunk: 40, delay_s: 0}  # text is streamed in pieces of this many characters, each after this many seconds
    rules:                         # tried from the top; the first whose conditions all hold is used
      - when:                      # no condition: always
          user: REGEX              # the latest query. Alone it answers the query itself; beside result, tool, is_error,
                                   # aside, turn, step or interruption it says which query they belong to
          interruption: REGEX      # a line that came while the task ran; several are answered one by one
          result: REGEX            # the text of one of the latest tool results,
          tool: REGEX              # the whole name of the tool that gave it,
          is_error: true           # and whether it is an error
          aside: true              # whether those tools were called in answer to an interruption
          turn: 3                  # the number of this model call in the conversation, from 1
          step: 2                  # the same since the latest query
          tail: REGEX              # the request tail: the post-prompt and the plan
          system: REGEX            # the system prompt
          overrides: [effort]      # what the request sets for this call alone: max_tokens, temperature, effort
        times: 1                   # how often the rule may be used in a conversation; then it is passed over
        collect:                   # lists of matches, for text and tools
          NAME:
            match: REGEX           # each match is an item
            from: results          # results (all since the query), latest, query, stdin, interruption, tail
            tool: REGEX            # only results of these tools; with is_error: true only their errors
            within: REGEX          # only texts in which this is found
            has: "${1}"            # only items that contain this text; names of the conditions, case does not matter
            unique: GROUP          # of the items in which this group is the same only the first
            row: "${1}"            # how an item is shown; default the whole match
            join: "\n"             # the separator between rows
            limit: 20              # items shown or used at most; the rows then say how many were left out
            empty: none            # shown when there is no item
        thinking: TEMPLATE
        text: TEMPLATE
        tools:
          - {name: read_file, input: {path: "${path}"}, for_each: NAME}    # for_each: a call for each item of a list
          - {name: shell, input: {}, id: call_x, cut: true}                # cut: the input was cut off by max_tokens
        and: continue              # then also apply the rule for what this came in the middle of; or work: if that
                                   # calls tools
        stop_reason: end_turn      # default: tool_use with calls, max_tokens with a cut one, else end_turn
        usage: {output_tokens: 5}  # default: an estimate of 4 characters a token
        pace: {delay_s: 1}         # for this rule alone
        error: {message: TEXT, retryable: true, retry_after: 2, times: 1, after: 10, refuses: [effort]}

Regular expressions are Python's, searched, without regard to case; ``^`` and ``$`` are the ends of a line, ``\A`` and
``\Z`` those of the text. Templates: ``${name}``, ``${name:-instead}`` for an empty value, ``${name|6}`` right-aligned
in 6 columns, ``${name|number}`` as a number in a tool's input, and ``$$`` for a dollar sign. The names are

- ``0``, ``1``, ... and the named groups of the conditions (the numbers are those of the first of interruption, result,
  user, tail, system that the rule has), and of the item in a ``row`` or a ``for_each``;
- ``NAME`` for the rows of a list, ``NAME.count``, ``NAME.GROUP`` (of its first item), ``NAME.GROUP.sum``;
- ``query  interruption  turn  step  tool  used  result  tail  file  offered``: ``tool`` gave the latest results,
  ``used`` counts the tools called since the query, ``result`` is the result that matched, ``offered`` names the
  chain's tools;
- ``input.KEY``: the input of the call that gave the result (in an item: of the item's result).

An error is raised each time, or the first ``times`` in a conversation, once ``after`` characters of text were streamed.
With ``refuses`` it is raised only for a request that sets one of those parameters.

``and: continue`` in a rule for an interruption also applies the rule for the latest results, or for the query, and
appends its output; in a rule for results it applies the one for what came before them. If the first of the two calls
tools and the other does not, the other waits until the results are there. A message that only asks to go on stands for
the latest results, or query, before it.

``and: work`` in a rule for an interruption does the same if the task then calls tools. If it would only answer, the
reply is left to the interruption, and the answer to the task waits for a message that asks to go on. That is for lines
after which such a message comes (SPEC, section 5): else the answer would be given twice. Beside a line with ``and:
continue``, and where the query itself is to be answered, it means ``continue``.

``from: stdin`` is the text between a line ``<stdin>`` and a last line ``</stdin>`` in the query.

``marks`` say how messages are recognised: ``interruption`` is the text before a line; ``redirect`` is a regular
expression for lines that replace the query (without it none do; if it has a group ``query``, only that group does);
``resume`` is one for messages that only ask to go on, and ``note`` one for messages to be ignored.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from chain import yamlfile
from chain.model import StopReason
from chain.search import BadPattern, Expressions

if TYPE_CHECKING:
    from chain.search import Pattern

Source: TypeAlias = Literal["results", "latest", "query", "stdin", "interruption", "tail"]
GoingOn: TypeAlias = Literal["no", "continue", "work"]

NAMES = ("query", "interruption", "turn", "step", "tool", "used", "result", "tail", "file", "offered")
PARAMETERS = ("max_tokens", "temperature", "effort")

MAX_SEARCHED = 40_000
"""Characters at the beginning of a text that a rule's expressions are searched in."""

_SLOT = re.compile(r"\$(?:(\$)|\{([A-Za-z0-9_.]+)(?:\|(number|\d{1,3}))?(?::-([^}]*))?\})?")
NUMBER = re.compile(r"[-+]?\d{1,30}(\.\d{1,30})?")


@dataclass(frozen=True, slots=True)
class Slot:
    """A place in a template that a value fills."""

    name: str
    default: str = ""
    form: str = ""

    def fill(self, names: Mapping[str, str]) -> str:
        """The value as text; a name without one counts as empty."""
        value = names.get(self.name, "") or self.default
        return value.rjust(int(self.form)) if self.form.isdecimal() else value


@dataclass(frozen=True, slots=True)
class Template:
    """Text with slots."""

    parts: tuple[str | Slot, ...] = ()

    def fill(self, names: Mapping[str, str]) -> str:
        """The text."""
        return "".join(part if isinstance(part, str) else part.fill(names) for part in self.parts)

    def value(self, names: Mapping[str, str]) -> str | int | float:
        """The text, or a number where the template is ``${name|number}`` alone and the value is a number."""
        text = self.fill(names)
        match self.parts:
            case (Slot(form="number"),) if number := NUMBER.fullmatch(text.strip()):
                return float(text) if number[1] else int(text)
            case _:
                return text


@dataclass(frozen=True, slots=True)
class Pace:
    """How text is streamed: in pieces of ``chunk`` characters, ``delay_s`` seconds before each and before the end."""

    chunk: int = 200
    delay_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Marks:
    """How the user messages that are no queries are recognised."""

    resume: Pattern
    note: Pattern
    interruption: str = "USER INTERRUPTION: "
    redirect: Pattern | None = None


@dataclass(frozen=True, slots=True)
class When:
    """The conditions of a rule; ``None`` asks for nothing."""

    user: Pattern | None = None
    interruption: Pattern | None = None
    result: Pattern | None = None
    tool: Pattern | None = None
    is_error: bool | None = None
    aside: bool | None = None
    turn: int | None = None
    step: int | None = None
    tail: Pattern | None = None
    system: Pattern | None = None
    overrides: frozenset[str] | None = None

    @property
    def wants_results(self) -> bool:
        """Whether tool results must have come."""
        return not (self.result is None and self.tool is None and self.is_error is None and self.aside is None)

    @property
    def wants_query(self) -> bool:
        """Whether the query itself must be what is to be answered."""
        later = self.wants_results or (self.interruption, self.turn, self.step) != (None, None, None)
        return self.user is not None and not later

    @property
    def patterns(self) -> tuple[Pattern, ...]:
        """The expressions whose groups fill templates, the one that owns the numbers first."""
        found = (self.interruption, self.result, self.user, self.tail, self.system)
        return tuple(p for p in found if p is not None)


@dataclass(frozen=True, slots=True)
class Collection:
    """A list of matches."""

    match: Pattern
    source: Source = "results"
    tool: Pattern | None = None
    is_error: bool = False
    within: Pattern | None = None
    has: Template = Template()
    unique: str | None = None
    row: Template = Template((Slot("0"),))
    join: str = "\n"
    limit: int = 20
    empty: str = ""


@dataclass(frozen=True, slots=True)
class Call:
    """A tool call to make; ``input`` is JSON with templates for its texts."""

    name: str
    input: Mapping[str, Any] = field(default_factory=dict)
    id: str | None = None
    cut: bool = False
    for_each: str | None = None


@dataclass(frozen=True, slots=True)
class Failure:
    """An error to raise."""

    message: str = "the rule file says that this call fails"
    retryable: bool = False
    retry_after: float | None = None
    times: int | None = None
    after: int = 0
    refuses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule; ``index`` counts from 0 in its file."""

    index: int
    when: When = When()
    times: int | None = None
    collect: Mapping[str, Collection] = field(default_factory=dict)
    thinking: Template = Template()
    text: Template = Template()
    calls: tuple[Call, ...] = ()
    go_on: GoingOn = "no"
    stop_reason: StopReason | None = None
    usage: Mapping[str, int] = field(default_factory=dict)
    pace: Pace | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class RuleFile:
    """A rule file; ``file`` is its path as it was given, ``places`` has the place of each expression."""

    file: str
    name: str
    rules: tuple[Rule, ...]
    marks: Marks
    pace: Pace
    places: Mapping[Pattern, yamlfile.Node]


def load(path: Path, within: Path | None = None) -> RuleFile:
    """Read a rule file, which must be in the folder ``within``. Raises ``ConfigError`` with file, line and key."""
    return _read(yamlfile.read(path, within))


def parse(text: str, file: str) -> RuleFile:
    """Read rules from text; ``file`` is its name in errors. Raises ``ConfigError``."""
    return _read(yamlfile.parse(text, file))


_RESUME = r"\AYour reply was shown to the user\.|\APlease continue\.\Z"
_NOTE = r"\A\[The user (stopped|interrupted) the run here\]\Z"


def _read(top: yamlfile.Node) -> RuleFile:
    keys = top.mapping(("version", "description", "name", "marks", "pace", "rules"))
    if "rules" not in keys:
        raise top.error("there is no list of rules; write rules: and the rules under it")
    pace = _pace(keys["pace"], Pace()) if "pace" in keys else Pace()
    reader = _Reader(pace)
    return RuleFile(
        file=top.file,
        name=keys["name"].text() if "name" in keys else Path(top.file).stem,
        rules=tuple(reader.rule(node, index) for index, node in enumerate(keys["rules"].items())),
        marks=reader.marks(keys.get("marks") or replace(top, value={}, key="marks")),
        pace=pace,
        places=reader.places,
    )


def _pace(node: yamlfile.Node, default: Pace) -> Pace:
    keys = node.mapping(("chunk", "delay_s"))
    return Pace(
        keys["chunk"].integer(minimum=1) if "chunk" in keys else default.chunk,
        keys["delay_s"].number() if "delay_s" in keys else default.delay_s,
    )


_ACTIONS = ("thinking", "text", "tools", "stop_reason", "usage", "error", "and")


class _Reader:
    """Reads the parts that have expressions; ``places`` has the place of each."""

    def __init__(self, pace: Pace) -> None:
        self.places: dict[Pattern, yamlfile.Node] = {}
        self._pace = pace
        self._expressions = Expressions()

    def rule(self, node: yamlfile.Node, index: int) -> Rule:
        """A rule; ``index`` counts from 0 in its file."""
        keys = node.mapping(("when", "times", "collect", "pace", *_ACTIONS))
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

        return Rule(
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
        regexes = ("user", "interruption", "result", "tool", "tail", "system")
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


def _call(node: yamlfile.Node, known: set[str], collect: Mapping[str, Collection]) -> Call:
    keys = node.mapping(("name", "input", "id", "cut", "for_each"))
    if "name" not in keys:
        raise node.error("a tool call needs the name of the tool")
    for_each = keys["for_each"].choice(collect or ("a list under collect",)) if "for_each" in keys else None
    names = known | groups(collect[for_each].match) if for_each else known
    if "input" in keys:
        keys["input"].mapping()
    return Call(
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


def fill_input(value: Any, names: Mapping[str, str]) -> Any:  # noqa: ANN401 - as above
    """A tool's input with its templates filled."""
    match value:
        case dict():
            return {key: fill_input(item, names) for key, item in value.items()}
        case list():
            return [fill_input(item, names) for item in value]
        case Template():
            return value.value(names)
        case _:
            return value


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


def groups(*patterns: Pattern) -> set[str]:
    """The names that the groups of these expressions give; the first owns the numbers."""
    numbers = {str(n) for pattern in patterns[:1] for n in range(pattern.groups + 1)}
    return numbers | {name for pattern in patterns for name in pattern.groupindex}


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
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
            names = ", ".join(sorted(known, key=lambda n: (n.isdecimal(), n)))
            raise node.error(
                f"unknown name ${{{name}}}: " + (f"did you mean {near[0]}?" if near else f"here are {names}")
            )
        parts.append(Slot(name, default or "", form or ""))
    parts.append(text[end:])
    return Template(tuple(part for part in parts if part))
