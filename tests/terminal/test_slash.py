"""What each slash command answers and does, on a real chain."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import pytest
from support import Session, check_invariants, open_session
from support.gate import Gate
from trio.testing import wait_all_tasks_blocked

from chain import __version__, events
from chain.app.open import open_chain
from chain.config.load import Settings, load_settings
from chain.lines.parse import STOP_PHRASES
from chain.messages import Message, Text, Usage
from chain.model import Delta, Reply, Request
from chain.plan import Task
from chain.tools.mcp.servers import ServerView
from chain.tools.tool import Tool, ToolContext, tool
from cli.show.aliases import INSTEAD, OTHER_NAMES
from cli.show.answers import MOST_SHOWN
from cli.terminal.slash import CommandAnswer, Commands, NextSession

RULES = """
rules:
  - {when: {user: '^Do the task$', step: 1}, text: Looking., tools: [{name: wait, input: {}}]}
  - {when: {tool: wait}, text: The answer.}
  - {text: Noted.}
"""
OTHER = "name: other rules\nrules: [{text: I am the other model.}]"

HANDLER = "messages: [{role: user, content: 'NOW: ${message}'}]"


@tool(read_only=True)
async def look(ctx: ToolContext) -> str:
    """Look at something

    and say what it is.
    """
    return "seen"


@tool(needs_approval=True)
async def danger(ctx: ToolContext) -> str:
    """Do something that cannot be undone!"""
    return "done"


@tool(needs_approval=True)
async def shell(ctx: ToolContext) -> str:
    """Run a command."""
    return "run"


def configured(folder: Path, *, handler: bool = True, chain_model: str = "test") -> Settings:
    """Settings with a scripted model, another one, and one whose key is missing."""
    (folder / "rules.yaml").write_text("rules: [{text: unused}]")
    (folder / "other.yaml").write_text(OTHER)
    (folder / "handler.yaml").write_text(HANDLER)
    definitions = {
        "test": {"provider": "scripted", "script": "rules.yaml"},
        "other": {"provider": "scripted", "script": "other.yaml", "max_attempts": 7},
        "keyless": {"provider": "anthropic", "model": "some-model", "api_key": "${ANTHROPIC_API_KEY}"},
        "keyed": {"provider": "anthropic", "model": "some-model", "api_key": "secret"},
    }
    chain = {"model": chain_model, "system_prompt": None, "tools": ["todo"]}
    chain |= {"interruption_prompt": "handler.yaml" if handler else None}
    raw = {"models": {"default": "test", "definitions": definitions}, "chains": {"default": chain}}
    path = folder / "config.yaml"
    path.write_text(json.dumps({**raw, "tools": {"allow": ["danger"]}}))
    return load_settings(config=path, environ={}, cwd=folder, flags={})


@asynccontextmanager
async def opened(folder: Path, *tools: Tool) -> AsyncIterator[tuple[Session, Commands]]:
    settings = configured(folder)
    async with open_session(RULES, tools=[*tools, danger], use=settings, interactive=True) as session:
        yield session, Commands(session.chain, settings)


@asynccontextmanager
async def busy(folder: Path, *lines: str) -> AsyncIterator[tuple[Session, Commands]]:
    """A chain whose tool runs while these lines wait; what still waits at the end is delivered."""
    gate = Gate()
    async with opened(folder, gate.tool) as (session, commands):
        session.chain.submit("Do the task")
        await gate.started.wait()
        for line in lines:
            session.chain.submit(line)
        await wait_all_tasks_blocked()
        yield session, commands
        gate.open.set()
        await session.chain.wait_idle()
        check_invariants(session, max_iterations=100)


def rows(answer: CommandAnswer) -> list[str]:
    assert not answer.keeps
    assert not answer.quit
    assert answer.edit is None
    return answer.text.split("\n")


LINES = ("!text", "!!text", "stop", "todo: add TEXT", "focus on X", "context: TEXT", "text?", "then: TEXT")
KEYS = ("Enter", "Alt-Enter", "Esc", "Ctrl-C", "Ctrl-D", "Up", "Ctrl-G", "Ctrl-V", "Tab", "Ctrl-R", "Ctrl-O")


@pytest.mark.parametrize(("width", "most"), [(40, 47), (80, 26), (120, 22), (200, 22)])
async def test_help_has_every_command_kind_of_line_and_key(tmp_path: Path, width: int, most: int) -> None:
    async with opened(tmp_path) as (_, commands):
        answer = commands.run("/help", width=width)
        names = commands.completions("/")
    shown = rows(answer)
    for name in (*names, *LINES, *KEYS):
        assert re.search(rf"(^|  ){re.escape(name)}( |$)", answer.text, re.M), name
    assert len(shown) <= most
    assert max(map(len, shown[:-1])) <= min(width, 120) - 2
    assert answer.text.isascii()


@pytest.mark.parametrize("width", [40, 80, 120])
async def test_help_on_lines_and_keys_is_longer(tmp_path: Path, width: int) -> None:
    async with opened(tmp_path) as (_, commands):
        lines, keys = (commands.run(f"/help {name}", width=width) for name in ("lines", "KEYS"))
    for answer, names in ((lines, LINES), (keys, KEYS)):
        assert max(map(len, rows(answer))) <= width
        assert {row.split("  ")[1].strip() for row in rows(answer) if row[2:3].strip()} >= set(names)


async def test_help_on_what_there_is_no_help_on_stays(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, commands):
        answer = commands.run("/help colours")
    assert answer.keeps
    assert "/help lines" in answer.text
    assert "chain help" in answer.text


async def test_without_an_editor_no_key_is_named_that_is_not_there(tmp_path: Path) -> None:
    async with opened(tmp_path) as (session, _):
        commands = Commands(session.chain, configured(tmp_path), has_keys=False)
        for command in ("/help", "/help keys"):
            words = set(commands.run(command).text.split())
            assert words.isdisjoint({"Esc", "Alt-Enter", "Up", "Tab", "Ctrl-G", "Ctrl-R", "Ctrl-O"})
            assert {"Enter", "Ctrl-C", "Ctrl-D"} <= words


async def test_status_of_a_chain_that_has_done_nothing(tmp_path: Path) -> None:
    async with opened(tmp_path) as (session, commands):
        assert rows(commands.run("/status")) == [
            "nothing is running; 0 lines wait; plan 0/0; 0 tokens used",
            f"  model    {session.chain.init.model}",
            "  session  test",
            "  tokens   0 input, 0 output, 0 cache read, 0 cache write (runs that ended)",
        ]


async def test_status_of_a_busy_chain_and_after_its_run(tmp_path: Path) -> None:
    async with busy(tmp_path, "todo: add x", "use B") as (session, commands):
        assert commands.run("/status").text.startswith("iteration 1, tools; 2 lines wait; plan 0/0; ")
    used = session.chain.state.usage
    assert used.input_tokens > 0
    assert f"  tokens   {used.input_tokens:,} input, {used.output_tokens:,} output," in commands.run("/status").text
    cost = "" if used.cost_usd is None else f"\n  cost     ${used.cost_usd:.4f} (runs that ended)"
    assert commands.run("/status").text.endswith(f"(runs that ended){cost}")


async def test_the_queue_shows_each_waiting_line_on_a_row(tmp_path: Path) -> None:
    long = "one\n\x1b[2Jtwo " + "x" * 5_000
    async with busy(tmp_path, "use B", "!todo: add x", "then: rest", long) as (_, commands):
        shown = rows(commands.run("/queue", width=400))
        assert shown[:3] == [
            "  L2  line         use B",
            "  L3  urgent todo  !todo: add x",
            "  L4  follow-up    then: rest",
        ]
        assert shown[3] == "  L5  line         " + ("one two " + "x" * MOST_SHOWN)[:MOST_SHOWN] + "..."
        assert len(shown) == 4
    assert rows(commands.run("/queue")) == ["No line is waiting."]


async def test_drop_takes_a_waiting_line_away(tmp_path: Path) -> None:
    async with busy(tmp_path, "use B", "use C", "use D") as (session, commands):
        assert commands.run("/drop l3") == CommandAnswer()
        assert session.state("L3") == "dropped"
        assert commands.run("/drop") == CommandAnswer()
        assert session.state("L4") == "dropped"
    assert session.state("L2") == "delivered"
    assert "use C" not in session.sent()


async def test_edit_gives_a_waiting_line_back_to_the_editor(tmp_path: Path) -> None:
    async with busy(tmp_path, "use B", " use\nC", "use D") as (session, commands):
        assert commands.run("/edit L3") == CommandAnswer(edit=" use\nC")
        assert commands.run("/EDIT") == CommandAnswer(edit="use D")
        await wait_all_tasks_blocked()
        assert [(r.id, r.state, r.reason) for r in session.of(events.Receipt)][-2:] == [
            ("L3", "dropped", "taken back to edit"),
            ("L4", "dropped", "taken back to edit"),
        ]
    assert session.state("L2") == "delivered"


@pytest.mark.parametrize("command", ["/drop", "/edit"])
async def test_what_does_not_wait_cannot_be_taken(command: str, tmp_path: Path) -> None:
    async with busy(tmp_path, "use B") as (session, commands):
        for id in ("L1", "L9", "x\x1b[2J"):
            answer = commands.run(f"{command} {id}")
            assert answer.keeps
            assert answer.text
            assert answer.text.isprintable()
            assert answer.edit is None
        assert session.state("L2") == "queued"
    assert commands.run(command) == CommandAnswer("No line is waiting.")


async def test_todo_shows_the_plan(tmp_path: Path) -> None:
    async with opened(tmp_path) as (session, commands):
        assert rows(commands.run("/todo")) == ["The plan is empty."]
        session.chain.submit("todo: add first")
        session.chain.submit("todo: add second")
        session.chain.submit("todo: complete 1")
        assert rows(commands.run("/todo")) == ["[✓] 1. first", "[ ] 2. second", "1 done, 0 failed, 1 pending"]


async def test_todo_shows_what_waits_to_be_changed(tmp_path: Path) -> None:
    waiting = ("todo: add check the licence", "use B", "!todo: add x", "todo: complete 1", "plan: fail 2 no time")
    async with busy(tmp_path, *waiting, "todo: list", "todo: clear") as (_, commands):
        assert rows(commands.run("/todo")) == [
            "The plan is empty.",
            "[+] add check the licence (waiting, L2)",
            "[+] add x (waiting, L4)",
            "[+] complete 1 (waiting, L5)",
            "[+] fail 2 no time (waiting, L6)",
            "[+] clear (waiting, L8)",
        ]
    assert "[+]" not in commands.run("/todo").text


async def test_tools_tell_what_each_is_for_and_what_leave_it_needs(tmp_path: Path) -> None:
    async with opened(tmp_path, Gate(says="Wait, e.g. for a test. Then go on.").tool, look, shell) as (_, commands):
        shown = {row.split()[0]: " ".join(row.split()[1:]) for row in rows(commands.run("/tools"))}
    assert shown["wait"] == "Wait, e.g. for a test."
    assert shown["look"] == "read-only Look at something"
    assert shown["shell"] == "asks for approval Run a command."
    assert shown["danger"] == "allowed Do something that cannot be undone!"
    assert "plan_list" in shown


async def test_model_shows_the_definitions_and_switches(tmp_path: Path) -> None:
    async with opened(tmp_path) as (session, commands):
        name = session.chain.init.model
        assert rows(commands.run("/model")) == [
            f"Model: {name}",
            "   claude   no API key: set ANTHROPIC_API_KEY or use --model offline",
            "   offline  rules in offline_model.yaml",
            "*  test     rules in rules.yaml",
            "   other    rules in other.yaml",
            "   keyless  no API key: set ANTHROPIC_API_KEY or use --model offline",
            "   keyed    some-model",
        ]
        assert rows(commands.run("/model OTHER")) == ["other (rules in other.yaml) answers from now on."]
        assert "*  other" in commands.run("/model").text
        assert "*  test" not in commands.run("/model").text
        result = await session.run("Hello")
        assert result.result == "I am the other model."
        assert session.chain.init.model == "other rules"


async def test_a_model_chosen_while_a_run_is_active_answers_from_the_next_one(tmp_path: Path) -> None:
    async with busy(tmp_path) as (session, commands):
        assert rows(commands.run("/model other")) == ["other (rules in other.yaml) answers from the next run on."]
    assert session.result.result == "The answer."
    async with opened(tmp_path) as (session, commands):
        commands.run("/model other")
        assert (await session.run("Do the task")).result == "I am the other model."


async def test_a_model_that_cannot_be_used_is_told_why(tmp_path: Path) -> None:
    async with opened(tmp_path) as (session, commands):
        before = session.chain.init.model
        assert rows(commands.run("/model keyless")) == ["no API key: set ANTHROPIC_API_KEY or use --model offline"]
        unknown = commands.run("/model othr")
        assert unknown == CommandAnswer("there is no model 'othr': did you mean other?", keeps=True)
        (tmp_path / "other.yaml").write_text("rules: 3")
        assert "other.yaml" in commands.run("/model other").text
        assert session.chain.init.model == before
        assert "*  test" in commands.run("/model").text


async def test_the_model_that_a_chain_was_opened_with_may_be_another_than_its_own(tmp_path: Path) -> None:
    settings = configured(tmp_path, chain_model="keyless")
    async with open_session(RULES, tools=[danger], use=settings) as session:
        assert "*" not in Commands(session.chain, settings).run("/model").text
        assert "*  test" in Commands(session.chain, settings, model="test").run("/model").text


async def test_mode_shows_the_modes_and_changes_to_one(tmp_path: Path) -> None:
    async with opened(tmp_path, tool(name="command", kind="execute", needs_approval=True)(shell.function)) as (
        session,
        commands,
    ):
        assert commands.run("/mode Accept-Edits") == CommandAnswer()
        assert session.chain.mode == "accept edits"
        shown = [row.split(None, 2) for row in rows(commands.run("/mode"))]
        assert [row[:2] for row in shown] == [["ask", "edits"], ["*", "accept"], ["read", "only"]]
        unknown = commands.run("/mode auto")
        assert unknown == CommandAnswer("there is no mode auto; the modes are ask, accept edits, read only", keeps=True)
        commands.run("/mode read only")
        assert "denied" in next(row for row in rows(commands.run("/tools")) if row.split()[0] == "command")
        assert commands.completions("/mode r") == ["/mode read only"]


async def test_new_asks_for_a_session_with_the_same_plan(tmp_path: Path) -> None:
    async with opened(tmp_path) as (session, commands):
        await session.run("First")
        before = commands.run("/new")
        assert rows(before) == ["New conversation."]
        assert before.opening == NextSession()
        session.chain.submit("todo: add x")
        session.chain.submit("todo: add y")
        session.chain.submit("todo: done 2")
        answer = commands.run("/new")
        assert rows(answer) == ["New conversation with the same plan (1/2); /new --clean starts without a plan."]
        assert answer.opening == NextSession(plan=(Task("x"), Task("y", "DONE")))
        clean = commands.run("/new --clean")
        assert rows(clean) == ["New conversation."]
        assert clean.opening == NextSession()
        assert commands.run("/new --cleen").keeps


@pytest.mark.parametrize("command", ["/new", "/resume 20260101-000000-aaaaaa"])
async def test_no_other_session_is_asked_for_while_a_run_is_active(command: str, tmp_path: Path) -> None:
    async with busy(tmp_path) as (session, commands):
        answer = commands.run(command)
        assert answer.opening is None
        assert "a run is active" in answer.text
    assert session.result.result == "The answer."


async def test_no_prompt_of_a_server_is_asked_for_while_a_run_is_active(tmp_path: Path) -> None:
    async with busy(tmp_path) as (session, commands):
        server = ServerView("h", "serve", "ready", (), (("greet", "Greets."),), "")
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(session.chain, "_servers", SimpleNamespace(views=(server,)))
            answer = commands.run("/mcp:h:greet Ada")
        assert "a run is active" in answer.text


async def test_what_is_wrong_with_a_file_of_servers_is_said(tmp_path: Path) -> None:
    async with busy(tmp_path) as (session, commands):
        assert "No server is set up" in commands.run("/mcp").text
        (session.chain.workspace / ".mcp.json").write_text("{")
        assert "is not valid JSON" in commands.run("/mcp").text


@dataclass(frozen=True)
class Closed:
    """A session that was closed, as the program is told of it."""

    id: str
    changed: float
    query: str
    workspace: str
    open_lines: tuple[str, ...] = ()
    runs: int = 1
    tokens: int = 10
    cost_usd: float | None = None
    is_open: bool = False


async def test_resume_lists_the_latest_other_sessions_of_this_workspace(tmp_path: Path) -> None:
    async with opened(tmp_path) as (session, _):
        here = str(session.chain.workspace)
        known = [Closed(session.chain.session_id, 2e9, "this", here)]
        known += [Closed(f"s{n:02}", 1e9 + n, f"task {n}", here) for n in range(12, 0, -1)]
        commands = Commands(session.chain, configured(tmp_path), summaries=lambda: known)
        latest = [f"s{n:02}" for n in range(12, 2, -1)]
        assert [id for row in rows(commands.run("/resume")) for id in row.split() if id in latest] == latest
        assert commands.run("/resume 2").opening == NextSession(resume="s11")
        assert commands.completions("/resume s1") == ["/resume s12", "/resume s11", "/resume s10"]
        assert commands.completions("/resume ") == [f"/resume {id}" for id in latest]
        assert commands.run("/resume").opening is None
        assert rows(Commands(session.chain, configured(tmp_path)).run("/resume")) == ["There is no other session here."]


async def test_resume_asks_for_the_session_that_is_named(tmp_path: Path) -> None:
    async with opened(tmp_path) as (session, commands):
        assert commands.run("/resume 20260101").opening == NextSession(resume="20260101")
        itself = commands.run(f"/resume {session.chain.session_id}")
        assert itself.keeps
        assert itself.opening is None


async def test_debug_says_where_things_are(tmp_path: Path) -> None:
    settings = configured(tmp_path)
    state, traces = tmp_path / "state", tmp_path / "traces"
    async with open_chain(settings, workspace=tmp_path, state=state, tools=[danger], traces=traces) as chain:
        commands = Commands(chain, settings)
        assert rows(commands.run("/debug")) == [
            f"  session         {chain.session_id}",
            f"  journal         {chain.journal_path}",
            "  last trace      none",
            f"  configuration   {tmp_path / 'config.yaml'}",
            f"  handler prompt  {tmp_path / 'handler.yaml'}",
            f"  version         {__version__}",
        ]
        chain.submit("Hello")
        await chain.wait_idle()
        assert f"  last trace      {chain.state.trace_path()}\n" in commands.run("/debug").text
        assert str(chain.state.trace_path()).startswith(str(traces))


async def test_debug_names_what_is_built_in(tmp_path: Path) -> None:
    settings = configured(tmp_path, handler=False)
    async with open_session(RULES, tools=[danger], use=settings) as session:
        shown = Commands(session.chain, settings).run("/debug").text
    assert "  journal         none\n" in shown
    assert "  handler prompt  the built-in one\n" in shown


async def test_quit(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, commands):
        assert commands.run("/quit") == commands.run("/QUIT  ") == CommandAnswer(quit=True)


NOT_UNDERSTOOD = {
    "/sttaus": "there is no /sttaus; did you mean /status?",
    "/Q": "there is no /Q; did you mean /queue or /quit?",
    "/exit now": "/quit has no argument",
    "/tood": "there is no /tood; did you mean /todo?",
    "/foo": "there is no /foo; /help lists all commands; put a space before the / to send it as text",
    "/paste": "there is no /paste; /help lists all commands; put a space before the / to send it as text",
    "/": "there is no /; /help lists all commands; put a space before the / to send it as text",
    "/status now": "/status has no argument",
    "/drop L3 L4": "write it as /drop [L3]",
    "/model a b": "write it as /model [NAME]",
    **{typed: f"there is no {typed}: {text}" for typed, text in INSTEAD.items()},
}


async def test_a_command_that_is_not_understood_stays_in_the_editor(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, commands):
        for typed, text in NOT_UNDERSTOOD.items():
            assert commands.run(typed) == CommandAnswer(text, keeps=True)


async def test_a_path_that_exists_is_no_command_unless_it_has_the_name_of_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, commands):
        assert [commands.is_path(text) for text in ("/dev is a folder", "/status /dev", "/run", "/nope", "/")] == [
            True, *[False] * 4,
        ]  # fmt: skip


async def test_a_name_that_other_programs_have_does_the_same(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, commands):
        for typed, name in OTHER_NAMES.items():
            assert commands.run(typed.upper()) == commands.run(name)


async def test_what_is_said_of_commands_that_there_are_not_names_some_that_there_are(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, commands):
        for text in INSTEAD.values():
            assert all(commands.run(name).text[:11] != "there is no" for name in re.findall(r"(?<!\w)/[a-z]+", text))


COMPLETED = {
    "": [],
    "/st\n": [],
    "use the other file": [],
    " stop": [],
    "/S": ["/status"],
    "/status": [],
    "/status ": [],
    "/drop": ["/drop L2", "/drop L3"],
    "/drop l3": ["/drop L3"],
    "/drop L3": [],
    "/EDIT ": ["/edit L2", "/edit L3"],
    "/model o": ["/model other", "/model offline"],
    "/help ": ["/help lines", "/help keys"],
    "t": ["todo: add ", "todo: complete ", "todo: fail ", "todo: list", "todo: clear", "then: "],
    "todo:c": ["todo: complete ", "todo: clear"],
    "todo: add x": [],
    "p": ["plan: add ", "plan: complete ", "plan: fail ", "plan: list", "plan: clear", "prefer "],
    "ne": ["nevermind", "never mind"],
    "s": ["status", "skip ", "stop"],
    "c": ["context: ", "cancel"],
    "focus on X": [],
}


async def test_completions(tmp_path: Path) -> None:
    async with busy(tmp_path, "use B", "use C") as (_, commands):
        for typed, lines in COMPLETED.items():
            assert sorted(commands.completions(typed)) == sorted(lines), typed


async def test_a_stop_is_never_the_first_of_several_completions(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, commands):
        for phrase in STOP_PHRASES:
            for length in range(1, len(phrase)):
                found = commands.completions(phrase[:length])
                assert found[0] not in STOP_PHRASES or set(found) <= set(STOP_PHRASES)


async def test_a_file_is_completed_wherever_it_stands_in_a_line(tmp_path: Path) -> None:
    async with opened(tmp_path) as (session, commands):
        (session.chain.workspace / "of our own").mkdir(exist_ok=True)
        (session.chain.workspace / "of our own" / "plan.md").touch()
        assert commands.completions("sum up @of")[:1] == ['sum up @"of our own/']
        assert commands.completions('first\nsum up @"of our own/p') == ['first\nsum up @"of our own/plan.md"']
        assert commands.menu("sum up @of")[:1] == [('sum up @"of our own/', '"of our own/', "")]
        assert commands.menu("nothing") == []


async def test_the_menu_keeps_the_row_of_a_command_that_is_typed_in_full(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, commands):
        assert [choice.label for choice in commands.menu("/to")] == ["/todo", "/to AGENT TEXT", "/tools"]
        assert commands.menu("/help") == [("/help ", "/help [TOPIC]", "more: lines or keys")]
        assert commands.menu("/help ") == []
        assert commands.completions("/help ") == ["/help lines", "/help keys"]


@pytest.mark.parametrize(
    ("typed", "effort", "says"),
    [
        ("high", "high", "The effort is high from now on."),
        ("MAX", "max", "The effort is max from now on."),
        ("xhigh", "xhigh", "The effort is xhigh from now on."),
        ("default", "", "The effort is that of the model's definition from now on."),
        ("", "low", "Effort: low. /effort default is that of the model's definition."),
        ("hihg", "low", "there is no effort hihg; did you mean high?"),
        ("5", "low", "there is no effort 5; write low, medium, high, max or default"),
    ],
)
async def test_effort(tmp_path: Path, typed: str, effort: str, says: str) -> None:
    async with opened(tmp_path) as (session, commands):
        commands.run("/effort low")
        answer = commands.run(f"/effort {typed}")
        assert (answer.text, session.chain.effort) == (says, effort)
        assert "/effort medium" in commands.completions("/effort m")


async def test_copy_takes_the_last_reply_as_far_as_it_fits(tmp_path: Path) -> None:
    settings = configured(tmp_path)
    long = "ü" * 50_000
    rules = f"rules: [{{when: {{user: long}}, text: {long}}}, {{text: '**Short**'}}]"
    async with open_session(rules, tools=[danger], use=settings, interactive=True) as session:
        commands = Commands(session.chain, settings, can_copy=True)
        assert commands.run("/copy").text == "there is no reply yet"
        await session.run("hello")
        assert commands.run("/copy") == CommandAnswer("Sent to the clipboard: 9 characters.", copies="**Short**")
        await session.run("long")
        answer = commands.run("/copy")
        assert answer.copies == "ü" * 37_497
        assert answer.text == "Sent to the clipboard: the first 37,497 of 50,000 characters."
        assert "no clipboard" in Commands(session.chain, settings).run("/copy").text


async def test_copy_during_a_run_takes_the_reply_of_the_one_before(tmp_path: Path) -> None:
    gate = Gate()
    rules = "rules: [{when: {user: go, step: 1}, tools: [{name: wait, input: {}}]}, {text: One.}]"
    async with open_session(rules, tools=[gate.tool, danger], use=configured(tmp_path), interactive=True) as session:
        await session.run("hello")
        session.chain.submit("go")
        await gate.started.wait()
        assert session.chain.last_reply == "One."
        gate.open.set()
        await session.chain.wait_idle()


class Costly:
    """A model whose replies cost a quarter of a dollar each."""

    name = "costly"

    async def reply(self, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        return Reply(Message("assistant", (Text("Done."),)), "end_turn", Usage(10, 5, cost_usd=0.25))

    async def prepare(self) -> None:
        """Do nothing."""

    async def aclose(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize(("as_of", "prices"), [(", as_of: 2026-11-28", ", at the prices of 2026-11-28"), ("", "")])
async def test_cost_is_in_dollars_with_the_date_of_the_prices(tmp_path: Path, as_of: str, prices: str) -> None:
    definition = f"{{provider: anthropic, model: m, api_key: k, price: {{input: 2, output: 10{as_of}}}}}"
    (tmp_path / "config.yaml").write_text(
        f"models: {{default: mine, definitions: {{mine: {definition}}}}}\nchains: {{default: {{tools: []}}}}"
    )
    settings = load_settings(config=tmp_path / "config.yaml", environ={}, cwd=tmp_path)
    async with open_session(Costly(), use=settings, interactive=True) as session:
        await session.run("hello")
        answer = Commands(session.chain, settings).run("/cost", width=120)
    assert rows(answer)[-1] == f"  cost     $0.2500 (runs that ended{prices})"
