"""What each slash command answers and does, on a real chain."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.agents import ObedientModel
from support.commands import RULES, answer_rows, busy_commands, commands_of, danger, four_model_settings
from support.gate import Gate
from support.sessions import open_session
from trio.testing import wait_all_tasks_blocked

from chain import __version__, events
from chain.app.open import open_chain
from chain.app.sessions import FileStore
from chain.config.load import load_settings
from chain.lines.parse import STOP_PHRASES
from chain.messages import Usage
from chain.plan import Task
from chain.tools.mcp.servers import ServerView
from chain.tools.tool import ToolContext, tool
from cli.show.aliases import INSTEAD, OTHER_NAMES
from cli.terminal.slash import MOST_SESSIONS, CommandAnswer, Commands, NextSession

NO_EDITOR = SimpleNamespace(has_keys=False, has_clipboard=False)
TERMINAL = SimpleNamespace(has_keys=True, has_clipboard=True)

LINE_FORMS = ("!text", "!!text", "stop", "todo: add TEXT", "context: TEXT", "text?", "then: TEXT")
KEY_NAMES = ("Alt-Enter", "Esc", "Ctrl-C", "Ctrl-D", "Up", "Ctrl-G", "Ctrl-V", "Ctrl-O")


@tool(read_only=True)
async def look(ctx: ToolContext) -> str:
    """Look at something

    and say what it is.
    """
    return "seen"


@tool(needs_approval=True)
async def shell(ctx: ToolContext) -> str:
    """Run a command."""
    return "run"


# At 80 columns, help and the prompt fit the 24 rows of a small window.
@pytest.mark.parametrize(("width", "max_rows"), [(40, 47), (80, 22), (120, 22)])
async def test_help_has_every_command_line_and_key(tmp_path: Path, width: int, max_rows: int) -> None:
    def check_width(rows: list[str]) -> None:
        assert max(map(len, rows)) <= width

    async with commands_of(tmp_path) as (_, commands):
        answer = commands.run("/help", width=width)
        for name in (*commands.completions("/"), *LINE_FORMS, *KEY_NAMES):
            assert re.search(rf"(^|  |, ){re.escape(name)}( |,|$)", answer.text, re.M), name
        assert len(answer_rows(answer)) <= max_rows
        check_width(answer_rows(answer))
        for topic, names in (("lines", (*LINE_FORMS, "focus on X")), ("KEYS", (*KEY_NAMES, "Enter", "Tab", "Ctrl-R"))):
            details = answer_rows(commands.run(f"/help {topic}", width=width))
            check_width(details)
            first_column = {name.strip() for name in re.findall(r"^  (\S.*?)(?:  |$)", "\n".join(details), re.M)}
            assert first_column >= set(names)


async def test_help_without_an_editor_names_no_editor_keys(tmp_path: Path) -> None:
    async with commands_of(tmp_path, screen=NO_EDITOR) as (_, commands):
        for command in ("/help", "/help keys"):
            words = set(commands.run(command).text.split())
            assert words.isdisjoint({"Esc", "Alt-Enter", "Up", "Tab", "Ctrl-G", "Ctrl-R", "Ctrl-O"})
            assert {"Ctrl-C", "Ctrl-D"} <= words


async def test_status_during_and_after_a_run(tmp_path: Path) -> None:
    async with busy_commands(tmp_path, "todo: add x", "use B") as (session, commands):
        state, *details = answer_rows(commands.run("/status"))
        assert state.startswith("iteration 1, tools; 2 lines wait; plan 0/0; ")
        assert details == [
            f"  model    {session.chain.init.model}",
            "  session  test",
            "  tokens   0 input, 0 output, 0 cache read, 0 cache write (runs that ended)",
        ]
    used = session.chain.state.usage
    assert commands.run("/status").text.startswith("nothing is running; 0 lines wait; plan 0/1; ")
    assert f"  tokens   {used.input_tokens:,} input, {used.output_tokens:,} output," in commands.run("/status").text


async def test_queue_shows_each_waiting_line_on_a_row(tmp_path: Path) -> None:
    async with busy_commands(tmp_path, "use B", "!todo: add x", "then: rest", "x" * 5_000) as (_, commands):
        *short_lines, long_line = answer_rows(commands.run("/queue", width=400))
        assert short_lines == [  # L1 is the query
            "  L2  line         use B",
            "  L3  urgent todo  !todo: add x",
            "  L4  follow-up    then: rest",
        ]
        assert re.fullmatch(r"  L5  line         x+\.\.\.", long_line)
    assert answer_rows(commands.run("/queue")) == ["No line is waiting."]


async def test_drop_and_edit_take_a_waiting_line(tmp_path: Path) -> None:
    async with busy_commands(tmp_path, "use B", "use C", "use D", " use\nE", "use F") as (session, commands):
        for command, answer in {
            "/drop l3": CommandAnswer(),
            "/EDIT": CommandAnswer(edit="use F"),
            "/edit L5": CommandAnswer(edit=" use\nE"),
            "/drop": CommandAnswer(),
        }.items():
            assert commands.run(command) == answer
        for command in ("/drop L1", "/edit L9", "/drop x\x1b[2J"):
            assert commands.run(command).is_rejected
            assert commands.run(command).text.isprintable()
        await wait_all_tasks_blocked()
        receipts = [(receipt.id, receipt.state, receipt.reason) for receipt in session.of(events.Receipt)]
        assert receipts == [
            ("L1", "delivered", ""),
            ("L3", "dropped", ""),
            ("L6", "dropped", "taken back to edit"),
            ("L5", "dropped", "taken back to edit"),
            ("L4", "dropped", ""),
        ]
    assert session.state("L2") == "delivered"
    assert commands.run("/edit") == CommandAnswer("No line is waiting.")


async def test_todo_shows_the_plan_and_waiting_changes(tmp_path: Path) -> None:
    waiting = ("todo: add check the licence", "use B", "!todo: add x", "todo: complete 1", "plan: fail 2 no time")
    async with busy_commands(tmp_path, *waiting, "todo: list", "todo: clear") as (_, commands):
        assert answer_rows(commands.run("/todo")) == [
            "The plan is empty.",
            "[+] add check the licence (waiting, L2)",
            "[+] add x (waiting, L4)",
            "[+] complete 1 (waiting, L5)",
            "[+] fail 2 no time (waiting, L6)",
            "[+] clear (waiting, L8)",
        ]
    async with commands_of(tmp_path) as (session, commands):
        for line in ("todo: add first", "todo: add second", "todo: complete 1"):
            session.chain.submit(line)
        assert answer_rows(commands.run("/todo")) == ["[✓] 1. first", "[ ] 2. second", "1 done, 0 failed, 1 pending"]


async def test_tools_have_their_descriptions_and_permissions(tmp_path: Path) -> None:
    execute = tool(name="command", kind="execute", needs_approval=True)(shell.function)
    wait = Gate(description="Wait, e.g. for a test. Then go on.").tool
    async with commands_of(tmp_path, wait, look, shell, execute) as (_, commands):

        def descriptions() -> dict[str, str]:
            named = (row.split(maxsplit=1) for row in answer_rows(commands.run("/tools")))
            return {name: " ".join(description.split()) for name, description in named}

        assert descriptions()["wait"] == "Wait, e.g. for a test."
        assert descriptions()["look"] == "read-only Look at something"
        assert descriptions()["shell"] == "asks for approval Run a command."
        assert descriptions()["danger"] == "allowed Do something that cannot be undone!"
        commands.run("/mode read only")
        assert "denied" in descriptions()["command"]


async def test_model_shows_the_definitions_and_switches(tmp_path: Path) -> None:
    async with commands_of(tmp_path) as (session, commands):
        assert answer_rows(commands.run("/model")) == [
            f"Model: {session.chain.init.model}",
            "   claude   no API key: set ANTHROPIC_API_KEY or use --model offline",
            "   offline  rules in offline_model.yaml",
            "*  test     rules in other.yaml",
            "   other    rules in other.yaml",
            "   keyless  no API key: set ANTHROPIC_API_KEY or use --model offline",
            "   keyed    some-model",
        ]
        for name, answer in {
            "keyless": CommandAnswer("no API key: set ANTHROPIC_API_KEY or use --model offline"),
            "othr": CommandAnswer("there is no model 'othr': did you mean other?", is_rejected=True),
            "OTHER": CommandAnswer("other (rules in other.yaml) answers from now on."),
        }.items():
            assert commands.run(f"/model {name}") == answer
        assert "*  other" in commands.run("/model").text
        assert (await session.run("Hello")).result == "I am the other model."
        (tmp_path / "other.yaml").write_text("rules: 3")
        assert "other.yaml" in commands.run("/model test").text
        assert "*  other" in commands.run("/model").text
        settings = four_model_settings(tmp_path, chain_model="keyless")
        assert "*  keyed" in Commands(session.chain, settings, model="keyed").run("/model").text


async def test_a_model_chosen_during_a_run_answers_later(tmp_path: Path) -> None:
    async with busy_commands(tmp_path) as (session, commands):
        [row] = answer_rows(commands.run("/model other"))
        assert row == "other (rules in other.yaml) answers from the next run on."
    assert session.result.result == "The answer."


async def test_mode_shows_the_modes_and_switches(tmp_path: Path) -> None:
    async with commands_of(tmp_path) as (session, commands):
        assert commands.run("/mode Accept-Edits") == CommandAnswer()
        assert session.chain.mode == "accept edits"
        ask, accept_edits, read_only = answer_rows(commands.run("/mode"))
        assert ask.lstrip().startswith("ask ")
        assert accept_edits.startswith("*  accept edits ")
        assert read_only.lstrip().startswith("read only ")
        error = "there is no mode auto; the modes are ask, accept edits, read only"
        assert commands.run("/mode auto") == CommandAnswer(error, is_rejected=True)


async def test_new_opens_a_session_with_the_same_plan(tmp_path: Path) -> None:
    without_plan = CommandAnswer("New conversation.", opening=NextSession())
    async with commands_of(tmp_path) as (session, commands):
        assert commands.run("/new") == without_plan
        for line in ("todo: add x", "todo: add y", "todo: done 2"):
            session.chain.submit(line)
        answer = commands.run("/new")
        assert answer_rows(answer) == ["New conversation with the same plan (1/2); /new --clean starts without a plan."]
        assert answer.opening == NextSession(plan=(Task("x"), Task("y", "DONE")))
        assert commands.run("/new --clean") == without_plan
        assert commands.run("/new --cleen").is_rejected


@pytest.mark.parametrize("command", ["/new", "/resume 20260101-000000-aaaaaa", "/mcp:h:greet Ada"])
async def test_no_session_or_prompt_starts_during_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    async with busy_commands(tmp_path) as (session, commands):
        server = ServerView("h", "serve", "ready", tools=(), prompts=(("greet", "Greets."),), error="")
        monkeypatch.setattr(session.chain, "_servers", SimpleNamespace(views=(server,)))
        assert commands.run(command) == CommandAnswer("a run is active; stop it first")


async def test_mcp_reports_a_faulty_file(tmp_path: Path) -> None:
    async with commands_of(tmp_path) as (session, commands):
        assert "No server is set up" in commands.run("/mcp").text
        (session.chain.workspace / ".mcp.json").write_text("{")
        assert "is not valid JSON" in commands.run("/mcp").text


async def test_resume_lists_and_opens_other_sessions(tmp_path: Path) -> None:
    settings, state = four_model_settings(tmp_path), tmp_path / "state"
    ids = list[str]()
    """The ids of the sessions, the latest first."""
    for n in range(MOST_SESSIONS + 2):
        async with open_chain(settings, workspace=tmp_path, state=state, tools=[danger]) as chain:
            chain.submit(f"task {n}")
            await chain.wait_idle()
        ids.insert(0, chain.session_id)
    async with open_chain(settings, workspace=tmp_path, state=state, tools=[danger]) as chain:
        commands = Commands(chain, settings, store=FileStore(state))
        listing = commands.run("/resume").text
        listed_ids = [id for id in ids if id in listing]
        assert listed_ids == ids[:MOST_SESSIONS]
        latest, second, *_, oldest = ids
        assert commands.run("/resume 2").opening == NextSession(resume=second)
        assert commands.run(f"/resume {oldest}").opening == NextSession(resume=oldest)
        assert commands.completions(f"/resume {latest[:-2]}") == [f"/resume {latest}"]
        assert commands.run(f"/resume {chain.session_id}").is_rejected
        assert answer_rows(Commands(chain, settings).run("/resume")) == ["There is no other session here."]


async def test_debug_shows_paths(tmp_path: Path) -> None:
    settings = four_model_settings(tmp_path)
    state, traces = tmp_path / "state", tmp_path / "traces"
    async with open_chain(settings, workspace=tmp_path, state=state, tools=[danger], traces=traces) as chain:
        commands = Commands(chain, settings)
        assert answer_rows(commands.run("/debug")) == [
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
    settings = four_model_settings(tmp_path, handler=False)
    async with open_session(RULES, tools=[danger], settings=settings) as session:
        text = Commands(session.chain, settings).run("/debug").text
    assert "  journal         none\n" in text
    assert "  handler prompt  the built-in one\n" in text


NOT_UNDERSTOOD = {
    "/sttaus": "there is no /sttaus; did you mean /status?",
    "/Q": "there is no /Q; did you mean /queue or /quit?",
    "/exit now": "/quit has no argument",
    "/foo": "there is no /foo; /help lists all commands; put a space before the / to send it as text",
    "/": "there is no /; /help lists all commands; put a space before the / to send it as text",
    "/status now": "/status has no argument",
    "/drop L3 L4": "write it as /drop [L3]",
    "/help colours": "there is no help on colours here; try /help lines or /help keys, or in a shell: chain help TOPIC",
    "/kill": "write it as /kill J1 or /kill all; /jobs shows them",
    "/undo two": "write it as /undo, /undo N or /undo files (only the files, not the conversation)",
    "/thinking maybe": "write it as /thinking on or /thinking off",
    "/add-dir": "write it as /add-dir DIR; added so far: none",
    "/mcp:h:greet": "there is no /mcp:h:greet",
    **{typed: f"there is no {typed}: {text}" for typed, text in INSTEAD.items()},
}


async def test_a_command_not_understood_stays_in_the_editor(tmp_path: Path) -> None:
    async with commands_of(tmp_path) as (_, commands):
        for typed, text in NOT_UNDERSTOOD.items():
            assert commands.run(typed) == CommandAnswer(text, is_rejected=True)


async def test_suggested_commands_exist(tmp_path: Path) -> None:
    async with commands_of(tmp_path) as (_, commands):
        for text in INSTEAD.values():
            for name in re.findall(r"(?<!\w)/[a-z]+", text):
                assert not commands.run(name).text.startswith("there is no")


async def test_names_of_other_programs_work(tmp_path: Path) -> None:
    async with commands_of(tmp_path) as (_, commands):
        assert commands.run("/QUIT  ") == CommandAnswer(quit=True)
        for typed, name in OTHER_NAMES.items():
            assert commands.run(typed.upper()) == commands.run(name)


async def test_an_existing_path_is_no_command(tmp_path: Path) -> None:
    async with commands_of(tmp_path) as (_, commands):
        paths = {text for text in ("/dev is a folder", "/status /dev", "/run", "/nope", "/") if commands.is_path(text)}
        assert paths == {"/dev is a folder"}


async def test_answers_when_there_is_nothing(tmp_path: Path) -> None:
    async with commands_of(tmp_path) as (session, commands):
        for command, text in {
            "/jobs": "There are no background jobs.",
            "/kill all": "No background job is running.",
            "/diff": "There was no question yet.",
            "/compact": "there is no conversation yet",
            "/undo": "there is no run to undo",
            f"/add-dir {session.chain.workspace}": "Tools may use that directory already.",
            "/agents": "No agent is at work.",
        }.items():
            assert commands.run(command) == CommandAnswer(text)


COMPLETED = {
    "": [],
    "/st\n": [],
    "use the other file": [],
    " stop": [],
    "/S": ["/status"],
    "/status": [],
    "/drop": ["/drop L2", "/drop L3"],
    "/drop l3": ["/drop L3"],
    "/drop L3": [],
    "/EDIT ": ["/edit L2", "/edit L3"],
    "/model o": ["/model other", "/model offline"],
    "/mode r": ["/mode read only"],
    "/effort m": ["/effort medium", "/effort max"],
    "/help ": ["/help lines", "/help keys"],
    "t": ["todo: add ", "todo: complete ", "todo: fail ", "todo: list", "todo: clear", "then: "],
    "todo:c": ["todo: complete ", "todo: clear"],
    "todo: add x": [],
    "p": ["plan: add ", "plan: complete ", "plan: fail ", "plan: list", "plan: clear", "prefer "],
    "ne": ["nevermind", "never mind"],
    "s": ["status", "skip ", "stop"],
    "c": ["context: ", "cancel"],
}


async def test_commands_and_lines_are_completed(tmp_path: Path) -> None:
    async with busy_commands(tmp_path, "use B", "use C") as (_, commands):
        for typed, lines in COMPLETED.items():
            assert sorted(commands.completions(typed)) == sorted(lines), typed


async def test_a_stop_is_offered_after_other_completions(tmp_path: Path) -> None:
    async with busy_commands(tmp_path, "use B", "use C") as (_, commands):
        for phrase in STOP_PHRASES:
            for length in range(1, len(phrase)):
                first, *others = commands.completions(phrase[:length])
                assert first not in STOP_PHRASES or set(others) <= set(STOP_PHRASES)


async def test_files_are_completed_anywhere_in_a_line(tmp_path: Path) -> None:
    async with commands_of(tmp_path) as (session, commands):
        (session.chain.workspace / "of our own").mkdir(exist_ok=True)
        (session.chain.workspace / "of our own" / "plan.md").touch()
        first_completion, *_ = commands.completions("sum up @of")
        assert first_completion == 'sum up @"of our own/'
        assert commands.completions('first\nsum up @"of our own/p') == ['first\nsum up @"of our own/plan.md"']
        first_choice, *_ = commands.menu("sum up @of")
        assert first_choice == ('sum up @"of our own/', '"of our own/', "")
        assert commands.menu("nothing") == []


async def test_the_menu_describes_commands(tmp_path: Path) -> None:
    async with commands_of(tmp_path) as (_, commands):
        assert [choice.label for choice in commands.menu("/to")] == ["/todo", "/to AGENT TEXT", "/tools"]
        assert commands.menu("/help") == [("/help ", "/help [TOPIC]", "more: lines or keys")]
        assert commands.menu("/help ") == []


@pytest.mark.parametrize(
    ("command", "effort", "text"),
    [
        ("/effort high", "high", "The effort is high from now on."),
        ("/effort xhigh", "xhigh", "The effort is xhigh from now on."),
        ("/effort default", "", "The effort is that of the model's definition from now on."),
        ("/effort", "low", "Effort: low. /effort default is that of the model's definition."),
        ("/effort hihg", "low", "there is no effort hihg; did you mean high?"),
        ("/effort 5", "low", "there is no effort 5; write low, medium, high, max or default"),
    ],
)
async def test_effort_changes_or_shows_the_effort(tmp_path: Path, command: str, effort: str, text: str) -> None:
    async with commands_of(tmp_path) as (session, commands):
        commands.run("/effort LOW")
        assert commands.run(command).text == text
        assert session.chain.effort == effort


async def test_effort_shows_the_default(tmp_path: Path) -> None:
    async with commands_of(tmp_path) as (_, commands):
        shown = commands.run("/effort").text
    assert shown == "Effort: the model's default. /effort changes it: low, medium, high, max."


async def test_copy_takes_what_fits_of_the_reply(tmp_path: Path) -> None:
    reply = "ü" * 50_000
    async with commands_of(tmp_path, rules=f"rules: [{{text: {reply}}}]", screen=TERMINAL) as (session, commands):
        assert commands.run("/copy").text == "there is no reply yet"
        await session.run("hello")
        answer = commands.run("/copy")
        assert answer.copies == "ü" * 37_497, "terminals accept 100 kB of base64"
        assert answer.text == "Sent to the clipboard: the first 37,497 of 50,000 characters."


async def test_copy_skips_a_reply_without_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TMUX", raising=False)
    gate = Gate()
    rules = """rules:
      - {when: {user: go, step: 1}, tools: [{name: wait, input: {}}]}
      - {text: '**Short**'}"""
    async with commands_of(tmp_path, gate.tool, rules=rules, screen=TERMINAL) as (session, commands):
        await session.run("hello")
        session.chain.submit("go")
        await gate.started.wait()
        reply = "**Short**"
        assert commands.run("/copy") == CommandAnswer(f"Sent to the clipboard: {len(reply)} characters.", copies=reply)
        gate.open.set()
        await session.chain.wait_idle()


async def test_copy_explains_the_setting_of_tmux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMUX", "/tmp/tmux-0/default,1,0")
    async with commands_of(tmp_path, screen=TERMINAL) as (session, commands):
        await session.run("hello")
        assert commands.run("/copy").text.endswith("6 characters. tmux needs: set -g set-clipboard on")


async def test_copy_without_a_clipboard_is_an_error(tmp_path: Path) -> None:
    async with commands_of(tmp_path, screen=NO_EDITOR) as (session, commands):
        await session.run("hello")
        assert "no clipboard" in commands.run("/copy").text


@pytest.mark.parametrize(
    ("as_of", "prices"), [(", as_of: 2026-11-28", ", at the prices of 2026-11-28"), ("", "")], ids=["date", "no date"]
)
async def test_cost_has_the_date_of_the_prices(tmp_path: Path, as_of: str, prices: str) -> None:
    definition = f"{{provider: anthropic, model: m, api_key: k, price: {{input: 2, output: 10{as_of}}}}}"
    (tmp_path / "config.yaml").write_text(
        f"models: {{default: mine, definitions: {{mine: {definition}}}}}\nchains: {{default: {{tools: []}}}}"
    )
    settings = load_settings(config=tmp_path / "config.yaml", environ={}, cwd=tmp_path)
    model = ObedientModel(usage=Usage(10, 5, cost_usd=0.25))
    async with open_session(model, settings=settings, interactive=True) as session:
        await session.run("hello")
        *_, cost = answer_rows(Commands(session.chain, settings).run("/cost", width=120))
    assert cost == f"  cost     $0.2500 (runs that ended{prices})"
