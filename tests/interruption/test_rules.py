"""The rules of a handler prompt: what they make of a line, alone and in running chains."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import FullDisk, Session, checked_session, open_session, settings
from support.documents import block
from support.gate import TWO_STEPS, Gate, begin, finish
from support.house import ROOT
from support.models import look

from chain import events
from chain.config.load import Settings
from chain.interruption import prompt
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

HANGS = "^(a|aa)+$"
BAIT = "a" * 60 + "!"
"""What that expression is not found in, which it would take longer to see than the world has existed."""


def composed_of(handler: str, *texts: str) -> Composed:
    """Compose a message of these lines by a handler file."""
    return compose(parse_prompt(handler, "h.yaml"), [Arrival(parse_line(text)) for text in texts], AT_D)


def ruled(rules: str, text: str) -> Line:
    """What rules make of a line."""
    return apply_rule(parse_prompt(f"rules: {rules}", "h.yaml"), parse_line(text))


# ------------------------------------------------------------------------------------------------ which rule decides


def test_the_first_rule_that_matches_decides() -> None:
    rules = "[{match: never, action: stop}, {match: deploy, action: urgent}, {match: ., action: stop}]"

    assert ruled(rules, "deploy it").urgency == "urgent"
    assert ruled(rules, "!!deploy it").urgency == "now"
    assert ruled(rules, "roll it back").kind == "stop"
    assert ruled("[{match: deploy, action: stop}]", "use B") == parse_line("use B")


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("deploy", "please DEPLOY it", True),
        ("ÄRGER", "so ein ärger", True),
        (r"^deploy\b", "Deploy it", True),
        (r"^deploy\b", "then deploy it", False),
        (r"^deploy\b", "deployment", False),
        (r"^deploy\b", "first\ndeploy it", False),
        (r"(?m)^deploy\b", "first\ndeploy it", True),
        ("now$", "do it now\nor never", False),
        # A rule sees the message, without markers.
        ("^deploy it$", "  deploy it ", True),
        (r"^\[USER ADDED\] deploy", "context: deploy is done", True),
        ("^todo: add deploy", "todo: add deploy", True),
        # It sees only the beginning, and only lines that are put to the model as interruptions.
        ("deploy", "x" * (MAX_RULE_CHARS - 6) + "deploy", True),
        ("deploy", "x" * (MAX_RULE_CHARS - 5) + "deploy", False),
        (".", "", False),
        (".", "/queue", False),
        (".", "then: deploy it", False),
    ],
    ids=lambda value: str(value)[:30],
)
def test_what_a_rule_matches(pattern: str, text: str, matches: bool) -> None:
    line = ruled(f"[{{match: '{pattern}', action: urgent}}]", text)
    assert line == replace(parse_line(text), urgency="urgent" if matches else "next")


def test_matches_are_cached_for_few_lines() -> None:
    prompt = parse_prompt("rules:\n  - {match: deploy, action: stop}\n", "h.yaml")
    for n in range(1_000):
        assert prompt.rule_for(parse_line(f"line {n}")) is None
    assert len(prompt._found) < 100


@pytest.mark.parametrize("action", ["", ", action: deliver"])
def test_deliver_leaves_the_urgency(action: str) -> None:
    rules = f"[{{match: .{action}}}]"

    assert ruled(rules, "use B") == parse_line("use B")
    assert ruled(rules, "!use B") == parse_line("!use B")


# -------------------------------------------------------------------------------------------- composing messages

TWO_RULES = """\
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


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "deploy it?",
            Composed("OPS: deploy it?", "Line 1: take care.", Overrides(200, effort="low"), "Back to count SKUs."),
        ),
        # What a rule leaves out comes from the handler, each setting and each role by itself.
        ("note?", Composed("NOTE\n\nnote?", "Deal with it.", Overrides(1500, 0.0, "high"), None)),
        (
            "price?",
            Composed("SAID: price?", "Count in euros.", Overrides(1500, effort="high"), "After price?, go on."),
        ),
    ],
)
def test_a_rule_overrides_the_handler(line: str, expected: Composed) -> None:
    assert composed_of(TWO_RULES, line) == expected


def test_a_rule_inherits_the_built_in_messages() -> None:
    rules = "rules: [{match: ., config: {effort: low}}]"
    assert composed_of(rules, "use B") == Composed("USER INTERRUPTION: use B", "", Overrides(effort="low"), None)
    assert composed_of(rules, "why?").resume == BUILT_IN_PROMPT.resume


def test_each_line_is_composed_by_its_rule() -> None:
    text = composed_of(TWO_RULES, "use B", "deploy it", "note this").text
    assert text == "SAID: use B\n\nOPS: deploy it\n\nNOTE\n\nnote this"


def test_post_prompts_are_joined_without_repeats() -> None:
    assert composed_of(TWO_RULES, "price", "use B", "deploy", "note this", "price").post_prompt == (
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
)
def test_later_configs_and_larger_token_limits_win(lines: list[str], expected: Overrides) -> None:
    assert composed_of(TWO_RULES, *lines).overrides == expected


@pytest.mark.parametrize(
    ("lines", "resume"),
    [
        (["why?", "deploy?"], "Back to count SKUs."),
        (["note?", "why?"], None),
        (["price?", "use B"], None),
    ],
)
def test_every_rule_must_allow_resuming(lines: list[str], resume: str) -> None:
    assert composed_of(TWO_RULES, *lines).resume == resume


def test_the_first_own_resume_text_wins() -> None:
    assert composed_of(TWO_RULES, "why?", "price?", "stock?", "a price?").resume == "After price?\n\na price?, go on."
    assert composed_of(TWO_RULES, "stock?", "price?").resume == "On with it."


@pytest.mark.parametrize(
    ("handler", "resume"),
    [("resume: Hop.", "Hop."), ("resume: false", BUILT_IN_PROMPT.resume), ("", BUILT_IN_PROMPT.resume)],
)
def test_resume_true_in_a_rule(handler: str, resume: str) -> None:
    assert composed_of(f"{handler}\nrules: [{{match: ., resume: true}}]", "why?").resume == resume


def test_the_documented_and_shipped_rules_work() -> None:
    example = block("handler-prompts", "handler")
    assert [rule.action for rule in parse_prompt(example, "h.yaml").rules] == ["urgent", "deliver"]
    assert composed_of(example, "why?").resume == BUILT_IN_PROMPT.resume

    shipped = (ROOT / "prompts" / "interruption_handler.yaml").read_text(encoding="utf-8")
    before, mark, rules = shipped.partition("\n#rules:\n")
    used = before + mark.replace("#", "") + "\n".join(row.removeprefix("#") for row in rules.splitlines())
    assert parse_prompt(shipped, "h.yaml").rules == ()
    assert apply_rule(parse_prompt(used, "h.yaml"), parse_line("Wait, that is the wrong file")).urgency == "urgent"
    assert apply_rule(parse_prompt(used, "h.yaml"), parse_line("that is enough")).kind == "stop"
    assert composed_of(used, "btw, it is late").text == "NOTE FROM THE USER: btw, it is late"


# --------------------------------------------------------------------------------------- searches that come to an end


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules have a tenth of their processor time."""
    monkeypatch.setattr(prompt, "MAX_RULES_S", 0.01)


@pytest.mark.usefixtures("impatient")
def test_a_slow_rule_is_reported_and_disabled() -> None:
    prompt = parse_prompt(f"rules: [\n{{match: b}},\n{{match: {HANGS}, action: stop}},\n{{match: nor}}]", "h.yaml")
    assert apply_rule(prompt, parse_line(BAIT)).kind == "redirect"

    assert prompt.mistake is prompt.rules[1].too_slow
    assert (prompt.mistake.file, prompt.mistake.line) == ("h.yaml", 3)
    assert prompt.mistake.message.startswith("rules[1].match: took more than 0.1 s")
    assert apply_rule(prompt, parse_line("aa")).kind == "redirect"


# ------------------------------------------------------------------------------------------------------- in a chain


def handler(text: str) -> Settings:
    """Settings with a handler file of their own, which a test may edit."""
    fresh: Settings = settings.__wrapped__(handler=text)
    return fresh


def edit(use: Settings, text: str) -> None:
    """Replace the file as an editor does, so that its state differs however coarse the clock of the disk is."""
    path = use.chain().interruption_prompt
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


def receipt(session: Session, id: str) -> events.Receipt:
    found: events.Receipt = [r for r in session.of(events.Receipt) if r.id == id][-1]
    return found


async def test_a_stop_rule_equals_a_stop_phrase() -> None:
    results, conversations = [], []
    for text in ("stop", "Enough of this"):
        gate = Gate()
        async with checked_session(TWO_TOOLS, tools=[gate.tool, look], use=handler(STOP)) as session:
            await begin(session, gate, "use B")
            assert session.chain.submit(text).what == "stopping"
            assert not [e for e in session.of(events.LineQueued) if e.text == text]
            await finish(session, gate)
            assert len(session.model.requests) == 1
            assert receipt(session, "L2").state == "returned"
            assert (receipt(session, "L3").state, receipt(session, "L3").text) == ("handled", text)
            assert receipt(session, "L3").reason == ("" if text == "stop" else STOPPED_BY_RULE)
            assert [r["kind"] for r in session.records if r["type"] == "line"][2] == "stop"
            result = session.result
            results.append((result.status, result.result, result.phase_reached, result.partial_results))
            assert (result.termination_reason, result.partial) == ("user_cancelled", True)
            assert (await session.run("Do another task")).status == "done"
            assert "USER INTERRUPTION" not in session.sent()
            assert "user: [The user stopped the run here]\nuser: Do another task" in session.sent(1)
            conversations.append(session.sent())
    assert results[0] == results[1]
    assert results[0][0] == "cancelled_with_partial"
    assert conversations[0] == conversations[1]


async def test_nothing_blocks_a_stop_rule() -> None:
    gate, disk, use = Gate(), FullDisk(), settings(handler=STOP, inbox_size=1)
    async with open_session(TWO_STEPS, tools=[gate.tool], use=use, file=disk) as session:
        await begin(session, gate, "use B")
        assert session.chain.submit("use C").what == "refused"
        disk.full = True
        assert session.chain.submit("enough", id="mine").what == "stopping"
        assert receipt(session, "mine").state == "refused"
        assert receipt(session, "mine").reason.endswith("No space left on device; the run stops all the same")
        disk.full = False
        gate.open.set()
        await session.chain.wait_idle()
        assert session.result.termination_reason == "user_cancelled"


async def test_rules_ignore_lines_of_an_idle_chain() -> None:
    use = handler("rules: [{match: ., action: stop}]")
    async with checked_session("rules: [{text: The answer.}]", use=use) as session:
        assert session.chain.submit("todo: add x").what == "handled"
        assert session.chain.submit("status").what == "handled"
        result = await session.run("enough already")
        assert (result.status, result.result) == ("done", "The answer.")
        assert session.sent() == "user: enough already"


async def test_rules_apply_to_the_call_that_answers() -> None:
    gate = Gate()
    async with open_session(TWO_STEPS, tools=[gate.tool], use=handler(TWO_RULES)) as session:
        await begin(session, gate, "deploy it", "note this")
        await finish(session, gate)
        before, answering, after = session.model.requests
        assert before.system == answering.system == after.system == "You are a test."
        assert (before.tail, after.tail, after.overrides) == ((), (), Overrides())
        assert answering.tail == ("Line 2: take care.\n\nDeal with it.",)
        assert answering.overrides == Overrides(max_tokens=1500, temperature=0.0, effort="high")
        [entered] = session.of(events.UserInterruption)
        assert entered.prompt_source == f"yaml:{session.chain.workspace / 'handler.yaml'}"
        assert entered.message == "deploy it\n\nnote this"


# ----------------------------------------------------------------------------------------- a file that is edited


async def test_an_edit_keeps_actions_and_changes_messages() -> None:
    gate, use = Gate(), handler(URGENT)
    async with open_session(TWO_TOOLS, tools=[gate.tool, look], use=use) as session:
        await begin(session, gate, "use B", "deploy it")
        edit(use, "rules: [{match: deploy, action: stop, messages: [{role: user, content: 'NEW: ${message}'}]}]")
        await finish(session, gate)
        [entered] = session.of(events.UserInterruption)
        assert (entered.ids, entered.point, entered.tools_skipped) == (("L2", "L3"), "C", ("look",))
        assert session.sent(1).endswith("user: USER INTERRUPTION: use B\n\nNEW: deploy it")
        assert [r["urgency"] for r in session.records if r["type"] == "line"][1:] == ["next", "urgent"]
        assert session.result.status == "done"


async def test_an_invalid_edit_falls_back_with_a_notice() -> None:
    gate, use = Gate(), handler(URGENT)
    async with open_session(TWO_TOOLS, tools=[gate.tool, look], use=use) as session:
        await begin(session, gate)
        edit(use, "rules:\n  - match: x\n    resume: ${nobody}")
        assert session.chain.submit("deploy it").what == "queued"
        [notice] = session.of(events.Notice)
        assert (notice.file, notice.line) == (str(use.chain().interruption_prompt), 3)
        assert notice.message.endswith("; the built-in handler prompt is used")
        assert "unknown name ${nobody}" in notice.message
        await finish(session, gate)
        [entered] = session.of(events.UserInterruption)
        assert (entered.prompt_source, entered.point) == ("default", "D")
        assert session.sent(1).endswith("user: USER INTERRUPTION: deploy it")
        assert session.result.status == "done"
        assert len(session.of(events.Notice)) == 1


@pytest.mark.usefixtures("impatient")
async def test_a_slow_rule_is_reported_once() -> None:
    said = "messages: [{role: user, content: 'SAID: ${message}'}]"
    gate, use = Gate(), handler(f"{said}\nrules: [{{match: {HANGS}}}]")
    async with checked_session(TWO_STEPS, tools=[gate.tool], use=use) as session:
        await begin(session, gate)
        assert session.chain.submit(BAIT).what == "queued"
        assert session.chain.submit(BAIT).what == "queued"
        [notice] = session.of(events.Notice)
        assert (notice.file, notice.line) == (str(use.chain().interruption_prompt), 2)
        assert "rules[0].match: took more than 0.1 s" in notice.message
        await finish(session, gate)
        assert session.of(events.UserInterruption)[0].prompt_source == "default"
        assert session.sent(1).endswith(f"USER INTERRUPTION: {BAIT}\n\nUSER INTERRUPTION: {BAIT}")
        assert len(session.of(events.Notice)) == 1
        edit(use, STOP)
        assert session.chain.submit("Another task").what == "started"
        assert session.chain.submit("enough").what == "stopping"
        await session.chain.wait_idle()


@pytest.mark.usefixtures("impatient")
async def test_a_rule_slow_at_the_delivery_is_reported() -> None:
    gate, use = Gate(), handler(STOP)
    async with open_session(TWO_STEPS, tools=[gate.tool], use=use) as session:
        await begin(session, gate, BAIT)
        edit(use, f"rules: [{{match: {HANGS}}}]")
        await finish(session, gate)
        [notice] = session.of(events.Notice)
        assert "rules[0].match: took more than 0.1 s" in notice.message
        assert session.sent(1).endswith(f"USER INTERRUPTION: {BAIT}")
        assert session.state("L2") == "delivered"
