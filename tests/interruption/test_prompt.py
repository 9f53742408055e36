"""Handler prompts: reading a file, reporting its mistakes, and composing a message from waiting lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chain.errors import ConfigError
from chain.interruption.prompt import (
    BUILT_IN_PROMPT,
    TEMPLATE_NAMES,
    Arrival,
    Composed,
    InterruptionPrompt,
    Situation,
    compose,
)
from chain.interruption.prompt_file import parse_prompt
from chain.lines.parse import parse_line
from chain.messages import Overrides

FILE = "prompts/handler.yaml"

AT_D = Situation(iteration=3, point="D", remaining=4, skipped=("shell", "read_file"), agent="main", query="count SKUs")

WITH_DEPLOY_RULE = """
config: {max_tokens: 100}
messages: [{role: system, content: "Deal with ${message}"}]
rules:
  - {match: ^deploy, config: {effort: low, max_tokens: 300}, messages: [{role: system, content: ASK}], resume: false}
"""


def composed_of(prompt: InterruptionPrompt, *texts: str, situation: Situation = AT_D) -> Composed:
    return compose(prompt, [Arrival(parse_line(text)) for text in texts], situation)


def user_entry(template: str) -> str:
    """Return a file with this template of the user's message."""
    return f"messages:\n  - role: user\n    content: |\n      {template}\n"


def mistake_in(text: str) -> ConfigError:
    """Return the error of parsing this text of a file."""
    with pytest.raises(ConfigError) as caught:
        parse_prompt(text, FILE)
    return caught.value


def test_every_key_is_read() -> None:
    prompt = parse_prompt(
        "version: 1.0\n"
        "config: {max_tokens: 1, temperature: 0, effort: low}\n"
        "messages:\n"
        "  - {role: system, content: Be brief.}\n"
        "  - {role: user, content: 'They say: ${message}'}\n"
        "resume: Back to work.\n"
        "commands: {todo: model}\n",
        FILE,
    )

    assert prompt == InterruptionPrompt(
        source=f"yaml:{FILE}",
        user_template="They say: ${message}",
        post_prompt="Be brief.",
        overrides=Overrides(max_tokens=1, temperature=0.0, effort="low"),
        resume="Back to work.",
        todo_direct=False,
    )


def test_the_built_in_prompt() -> None:
    assert BUILT_IN_PROMPT.source == "default"
    assert BUILT_IN_PROMPT.user_template == "USER INTERRUPTION: ${message}"
    assert BUILT_IN_PROMPT.resume == (
        "Your reply was shown to the user. Continue the task, as the user's messages changed it. "
        "If it is already complete, give the final answer."
    )
    assert "plan tools" in composed_of(BUILT_IN_PROMPT, "todo: add x").post_prompt


def test_entries_of_one_role_are_joined() -> None:
    prompt = parse_prompt(
        "messages:\n"
        "  - {role: system, content: One.}\n"
        "  - {role: user, content: '${message}'}\n"
        "  - {role: system, content: Two.}\n"
        "  - {role: user, content: Please.}\n",
        FILE,
    )

    assert prompt.post_prompt == "One.\n\nTwo."
    assert composed_of(prompt, "hurry").text == "hurry\n\nPlease."


def test_resume_is_a_text_or_a_switch() -> None:
    assert parse_prompt("resume: false", FILE).resume is None
    assert parse_prompt("resume: true", FILE).resume == BUILT_IN_PROMPT.resume
    assert parse_prompt("resume: Continue.", FILE).resume == "Continue."


@pytest.mark.parametrize(
    ("text", "line", "message"),
    [
        ("", 1, "is empty"),
        ("- role: user", 1, "expected a mapping"),
        ("messages: [", 1, "not valid YAML"),
        ("version: '1.0'\nmesages: []", 2, "did you mean messages?"),
        ("rules:", 1, "rules: expected a list, found nothing"),
        ("rules:\n  -\n", 2, "rules[0]: has no match"),
        ("rules:\n  - match: x\n  - action: stop", 3, "rules[1]: has no match"),
        ("rules:\n  - match: x\n    acton: stop", 3, "unknown key rules[0].acton: did you mean action?"),
        ("rules:\n  - match: 5", 2, "rules[0].match: expected text, found 5"),
        ("rules:\n  - match: ' '", 2, "rules[0].match: is empty"),
        ("rules:\n  - match: '(a'", 2, "rules[0].match: is not a regular expression: missing )"),
        ("rules:\n  - match: 'a{99999999999999999999}'", 2, "rules[0].match: is not a regular expression"),
        ("rules:\n  - match: x\n    action: halt", 3, "rules[0].action: expected one of deliver, urgent, stop"),
        ("rules:\n  - match: x\n    resume: 1", 3, "rules[0].resume: expected a text, or false"),
        ("rules:\n  - match: x\n    resume: ${mesage}", 3, "rules[0].resume: unknown name ${mesage}"),
        ("rules:\n  - match: x\n    config: {efort: low}", 3, "key rules[0].config.efort: did you mean effort?"),
        (
            "rules:\n  - match: x\n    messages:\n      - role: user\n        content: |\n          a\n          $bad",
            7,
            "rules[0].messages[0].content: unknown name $bad",
        ),
        ("version: [1]", 1, "version: expected a version"),
        ("description: {a: b}", 1, "description: expected text"),
        ("config: 3", 1, "config: expected a mapping"),
        ("config:\n  top_p: 1", 2, "unknown key config.top_p"),
        ("config:\n  max_tokens: 0", 2, "config.max_tokens: must be at least 1"),
        ("config:\n  max_tokens: 1.5", 2, "config.max_tokens: expected a whole number"),
        ("config:\n  max_tokens: true", 2, "config.max_tokens: expected a whole number"),
        ("config:\n  temperature: -1", 2, "config.temperature: must be"),
        ("config:\n  temperature: .nan", 2, "config.temperature: must be"),
        ("config:\n  effort: 3", 2, "config.effort: expected text"),
        ("config:\n  effort: ' '", 2, "config.effort: is empty; remove the key"),
        ("messages:", 1, "messages: expected a list, found nothing"),
        ("messages: []", 1, "messages: is empty"),
        ("messages:\n  - hello", 2, "messages[0]: expected a mapping"),
        ("messages:\n  - role: user", 2, "messages[0]: has no content"),
        ("messages:\n  - content: x", 2, "messages[0]: has no role"),
        ("messages:\n  - role: assistant\n    content: x", 2, "messages[0].role: expected one of user, system"),
        ("messages:\n  - role: user\n    text: x", 3, "unknown key messages[0].text"),
        ("messages:\n  - role: user\n    content: 5", 3, "messages[0].content: expected text, found 5"),
        ("messages:\n  - role: user\n    content: |\n\n\nversion: '1'", 3, "messages[0].content: is empty"),
        ("resume: 0", 1, "resume: expected a text, or false"),
        ("resume: ' '", 1, "resume: is empty"),
        ("resume: ${mesage}", 1, "unknown name ${mesage}"),
        ("commands: direct", 1, "commands: expected a mapping"),
        ("commands:\n  todo: both", 2, "commands.todo: expected one of direct, model"),
        ("commands:\n  plan: direct", 2, "unknown key commands.plan"),
    ],
)
def test_mistakes_name_file_line_and_key(text: str, line: int, message: str) -> None:
    error = mistake_in(text)
    assert (error.file, error.line) == (FILE, line)
    assert message in error.message


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("${mesage}", "unknown name ${mesage}"),
        ("$Message", "unknown name $Message"),
        ("it costs $5", "write $$ for a dollar sign"),
        ("an end $", "write $$ for a dollar sign"),
        ("${message", "write $$ for a dollar sign"),
        ("${}", "write $$ for a dollar sign"),
    ],
)
def test_template_mistakes_name_their_line(template: str, message: str) -> None:
    valid = "messages:\n  - role: system\n    content: |\n      Good: $${x} ${count}\n\n"
    error = mistake_in(f"{valid}      Bad: {template}\n")
    assert error.line == 6, "the line of Bad"
    assert error.message.startswith("messages[0].content: ")
    assert message in error.message


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("# never ${bad}\nresume: ${bad}\n", 2, id="not the line of a comment"),
        pytest.param("resume: >\n  one $$ two\n  three ${bad} four\n", 3, id="a line of a folded text"),
        pytest.param('messages:\n  - role: user\n    content: "a\\n\\x24{b}"', 3, id="the line of the key, if escaped"),
    ],
)
def test_an_unknown_name_is_found_on_its_line(text: str, line: int) -> None:
    assert mistake_in(text).line == line


def test_a_template_may_use_every_name() -> None:
    template = " ".join(f"{name}=${{{name}}}" for name in TEMPLATE_NAMES)
    composed = compose(parse_prompt(user_entry(template), FILE), [Arrival(parse_line("!go"), "(Done)")], AT_D)
    assert composed.text == (
        "message=go iteration=3 point=D count=1 remaining=4 skipped=shell, read_file "
        "outcome=(Done) agent=main query=count SKUs"
    )


@pytest.mark.parametrize(
    ("template", "lines", "text"),
    [
        pytest.param("$$5 for ${message}", ["tea"], "$5 for tea", id="a dollar"),
        pytest.param("The user wrote:", ["use B"], "The user wrote:\n\nuse B", id="without a message"),
        pytest.param("$${message}", ["use B"], "${message}\n\nuse B", id="an escaped message"),
        pytest.param(
            "${count}: ${message}",
            ["first", "!second", "context: third"],
            "3: first\n\n3: second\n\n3: [USER ADDED] third",
            id="several lines",
        ),
    ],
)
def test_each_line_is_put_into_the_template(template: str, lines: list[str], text: str) -> None:
    assert composed_of(parse_prompt(user_entry(template), FILE), *lines).text == text


def test_an_outcome_is_appended() -> None:
    one_row = Arrival(parse_line("todo: add x"), "(Done: task 4 added: x)")
    two_rows = Arrival(parse_line("todo: list"), "(Done: the plan:\n[ ] 1. x)")
    assert compose(BUILT_IN_PROMPT, [one_row, two_rows], AT_D).text == (
        "USER INTERRUPTION: todo: add x (Done: task 4 added: x)\n\n"
        "USER INTERRUPTION: todo: list\n(Done: the plan:\n[ ] 1. x)"
    )


def test_a_template_may_place_the_outcome() -> None:
    prompt = parse_prompt(user_entry("${outcome} <- ${message}"), FILE)
    composed = compose(prompt, [Arrival(parse_line("todo: clear"), "(Done)"), Arrival(parse_line("hi"))], AT_D)
    assert composed.text == "(Done) <- todo: clear\n\n<- hi"


def test_the_post_prompt_is_a_template() -> None:
    prompt = parse_prompt("messages: [{role: system, content: 'Iteration ${iteration}, lines: ${message}'}]", FILE)
    assert composed_of(prompt, "one", "two").post_prompt == "Iteration 3, lines: one\n\ntwo"


@pytest.mark.parametrize("lines", [["what now?"], ["status", "todo: add x", "context: y"], ["!why?"]], ids=", ".join)
def test_asides_resume_the_task(lines: list[str]) -> None:
    assert composed_of(BUILT_IN_PROMPT, *lines).resume == BUILT_IN_PROMPT.resume


@pytest.mark.parametrize(
    "lines", [["what now?", "use B"], ["use B"], ["!use B"], ["focus on B"], [" why?"]], ids=", ".join
)
def test_other_lines_do_not_resume_the_task(lines: list[str]) -> None:
    assert composed_of(BUILT_IN_PROMPT, *lines).resume is None


def test_a_blank_resume_text_is_replaced() -> None:
    assert composed_of(parse_prompt("resume: ${outcome}", FILE), "what now?").resume == BUILT_IN_PROMPT.resume


def test_no_lines_make_no_message() -> None:
    with pytest.raises(ValueError, match="at least one line"):
        compose(BUILT_IN_PROMPT, [], AT_D)


any_text = st.text(st.characters(codec="utf-8"), min_size=1)


@given(texts=st.lists(any_text.filter(lambda t: t.strip()), min_size=1, max_size=4))
def test_verbatim_texts_are_unchanged(texts: list[str]) -> None:
    verbatim = [" " + text for text in texts]
    text = composed_of(BUILT_IN_PROMPT, *verbatim).text
    assert text == "\n\n".join(f"USER INTERRUPTION: {typed.strip()}" for typed in texts)


@given(
    typed=any_text,
    outcome=st.text(),
    query=st.text(),
    template=st.sampled_from(["", "${message}", "${outcome}${message}", "${query}", "${skipped}"]),
)
def test_no_message_is_ever_blank(typed: str, outcome: str, query: str, template: str) -> None:
    prompt = parse_prompt(user_entry(template) if template else "version: '1.0'", FILE)
    situation = Situation(iteration=1, point="D", remaining=0, skipped=(), agent="main", query=query)
    composed = compose(prompt, [Arrival(parse_line(typed), outcome)], situation)
    assert composed.text.strip()
    assert composed.resume is None or composed.resume.strip()


def compose_after(*unanswered: str) -> Composed:
    """Compose the message of a question that follows lines without an answer, with ``WITH_DEPLOY_RULE``."""
    before = [Arrival(parse_line(text)) for text in unanswered]
    return compose(parse_prompt(WITH_DEPLOY_RULE, FILE), [Arrival(parse_line("how far are you?"))], AT_D, before)


def test_unanswered_redirects_apply_to_the_next_call() -> None:
    composed = compose_after("use A", "deploy it")
    assert composed.text == "USER INTERRUPTION: how far are you?", "unanswered lines are already in the conversation"
    assert composed.post_prompt == "Deal with use A\n\nhow far are you?\n\nASK"
    assert composed.overrides == Overrides(max_tokens=300, effort="low")
    assert composed.resume is None, "the reply also answers a redirect"


def test_an_unanswered_aside_resumes_the_task() -> None:
    assert compose_after("why?").resume is not None
