"""The shipped rules of the offline model, with real files and tools: answers to queries, and effects of lines."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.contexts import QueuedGuidance
from support.documents import PROMPTS, offline_rules, text_of
from support.sessions import OneConversation

from chain.app.prompt_files import text_of_prompt
from chain.config import yamlfile
from chain.interruption import prompt as interruption
from chain.interruption.prompt import Arrival, Situation
from chain.interruption.prompt_file import PromptFile
from chain.lines.parse import parse_line
from chain.messages import Message, ToolCall, ToolResult, tool_results, user_text
from chain.model import Request, ToolSpec
from chain.plan import Plan
from chain.providers.scripted.scripted_model import ScriptedModel
from chain.tools import calling, files, plan_tools
from chain.tools.registry import Registry
from chain.tools.tool import ToolContext

RULES = offline_rules()
REGISTRY = Registry.of([*files.TOOLS, *plan_tools.TOOLS])
SPECS = tuple(ToolSpec(t.name, t.description, t.input_schema) for t in REGISTRY)
SHIPPED = PromptFile(PROMPTS / "interruption_handler.yaml").current()[0]

ANALYZE = "Analyze product data for SKU123"
COUNT = "count the lines in prompts"
TOTAL = "15      19  total of 3 (text files found: 3)"  # lines and words of the files in prompts
SKIPPED = "[Skipped: user interrupted]"
FILES = {
    "prompts/system.yaml": "a: 1\nb: two words\n",
    "prompts/other.md": "# Guide\n\nFirst words.\n\n## Use\n\nTODO: more\n",
    "prompts/code.py": "class Thing:\n    pass\n\n\ndef act():\n    pass\n",
    "products.csv": "sku,name,price,stock,rating\nSKU122,Cup,2.50,40,4.0\nSKU123,Pot,34.00,12,3.8\n",
    "notes/SKU123.md": "# SKU123 Pot\n\n- Lids do not close.\n",
}
# Names that look like something else in a query.
ODD_FILES = {"with space/my file.csv": "sku\nA 1\n", "all.md": "everything\n", "files.d/a": "a\n"}


@dataclass
class Driver:
    """A minimal agent loop: requests, the calls of the replies, and lines that arrive after an iteration."""

    workspace: Path
    conversation: list[Message] = field(default_factory=list)
    plan: Plan = field(default_factory=Plan)
    model: OneConversation = field(default_factory=lambda: OneConversation(ScriptedModel(RULES)))
    replies: list[Message] = field(default_factory=list)

    async def run(self, query: str, lines: Mapping[int, str] | None = None) -> str:
        """Return the text of the last reply. ``lines`` maps an iteration to the rows that the user sends after it."""
        self.conversation.append(user_text(query))
        self.replies.clear()
        tail: tuple[str, ...] = ()
        resume: str | None = None
        while len(self.replies) < 10:
            reply = await self.reply(tail)
            tail = ()
            if reply.calls:
                await self.carry_out(reply)
                resume = None
            text = (lines or {}).get(len(self.replies))
            if text is not None:
                in_mid_task = bool(reply.calls) or resume is not None
                tail, resume = self.interrupt(*text.split("\n"))
                resume = resume if in_mid_task else None
            elif not reply.calls:
                if resume is None:
                    return reply.text
                self.conversation.append(user_text(resume))
                resume = None
        raise AssertionError("the rules do not come to an end")

    async def reply(self, tail: tuple[str, ...] = ()) -> Message:
        """Return the reply to the conversation, and add it."""
        reply = await self.model.reply(Request("system", tuple(self.conversation), SPECS, tail))
        self.conversation.append(reply.message)
        self.replies.append(reply.message)
        return reply.message

    def interrupt(self, *texts: str) -> tuple[tuple[str, ...], str | None]:
        """Deliver lines. Return the tail of the next request, and the text that resumes the task."""
        arrivals, has_commands = list[Arrival](), False
        for line in map(parse_line, texts):
            outcome = f"(Done: {self.plan.carry_out(line.command)})" if line.command else ""
            arrivals.append(Arrival(line, outcome))
            has_commands |= line.command is not None
        situation = Situation(iteration=1, point="D", remaining=5, skipped=(), agent="main", query="")
        composed = interruption.compose(SHIPPED, arrivals, situation)
        self.conversation.append(user_text(composed.text))
        return (composed.post_prompt, *((self.plan.render(),) if has_commands else ())), composed.resume

    async def call(self, call: ToolCall) -> ToolResult:
        context = ToolContext(self.workspace, self.plan, call.id, QueuedGuidance(), lambda text: None)
        return await calling.run(REGISTRY.get(call.name), call, context, calling.ToolLimits())

    async def carry_out(self, reply: Message) -> None:
        """Run the calls of a reply, and add their results."""
        self.conversation.append(tool_results([await self.call(c) for c in reply.calls]))

    def skip(self, reply: Message) -> None:
        """Answer the calls of a reply as an urgent line does."""
        self.conversation.append(tool_results([ToolResult(c.id, SKIPPED, is_error=True) for c in reply.calls]))

    @property
    def calls(self) -> list[list[str]]:
        """The names of the tools that each reply called."""
        return [[c.name for c in reply.calls] for reply in self.replies]

    def write(self, files: Mapping[str, str]) -> None:
        for name, text in files.items():
            (self.workspace / name).parent.mkdir(exist_ok=True)
            (self.workspace / name).write_text(text)


def without_indentation(text: str) -> str:
    """Return the text without the indentation of code blocks."""
    return re.sub(r"^    ", "", text, flags=re.M)


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    driver = Driver(tmp_path)
    driver.write(FILES)
    return driver


# ---------------------------------------------------------------------------------------------- tasks


async def test_lines_and_words_of_files_are_counted(driver: Driver) -> None:
    text = await driver.run("Count the lines (and words) of every file in prompts")
    assert driver.calls == [["list_files"], ["read_file"] * 3, []]
    assert text.splitlines() == [
        "Counted in prompts:",
        "",
        "       Lines   Words  File",
        "           6       6  prompts/code.py",
        "           7       8  prompts/other.md",
        "           2       5  prompts/system.yaml",
        f"          {TOTAL}",
    ]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("list files in prompts", "prompts: 3 files\nprompts/code.py: 6 lines"),
        ("Show me the files in the prompts folder", "prompts: 3 files"),
        ("ls", ".: 5 files in 3 folders"),
        ("List the files in prompts, please.", "prompts: 3 files"),
        ("list everything", ".: 5 files"),
        ("no, list files", ".: 5 files"),
        ("list files in ../x", "must not contain .."),
        ("list the Python files in prompts", "prompts: 1 file named *.py, of 3 files"),
        ("show me the markdown files in the notes folder", "notes: 1 file named *.md"),
        ("list .yaml files", "1 file named *.yaml"),
        ("how many files are in prompts", "prompts: 3 files"),
        ("how many files does this folder have?", "5 files in 3 folders"),
        ("read prompts/system.yaml, please", "a: 1\nb: two words"),
        ("show the file prompts/system.yaml.", "a: 1\nb: two words"),
        ("read prompts/other.md from line 5", "; lines 5 to 7 are shown\n## Use"),
        ("read promts/system.yaml", "That did not work:\n- There is no promts/system.yaml; did you mean prompts/"),
        ('search for "TODO" in prompts', "prompts/other.md:7: TODO: more\n1 matching line in 1 of 3 files"),
        ("grep class in prompts/code.py please", "prompts/code.py:1: class Thing:"),
        ("find Lids in this folder", "notes/SKU123.md:3: - Lids do not close."),
        ("where is TODO?", "prompts/other.md:7"),
        ("search for ( in prompts", "is not a regular expression"),
        ("search for <stdin> in prompts", "0 matching lines in 0 of 3 files"),
        ("Please count the words in the prompts folder.", "15      19  total of 3"),
        ("how many lines does prompts/other.md have?", "7       8  total of 1"),
        ("How many lines are in this folder", "total of 5"),
        ("summarise all files please", "The workspace, text files:"),
        ("summarize prompts/other.md", "prompts/other.md: Guide"),
        # The sign of an attachment.
        ("read @prompts/other.md:5", "; lines 5 to 7 are shown\n## Use"),
        ("list files in @prompts", "prompts: 3 files"),
        ("count the lines of @prompts/", "total of 3"),
        ("what is in @prompts?", "prompts, text files:"),
        ("grep class in @prompts/code.py", "prompts/code.py:1: class Thing:"),
        ("largest file in @prompts", "prompts/other.md"),
    ],
)
async def test_queries_about_files(driver: Driver, query: str, expected: str) -> None:
    assert expected in without_indentation(await driver.run(query))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ('read "with space/my file.csv"', "with space/my file.csv: 2 lines, 3 words, 8 bytes\nsku\nA 1"),
        ("count the lines in 'with space/my file.csv'", "2       3  with space/my file.csv"),
        ('list files in "with space"', "with space: 1 file"),
        ('summarise "with space"', "\nwith space/my file.csv: sku"),
        ('search for A in "with space"', "with space/my file.csv:2: A 1"),
        ('show me @"with space/my file.csv"', "with space/my file.csv: 2 lines, 3 words, 8 bytes\nsku\nA 1"),
        ("summarize all.md", "\nall.md: everything"),
        ("count lines in files.d", "1       1  files.d/a"),
    ],
)
async def test_queries_about_odd_names(driver: Driver, query: str, expected: str) -> None:
    driver.write(ODD_FILES)
    assert expected in without_indentation(await driver.run(query))


@pytest.mark.parametrize(
    ("query", "expected"),
    [("count lines in empty", "There are no text files in empty"), ("summarise empty", "empty: 0 files")],
)
async def test_queries_about_an_empty_folder(driver: Driver, query: str, expected: str) -> None:
    (driver.workspace / "empty").mkdir()
    assert expected in await driver.run(query)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("query", "first_file", "count"),
    [
        ("which file is the largest?", "products.csv", 5),
        ("what is the smallest file in the prompts folder", "prompts/system.yaml", 3),
        ("list the smallest files", "prompts/system.yaml", 5),
        ("the newest file please", "prompts/other.md", 5),
        ("largest file in prompts/", "prompts/code.py", 3),
        ("no, which file is the oldest?", "products.csv", 5),
        ("which python file is the largest?", "prompts/code.py", 1),
    ],
)
async def test_files_in_the_order_of_size_or_age(driver: Driver, query: str, first_file: str, count: int) -> None:
    for time, name in enumerate(["products.csv", "prompts/system.yaml", "prompts/code.py", "notes/SKU123.md"]):
        os.utime(driver.workspace / name, (time, time))  # prompts/other.md is the newest
    text = await driver.run(query)
    assert driver.calls == [["list_files"], []]
    assert text.startswith(f"{first_file}: ")
    first_listed, *others = re.findall(r"^    (\S+): \d+ lines", text, re.M)
    assert first_listed == first_file
    assert len([first_listed, *others]) == count


async def test_a_folder_is_summarised_from_its_files(driver: Driver) -> None:
    text = await driver.run("Summarise the prompts folder")
    assert driver.calls == [["list_files"], ["read_file"] * 3, ["search_files"], []]
    for row in (
        *("       7       8        42  prompts/other.md", "total of 3", "  prompts/system.yaml: a: 1"),
        *("  prompts/other.md: Guide", "  prompts/other.md: Use", "  prompts/other.md:7: TODO: more", "nobody has"),
    ):
        assert row in text


@pytest.mark.parametrize(
    ("query", "has_total"),
    [("how many lines does prompts/big.log have?", False), (COUNT, True)],
    ids=["alone", "folder"],
)
async def test_a_file_too_large_to_count(driver: Driver, query: str, has_total: bool) -> None:
    with (driver.workspace / "prompts/big.log").open("wb") as file:
        file.truncate(files.MAX_WHOLE + 1)
    text = await driver.run(query)
    assert text.endswith(f"\n\nToo large to count: prompts/big.log ({files.MAX_WHOLE + 1} bytes)")
    assert ("total of 3" in text) == has_total


async def test_a_denial_is_shown_with_its_reason(driver: Driver) -> None:
    driver.conversation.append(user_text("run 'rm x'"))
    (call,) = (await driver.reply()).calls
    denial = "The user refused this: not that\nlist it first"
    driver.conversation.append(tool_results([ToolResult(call.id, denial, is_error=True)]))
    assert (await driver.reply()).text.endswith(f"- {denial}")


@pytest.mark.parametrize(
    ("query", "text", "expected"),
    [
        ("count the lines", "fix the lid\n\nFIX it\nend", "has 4 lines and 6 words."),
        ("How many words is this?", "fix the lid\n\nFIX it\nend", "query has 4 lines and 6 words"),
        ("Summarise what changed", "fix the lid\n\nFIX it\nend", "It begins:\n\nfix the lid\nFIX it\nend"),
        (ANALYZE, "fix the lid\n\nFIX it\nend", "has 4 lines"),
        ("search for fix", "fix it\n" * 6_000, "longer than the 40,000 characters"),
    ],
)
async def test_text_from_stdin(driver: Driver, query: str, text: str, expected: str) -> None:
    assert expected in without_indentation(await driver.run(f"{query}\n\n<stdin>\n{text}\n</stdin>"))
    assert driver.calls == [[]]


@pytest.mark.parametrize("query", ["help", "what can you do?"])
async def test_help_is_narrower_than_a_terminal(driver: Driver, query: str) -> None:
    text = await driver.run(query)
    assert "offline_model.yaml, a file of rules" in text
    assert "not a language model" in text
    assert all(len(row) < 80 for row in text.splitlines())


@pytest.mark.parametrize("query", ["hello", "What is the capital of France?"])
async def test_other_queries_are_answered_with_examples(driver: Driver, query: str) -> None:
    text = await driver.run(query)
    assert "offline_model.yaml, a file of rules" in text
    assert "not a language model" in text
    assert "set ANTHROPIC_API_KEY for a real model" in text
    assert "\n" not in text, "a paragraph, which a terminal of any width wraps"


async def test_the_plan_is_changed_in_plain_words(driver: Driver) -> None:
    plan = await driver.run("Please add check the licence to the plan")
    assert without_indentation(plan) == "The plan:\n\n[ ] 1. check the licence"
    assert "[ ] 2. call Ann" in await driver.run("add call Ann to my todo list")
    assert "[✓] 2. call Ann" in await driver.run("mark task 2 as done")
    assert "[✓] 2. call Ann" in await driver.run("What is on the plan?")
    assert "there is no task 9" in await driver.run("task 9 is done")


# ---------------------------------------------------------------------------------------------- lines


def count_of_totals(driver: Driver) -> int:
    """Return the number of replies that answer the query COUNT."""
    return sum("total of" in reply.text for reply in driver.replies)


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("iteration", [1, 2])
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        # The program resumes the task after these.
        ("What are you doing?", f'I work on "{COUNT}". This is model call'),
        ("status", "tools called so far: list_files"),
        ("context: there are few", 'Read: "there are few".'),
        ("why is that?", "I cannot answer that"),
        ("todo: add verify SKU data", "Noted (Done: task 1 added: verify SKU data)."),
        ("status\ntodo: list\nwhy?", "Noted (Done: the plan is empty)."),
        ("what is on the plan?", "The plan:"),
        # After these it does not, so that the reply itself continues.
        ("progress", "I work on"),
        ("focus on the yaml files", 'Read: "focus on the yaml files".'),
        ("status\nhurry up", "I work on"),
        ("hurry up\ntodo: add x", "Noted (Done: task 1 added: x)."),
        ("add call Ann to the plan", "I add it to the plan."),
    ],
)
async def test_a_line_is_answered_and_the_task_once(driver: Driver, line: str, expected: str, iteration: int) -> None:
    text = await driver.run(COUNT, {iteration: line})
    reply_to_line = driver.replies[iteration]
    assert expected in reply_to_line.text
    assert text.endswith(TOTAL)
    assert count_of_totals(driver) == 1
    if iteration == 1:  # the work continues in the same reply
        assert [call.name for call in reply_to_line.calls if not call.name.startswith("plan_")] == ["read_file"] * 3


async def test_a_todo_list_of_several_rows_is_shown(driver: Driver) -> None:
    driver.plan.add("call Ann", "user")
    await driver.run(COUNT, {1: "todo: list"})
    _, reply_to_line, *_ = driver.replies
    plan = "the plan:\n[ ] 1. call Ann\n0 done, 0 failed, 1 pending"
    assert without_indentation(reply_to_line.text).startswith(f"Noted:\n\n{plan}")


@pytest.mark.parametrize(
    ("line", "end", "totals"),
    [("hurry up", TOTAL, 1), ("status", TOTAL, 1), ("read prompts/system.yaml", "two words", 0)],
    ids=["remark", "question", "new task"],
)
async def test_lines_after_an_aside_keep_the_answer(driver: Driver, line: str, end: str, totals: int) -> None:
    text = await driver.run(COUNT, {2: "todo: add x", 3: line})
    _, _, reply_to_todo, *_ = driver.replies
    assert reply_to_todo.text == "Noted (Done: task 1 added: x)."
    assert text.endswith(end)
    assert count_of_totals(driver) == totals


async def test_failed_plan_calls_do_not_stop_tasks(driver: Driver) -> None:
    text = await driver.run(COUNT, {2: "task 7 is done"})
    assert "That did not work: there is no task 7" in text
    assert text.endswith(TOTAL)


async def test_the_end_of_a_job_is_reported(driver: Driver) -> None:
    job = user_text("[JOB J1] exit code 0 after 42 s\n$ make all\n\nlist files")
    driver.conversation += [user_text(COUNT), job]
    reply = await driver.reply()
    assert reply.text.startswith("The background job J1 has ended: exit code 0 after 42 s (make all).\n\n")
    assert driver.calls == [["list_files"]]
    await driver.run(COUNT)
    driver.conversation.append(job)
    report, _, _ = reply.text.partition("\n")
    assert (await driver.reply()).text == report


@pytest.mark.parametrize(
    ("line", "tool", "expected"),
    [
        ("no, read prompts/system.yaml instead", "read_file", "two words"),
        *[
            (f"{word} list files in prompts", "list_files", "prompts: 3 files")
            for word in ("no,", "wait,", "actually", "please")
        ],
    ],
)
async def test_another_task_replaces_the_query(driver: Driver, line: str, tool: str, expected: str) -> None:
    assert expected in await driver.run(COUNT, {1: line})
    assert driver.calls == [["list_files"], [tool], []]


async def test_skipped_calls_are_repeated_and_not_reported(driver: Driver) -> None:
    driver.conversation.append(user_text(COUNT))
    await driver.carry_out(await driver.reply())
    driver.skip(await driver.reply())
    driver.interrupt("hurry up")
    repeated = await driver.reply()
    assert "No rule of mine" in repeated.text
    first, *others = [await driver.call(c) for c in repeated.calls]
    driver.conversation.append(tool_results([ToolResult(first.id, "it is gone", is_error=True), *others]))
    answer = (await driver.reply()).text
    assert "total of 2" in answer
    assert answer.endswith("Not counted: it is gone")
    assert "Skipped" not in answer


# ---------------------------------------------------------------------------------------------- the demonstration


async def test_a_product_is_analysed(driver: Driver) -> None:
    text = await driver.run(ANALYZE)
    assert driver.calls == [["list_files"], ["search_files"], ["plan_list", "read_file", "read_file"], []]
    assert text.startswith("SKU123: Pot\n\n- price: 34.00\n- stock: 12\n- rating: 3.8\n")
    assert "- Lids do not close." in text
    assert "Products in the tables that were read: 2, pieces in stock: 52." in text
    assert "No file here names SKU9" in await driver.run("analyse the data of SKU9")


@pytest.mark.parametrize("iteration", [1, 2, 3])
async def test_the_demonstration_verifies_when_it_is_asked(driver: Driver, iteration: int) -> None:
    text = await driver.run(ANALYZE, {iteration: "todo: add verify SKU data"})
    reply_to_line = driver.replies[iteration]
    assert "(Done: task 1 added: verify SKU data)" in reply_to_line.text
    assert [t.state for t in driver.plan.tasks] == ["DONE"]
    verified = "Verified. Table rows that begin with SKU123: 1 (products.csv:3)."
    assert verified in [reply.text for reply in driver.replies]
    assert text.count("SKU123: Pot") == text.count("price") == 1


async def test_an_urgent_line_changes_which_files_are_read(driver: Driver) -> None:
    driver.conversation.append(user_text(ANALYZE))
    for _ in range(2):
        await driver.carry_out(await driver.reply())
    driver.skip(await driver.reply())
    driver.interrupt("!use the notes first")
    reply = await driver.reply()
    assert "I read the notes" in reply.text
    assert [c.input["path"] for c in reply.calls if c.name == "read_file"] == ["notes/SKU123.md"]


@pytest.mark.parametrize("line", ["SKU122", "no, SKU122 instead", "analyze SKU122"])
async def test_another_product_replaces_the_first(driver: Driver, line: str) -> None:
    assert (await driver.run(ANALYZE, {2: line})).startswith("SKU122: Cup")


# ---------------------------------------------------------------------------------------------- agents

AGENTS = ("explore", "plan", "agent", "agent_ask")
FILE_TOOLS = ("list_files", "read_file", "search_files", "ask_user_question", "plan_add_task", "plan_list")
IN_WORKSPACE = 'explore "kettle" in the workspace'


async def reply_to(*conversation: Message, offered: tuple[str, ...] = (*FILE_TOOLS, *AGENTS)) -> Message:
    """Return the reply to a conversation in which these tools are offered."""
    tools = tuple(ToolSpec(name, "", {}) for name in offered)
    return (await OneConversation(ScriptedModel(RULES)).reply(Request("system", conversation, tools))).message


def calls_of(message: Message) -> list[tuple[object, ...]]:
    """Return the tools that are called, each with the values of its input."""
    return [(call.name, *call.input.values()) for call in message.calls]


@pytest.mark.parametrize(
    ("query", "tasks"),
    [
        ("Please explore the kettle.", [IN_WORKSPACE]),
        ("explore where the kettle is mentioned", [IN_WORKSPACE]),
        ("explore where kettle is defined in the folder src/pots", ['explore "kettle" in src/pots']),
        ('explore kettle in "my notes"', ['explore "kettle" in my notes']),
        (
            "explore kettle, lid and the pot in docs, side by side",
            [f'explore "{part}" in docs' for part in ("kettle", "lid", "pot")],
        ),
        ('explore "kettle and lid"', ['explore "kettle and lid" in the workspace']),
        ("explore the use of kettles in winter in docs", ['explore "use of kettles in winter" in docs']),
        ("explore kettle and ask me which file", [f"{IN_WORKSPACE} and ask me which file"]),
        ("explore kettle in docs and ask me which", ['explore "kettle" in docs and ask me which']),
    ],
)
async def test_an_explorer_for_each_part_of_the_query(query: str, tasks: list[str]) -> None:
    assert calls_of(await reply_to(user_text(query))) == [("explore", task) for task in tasks]


@pytest.mark.parametrize(
    ("query", "call"),
    [
        ("let an agent list files in docs", ("agent", "list files in docs")),
        ("Have another agent to explore kettle and lid", ("agent", "explore kettle and lid")),
        ("plan how to change the lid", ("plan", "plan how to change the lid")),
        ("ask explore-2 where the lid is", ("agent_ask", "explore-2", "explore where the lid is")),
        ("ask the latest explorer, about the lid", ("agent_ask", "explorer", "explore about the lid")),
        ("Ask the explorer to count the lines in docs", ("agent_ask", "explorer", "count the lines in docs")),
        ("ask explore-1: to search for lid", ("agent_ask", "explore-1", "search for lid")),
    ],
)
async def test_each_kind_of_agent_gets_its_task(query: str, call: tuple[str, ...]) -> None:
    assert calls_of(await reply_to(user_text(query))) == [call]


@pytest.mark.parametrize(
    ("query", "tools"),
    [
        ("explore kettle and lid in docs", ["list_files"]),
        ("plan how to change the lid", ["search_files"]),
        ("let an agent list files", []),
        ("ask the explorer about the lid", []),
    ],
)
async def test_without_agents_no_agent_is_called(query: str, tools: list[str]) -> None:
    reply = await reply_to(user_text(query), offered=FILE_TOOLS)
    assert [call.name for call in reply.calls] == tools


@pytest.mark.parametrize("query", ["explore lid", "let an agent list files", "plan how to change the lid"])
async def test_an_agent_without_an_answer_is_reported(query: str) -> None:
    result = ToolResult("call_1", "[agent-1 ended: cancelled] The user stopped it.", is_error=True)
    reply = await reply_to(user_text(query), await reply_to(user_text(query)), tool_results([result]))
    assert "It has no answer:\n\n    [agent-1 ended" in reply.text


@pytest.mark.parametrize("line", ["explore lid in docs", "no, explore lid in docs instead"])
async def test_exploring_replaces_the_task(line: str) -> None:
    before = [user_text(COUNT), await reply_to(user_text(COUNT)), tool_results([ToolResult("call_1", "docs: 0 files")])]
    reply = await reply_to(*before, user_text(f"USER INTERRUPTION: {line}"))
    assert calls_of(reply) == [("explore", 'explore "lid" in docs')]


async def test_each_example_of_the_help_calls_a_tool() -> None:
    shown = (await reply_to(user_text("help"))).text
    examples = [each for row in re.findall("^    (.+)", shown, re.M) for each in re.split(" {2,}", row)]
    examples += re.findall("`((?:explore|ask|let|plan) [^`]+)`", " ".join(text_of("models").split()))
    assert len(examples) > 25, "the patterns find the examples"
    assert [example for example in examples if not (await reply_to(user_text(example))).calls] == []


# ---------------------------------------------------------------------------------------------- the prompts


def test_the_shipped_prompts_can_be_used() -> None:
    assert SHIPPED.source.startswith("yaml:")
    assert SHIPPED.user_template == "USER INTERRUPTION: ${message}"
    for words in ("plan_add_task", "plan_mark_done", "status", "continue", "same reply"):
        assert words in SHIPPED.post_prompt
    assert "USER INTERRUPTION" in " ".join(text_of_prompt(yamlfile.read(PROMPTS / "system.yaml")).split())
