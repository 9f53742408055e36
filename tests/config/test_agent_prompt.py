"""The prompt files of the kinds of agents, the handler prompts that they name, and how far both are trusted."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from support.configuration import Setting

from chain.app.prompt_files import AgentPrompt, agent_prompt
from chain.config import trust
from chain.config.load import remember_trust, require_trust, state_folder
from chain.errors import ConfigError
from cli.show.trust_rows import question

REVIEWER = """\
chains: {}
agents:
  reviewer:
    description: Reads a change
    prompt: prompts/reviewer.yaml
"""
KEY = "agents.reviewer.prompt"
Change: TypeAlias = Callable[[Setting], None]
SYSTEM = "messages: [{role: system, content: Review.}]\n"
HANDLER = "messages: [{role: user, content: 'mine ${message}'}]\n"


@pytest.fixture(autouse=True)
def files(at: Setting) -> None:
    """A prompt file and a handler prompt beside it, and another handler prompt elsewhere."""
    (at.work / "prompts").mkdir()
    (at.work / "prompts" / "reviewer.yaml").write_text(SYSTEM)
    (at.work / "prompts" / "handler.yaml").write_text(HANDLER)
    (at.home / "handler.yaml").write_text(HANDLER)


def naming(at: Setting, path: str) -> None:
    """Let the prompt file name a handler prompt."""
    (at.work / "prompts" / "reviewer.yaml").write_text(f"{SYSTEM}interruption_prompt: {path}\n")


def is_used(prompt: AgentPrompt) -> bool:
    """Whether the handler prompt of a kind is read as its file has it now."""
    assert prompt.handler is not None
    found, mistake = prompt.handler.current()
    assert (found.source == "default") == (mistake is not None)
    assert mistake is None or "leads out of" in str(mistake)
    return mistake is None


# The file


@pytest.mark.parametrize("written", ["", "interruption_prompt:\n", "interruption_prompt: ''\n"])
def test_without_a_handler_prompt_the_chains_holds(at: Setting, written: str) -> None:
    (at.work / "prompts" / "reviewer.yaml").write_text(SYSTEM + written)
    got = agent_prompt(at.named(REVIEWER), "reviewer")
    assert got == AgentPrompt("Review.")


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("../h.yaml", "work/prompts/../h.yaml"),
        ("~/h.yaml", "home/h.yaml"),
        ("'${WHERE}/h.yaml'", "work/prompts/there/h.yaml"),
    ],
)
def test_a_handler_prompt_is_relative_to_the_prompt_file(at: Setting, tmp_path: Path, written: str, path: str) -> None:
    naming(at, written)
    got = agent_prompt(at.named(REVIEWER, {"WHERE": "there"}), "reviewer")
    assert got.handler is not None
    assert got.handler.path == tmp_path / path


def test_a_handler_prompt_that_is_gone_is_told_with_what_names_it(at: Setting) -> None:
    naming(at, "gone.yaml")
    handler = agent_prompt(at.named(REVIEWER), "reviewer").handler
    assert handler is not None
    _, mistake = handler.current()
    assert mistake is not None
    assert mistake.file == str(at.work / "prompts/gone.yaml")
    assert "prompts/reviewer.yaml:2 names it" in mistake.message


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("version: 1\n", 1, "has no messages"),
        (f"{SYSTEM}interruption_promt: x\n", 2, "did you mean interruption_prompt?"),
        (f'{SYSTEM}interruption_prompt: "a\\0b"\n', 2, "interruption_prompt: is not a path"),
        (f"{SYSTEM}interruption_prompt: ${{NONE}}\n", 2, "variable NONE is not set"),
        ("messages:\n  - {role: user, content: x}\n", 2, "expected one of system"),
    ],
)
def test_a_mistake_in_a_prompt_file_has_its_line(at: Setting, text: str, line: int, words: str) -> None:
    file = at.work / "prompts" / "reviewer.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        agent_prompt(at.named(REVIEWER), "reviewer")
    assert (caught.value.file, caught.value.line) == (str(file), line)
    assert words in caught.value.message


def test_a_prompt_file_that_is_gone_is_told_where_it_is_named(at: Setting) -> None:
    (at.work / "prompts" / "reviewer.yaml").unlink()
    with pytest.raises(ConfigError) as caught:
        agent_prompt(at.named(REVIEWER), "reviewer")
    assert (caught.value.file, caught.value.line) == (str(at.work / "mine.yaml"), 5)
    assert caught.value.message.startswith(f"{KEY}: {at.work}/prompts/reviewer.yaml cannot be read")


def test_a_kind_without_a_prompt_has_that_of_agent_and_is_fenced_as_that_is(at: Setting) -> None:
    text = "chains: {}\nagents: {agent: {prompt: prompts/reviewer.yaml}, other: {description: x}, explore: {prompt: }}"
    naming(at, "handler.yaml")
    got = at.found(text)
    for name in ("other", "explore"):
        prompt = agent_prompt(got, name)
        assert prompt.system == agent_prompt(got, "agent").system == "Review."
        assert is_used(prompt)
    (at.work / "prompts" / "reviewer.yaml").unlink()
    (at.work / "prompts" / "reviewer.yaml").symlink_to(at.home / "handler.yaml")
    with pytest.raises(ConfigError, match="leads out of"):
        agent_prompt(got, "other")


def test_no_prompt_at_all_is_a_choice(at: Setting) -> None:
    got = at.named("agents: {agent: {prompt: null}, other: {description: x}}")
    assert agent_prompt(got, "other") == agent_prompt(got, "agent") == AgentPrompt()


# Trust


def linked_prompt(at: Setting) -> None:
    (at.work / "prompts" / "reviewer.yaml").unlink()
    (at.work / "prompts" / "reviewer.yaml").symlink_to(at.home / "reviewer.yaml")


def linked_folder(at: Setting) -> None:
    (at.work / "prompts").rename(at.work / "moved")
    (at.work / "prompts").symlink_to(at.home)


LEADING_OUT = {
    "a link": "link.yaml",
    "upwards": "../../home/handler.yaml",
    "with a space": "'\u00a0~/handler.yaml '",
    "absolute": "HOME/handler.yaml",
    "by a variable": "${NONE:-..}/../home/handler.yaml",
}


def lead_out(at: Setting, how: str) -> None:
    """Let the prompt file name the handler prompt that is elsewhere."""
    link = at.work / "prompts" / "link.yaml"
    link.unlink(missing_ok=True)
    link.symlink_to(at.home / "handler.yaml")
    naming(at, LEADING_OUT[how].replace("HOME", str(at.home)))


@pytest.mark.parametrize("prompt", ["~/r.yaml", "'\u00a0/etc/passwd'", "p/../../r.yaml"])
@pytest.mark.parametrize("name", ["reviewer", "explore", "script", "thinking", "extra_body"])
def test_a_prompt_that_leads_out_needs_trust_whatever_its_kind_is_called(at: Setting, name: str, prompt: str) -> None:
    got = at.found(f"chains: {{}}\nagents:\n  {name}:\n    description: x\n    prompt: {prompt}\n")
    assert got.untrusted == (f"agents.{name}.prompt",)
    assert [(each.key, each.line) for each in got.asked] == [(f"agents.{name}.prompt", 5)]
    with pytest.raises(ConfigError, match=f"agents.{name}.prompt"):
        require_trust(got)
    assert at.load("config.yaml").untrusted == ()


def test_a_prompt_of_a_chain_needs_trust_whatever_the_chain_is_called(at: Setting) -> None:
    got = at.found("chains: {thinking: {system_prompt: /etc/passwd}}")
    assert got.untrusted == ("chains.thinking.system_prompt",)


@pytest.mark.parametrize("link", [linked_prompt, linked_folder])
def test_a_prompt_that_is_a_link_out_needs_trust(at: Setting, link: Change) -> None:
    (at.home / "reviewer.yaml").write_text(SYSTEM)
    link(at)
    got = at.found(REVIEWER)
    assert [(each.key, each.leads_to) for each in got.asked] == [(KEY, str(at.home / "reviewer.yaml"))]


@pytest.mark.parametrize(
    "text",
    ["description: '${HOME}'", "description: x, model: '${HOME:-claude}'", "description: x, tools: ['${HOME}']"],
)
def test_a_variable_in_a_kind_needs_trust(at: Setting, text: str) -> None:
    got = at.found(f"chains: {{}}\nagents: {{reviewer: {{{text}}}}}", {"HOME": "claude"})
    (key,) = got.untrusted
    assert key.startswith("agents.reviewer.")


def test_what_a_kind_may_set_without_trust(at: Setting) -> None:
    naming(at, "handler.yaml")
    more = "    tools: [shell]\n    model: offline\n    max_iterations: 3\n  max_depth: 2\n"
    got = at.found(REVIEWER + more)
    assert got.untrusted == ()
    assert is_used(agent_prompt(got, "reviewer"))
    assert (got.required_folder(KEY), got.required_folder("agents.explore.prompt")) == (at.work, None)


@pytest.mark.parametrize("how", LEADING_OUT)
def test_a_handler_prompt_that_leads_out_of_the_folder_needs_trust(at: Setting, how: str) -> None:
    lead_out(at, how)
    got = at.found(REVIEWER)
    assert got.untrusted == (KEY,)
    (asked,) = got.asked
    assert (asked.key, asked.line) == (f"{KEY}.interruption_prompt", 5)
    assert asked.place == f"{at.work}/prompts/reviewer.yaml:2"
    assert asked.leads_to == ("" if how == "by a variable" else str(at.home / "handler.yaml"))
    shown = "".join(row.strip() for row in question(at.work / "config.yaml", got.asked, 80))
    assert asked.place in shown
    assert asked.leads_to in shown
    with pytest.raises(ConfigError, match="is not trusted yet"):
        agent_prompt(got, "reviewer")
    remember_trust(got, state_folder({"HOME": str(at.home)}))
    for trusted in (at.load(), at.load("config.yaml")):
        assert trusted.untrusted == ()
        assert is_used(agent_prompt(trusted, "reviewer"))


def test_trust_holds_for_what_the_prompt_file_says(at: Setting) -> None:
    lead_out(at, "upwards")
    remember_trust(at.found(REVIEWER), state_folder({"HOME": str(at.home)}))
    trusted = at.load()
    assert is_used(agent_prompt(trusted, "reviewer"))
    (at.home / "other.yaml").write_text(HANDLER)
    naming(at, "../../home/other.yaml")
    # For the session that runs it is another value, that nobody was asked about; the next one asks.
    assert not is_used(agent_prompt(trusted, "reviewer"))
    assert at.load().untrusted == (KEY,)
    lead_out(at, "upwards")
    assert is_used(agent_prompt(trusted, "reviewer"))
    assert at.load().untrusted == ()


def test_trust_in_a_handler_prompt_is_not_trust_in_the_path_of_the_prompt(at: Setting) -> None:
    lead_out(at, "upwards")
    remember_trust(at.found(REVIEWER), state_folder({"HOME": str(at.home)}))
    got = at.load()
    assert got.required_folder(KEY) == at.work
    (at.home / "reviewer.yaml").write_text(SYSTEM)
    linked_prompt(at)
    with pytest.raises(ConfigError, match="leads out of"):
        agent_prompt(got, "reviewer")
    assert at.load().untrusted == (KEY,)


def test_a_trusted_prompt_elsewhere_has_its_handler_prompt_judged_as_well(at: Setting) -> None:
    (at.home / "reviewer.yaml").write_text(f"{SYSTEM}interruption_prompt: handler.yaml\n")
    text = REVIEWER.replace("prompts/reviewer.yaml", "~/reviewer.yaml")
    got = at.found(text)
    assert [(each.key, each.value, each.leads_to) for each in got.asked] == [
        (KEY, "~/reviewer.yaml", str(at.home / "reviewer.yaml")),
        (f"{KEY}.interruption_prompt", "handler.yaml", str(at.home / "handler.yaml")),
    ]
    remember_trust(got, state_folder({"HOME": str(at.home)}))
    got = at.load()
    prompt = agent_prompt(got, "reviewer")
    assert prompt.system == "Review."
    assert is_used(prompt)
    (at.home / "other.yaml").write_text(HANDLER)
    (at.home / "reviewer.yaml").write_text(f"{SYSTEM}interruption_prompt: other.yaml\n")
    assert not is_used(agent_prompt(got, "reviewer"))


@pytest.mark.parametrize("how", LEADING_OUT)
@pytest.mark.parametrize("way", ["found", "named"])
def test_a_handler_prompt_that_comes_to_lead_out_is_judged_again_when_it_is_read(
    at: Setting, how: str, way: str
) -> None:
    naming(at, "handler.yaml")
    got = getattr(at, way)(REVIEWER)
    assert is_used(agent_prompt(got, "reviewer"))
    lead_out(at, how)
    assert is_used(agent_prompt(got, "reviewer")) == (way == "named")


@pytest.mark.parametrize("link", [linked_prompt, linked_folder])
@pytest.mark.parametrize("way", ["found", "named"])
def test_a_prompt_that_becomes_a_link_is_judged_again_when_it_is_read(at: Setting, link: Change, way: str) -> None:
    (at.home / "reviewer.yaml").write_text(SYSTEM.replace("Review", "Private"))
    got = getattr(at, way)(REVIEWER)
    assert agent_prompt(got, "reviewer").system == "Review."
    link(at)
    if way == "named":
        assert agent_prompt(got, "reviewer").system == "Private."
        return
    with pytest.raises(ConfigError, match=r"leads out of .*: if you trust it, name it with --config"):
        agent_prompt(got, "reviewer")


UNUSABLE: dict[str, Callable[[Path], object]] = {
    "a folder": Path.mkdir,
    "a pipe": os.mkfifo,
    "a device": lambda file: file.symlink_to("/dev/zero"),
    "a loop of links": lambda file: file.symlink_to(file),
    "nothing": lambda file: None,
    "no YAML": lambda file: file.write_text("messages: [\n"),
    "no text": lambda file: file.write_bytes(b"\xff\xfe\x00"),
    "a list": lambda file: file.write_text("[interruption_prompt, /etc/passwd]"),
    "another type": lambda file: file.write_text("interruption_prompt: [/etc/passwd]"),
    "too large": lambda file: file.write_text("interruption_prompt: /etc/passwd\n" + "#" * trust.MAX_JUDGED_CHARS),
}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("what", UNUSABLE)
def test_what_cannot_be_judged_is_no_error_before_it_is_used_and_no_device_is_opened_for_that(
    at: Setting, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, opened = at.work / "prompts" / "reviewer.yaml", list[str]()
    file.unlink()
    UNUSABLE[what](file)
    opening = os.open

    def noted(path: Any, *how: Any, **more: Any) -> int:
        opened.append(str(path))
        return opening(path, *how, **more)

    monkeypatch.setattr(os, "open", noted)
    got = at.found(REVIEWER)
    assert (str(file) in opened) == file.is_file()
    # A link to a device leads out of the folder; a loop of links leads nowhere, so not into it either.
    assert got.untrusted == ((KEY,) if file.is_symlink() else ())
    with pytest.raises(ConfigError):
        agent_prompt(got, "reviewer")


@pytest.mark.parametrize("path", ['"a\\0b"', "x" * 5_000, "${NONE}"])
def test_a_path_that_leads_nowhere_is_a_mistake_of_the_user(at: Setting, path: str) -> None:
    naming(at, path)
    at.found(REVIEWER)
    with pytest.raises(ConfigError):
        agent_prompt(at.found(REVIEWER.replace("prompts/reviewer.yaml", path)), "reviewer")


def test_what_is_too_much_to_judge_is_not_used_either(at: Setting) -> None:
    """A folder of many files must hold nobody up; what nobody was asked about stays in the folder."""
    filler = f"{SYSTEM}description: "
    filler += "x" * (trust.MAX_JUDGED_CHARS - len(filler))
    (at.work / "prompts" / "filler.yaml").write_text(filler)
    lead_out(at, "upwards")
    text = REVIEWER.replace("  reviewer:", "  filler: {description: x, prompt: prompts/filler.yaml}\n  reviewer:")
    got = at.found(text)
    assert got.untrusted == ()
    assert agent_prompt(got, "filler").system == "Review."
    assert not is_used(agent_prompt(got, "reviewer"))
