"""The rules of a handler prompt: which one applies to a line, and its effects, also in running chains."""

from dataclasses import replace

import pytest
from support.checks import checked_session
from support.disks import FullDisk
from support.documents import code_block
from support.gate import TWO_STEPS, Gate, finish_run, start_run
from support.models import look
from support.project import ROOT
from support.sessions import make_settings, open_session

from chain import events
from chain.config.load import Settings
from chain.interruption import prompt as prompt_module
from chain.interruption.prompt import (
    BUILT_IN_PROMPT,
    MAX_RULE_CHARS,
    Arrival,
    Composed,
    Situation,
    apply_rule,
    compose,
)
from chain.interruption.prompt_file import parse_prompt
from chain.lines.parse import Line, parse_line
from chain.messages import Overrides
from chain.text.wording import STOPPED_BY_RULE

AT_D = Situation(iteration=3, point="D", remaining=4, skipped=(), agent="main", query="count SKUs")

SLOW_PATTERN = "^(a|aa)+$"
SLOW_LINE = "a" * 60 + "!"
"""A line that does not match this pattern. A search that backtracks needs 2**60 steps to find that out."""


def composed_of(handler: str, *texts: str) -> Composed:
    """Compose a message of these lines by a handler file."""
    return compose(parse_prompt(handler, "h.yaml"), [Arrival(parse_line(text)) for text in texts], AT_D)


def apply_rules(rules: str, text: str) -> Line:
    return apply_rule(parse_prompt(f"rules: {rules}", "h.yaml"), parse_line(text))


def test_the_first_matching_rule_applies() -> None:
    rules = "[{match: never, action: stop}, {match: deploy, action: urgent}, {match: ., action: stop}]"
    assert apply_rules(rules, "deploy it").urgency == "urgent"
    assert apply_rules(rules, "!!deploy it").urgency == "now"
    assert apply_rules(rules, "roll it back").kind == "stop"
    assert apply_rules("[{match: deploy, action: stop}]", "use B") == parse_line("use B")


MATCHES = {
    "any case": ("deploy", "please DEPLOY it"),
    "any case of other letters": ("ÄRGER", "so ein ärger"),
    "the start of the line": (r"^deploy\b", "Deploy it"),
    "the start of a row, if multiline": (r"(?m)^deploy\b", "first\ndeploy it"),
    "the message without surrounding space": ("^deploy it$", "  deploy it "),
    "the message without a marker": (r"^\[USER ADDED\] deploy", "context: deploy is done"),
    "a plan command": ("^todo: add deploy", "todo: add deploy"),
    "the end of the searched part": ("deploy", "x" * (MAX_RULE_CHARS - len("deploy")) + "deploy"),
}
NO_MATCHES = {
    "not the start": (r"^deploy\b", "then deploy it"),
    "not the whole word": (r"^deploy\b", "deployment"),
    "the start of another row": (r"^deploy\b", "first\ndeploy it"),
    "the end of another row": ("now$", "do it now\nor never"),
    "beyond the searched part": ("deploy", "x" * (MAX_RULE_CHARS - len("deplo")) + "deploy"),
    "a blank line": (".", ""),
    "a command": (".", "/queue"),
    "a follow-up": (".", "then: deploy it"),
}


@pytest.mark.parametrize(("pattern", "text"), MATCHES.values(), ids=MATCHES)
def test_a_rule_applies_to_a_matching_line(pattern: str, text: str) -> None:
    line = apply_rules(f"[{{match: '{pattern}', action: urgent}}]", text)
    assert line == replace(parse_line(text), urgency="urgent")


@pytest.mark.parametrize(("pattern", "text"), NO_MATCHES.values(), ids=NO_MATCHES)
def test_a_rule_does_not_apply_to_other_lines(pattern: str, text: str) -> None:
    line = apply_rules(f"[{{match: '{pattern}', action: urgent}}]", text)
    assert line == parse_line(text)


def test_matches_are_cached_for_few_lines() -> None:
    prompt = parse_prompt("rules:\n  - {match: deploy, action: stop}\n", "h.yaml")
    for n in range(1_000):
        assert prompt.rule_for(parse_line(f"line {n}")) is None
    assert len(prompt._rule_cache) < 100


@pytest.mark.parametrize("rules", ["[{match: .}]", "[{match: ., action: deliver}]"])
@pytest.mark.parametrize("text", ["use B", "!use B"])
def test_deliver_does_not_change_the_urgency(rules: str, text: str) -> None:
    assert apply_rules(rules, text) == parse_line(text)


# The first rule replaces all but ``resume``; each of the others replaces other parts.
FOUR_RULES = """\
config: {max_tokens: 1500, effort: high}
messages:
  - {role: user, content: 'SAID: ${message}'}
  - {role: system, content: Deal with it.}
resume: Back to ${query}.
rules:
  - match: deploy
    config: {effort: low, max_tokens: 200}
    messages: [{role: user, content: 'OPS: ${message}'}, {role: system, content: 'Line ${count}: take care.'}]
  - match: note
    config: {temperature: 0}
    messages: [{role: user, content: 'NOTE'}]
    resume: false
  - match: price
    messages: [{role: system, content: Count in euros.}]
    resume: After ${message}, go on.
  - match: stock
    resume: On with it.
"""


REPLACED = {
    # The line; the text, the post-prompt, the parameters and the resume text of its message.
    "all but resume": (
        "deploy it?",
        *("OPS: deploy it?", "Line 1: take care.", Overrides(max_tokens=200, effort="low"), "Back to count SKUs."),
    ),
    "the temperature, the user's message and resume": (
        "note?",
        *("NOTE\n\nnote?", "Deal with it.", Overrides(max_tokens=1500, temperature=0.0, effort="high"), None),
    ),
    "the system's message and resume": (
        "price?",
        *("SAID: price?", "Count in euros.", Overrides(max_tokens=1500, effort="high"), "After price?, go on."),
    ),
}


@pytest.mark.parametrize(("line", "text", "post_prompt", "overrides", "resume"), REPLACED.values(), ids=REPLACED)
def test_a_rule_replaces_parts_of_the_handler(
    line: str, text: str, post_prompt: str, overrides: Overrides, resume: str | None
) -> None:
    assert composed_of(FOUR_RULES, line) == Composed(text, post_prompt, overrides, resume)


def test_a_rule_inherits_the_built_in_messages() -> None:
    rules = "rules: [{match: ., config: {effort: low}}]"
    assert composed_of(rules, "use B") == Composed("USER INTERRUPTION: use B", "", Overrides(effort="low"), None)
    assert composed_of(rules, "why?").resume == BUILT_IN_PROMPT.resume


def test_each_line_is_composed_by_its_rule() -> None:
    text = composed_of(FOUR_RULES, "use B", "deploy it", "note this").text
    assert text == "SAID: use B\n\nOPS: deploy it\n\nNOTE\n\nnote this"


def test_post_prompts_are_joined_without_repeats() -> None:
    assert composed_of(FOUR_RULES, "price", "use B", "deploy", "note this", "price").post_prompt == (
        "Count in euros.\n\nDeal with it.\n\nLine 5: take care."
    )


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (["deploy", "use B"], Overrides(max_tokens=1500, effort="high")),
        (["use B", "deploy"], Overrides(max_tokens=1500, effort="low")),
        (["note", "deploy"], Overrides(max_tokens=1500, temperature=0.0, effort="low")),
        (["deploy", "deploy"], Overrides(max_tokens=200, effort="low")),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, list) else "",
)
def test_the_last_config_and_largest_token_limit_apply(lines: list[str], expected: Overrides) -> None:
    assert composed_of(FOUR_RULES, *lines).overrides == expected


@pytest.mark.parametrize(
    ("lines", "resume"),
    [
        pytest.param(["why?", "deploy?"], "Back to count SKUs.", id="all allow it"),
        pytest.param(["note?", "why?"], None, id="a rule forbids it"),
        pytest.param(["price?", "use B"], None, id="a redirect forbids it"),
    ],
)
def test_every_rule_must_allow_resuming(lines: list[str], resume: str | None) -> None:
    assert composed_of(FOUR_RULES, *lines).resume == resume


def test_the_first_resume_text_of_a_rule_applies() -> None:
    assert composed_of(FOUR_RULES, "why?", "price?", "stock?", "a price?").resume == "After price?\n\na price?, go on."
    assert composed_of(FOUR_RULES, "stock?", "price?").resume == "On with it."


@pytest.mark.parametrize(
    ("handler", "resume"),
    [("resume: Hop.", "Hop."), ("resume: false", BUILT_IN_PROMPT.resume), ("", BUILT_IN_PROMPT.resume)],
    ids=["the handler's text", "the built-in text, if the handler has false", "the built-in text"],
)
def test_resume_true_in_a_rule_selects_a_text(handler: str, resume: str) -> None:
    assert composed_of(f"{handler}\nrules: [{{match: ., resume: true}}]", "why?").resume == resume


def test_the_documented_rules_work() -> None:
    example = code_block("handler-prompts", "handler")
    assert [rule.action for rule in parse_prompt(example, "h.yaml").rules] == ["urgent", "deliver"]
    assert composed_of(example, "why?").resume == BUILT_IN_PROMPT.resume


def test_the_shipped_rules_work_if_uncommented() -> None:
    shipped = (ROOT / "prompts" / "interruption_handler.yaml").read_text(encoding="utf-8")
    assert parse_prompt(shipped, "h.yaml").rules == ()
    before, _, rules = shipped.partition("\n#rules:\n")
    uncommented = "\n".join([before, "rules:", *(row.removeprefix("#") for row in rules.splitlines())])
    prompt = parse_prompt(uncommented, "h.yaml")
    assert apply_rule(prompt, parse_line("Wait, that is the wrong file")).urgency == "urgent"
    assert apply_rule(prompt, parse_line("that is enough")).kind == "stop"
    assert composed_of(uncommented, "btw, it is late").text == "NOTE FROM THE USER: btw, it is late"


@pytest.fixture
def short_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the processor time of the rules to a tenth of the usual, which messages still name."""
    monkeypatch.setattr(prompt_module, "MAX_RULES_S", 0.01)


@pytest.mark.usefixtures("short_time_limit")
def test_a_slow_rule_is_reported_and_disabled() -> None:
    prompt = parse_prompt(
        f"rules: [\n{{match: b}},\n{{match: {SLOW_PATTERN}, action: stop}},\n{{match: nor}}]", "h.yaml"
    )
    assert apply_rule(prompt, parse_line(SLOW_LINE)).kind == "redirect"
    assert prompt.mistake is prompt.rules[1].too_slow
    assert (prompt.mistake.file, prompt.mistake.line) == ("h.yaml", 3)
    assert prompt.mistake.message.startswith("rules[1].match: took more than 0.1 s")
    assert apply_rule(prompt, parse_line("aa")).kind == "redirect"


def settings_with_handler(text: str) -> Settings:
    """Return settings with a handler file of their own, not the cached ones, so that a test may edit the file."""
    settings: Settings = make_settings.__wrapped__(handler=text)
    return settings


def edit_handler(settings: Settings, text: str) -> None:
    """Replace the file as an editor does: it gets a new inode, so the edit is seen even if its times are the same."""
    path = settings.chain().interruption_prompt
    assert path is not None
    new = path.with_suffix(".new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


URGENT = "rules: [{match: deploy, action: urgent, messages: [{role: user, content: 'OPS: ${message}'}]}]"
STOP = "rules: [{match: ^enough, action: stop}]"

TWO_TOOLS = """
rules:
  - when: {interruption: '\\?$'}
    text: It is going well.
  - {when: {step: 1}, tools: [{name: wait, input: {}}, {name: look, input: {}}]}
  - {when: {tool: wait}, text: The answer.}
  - {text: Noted.}
"""


async def test_a_stop_rule_equals_a_stop_phrase() -> None:
    outcomes = []
    for text, reason in (("stop", ""), ("Enough of this", STOPPED_BY_RULE)):
        gate = Gate()
        async with checked_session(TWO_TOOLS, tools=[gate.tool, look], settings=settings_with_handler(STOP)) as session:
            await start_run(session, gate, "use B")
            assert session.chain.submit(text).what == "stopping"
            assert not [e for e in session.of(events.LineQueued) if e.text == text]
            await finish_run(session, gate)
            assert len(session.model.requests) == 1
            _, returned, handled = session.chain.lines.receipts
            assert returned.state == "returned"
            assert (handled.state, handled.text, handled.reason) == ("handled", text, reason)
            assert {r["id"]: r["kind"] for r in session.records if r["type"] == "line"}["L3"] == "stop"
            result = session.result
            assert (result.status, result.termination_reason) == ("cancelled_with_partial", "user_cancelled")
            assert result.partial
            assert (await session.run("Do another task")).status == "done"
            assert "USER INTERRUPTION" not in session.sent()
            assert "user: [The user stopped the run here]\nuser: Do another task" in session.sent(1)
            outcomes.append((result.result, result.phase_reached, result.partial_results, session.sent()))
    by_phrase, by_rule = outcomes
    assert by_phrase == by_rule


async def test_nothing_blocks_a_stop_rule() -> None:
    gate, disk, settings = Gate(), FullDisk(), make_settings(handler=STOP, inbox_size=1)
    async with open_session(TWO_STEPS, tools=[gate.tool], settings=settings, file=disk) as session:
        await start_run(session, gate, "use B")
        assert session.chain.submit("use C").what == "refused"
        disk.full = True
        assert session.chain.submit("enough", id="mine").what == "stopping"
        [receipt] = [r for r in session.chain.lines.receipts if r.id == "mine"]
        assert receipt.state == "refused"
        assert receipt.reason.endswith("No space left on device; the run stops nevertheless")
        disk.full = False
        gate.open.set()
        await session.chain.wait_idle()
        assert session.result.termination_reason == "user_cancelled"


async def test_rules_ignore_lines_of_an_idle_chain() -> None:
    settings = settings_with_handler("rules: [{match: ., action: stop}]")
    async with checked_session("rules: [{text: The answer.}]", settings=settings) as session:
        assert session.chain.submit("todo: add x").what == "handled"
        assert session.chain.submit("status").what == "handled"
        result = await session.run("enough already")
        assert (result.status, result.result) == ("done", "The answer.")
        assert session.sent() == "user: enough already"


async def test_rules_apply_to_the_call_that_answers() -> None:
    gate = Gate()
    async with open_session(TWO_STEPS, tools=[gate.tool], settings=settings_with_handler(FOUR_RULES)) as session:
        await start_run(session, gate, "deploy it", "note this")
        await finish_run(session, gate)
        before, answering, after = session.model.requests
        assert before.system == answering.system == after.system == "You are a test."
        assert (before.tail, after.tail, after.overrides) == ((), (), Overrides())
        assert answering.tail == ("Line 2: take care.\n\nDeal with it.",)
        assert answering.overrides == Overrides(max_tokens=1500, temperature=0.0, effort="high")
        [interruption] = session.of(events.UserInterruption)
        assert interruption.prompt_source == f"yaml:{session.chain.workspace / 'handler.yaml'}"
        assert interruption.message == "deploy it\n\nnote this"


async def test_an_edit_changes_messages_of_waiting_lines_only() -> None:
    gate, settings = Gate(), settings_with_handler(URGENT)
    async with open_session(TWO_TOOLS, tools=[gate.tool, look], settings=settings) as session:
        await start_run(session, gate, "use B", "deploy it")
        edit_handler(settings, URGENT.replace("urgent", "stop").replace("OPS", "NEW"))
        await finish_run(session, gate)
        [interruption] = session.of(events.UserInterruption)
        assert (interruption.ids, interruption.point, interruption.tools_skipped) == (("L2", "L3"), "C", ("look",))
        assert session.sent(1).endswith("user: USER INTERRUPTION: use B\n\nNEW: deploy it")
        urgencies = {r["id"]: r["urgency"] for r in session.records if r["type"] == "line"}
        assert (urgencies["L2"], urgencies["L3"]) == ("next", "urgent")
        assert session.result.status == "done"


async def test_an_invalid_edit_falls_back_with_a_notice() -> None:
    gate, settings = Gate(), settings_with_handler(URGENT)
    async with open_session(TWO_TOOLS, tools=[gate.tool, look], settings=settings) as session:
        await start_run(session, gate)
        edit_handler(settings, "rules:\n  - match: x\n    resume: ${nobody}")
        assert session.chain.submit("deploy it").what == "queued"
        [notice] = session.of(events.Notice)
        assert (notice.file, notice.line) == (str(settings.chain().interruption_prompt), 3)
        assert notice.message.endswith("; the built-in handler prompt is used")
        assert "unknown name ${nobody}" in notice.message
        await finish_run(session, gate)
        [interruption] = session.of(events.UserInterruption)
        assert (interruption.prompt_source, interruption.point) == ("default", "D")
        assert session.sent(1).endswith("user: USER INTERRUPTION: deploy it")
        assert session.result.status == "done"
        assert len(session.of(events.Notice)) == 1


@pytest.mark.usefixtures("short_time_limit")
async def test_a_slow_rule_is_reported_once() -> None:
    messages = "messages: [{role: user, content: 'SAID: ${message}'}]"
    gate, settings = Gate(), settings_with_handler(f"{messages}\nrules: [{{match: {SLOW_PATTERN}}}]")
    async with checked_session(TWO_STEPS, tools=[gate.tool], settings=settings) as session:
        await start_run(session, gate)
        assert session.chain.submit(SLOW_LINE).what == "queued"
        assert session.chain.submit(SLOW_LINE).what == "queued"
        [notice] = session.of(events.Notice)
        assert (notice.file, notice.line) == (str(settings.chain().interruption_prompt), 2)
        assert "rules[0].match: took more than 0.1 s" in notice.message
        await finish_run(session, gate)
        [interruption] = session.of(events.UserInterruption)
        assert interruption.prompt_source == "default"
        assert session.sent(1).endswith(f"USER INTERRUPTION: {SLOW_LINE}\n\nUSER INTERRUPTION: {SLOW_LINE}")
        assert len(session.of(events.Notice)) == 1
        edit_handler(settings, STOP)
        assert session.chain.submit("Another task").what == "started"
        assert session.chain.submit("enough").what == "stopping"
        await session.chain.wait_idle()


@pytest.mark.usefixtures("short_time_limit")
async def test_a_rule_slow_at_the_delivery_is_reported() -> None:
    gate, settings = Gate(), settings_with_handler(STOP)
    async with open_session(TWO_STEPS, tools=[gate.tool], settings=settings) as session:
        await start_run(session, gate, SLOW_LINE)
        edit_handler(settings, f"rules: [{{match: {SLOW_PATTERN}}}]")
        await finish_run(session, gate)
        [notice] = session.of(events.Notice)
        assert "rules[0].match: took more than 0.1 s" in notice.message
        assert session.sent(1).endswith(f"USER INTERRUPTION: {SLOW_LINE}")
        assert session.state("L2") == "delivered"
