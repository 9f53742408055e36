"""Tools: the interface, and tools that are async functions with a schema made from their type hints.

A tool is usually written as::

    @tool(read_only=True)
    async def count_words(ctx: ToolContext, path: str) -> str:
        \"\"\"Count the words of a text file.\"\"\"

Its first parameter is the context, the others are the input that the model gives, and its docstring is the description
that the model reads. It returns the text of the result, or a ``ToolOutput``, and raises ``ToolError`` when it cannot;
any other exception is reported to the model as well, and the loop goes on. A function that cannot be a tool is a
``TypeError`` where it is defined.
"""

from __future__ import annotations

import inspect
import json
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from functools import cached_property, lru_cache
from inspect import Parameter
from pathlib import Path
from typing import Any, Literal, Protocol, TypeAlias, get_args, get_origin, get_type_hints, overload, runtime_checkable

import trio

from chain.errors import ToolError
from chain.lines.parse import Adjustment
from chain.messages import Image
from chain.plan import Plan
from chain.text.hunks import FileDiff
from chain.text.wording import MAIN, NOBODY_CHOOSES
from chain.tools.seen import Seen

ToolKind: TypeAlias = Literal["read", "search", "edit", "execute", "fetch", "plan", "ask", "delegate", "other"]
"""What a tool is for, as front ends show it. One that delegates hands its task to another agent."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what the Messages API accepts

_Parameters: TypeAlias = tuple[tuple[str, Any, str, Any], ...]
"""What a tool's function takes besides the context: name, type, the default's ``repr``, and the default."""

_PLAIN: Sequence[tuple[Any, Mapping[str, Any]]] = (
    (str, {"type": "string"}),
    (int, {"type": "integer"}),
    (float, {"type": "number"}),
    (bool, {"type": "boolean"}),
    (list[str], {"items": {"type": "string"}, "type": "array"}),
)
"""The types that have a schema without pydantic."""

_NO_PLAIN_NAMES = ("_", "model_")
"""How names begin that pydantic may refuse."""

_NO_JSON = ("inf", "-inf", "nan")
"""The ``repr`` of numbers that JSON lacks."""


@dataclass(frozen=True, slots=True)
class Guidance:
    """What a long tool learns at a safe point: the adjustments since the last one, and whether to stop now."""

    adjustments: tuple[Adjustment, ...] = ()
    stop: bool = False


class Steering(Protocol):
    """Where a tool's safe points get their guidance from."""

    def new_guidance(self) -> Guidance:
        """The adjustments since the last call, and whether a stop waits."""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """A result, or an error, with more than its text: ``images`` for the model, and what only people are shown.

    ``exit_code`` is that of a command; a negative one is the number of the signal that killed it. ``summary`` is what a
    single row says of the result, the most important part first.
    """

    text: str
    images: tuple[Image, ...] = ()
    is_error: bool = False
    exit_code: int | None = None
    summary: tuple[str, ...] = ()


ToolFunction: TypeAlias = Callable[..., Awaitable[str | ToolOutput]]


class Subject:
    """The part of a call that the pattern of an allowance matches. This one is a text without rules of its own."""

    plural = "subjects"
    """What people call several of them."""

    def pattern(self, text: str) -> str:
        """A pattern as it is compared. Raises ``UserError`` with the reason for one that can never match."""
        return text

    def matches(self, pattern: str, subject: str) -> bool:
        """Whether a pattern matches, in which ``*``, ``?`` and ``[...]`` stand for other characters."""
        return fnmatchcase(subject, pattern)

    def note(self, pattern: str | None) -> str:
        """A remark on an allowance with this pattern, or with none, for people who have read what it allows."""
        return ""


@dataclass(frozen=True, slots=True)
class Preview:
    """What a call would do, for the question whether it may.

    ``text`` is what people read, ``subject`` what an allowance is matched with (a path, a command, a host), and
    ``digest`` changes with what the call would start from. For a change of a file, ``diff`` is shown instead of
    ``text``. Approval holds as long as a new preview is equal to the one that was shown. ``always`` is what the answer
    "always" allows: the tool, or this subject alone. ``protections`` are short names of what fences the call in.
    ``only_by_name`` is the part of a path that an allowance must have in its pattern to cover the call, such as
    ``.git``; empty where any may. The answer "always" then allows this call alone.
    """

    text: str
    subject: str
    digest: str
    always: Literal["tool", "subject"] = "tool"
    protections: tuple[str, ...] = ()
    only_by_name: str = ""
    diff: FileDiff | None = None


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether something was approved. If not, ``reason`` says why, for the model.

    ``withdrawn``: nobody decided, since the user stopped or wrote something else instead.
    ``by_configuration``: the configuration allowed it, without waiting for a person.
    """

    allowed: bool
    reason: str = ""
    withdrawn: bool = False
    by_configuration: bool = False


UNASKED = Preview("", "", "")
"""Stands for the approval of a call that nobody had to approve, since its tool runs outside of a chain."""


class Asking:
    """How a running tool asks the user; the call's clock and the run's stand still meanwhile. This one has nobody."""

    async def choose(self, question: str, options: Sequence[str]) -> str:
        """The option that the user chose, or another text. Raises ``ToolError`` if there is no answer."""
        raise ToolError(NOBODY_CHOOSES)

    async def approve(self, preview: Preview) -> Verdict:
        """Whether the call may do this. An allowance answers at once, and so does the lack of anybody to ask."""
        return Verdict(False, f"{preview.subject} needs approval, and nobody can be asked here.")


class Delegating:
    """How a tool hands a task to another agent. This one has none."""

    async def start(self, kind: str, task: str, call_id: str) -> str:
        """The answer of a new agent of that kind. Raises ``ToolError`` where there is none."""
        raise ToolError(f"No {kind} can be started here.")

    async def ask(self, name: str, question: str, call_id: str) -> str:
        """The answer of an agent that has finished. Raises ``ToolError`` where there is none."""
        raise ToolError("There is no agent to ask here.")


@dataclass(frozen=True, slots=True)
class ToolContext:
    """What a tool may use besides its input.

    ``approved`` is what was allowed of a call whose tool needs approval; ``None`` if nothing of it had to be. ``agent``
    is the name of the agent that called. ``notice`` tells people a sentence that is no part of the result, and
    ``result_limit`` is how many characters of it the model gets. ``extend`` begins the call's time limit anew.
    """

    workspace: Path
    plan: Plan
    call_id: str
    steering: Steering
    report: Callable[[str], None]
    seen: Seen = field(default_factory=Seen)
    asking: Asking = field(default_factory=Asking)
    approved: Preview | None = UNASKED
    agent: str = MAIN
    delegating: Delegating = field(default_factory=Delegating)
    notice: Callable[[str], None] = lambda text: None
    result_limit: int = 30_000
    extend: Callable[[], None] = lambda: None

    @property
    def room(self) -> int:
        """Characters for what a tool shows; the rest of the limit is for its remarks on what it left out."""
        return self.result_limit * 4 // 5

    async def safe_point(self, where: str) -> Guidance:
        """A place where a long tool can be steered; ``where`` names it, as in ``before_source:docs``."""
        await trio.lowlevel.checkpoint()
        return self.steering.new_guidance()

    def progress(self, text: str) -> None:
        """Show people a row, or several; the model does not see them."""
        if not isinstance(text, str):
            raise TypeError(f"progress is told as text, not as {type(text).__name__}")
        self.report(text)


PreviewFunction: TypeAlias = Callable[..., Awaitable[Preview | None]]


class Tool(Protocol):
    """A tool, as the agent knows it."""

    @property
    def name(self) -> str:
        """What the model calls it by: 1 to 64 of the characters a-z, A-Z, 0-9, _ and -."""

    @property
    def description(self) -> str:
        """What the model reads about it."""

    @property
    def input_schema(self) -> Mapping[str, Any]:
        """The JSON schema of the input, of type object."""

    @property
    def timeout_s(self) -> float | None:
        """Seconds until a call is stopped; ``None`` for the configured default."""

    @property
    def read_only(self) -> bool:
        """Whether it has no effects, and may run beside its neighbours."""

    @property
    def needs_approval(self) -> bool:
        """Whether it runs only if the user allows it."""

    def check(self, input: Mapping[str, Any]) -> object:
        """Raises ``ToolError`` for input that does not fit the schema."""

    async def run(self, context: ToolContext, input: Mapping[str, Any]) -> str | ToolOutput:
        """Checks the input and runs the tool; returns its result. Raises ``ToolError`` where there is none."""


@runtime_checkable
class Previewing(Protocol):
    """A tool that can say beforehand what a call would do, without any effect."""

    async def preview(self, context: ToolContext, input: Mapping[str, Any]) -> Preview | None:
        """What the call would do; ``None`` if nothing that needs approval. Raises ``ToolError`` where it would."""


@dataclass(frozen=True)
class FunctionTool:
    """A ``Tool`` made of an async function (``@tool``)."""

    function: ToolFunction
    name: str
    description: str
    timeout_s: float | None = None
    read_only: bool = False
    needs_approval: bool = False
    previewer: PreviewFunction | None = None
    kind: ToolKind = "other"
    subject: Subject | None = None

    @property
    def input_schema(self) -> Mapping[str, Any]:
        """The JSON schema of the input: an object without unknown keys."""
        return self._schema

    @cached_property
    def _schema(self) -> Mapping[str, Any]:
        return _plain_schema(self._parameters) or _schema_of(self._input_model)

    async def run(self, context: ToolContext, input: Mapping[str, Any]) -> str | ToolOutput:
        """Check the input against the schema and run the tool. Raises ``ToolError`` for input that does not fit."""
        return await self.function(context, **self.check(input))

    async def preview(self, context: ToolContext, input: Mapping[str, Any]) -> Preview | None:
        """What a call would do, by the tool's preview function; ``None`` without one."""
        return None if self.previewer is None else await self.previewer(context, **self.check(input))

    def check(self, input: Mapping[str, Any]) -> dict[str, Any]:
        """The input as the function's arguments. Raises ``ToolError`` for input that does not fit the schema."""
        from pydantic import ValidationError

        try:
            # The JSON mode of strict validation is the one that accepts what JSON can say and coerces nothing else.
            checked = self._input_model.model_validate_json(json.dumps(input), strict=True)
        except ValidationError as error:
            faults = "; ".join(_fault(f["loc"], f["msg"]) for f in error.errors(include_url=False, include_input=False))
            raise ToolError(f"The input of {self.name} does not fit its schema: {faults}.") from None
        return {name: getattr(checked, name) for name in type(checked).model_fields}

    @cached_property
    def _parameters(self) -> _Parameters:
        hints = get_type_hints(self.function, include_extras=True)
        parameters = list(inspect.signature(self.function).parameters.items())[1:]
        return tuple((name, hints[name], repr(p.default), p.default) for name, p in parameters)

    @cached_property
    def _input_model(self) -> Any:  # noqa: ANN401 - a pydantic model class made at run time
        inputs = self._parameters
        try:
            return _model_of(self.name, inputs)
        except TypeError:  # a hint or a default that cannot be hashed
            return _model_of.__wrapped__(self.name, inputs)


def import_checks() -> None:
    """Import what checks the input of tools, in a background thread, so that the first call does not wait for it."""
    import pydantic  # noqa: F401


def _plain_schema(parameters: _Parameters) -> dict[str, Any] | None:
    """Return the schema that pydantic would make of plain types; ``None`` where there are others.

    Importing pydantic and making the models of our own tools takes 0.2 s, which would delay the first request.
    """
    properties: dict[str, Any] = {}
    for name, hint, shown, default in parameters:
        # Compared, since a hint need not have a hash.
        # A copy, since a user may add a description to the schema of a tool.
        schema = deepcopy(next((made for plain, made in _PLAIN if plain == hint), None))
        origin: Any = get_origin(hint)
        choices = get_args(hint) if origin is Literal else ()
        if len(choices) > 1 and all(type(choice) is str for choice in choices):
            schema = {"enum": [*choices], "type": "string"}
        if schema is None or name.startswith(_NO_PLAIN_NAMES):
            return None
        if default is not Parameter.empty:
            if (type(default) is not hint and default not in choices) or shown in _NO_JSON:
                return None
            schema = {"default": default, **schema}
        properties[name] = schema
    needed = [name for name, _, _, default in parameters if default is Parameter.empty]
    required = {"required": needed} if needed else {}
    return {"properties": properties, "additionalProperties": False, **required, "type": "object"}


# Making a model takes 3 ms, and many tools are made anew for each session. A default's ``repr`` is given as well,
# since 1 is equal to True.
@lru_cache(maxsize=256)
def _model_of(tool: str, inputs: _Parameters) -> Any:  # noqa: ANN401 - see above
    from pydantic import ConfigDict, create_model

    fields: dict[str, Any] = {name: (hint, ... if p is Parameter.empty else p) for name, hint, _, p in inputs}
    return create_model(tool, __config__=ConfigDict(extra="forbid"), **fields)


@lru_cache(maxsize=256)
def _schema_of(model: Any) -> Mapping[str, Any]:  # noqa: ANN401 - see above
    return {"properties": {}, **_without_titles(model.model_json_schema())}


def _fault(where: tuple[int | str, ...], message: str) -> str:
    place = ".".join(str(part) for part in where)
    return f"{place}: {message}" if place else message


def _without_titles(schema: Any) -> Any:  # noqa: ANN401 - walks any JSON
    """The schema without the titles that repeat each name: the model pays for every token of them."""
    if isinstance(schema, list):
        return [_without_titles(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    return {k: _without_titles(v) for k, v in schema.items() if not (k == "title" and isinstance(v, str))}


@overload
def tool(function: ToolFunction, /) -> FunctionTool: ...


@overload
def tool(
    *,
    name: str = "",
    timeout_s: float | None = None,
    read_only: bool = False,
    needs_approval: bool = False,
    preview: PreviewFunction | None = None,
    kind: ToolKind = "other",
    subject: Subject | None = None,
) -> Callable[[ToolFunction], FunctionTool]: ...


def tool(
    function: ToolFunction | None = None,
    /,
    *,
    name: str = "",
    timeout_s: float | None = None,
    read_only: bool = False,
    needs_approval: bool = False,
    preview: PreviewFunction | None = None,
    kind: ToolKind = "other",
    subject: Subject | None = None,
) -> FunctionTool | Callable[[ToolFunction], FunctionTool]:
    """Make a ``Tool`` of an async function. ``timeout_s`` is in seconds; ``preview`` has the function's parameters.

    ``subject`` is that of its previews, or of what it asks while it runs.
    Raises ``TypeError`` for a function that a model could not call, or not know how to.
    """

    def make(function: ToolFunction) -> FunctionTool:
        made = FunctionTool(
            function=function,
            name=name or getattr(function, "__name__", ""),
            description=inspect.getdoc(function) or "",
            timeout_s=timeout_s,
            read_only=read_only,
            needs_approval=needs_approval,
            previewer=preview,
            kind=kind,
            subject=subject,
        )
        if mistake := next(_mistakes(made), None):
            raise TypeError(f"{getattr(function, '__qualname__', repr(function))} cannot be a tool: {mistake}")
        return made

    return make(function) if function is not None else make


def _mistakes(made: FunctionTool) -> Iterator[str]:
    """What keeps a function from being a tool, and how to mend it."""
    if not inspect.iscoroutinefunction(made.function):
        yield "it must be defined with async def"
        return
    parameters = list(inspect.signature(made.function).parameters.values())
    if not parameters or parameters[0].kind not in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
        yield "its first parameter must be the context, as in (ctx: ToolContext, path: str)"
    for each in parameters[1:]:
        if each.kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
            yield f"its parameter {each.name} cannot be given by name, as a model gives it"
        if each.annotation is Parameter.empty:
            yield f"its parameter {each.name} needs a type, which the model reads"
    if not made.description:
        yield "it needs a docstring, which is what the model reads about it"
    yield from mistakes(made)


def kind_of(tool: Tool) -> ToolKind:
    """The kind of a tool; only a ``FunctionTool`` says it."""
    return tool.kind if isinstance(tool, FunctionTool) else "other"


def delegates(tool: Tool) -> bool:
    """Whether a tool hands its task to an agent."""
    return kind_of(tool) == "delegate"


def may_run_beside_others(tool: Tool) -> bool:
    """Return whether calls of a tool may run beside their neighbours: it only reads or delegates, and asks nothing."""
    return (delegates(tool) or tool.read_only) and not tool.needs_approval


def mistakes(tool: Any) -> Iterator[str]:  # noqa: ANN401 - it says that it is a Tool
    """What of a tool the Messages API or the agent would not accept, and how to mend it."""
    if not isinstance(tool.name, str) or not _NAME.fullmatch(tool.name):
        yield f"its name {tool.name!r} must have 1 to 64 of the characters a-z, A-Z, 0-9, _ and -"
    if not isinstance(tool.description, str) or not tool.description.strip():
        yield "it needs a description, which is what the model reads about it"
    is_number = isinstance(tool.timeout_s, int | float) and not isinstance(tool.timeout_s, bool)
    if tool.timeout_s is not None and not (is_number and tool.timeout_s > 0):
        yield f"its timeout_s must be a positive number or None, not {tool.timeout_s!r}"
