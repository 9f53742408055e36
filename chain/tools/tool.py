"""Tools: the interface, and tools that are made from an async function and its type hints.

A tool is usually written as::

    @tool(read_only=True)
    async def count_words(ctx: ToolContext, path: str) -> str:
        \"\"\"Count the words of a text file.\"\"\"

The first parameter is the context, the others are the input that the model gives, and the docstring is the description
that the model reads. The function returns the text of the result, or a ``ToolOutput``, and raises ``ToolError`` on
failure. Any other exception is reported to the model too, and the run continues. For a function that cannot be a tool,
the decorator raises ``TypeError``.
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
from typing import (
    Any,
    Literal,
    NamedTuple,
    Protocol,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
    overload,
    runtime_checkable,
)

import trio

from chain.errors import ToolError
from chain.lines.parse import Adjustment
from chain.messages import Image
from chain.plan import Plan
from chain.text.escalations import Escalation
from chain.text.hunks import FileDiff
from chain.text.wording import MAIN, NO_USER_CHOOSES
from chain.tools.file_versions import KnownFileVersions
from chain.tools.paths import innermost_root, root_of

ToolKind: TypeAlias = Literal["read", "search", "edit", "execute", "fetch", "plan", "ask", "delegate", "other"]
"""The purpose of a tool, for front ends. A tool of the kind ``delegate`` gives its task to another agent."""

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")  # what the Messages API accepts

_Parameters: TypeAlias = tuple[tuple[str, Any, str, Any], ...]
"""The parameters of a tool's function after the context: name, type, ``repr`` of the default, and the default."""

_PLAIN: Sequence[tuple[Any, Mapping[str, Any]]] = (
    (str, {"type": "string"}),
    (int, {"type": "integer"}),
    (float, {"type": "number"}),
    (bool, {"type": "boolean"}),
    (list[str], {"items": {"type": "string"}, "type": "array"}),
)
"""The schemas of types for which pydantic is not needed."""

_NO_PLAIN_NAMES = ("_", "model_")
"""Prefixes of parameter names that pydantic may refuse."""

_NO_JSON = ("inf", "-inf", "nan")
"""The ``repr`` of numbers that JSON does not have."""


@dataclass(frozen=True, slots=True)
class Guidance:
    """The user's instructions to a long tool at one of its safe points.

    ``adjustments`` are the user's adjustments since the previous safe point. ``stop`` says whether to stop now.
    """

    adjustments: tuple[Adjustment, ...] = ()
    stop: bool = False


class Steering(Protocol):
    """The source of guidance for a tool's safe points."""

    def new_guidance(self) -> Guidance:
        """Return the adjustments that arrived since the last call, and whether the user asked to stop."""


@dataclass(frozen=True, slots=True)
class ToolOutput:
    """The result of a tool that returns more than text, or an error that its ``text`` describes.

    The model gets ``text``, ``images`` and ``is_error``. Only people see the other fields. ``exit_code`` is the exit
    code of a command, or the negative number of the signal that killed the command. ``summary`` holds the parts of a
    one-row summary, most important first.
    """

    text: str
    images: tuple[Image, ...] = ()
    is_error: bool = False
    exit_code: int | None = None
    summary: tuple[str, ...] = ()


ToolFunction: TypeAlias = Callable[..., Awaitable[str | ToolOutput]]


class Subject:
    """A kind of subject that the pattern of an allowance is compared with: any text. Subclasses: paths, for example."""

    plural = "subjects"
    """The plural noun for subjects of this kind, in sentences for people."""

    def normalize_pattern(self, text: str) -> str:
        """Return a pattern in its normal form for comparison. Raise ``UserError`` if the pattern can never match."""
        return text

    def matches(self, pattern: str, subject: str) -> bool:
        """Return whether a pattern, with the wildcards ``*``, ``?`` and ``[...]``, matches the subject."""
        return fnmatchcase(subject, pattern)

    def note(self, pattern: str | None) -> str:
        """Return a remark that is shown with an allowance; empty if there is none.

        ``pattern`` is ``None`` for an allowance without a pattern.
        """
        return ""


@dataclass(frozen=True, slots=True)
class Preview:
    """The effects of a call, which the user approves or denies.

    ``text`` describes the effects to people. For a change of a file, ``diff`` is shown instead. ``subject`` is the
    path, command or host that the pattern of an allowance is matched with. ``digest`` identifies the state from which
    the call starts. An approval is valid as long as a new preview of the call equals the approved one.

    ``always`` is what the answer "always" allows: all calls of the tool, or only calls with this subject.
    ``only_by_name`` is a part of the path, such as ``.git``, that the pattern of an allowance must contain to cover the
    call; usually empty. If it is not empty, the answer "always" allows this call alone.

    ``protections`` are short names of the sandbox's restrictions. ``escalations`` are the restrictions that the user
    can lift for this call.
    """

    text: str
    subject: str
    digest: str
    always: Literal["tool", "subject"] = "tool"
    protections: tuple[str, ...] = ()
    only_by_name: str = ""
    diff: FileDiff | None = None
    escalations: tuple[Escalation, ...] = ()


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a call was approved. If not, ``reason`` says why, for the model.

    ``withdrawn``: there was no decision, because the user stopped or wrote something else instead.
    ``by_configuration``: the configuration allowed the call, and no person was asked.
    ``is_once``: the user allowed this call alone, and is asked again about the next similar call.
    ``escalation`` is the restriction of the sandbox that the user lifted for this call.
    """

    allowed: bool
    reason: str = ""
    withdrawn: bool = False
    by_configuration: bool = False
    is_once: bool = False
    escalation: Escalation | None = None


UNASKED = Preview("", "", "")
"""The value of ``ToolContext.approved`` for a tool that runs outside of a chain, where no approval is needed."""


class Asking:
    """The interface by which a running tool asks the user. In this base class, no user is available.

    While a question is open, the time limits of the call and of the run are paused.
    """

    async def choose(self, question: str, options: Sequence[str]) -> str:
        """Return the option that the user chose, or the user's own text. Raise ``ToolError`` if there is no answer."""
        raise ToolError(NO_USER_CHOOSES)

    async def approve(self, preview: Preview) -> Verdict:
        """Return whether the call is approved: by an allowance or, if none covers it, by the user."""
        return Verdict(False, f"{preview.subject} needs approval, and no one is available to approve it.")


class Delegating:
    """The interface by which a tool delegates a task to another agent. In this base class there is no other agent."""

    async def start(self, kind: str, task: str, call_id: str) -> str:
        """Start an agent of this kind and return its answer. Raise ``ToolError`` if no answer comes."""
        raise ToolError(f"No {kind} can be started here.")

    async def ask(self, name: str, question: str, call_id: str) -> str:
        """Ask the finished agent with this name and return its answer. Raise ``ToolError`` if no answer comes."""
        raise ToolError("There is no agent to ask here.")


class JobEnd(NamedTuple):
    """The end of a job.

    ``exit_code`` is the command's exit code; ``None`` if the command was killed. ``outcome`` describes the end in
    words. ``note`` is a further remark for the model.
    """

    exit_code: int | None
    outcome: str
    note: str = ""


JobRun: TypeAlias = Callable[[Callable[[bytes], None]], Awaitable[JobEnd]]
"""A function that runs the command of a job and returns the job's end.

The function calls its argument with each piece of the output, and raises ``ToolError`` if the command cannot be
started.
"""


class Jobs:
    """The interface by which a tool runs commands in the background. This base class refuses them."""

    def start(self, agent: str, call_id: str, command: str, run: JobRun, *, wakes: bool) -> str:
        """Start a job for an agent and return the job's id. Raise ``ToolError`` if it cannot be started.

        If ``wakes``, the end of the job starts a run when none is active.
        """
        raise ToolError("No command can run in the background here.")

    def output(self, id: str, offset: int, most: int) -> str:
        """Return the state of a job, and up to ``most`` bytes of its output from ``offset`` on.

        A negative offset counts from the end. Raise ``ToolError`` if there is no such job.
        """
        raise ToolError("There are no background jobs here.")

    async def kill(self, id: str, agent: str) -> str:
        """Kill a job on behalf of ``agent``. Return a confirmation. Raise ``ToolError`` if it is not running."""
        raise ToolError("There are no background jobs here.")

    def kill_jobs_of(self, agent: str) -> None:
        """Kill the jobs of an agent that has ended."""


@dataclass(frozen=True, slots=True)
class ToolContext:
    """The environment of one tool call.

    ``approved`` is the preview that the user approved; ``None`` if the tool needs no approval. ``verdict`` is the
    user's verdict on the preview. ``agent`` is the name of the calling agent. ``notice`` shows the user a sentence that
    is not part of the result. ``result_limit`` is the most characters of a result that the model receives. ``extend``
    restarts the call's time limit. ``file_changing`` is called in trio's thread before a file is replaced, with the
    file's real path (relative in the workspace), its old content (``None`` for a new file) and its new content.
    ``added_directories`` are the real paths of the directories outside the workspace that tools may use.
    """

    workspace: Path
    plan: Plan
    call_id: str
    steering: Steering
    report: Callable[[str], None]
    known_files: KnownFileVersions = field(default_factory=KnownFileVersions)
    asking: Asking = field(default_factory=Asking)
    approved: Preview | None = UNASKED
    agent: str = MAIN
    delegating: Delegating = field(default_factory=Delegating)
    notice: Callable[[str], None] = lambda text: None
    result_limit: int = 30_000
    extend: Callable[[], None] = lambda: None
    file_changing: Callable[[str, bytes | None, bytes], None] = lambda path, before, after: None
    verdict: Verdict | None = None
    jobs: Jobs = field(default_factory=Jobs)
    added_directories: tuple[Path, ...] = ()

    def root_of(self, path: str) -> Path:
        """Return the directory that a path from the model must stay in: the workspace or an added directory.

        Raise ``ToolError`` for an absolute path that is in no added directory.
        """
        return root_of(self.workspace, self.added_directories, path)

    def innermost_root(self, path: Path) -> Path:
        """Return the innermost directory that contains a real path: the workspace or an added directory."""
        return innermost_root(self.workspace, self.added_directories, path)

    @property
    def room(self) -> int:
        """The number of characters for the content of a result; the rest of ``result_limit`` is for remarks."""
        return self.result_limit * 4 // 5

    async def safe_point(self, name: str) -> Guidance:
        """Return new guidance. ``name`` names the point of the tool's work, as in ``before_source:docs``."""
        await trio.lowlevel.checkpoint()
        return self.steering.new_guidance()

    def progress(self, text: str) -> None:
        """Show people one or more rows; the model does not see them."""
        if not isinstance(text, str):
            raise TypeError(f"progress must be text, not {type(text).__name__}")
        self.report(text)


PreviewFunction: TypeAlias = Callable[..., Awaitable[Preview | None]]


class Tool(Protocol):
    """The interface of a tool."""

    @property
    def name(self) -> str:
        """The name that the model calls: 1 to 64 of the characters a-z, A-Z, 0-9, _ and -."""

    @property
    def description(self) -> str:
        """The description that the model reads."""

    @property
    def input_schema(self) -> Mapping[str, Any]:
        """The JSON schema of the input, of type object."""

    @property
    def timeout_s(self) -> float | None:
        """The time limit of a call in seconds; ``None`` for the configured default."""

    @property
    def read_only(self) -> bool:
        """Whether the tool has no effects, so that its calls can run in parallel with others."""

    @property
    def needs_approval(self) -> bool:
        """Whether a call needs the user's approval."""

    def check(self, input: Mapping[str, Any]) -> object:
        """Raise ``ToolError`` if the input does not fit the schema."""

    async def run(self, context: ToolContext, input: Mapping[str, Any]) -> str | ToolOutput:
        """Check the input, run the tool and return its result. Raise ``ToolError`` on failure."""


@runtime_checkable
class Previewing(Protocol):
    """A tool that can preview a call, without any effect."""

    async def preview(self, context: ToolContext, input: Mapping[str, Any]) -> Preview | None:
        """Return the preview of a call; ``None`` if the call needs no approval.

        Raise ``ToolError`` if the call would fail.
        """


@dataclass(frozen=True)
class FunctionTool:
    """A ``Tool`` made from an async function by ``@tool``."""

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
        """The JSON schema of the input: an object that allows no unknown keys."""
        return self._schema

    @cached_property
    def _schema(self) -> Mapping[str, Any]:
        # Not ``input_schema`` itself: pyright does not accept a cached property where a protocol has a property.
        return _plain_schema(self._parameters) or _schema_of(self._input_model)

    async def run(self, context: ToolContext, input: Mapping[str, Any]) -> str | ToolOutput:
        """Check the input and run the tool. Raise ``ToolError`` if the input does not fit the schema."""
        return await self.function(context, **self.check(input))

    async def preview(self, context: ToolContext, input: Mapping[str, Any]) -> Preview | None:
        """Return the preview of a call; ``None`` if it needs no approval or the tool has no preview function."""
        return None if self.previewer is None else await self.previewer(context, **self.check(input))

    def check(self, input: Mapping[str, Any]) -> dict[str, Any]:
        """Return the input as arguments of the function. Raise ``ToolError`` if it does not fit the schema."""
        from pydantic import ValidationError

        try:
            # Strict validation of JSON accepts every JSON form of a type, such as a list for a tuple, and no other.
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
    """Import pydantic, which checks input. Called early in a thread, so that no tool call has to wait for it."""
    import pydantic  # noqa: F401


def _plain_schema(parameters: _Parameters) -> dict[str, Any] | None:
    """Return the schema that pydantic would make; ``None`` if a parameter has a type for which pydantic is needed.

    Importing pydantic and making the models of chain's own tools takes 0.2 s, which would delay the first request.
    """
    properties: dict[str, Any] = {}
    for name, hint, shown, default in parameters:
        # Compared with ==, because a hint need not be hashable. Copied, because a user may change the schema of a tool.
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


# Cached, because making a model takes 3 ms and many tools are made for each session. The ``repr`` of each default is
# part of the key, because 1 is equal to True.
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
    """Return the schema without its titles, which only repeat the names and cost tokens."""
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
    """Make a ``Tool`` of an async function. Raise ``TypeError`` if a model could not call or understand the function.

    ``timeout_s`` is the time limit of a call in seconds. ``preview`` returns the preview of a call; it has the same
    parameters as the function. ``subject`` is the kind of subject in the tool's previews, and in the approvals that it
    requests while it runs.
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
    """Yield the reasons why a function cannot be a tool, and how to correct them."""
    if not inspect.iscoroutinefunction(made.function):
        yield "it must be defined with async def"
        return
    parameters = list(inspect.signature(made.function).parameters.values())
    if not parameters or parameters[0].kind not in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD):
        yield "its first parameter must be the context, as in (ctx: ToolContext, path: str)"
    for each in parameters[1:]:
        if each.kind not in (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY):
            yield f"its parameter {each.name} cannot be passed by name, as a model passes it"
        if each.annotation is Parameter.empty:
            yield f"its parameter {each.name} needs a type, which the model reads"
    if not made.description:
        yield "it needs a docstring, which the model reads as its description"
    yield from mistakes(made)


def kind_of(tool: Tool) -> ToolKind:
    """Return the kind of a tool; ``other`` unless it is a ``FunctionTool``."""
    return tool.kind if isinstance(tool, FunctionTool) else "other"


def delegates(tool: Tool) -> bool:
    """Return whether a tool delegates its task to an agent."""
    return kind_of(tool) == "delegate"


def can_run_in_parallel(tool: Tool) -> bool:
    """Return whether calls of a tool can run in parallel: it only reads or delegates, and needs no approval."""
    return (delegates(tool) or tool.read_only) and not tool.needs_approval


def mistakes(tool: Any) -> Iterator[str]:  # noqa: ANN401 - it says that it is a Tool
    """Yield the reasons why the Messages API or the agent would not accept a tool, and how to correct them."""
    if not isinstance(tool.name, str) or not _NAME.fullmatch(tool.name):
        yield f"its name {tool.name!r} must have 1 to 64 of the characters a-z, A-Z, 0-9, _ and -"
    if not isinstance(tool.description, str) or not tool.description.strip():
        yield "it needs a description for the model"
    is_number = isinstance(tool.timeout_s, int | float) and not isinstance(tool.timeout_s, bool)
    if tool.timeout_s is not None and not (is_number and tool.timeout_s > 0):
        yield f"its timeout_s must be a positive number or None, not {tool.timeout_s!r}"
