"""The shipped rules and prompts: what the offline model makes of real files, driven by a loop over the real tools."""

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support import OneConversation
from support.offline import PROMPTS, offline_rules
from support.steered import Steered

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


@dataclass
class Driver:
    """The bare loop: a request, the calls, their results; a line may come after an iteration, before it goes on."""

    workspace: Path
    conversation: list[Message] = field(default_factory=list)
    plan: Plan = field(default_factory=Plan)
    model: OneConversation = field(default_factory=lambda: OneConversation(ScriptedModel(RULES)))
    replies: list[Message] = field(default_factory=list)

    async def run(self, query: str, lines: Mapping[int, str] | None = None) -> str:
        """The last reply's text. Lines, several in rows, are given as the executor would, todo commands carried out,
        and it leads back to the task after asides."""
        self.conversation.append(user_text(query))
        self.replies.clear()
        tail: tuple[str, ...] = ()
        resume: str | None = None
        while len(self.replies) < 10:
            request = Request("system", tuple(self.conversation), SPECS, tail)
            reply = await self.model.reply(request)
            self.conversation.append(reply.message)
            self.replies.append(reply.message)
            tail = ()
            if reply.message.calls:
                self.conversation.append(tool_results([await self.call(c) for c in reply.message.calls]))
                resume = None
            text = (lines or {}).get(len(self.replies))
            if text is not None:
                in_mid_task = bool(reply.message.calls) or resume is not None
                tail, resume = self.interrupt(*text.split("\n"))
                resume = resume if in_mid_task else None
            elif not reply.message.calls:
                if resume is None:
                    return reply.message.text
                self.conversation.append(user_text(resume))
                resume = None
        raise AssertionError("the rules go round in a circle")

    def interrupt(self, *texts: str) -> tuple[tuple[str, ...], str | None]:
        """Deliver lines: the tail of the next request, and what leads back to the task."""
        arrivals, commands = list[Arrival](), False
        for line in map(parse_line, texts):
            outcome = f"(Done: {self.plan.carry_out(line.command)})" if line.command else ""
            arrivals.append(Arrival(line, outcome))
            commands |= line.command is not None
        situation = Situation(1, "D", 5, (), "main", "")
        shipped, _ = PromptFile(PROMPTS / "interruption_handler.yaml").current()
        composed = interruption.compose(shipped, arrivals, situation)
        self.conversation.append(user_text(composed.text))
        return (composed.post_prompt, *((self.plan.render(),) if commands else ())), composed.resume

    async def call(self, call: ToolCall) -> ToolResult:
        context = ToolContext(self.workspace, self.plan, call.id, Steered(), lambda text: None)
        return await calling.run(REGISTRY.get(call.name), call, context, calling.ToolLimits())

    @property
    def calls(self) -> list[list[str]]:
        """The names of the tools that each reply called."""
        return [[c.name for c in reply.calls] for reply in self.replies]


def plain(text: str) -> str:
    """The text without the spaces that make rows a block in Markdown."""
    return re.sub(r"^    ", "", text, flags=re.M)


@pytest.fixture
def driver(tmp_path: Path) -> Driver:
    for name, text in {
        "prompts/system.yaml": "a: 1\nb: two words\n",
        "prompts/other.md": "# Guide\n\nFirst words.\n\n## Use\n\nTODO: more\n",
        "prompts/code.py": "class Thing:\n    pass\n\n\ndef act():\n    pass\n",
        "products.csv": "sku,name,price,stock,rating\nSKU122,Cup,2.50,40,4.0\nSKU123,Pot,34.00,12,3.8\n",
        "notes/SKU123.md": "# SKU123 Pot\n\n- Lids do not close.\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    (tmp_path / "empty").mkdir()
    return Driver(tmp_path)


# ---------------------------------------------------------------------------------------------- tasks


async def test_lines_and_words_of_every_file_are_counted_in_three_iterations(driver: Driver) -> None:
    text = await driver.run("Count the lines (and words) of every file in prompts")
    assert driver.calls == [["list_files"], ["read_file"] * 3, []]
    assert text.splitlines() == [
        "Counted in prompts:",
        "",
        "       Lines   Words  File",
        "           6       6  prompts/code.py",
        "           7       8  prompts/other.md",
        "           2       5  prompts/system.yaml",
        "          15      19  total of 3 (text files found: 3)",
    ]


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("query", "has"),
    [
        ("list files in prompts", "prompts: 3 files\nprompts/code.py: 6 lines"),
        ("Show me the files in the prompts folder", "prompts: 3 files"),
        ("ls", ".: 5 files in 4 folders"),
        ("what files are there?", ".: 5 files"),
        ("read prompts/system.yaml", "a: 1\nb: two words"),
        ("show the file prompts/system.yaml.", "a: 1\nb: two words"),
        ("read prompts/other.md from line 5", "; lines 5 to 7 are shown\n## Use"),
        ('search for "TODO" in prompts', "prompts/other.md:7: TODO: more\n1 matching line in 1 of 3 files"),
        ("grep class in prompts/code.py", "prompts/code.py:1: class Thing:"),
        ("find Lids in this folder", "notes/SKU123.md:3: - Lids do not close."),
        ("where is TODO?", "prompts/other.md:7"),
        ("count lines in empty", "There are no text files in empty"),
        ("summarise empty", "empty: 0 files"),
        ("read promts/system.yaml", "That did not work:\n- There is no promts/system.yaml; did you mean prompts/"),
        ("list files in ../x", "must not contain .."),
        ("search for ( in prompts", "is not a regular expression"),
        ("list files please", ".: 5 files"),
        ("List the files in prompts, please.", "prompts: 3 files"),
        ("list everything", ".: 5 files"),
        ("count the lines in prompts please", "total of 3"),
        ("count lines in here.", "total of 5"),
        ("search for TODO please", "1 matching line in 1 of 5 files"),
        ("grep class in prompts/code.py please", "1 matching line in 1 of 1 file"),
        ("summarize everything", "The workspace, text files:"),
        ("summarise all files please", "The workspace, text files:"),
        ("read prompts/system.yaml, please", "a: 1\nb: two words"),
        ("list python files", ".: 1 file named *.py, of 5 files in 4 folders\nprompts/code.py: "),
        ("list the Python files in prompts", "prompts: 1 file named *.py"),
        ("which python files are there?", "1 file named *.py"),
        ("list *.md files", "2 files named *.md"),
        ("show me the markdown files in the notes folder", "notes: 1 file named *.md"),
        ("list .yaml files", "1 file named *.yaml"),
        ("how many files are there?", "5 files in 4 folders"),
        ("how many files are in prompts", "prompts: 3 files"),
        ("how many files does this folder have?", "5 files in 4 folders"),
        ("count the files in prompts", "prompts: 3 files"),
        ("no, list files", ".: 5 files"),
        ("actually, search for TODO", "1 matching line"),
        ("count lines in prompts", "15      19  total of 3"),
        ("Please count the words in the prompts folder.", "15      19  total of 3"),
        ("how many lines does prompts/other.md have?", "7       8  total of 1"),
        ("How many lines are in this folder", "total of 5"),
        ("count the lines of every file", "total of 5"),
    ],
)
async def test_what_can_be_asked(driver: Driver, query: str, has: str) -> None:
    assert has in plain(await driver.run(query))


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("query", "first", "rest"),
    [
        ("which file is the largest?", "products.csv", 5),
        ("what's the largest file in prompts?", "prompts/code.py", 3),
        ("what is the smallest file in the prompts folder", "prompts/system.yaml", 3),
        ("list the smallest files", "prompts/system.yaml", 5),
        ("which file is the newest in prompts", "prompts/other.md", 3),
        ("the newest file please", "prompts/other.md", 5),
        ("show me the oldest file", "products.csv", 5),
        ("largest file in prompts/", "prompts/code.py", 3),
        ("no, which file is the oldest?", "products.csv", 5),
        ("which file is the largest / newest", "products.csv", 5),
        ("which python file is the largest?", "prompts/code.py", 1),
    ],
)
async def test_files_in_the_order_of_size_or_age(driver: Driver, query: str, first: str, rest: int) -> None:
    times = {
        "products.csv": 1,
        "prompts/system.yaml": 3,
        "prompts/code.py": 2,
        "notes/SKU123.md": 4,
        "prompts/other.md": 5,
    }
    for name, time in times.items():
        os.utime(driver.workspace / name, (time, time))
    text = await driver.run(query)
    assert driver.calls == [["list_files"], []]
    assert text.startswith(f"{first}: ")
    assert re.findall(r"^    (\S+): \d+ lines", text, re.M)[0] == first
    assert len(re.findall(r"^    \S+: \d+ lines", text, re.M)) == rest


async def test_a_refusal_is_told_with_its_whole_reason(driver: Driver) -> None:
    driver.conversation.append(user_text("run 'rm x'"))
    reply = (await driver.model.reply(Request("s", tuple(driver.conversation)))).message
    refused = ToolResult(reply.calls[0].id, "The user refused this: not that\nlist it first", is_error=True)
    driver.conversation += [reply, tool_results([refused])]
    told = (await driver.model.reply(Request("s", tuple(driver.conversation)))).message.text
    assert told.endswith("- The user refused this: not that\nlist it first")


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("query", "has"),
    [
        ('read "with space/my file.csv"', "with space/my file.csv: 2 lines, 3 words, 8 bytes\nsku\nA 1"),
        ("count the lines in 'with space/my file.csv'", "2       3  with space/my file.csv"),
        ('count lines in "with space/"', "total of 1"),
        ('list files in "with space"', "with space: 1 file"),
        ('summarise "with space"', "\nwith space/my file.csv: sku"),
        ('search for A in "with space"', "with space/my file.csv:2: A 1"),
        ("summarize all.md", "\nall.md: everything"),
        ("count lines in files.d", "1       1  files.d/a"),
        # The sign that sends a file along.
        ("read @prompts/system.yaml", "a: 1\nb: two words"),
        ("read @prompts/other.md:5", "; lines 5 to 7 are shown\n## Use"),
        ('show me @"with space/my file.csv"', "with space/my file.csv: 2 lines, 3 words, 8 bytes\nsku\nA 1"),
        ("list files in @prompts", "prompts: 3 files"),
        ("count the lines of @prompts/", "total of 3"),
        ("sum up @prompts/other.md", "\nprompts/other.md: Guide"),
        ("what is in @prompts?", "prompts, text files:"),
        ("grep class in @prompts/code.py", "prompts/code.py:1: class Thing:"),
        ("how many python files are in @prompts?", "1 file"),
        ("largest file in @prompts", "prompts/other.md"),
    ],
)
async def test_names_and_paths_that_look_like_something_else(driver: Driver, query: str, has: str) -> None:
    for name, text in {"with space/my file.csv": "sku\nA 1\n", "all.md": "everything\n", "files.d/a": "a\n"}.items():
        (driver.workspace / name).parent.mkdir(exist_ok=True)
        (driver.workspace / name).write_text(text)
    assert has in plain(await driver.run(query))


async def test_a_file_that_is_too_large_to_count_is_named(driver: Driver) -> None:
    with (driver.workspace / "prompts/big.log").open("wb") as file:
        file.truncate(files.MAX_WHOLE + 1)
    text = await driver.run("how many lines does prompts/big.log have?")
    assert text.endswith(f"\n\nToo large to count: prompts/big.log ({files.MAX_WHOLE + 1} bytes)")
    text = await driver.run(COUNT)
    assert "total of 3" in text
    assert text.endswith(f"Too large to count: prompts/big.log ({files.MAX_WHOLE + 1} bytes)")


# ---------------------------------------------------------------------------------------------- text with the query


def piped(query: str, text: str) -> str:
    """A query with what was piped in, as ``chain -p`` makes it."""
    return f"{query}\n\n<stdin>\n{text}\n</stdin>"


@pytest.mark.parametrize(
    ("query", "has"),
    [
        ("count the lines", "has 4 lines and 6 words."),
        ("How many words is this?", "query has 4 lines and 6 words"),
        ("Summarise what changed", "has 4 lines and 6 words.\nIt begins:\n\nfix the lid\nFIX it\nend"),
        ("Summarise what changed", "not a language model"),
        ("what do you think?", "has 4 lines"),
        ("Analyze product data for SKU123", "has 4 lines"),
    ],
)
async def test_a_text_that_came_with_the_query_is_what_is_looked_at(driver: Driver, query: str, has: str) -> None:
    assert has in plain(await driver.run(piped(query, "fix the lid\n\nFIX it\nend")))
    assert driver.calls == [[]]


@pytest.mark.parametrize("query", ["count the lines", "search for fix", "summarise it"])
async def test_a_text_that_is_too_long_for_the_rules_is_said_to_be(driver: Driver, query: str) -> None:
    assert "longer than the 40,000 characters" in await driver.run(piped(query, "fix it\n" * 6_000))
    assert driver.calls == [[]]


async def test_a_text_that_only_names_the_block_is_a_query_like_any_other(driver: Driver) -> None:
    assert "</stdin>: 0 files" not in await driver.run("search for <stdin> in prompts")
    assert driver.calls == [["search_files"], []]


@pytest.mark.parametrize("query", ["hello", "help", "what can you do?", "What is the capital of France?", "?"])
async def test_to_anything_else_it_says_what_it_is_and_what_it_can_do(driver: Driver, query: str) -> None:
    text = await driver.run(query)
    assert "offline_model.yaml, a file of rules" in text
    assert "not a language model" in text
    assert "summarise prompts" in text
    assert "set ANTHROPIC_API_KEY for a real model" in text or query in ("help", "what can you do?")
    assert max(map(len, text.splitlines())) < 100
    assert len(text.splitlines()) <= 3 or query in ("help", "what can you do?")


async def test_a_folder_is_summarised_from_its_files(driver: Driver) -> None:
    text = await driver.run("Summarise the prompts folder")
    assert driver.calls == [["list_files"], ["read_file"] * 3, ["search_files"], []]
    for row in (
        "       7       8        42  prompts/other.md",
        "total of 3",
        "  prompts/system.yaml: a: 1",
        "  prompts/other.md: Guide",
        "  prompts/other.md: Use",
        "  prompts/other.md:7: TODO: more",
        "nobody has",
    ):
        assert row in text


async def test_a_file_is_summarised(driver: Driver) -> None:
    text = await driver.run("summarize prompts/other.md")
    assert "total of 1" in text
    assert "  prompts/other.md: Guide" in text


# ---------------------------------------------------------------------------------------------- the plan


async def test_the_plan_is_kept_in_plain_words(driver: Driver) -> None:
    assert (
        plain(await driver.run("Please add check the licence to the plan")) == "The plan:\n\n[ ] 1. check the licence"
    )
    assert "[ ] 2. call Ann" in await driver.run("add call Ann to my todo list")
    assert "[✓] 2. call Ann" in await driver.run("mark task 2 as done")
    assert "[✓] 2. call Ann" in await driver.run("What is on the plan?")
    assert "there is no task 9" in await driver.run("task 9 is done")


# ---------------------------------------------------------------------------------------------- lines


ANALYZE = "Analyze product data for SKU123"
COUNT = "count the lines in prompts"


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize("moment", [1, 2])
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("What are you doing?", f'I work on "{COUNT}". This is model call'),
        ("status", "tools called so far: list_files"),
        ("context: there are few", 'Read: "there are few".'),
        ("why is that?", "I cannot answer that"),
        ("todo: add verify SKU data", "Noted (Done: task 1 added: verify SKU data)."),
        ("todo: list", "Noted (Done: the plan is empty)."),
        ("!status", "I work on"),
        ("status\ntodo: list\nwhy?", "Noted (Done: the plan is empty)."),
        ("what is on the plan?", "The plan:"),
    ],
)
async def test_an_aside_is_answered_and_the_final_answer_comes_once(
    driver: Driver, line: str, says: str, moment: int
) -> None:
    text = await driver.run(COUNT, {moment: line})
    assert says in driver.replies[moment].text
    assert text.endswith("15      19  total of 3 (text files found: 3)")
    assert sum("total of" in reply.text for reply in driver.replies) == 1
    # With work to do it goes on in the same reply.
    assert moment == 2 or driver.calls[1] == ["read_file"] * 3 or driver.calls[1] == ["plan_list", *["read_file"] * 3]


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("moment", [1, 2])
@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("what are you doing", "I work on"),
        ("progress", "I work on"),
        ("focus on the yaml files", 'Read: "focus on the yaml files".'),
        ("hurry up", 'Read: "hurry up". No rule of mine'),
        ("status\nhurry up", "I work on"),
        ("hurry up\ntodo: add x", "Noted (Done: task 1 added: x)."),
    ],
)
async def test_where_nothing_leads_back_a_line_is_answered_and_the_task_goes_on_in_the_same_reply(
    driver: Driver, line: str, says: str, moment: int
) -> None:
    text = await driver.run(COUNT, {moment: line})
    assert says in driver.replies[moment].text
    assert driver.calls == [["list_files"], ["read_file"] * 3, []]
    assert text.endswith("15      19  total of 3 (text files found: 3)")


@pytest.mark.parametrize("line", ["hurry up", "status", "read prompts/system.yaml"])
async def test_a_line_on_the_heels_of_an_aside_does_not_cost_the_answer(driver: Driver, line: str) -> None:
    text = await driver.run(COUNT, {2: "todo: add x", 3: line})
    assert driver.replies[2].text == "Noted (Done: task 1 added: x)."
    assert text.endswith("two words" if line.startswith("read") else "total of 3 (text files found: 3)")
    assert sum("total of" in reply.text for reply in driver.replies) == (not line.startswith("read"))


@pytest.mark.parametrize("moment", [1, 2])
@pytest.mark.parametrize("line", ["add call Ann to the plan", "put call Ann on the list"])
async def test_a_wish_about_the_plan_is_granted_and_the_task_goes_on(driver: Driver, line: str, moment: int) -> None:
    text = await driver.run(COUNT, {moment: line})
    assert [t.text for t in driver.plan.tasks] == ["call Ann"]
    assert text.endswith("15      19  total of 3 (text files found: 3)")
    assert "That goes on the plan." in driver.replies[moment].text


async def test_a_plan_that_does_not_take_it_does_not_stop_the_task(driver: Driver) -> None:
    text = await driver.run(COUNT, {2: "task 7 is done"})
    assert "That did not work: there is no task 7" in text
    assert text.endswith("total of 3 (text files found: 3)")


async def test_another_task_takes_the_place_of_the_query(driver: Driver) -> None:
    text = await driver.run(COUNT, {1: "no, read prompts/system.yaml instead"})
    assert driver.calls == [["list_files"], ["read_file"], []]
    assert plain(text).endswith("a: 1\nb: two words")


@pytest.mark.parametrize("before", ["no, ", "wait: ", "actually ", "please ", "instead, "])
async def test_what_leads_up_to_another_task_is_no_part_of_it(driver: Driver, before: str) -> None:
    text = await driver.run(COUNT, {1: f"{before.replace(':', ',')}list files in prompts"})
    assert driver.calls == [["list_files"], ["list_files"], []]
    assert "system.yaml" in text


async def test_skipped_calls_are_made_again(driver: Driver) -> None:
    driver.conversation += [
        user_text(COUNT),
        (await driver.model.reply(Request("s", (user_text(COUNT),)))).message,
        tool_results([ToolResult("call_1", "[Skipped: user interrupted]", is_error=True)]),
        user_text("USER INTERRUPTION: hurry up"),
    ]
    reply = await driver.model.reply(Request("s", tuple(driver.conversation)))
    assert "No rule of mine" in reply.message.text
    assert [c.name for c in reply.message.calls] == ["list_files"]


async def test_calls_that_were_skipped_and_made_again_are_not_told_as_failures(driver: Driver) -> None:
    query = user_text(COUNT)
    first = (await driver.model.reply(Request("s", (query,)))).message
    driver.conversation += [query, first, tool_results([await driver.call(first.calls[0])])]
    second = (await driver.model.reply(Request("s", tuple(driver.conversation)))).message
    skipped = [ToolResult(c.id, "[Skipped: user interrupted]", is_error=True) for c in second.calls]
    driver.conversation += [second, tool_results(skipped), user_text("USER INTERRUPTION: hurry up")]
    again = (await driver.model.reply(Request("s", tuple(driver.conversation)))).message
    results = [await driver.call(c) for c in again.calls]
    results[0] = ToolResult(results[0].id, "it is gone", is_error=True)
    driver.conversation += [again, tool_results(results)]
    last = (await driver.model.reply(Request("s", tuple(driver.conversation)))).message
    assert "total of 2" in last.text
    assert last.text.endswith("Not counted: it is gone")
    assert "Skipped" not in last.text


async def test_after_the_answer_a_question_gets_only_its_own_answer(driver: Driver) -> None:
    await driver.run(COUNT)
    driver.interrupt("status")
    reply = await driver.model.reply(Request("s", tuple(driver.conversation)))
    assert "total of" not in reply.message.text
    assert not reply.message.calls


# ---------------------------------------------------------------------------------------------- the demonstration


async def test_a_product_is_analysed_from_its_table_and_notes(driver: Driver) -> None:
    text = await driver.run("Analyze product data for SKU123")
    assert driver.calls == [["list_files"], ["search_files"], ["plan_list", "read_file", "read_file"], []]
    assert driver.replies[0].blocks[0].text.startswith("SKU123 looks like")  # type: ignore[union-attr]
    assert text.splitlines()[:5] == ["SKU123: Pot", "", "- price: 34.00", "- stock: 12", "- rating: 3.8"]
    assert "- Lids do not close." in text
    assert "Products in the tables that were read: 2, pieces in stock: 52." in text


async def test_a_todo_line_is_acknowledged_and_a_wish_to_verify_is_granted(driver: Driver) -> None:
    text = await driver.run("Analyze product data for SKU123", {3: "todo: add verify SKU data"})
    assert driver.calls[3:] == [["search_files", "plan_list"], ["plan_mark_done"], []]
    assert driver.replies[3].text.startswith("Noted (Done: task 1 added: verify SKU data).")
    assert [t.state for t in driver.plan.tasks] == ["DONE"]
    assert "SKU123: Pot" in text
    assert text.count("price") == 1


@pytest.mark.parametrize("moment", [1, 2])
async def test_at_other_moments_the_demonstration_goes_on_and_verifies_too(driver: Driver, moment: int) -> None:
    text = await driver.run(ANALYZE, {moment: "todo: add verify SKU data"})
    assert "(Done: task 1 added: verify SKU data)" in driver.replies[moment].text
    assert driver.replies[3].text == "Verified. Table rows that begin with SKU123: 1 (products.csv:3)."
    assert [t.state for t in driver.plan.tasks] == ["DONE"]
    assert "SKU123: Pot" in text


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize(
    ("line", "moment", "says", "read"),
    [
        ("use the notes first", 2, "I read the notes and leave the tables: 1 file.", ["notes/SKU123.md"]),
        ("what are you doing?", 2, "I work on", ["products.csv", "notes/SKU123.md"]),
        ("how far are you?", 1, "I work on", ["products.csv", "notes/SKU123.md"]),
    ],
)
async def test_what_one_would_say_to_the_demonstration(
    driver: Driver, line: str, moment: int, says: str, read: list[str]
) -> None:
    text = await driver.run(ANALYZE, {moment: line})
    assert says in driver.replies[moment].text
    assert f"Read: {', '.join(read)}." in text
    assert "SKU123: Pot" in text
    assert ("Lids" in text) == ("notes/SKU123.md" in read)


@pytest.mark.parametrize(
    ("line", "says", "read"),
    [
        ("!use the notes first", "I read the notes", ["notes/SKU123.md"]),
    ],
)
async def test_an_urgent_line_decides_what_is_read_instead_of_what_was_skipped(
    driver: Driver, line: str, says: str, read: list[str]
) -> None:
    driver.conversation.append(user_text(ANALYZE))
    for skips in (False, False, True):
        reply = (await driver.model.reply(Request("s", tuple(driver.conversation)))).message
        skipped = [ToolResult(c.id, "[Skipped: user interrupted]", is_error=True) for c in reply.calls]
        results = skipped if skips else [await driver.call(c) for c in reply.calls]
        driver.conversation += [reply, tool_results(results)]
    driver.interrupt(line)
    reply = (await driver.model.reply(Request("s", tuple(driver.conversation)))).message
    assert says in reply.text
    assert [c.input["path"] for c in reply.calls if c.name == "read_file"] == read


@pytest.mark.parametrize("line", ["SKU122", "no, SKU122 instead", "analyze SKU122"])
async def test_another_product_takes_the_place_of_the_first(driver: Driver, line: str) -> None:
    assert (await driver.run(ANALYZE, {2: line})).startswith("SKU122: Cup")


async def test_a_todo_list_of_several_rows_is_shown(driver: Driver) -> None:
    driver.plan.add("call Ann", "user")
    await driver.run(COUNT, {1: "todo: list"})
    assert plain(driver.replies[1].text).startswith("Noted:\n\nthe plan:\n[ ] 1. call Ann\n0 done, 0 failed, 1 pending")


async def test_a_product_that_nobody_names(driver: Driver) -> None:
    assert "No file here names SKU9" in await driver.run("analyse the data of SKU9")


# ---------------------------------------------------------------------------------------------- the prompts


def test_the_shipped_prompts_can_be_used() -> None:
    shipped, error = PromptFile(PROMPTS / "interruption_handler.yaml").current()
    assert error is None
    assert shipped.source.startswith("yaml:")
    assert shipped.user_template == "USER INTERRUPTION: ${message}"
    for name in ("plan_add_task", "plan_mark_done", "status", "continue", "same reply"):
        assert name in shipped.post_prompt
    assert "USER INTERRUPTION" in " ".join(text_of_prompt(yamlfile.read(PROMPTS / "system.yaml")).split())
