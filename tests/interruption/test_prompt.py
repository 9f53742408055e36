"""Handler prompts: what a file may say, what is wrong with it, and the messages composed from waiting lines."""

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


UNANSWERED = """
config: {max_tokens: 100}
messages: [{role: system, content: "Deal with ${message}"}]
rules:
  - {match: ^deploy, config: {effort: low, max_tokens: 300}, messages: [{role: system, content: ASK}], resume: false}
"""


def composed_of(prompt: InterruptionPrompt, *texts: str, situation: Situation = AT_D) -> Composed:
    return compose(prompt, [Arrival(parse_line(text)) for text in texts], situation)


def user_entry(template: str) -> str:
    return f"messages:\n  - role: user\n    content: |\n      {template}\n"


def mistake(text: str) -> ConfigError:
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


@pytest.mark.parametrize(
    ("written", "meant"), [("false", None), ("true", BUILT_IN_PROMPT.resume), ("Go on.", "Go on.")]
)
def test_resume_is_a_text_or_a_switch(written: str, meant: str | None) -> None:
    assert parse_prompt(f"resume: {written}", FILE).resume == meant


@pytest.mark.parametrize(
    ("text", "line", "words"),
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
def test_mistakes_name_file_line_and_key(text: str, line: int, words: str) -> None:
    error = mistake(text)

    assert (error.file, error.line) == (FILE, line)
    assert words in error.message


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("${mesage}", "unknown name ${mesage}"),
        ("$Message", "unknown name $Message"),
        ("it costs $5", "write $$ for a dollar sign"),
        ("an end $", "write $$ for a dollar sign"),
        ("${message", "write $$ for a dollar sign"),
        ("${}", "write $$ for a dollar sign"),
    ],
)
def test_template_mistakes_name_their_line(template: str, words: str) -> None:
    error = mistake(
        f"messages:\n  - role: system\n    content: |\n      Good: $${{x}} ${{count}}\n\n      Bad: {template}\n"
    )

    assert error.line == 6
    assert error.message.startswith("messages[0].content: ")
    assert words in error.message


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("# never ${bad}\nresume: ${bad}\n", 2),
        ("resume: >\n  one $$ two\n  three ${bad} four\n", 3),
        ('messages:\n  - role: user\n    content: "a\\n\\x24{b}"', 3),
    ],
    ids=["in a comment too", "in folded text", "escaped, so that only its key is found"],
)
def test_the_line_of_a_bad_name(text: str, line: int) -> None:
    assert mistake(text).line == line


def test_every_template_name() -> None:
    template = " ".join(f"{name}=${{{name}}}" for name in TEMPLATE_NAMES)

    composed = compose(parse_prompt(user_entry(template), FILE), [Arrival(parse_line("!go"), "(Done)")], AT_D)

    assert composed.text == (
        "message=go iteration=3 point=D count=1 remaining=4 skipped=shell, read_file "
        "outcome=(Done) agent=main query=count SKUs"
    )


@pytest.mark.parametrize(
    ("template", "lines", "text"),
    [
        ("$$5 for ${message}", ["tea"], "$5 for tea"),
        ("The user wrote:", ["use B"], "The user wrote:\n\nuse B"),
        ("$${message}", ["use B"], "${message}\n\nuse B"),
        (
            "${count}: ${message}",
            ["first", "!second", "context: third"],
            "3: first\n\n3: second\n\n3: [USER ADDED] third",
        ),
    ],
    ids=["a dollar", "without a message", "an escaped message", "several lines"],
)
def test_the_template_of_the_message(template: str, lines: list[str], text: str) -> None:
    assert composed_of(parse_prompt(user_entry(template), FILE), *lines).text == text


def test_an_outcome_is_appended() -> None:
    added = Arrival(parse_line("todo: add x"), "(Done: task 4 added: x)")
    listed = Arrival(parse_line("todo: list"), "(Done: the plan:\n[ ] 1. x)")

    text = compose(BUILT_IN_PROMPT, [added, listed], AT_D).text

    assert text == (
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


@pytest.mark.parametrize(
    ("lines", "comes_back"),
    [
        (["what now?"], True),
        (["status", "todo: add x", "context: y"], True),
        (["!why?"], True),
        (["what now?", "use B"], False),
        (["use B"], False),
        (["!use B"], False),
        (["focus on B"], False),
        ([" why?"], False),
    ],
)
def test_only_asides_resume_the_task(lines: list[str], comes_back: bool) -> None:
    assert composed_of(BUILT_IN_PROMPT, *lines).resume == (BUILT_IN_PROMPT.resume if comes_back else None)


def test_a_blank_resume_text_is_replaced() -> None:
    assert composed_of(parse_prompt("resume: ${outcome}", FILE), "what now?").resume == BUILT_IN_PROMPT.resume


def test_no_lines_make_no_message() -> None:
    with pytest.raises(ValueError, match="at least one line"):
        compose(BUILT_IN_PROMPT, [], AT_D)


anything = st.text(st.characters(codec="utf-8"), min_size=1)


@given(texts=st.lists(anything.filter(lambda t: t.strip()), min_size=1, max_size=4))
def test_verbatim_texts_are_unchanged(texts: list[str]) -> None:
    verbatim = [" " + text for text in texts]

    text = composed_of(BUILT_IN_PROMPT, *verbatim).text

    assert text == "\n\n".join(f"USER INTERRUPTION: {typed.strip()}" for typed in texts)


@given(
    typed=anything,
    outcome=st.text(),
    query=st.text(),
    template=st.sampled_from(["", "${message}", "${outcome}${message}", "${query}", "${skipped}"]),
)
def test_no_message_is_ever_blank(typed: str, outcome: str, query: str, template: str) -> None:
    prompt = parse_prompt(user_entry(template) if template else "version: '1.0'", FILE)
    situation = Situation(1, "D", 0, (), "main", query)

    composed = compose(prompt, [Arrival(parse_line(typed), outcome)], situation)

    assert composed.text.strip()
    assert composed.resume is None or composed.resume.strip()


def test_unanswered_lines_shape_the_call_too() -> None:
    prompt = parse_prompt(UNANSWERED, FILE)
    before = [Arrival(parse_line(text)) for text in ("use A", "deploy it")]
    composed = compose(prompt, [Arrival(parse_line("how far are you?"))], AT_D, before)

    assert composed.text == "USER INTERRUPTION: how far are you?", "their own texts are in the conversation"
    assert composed.post_prompt == "Deal with use A\n\nhow far are you?\n\nASK"
    assert composed.overrides == Overrides(max_tokens=300, effort="low")
    assert composed.resume is None, "the reply answers a change of course too"
    asides = [Arrival(parse_line("why?"))]
    assert compose(prompt, [Arrival(parse_line("how far are you?"))], AT_D, asides).resume is not None
