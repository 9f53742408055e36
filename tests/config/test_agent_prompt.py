"""The prompt files of the kinds of agents, the handler prompts that they name, and the trust that both need."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.configuration import ConfigPlace

from chain.app.prompt_files import AgentPrompt, agent_prompt
from chain.config import trust
from chain.config.load import Settings, remember_trust, require_trust, state_folder
from chain.errors import ConfigError
from cli.show.trust_rows import question

REVIEWER = """\
chains: {}
agents:
  reviewer:
    description: Reads a change
    prompt: prompts/reviewer.yaml
"""
KEY, LINE = "agents.reviewer.prompt", 5
"""The key of the prompt file in REVIEWER, and its line."""
SYSTEM = "messages: [{role: system, content: Review.}]\n"
HANDLER = "messages: [{role: user, content: 'mine ${message}'}]\n"


@pytest.fixture(autouse=True)
def prompt(place: ConfigPlace) -> Path:
    """The prompt file, with a handler prompt next to it, and another handler prompt outside the working folder."""
    folder = place.work / "prompts"
    folder.mkdir()
    (folder / "reviewer.yaml").write_text(SYSTEM)
    (folder / "handler.yaml").write_text(HANDLER)
    (place.home / "handler.yaml").write_text(HANDLER)
    return folder / "reviewer.yaml"


def name_handler(place: ConfigPlace, path: str) -> None:
    """Let the prompt file name a handler prompt."""
    (place.work / "prompts/reviewer.yaml").write_text(f"{SYSTEM}interruption_prompt: {path}\n")


def load_trusted(place: ConfigPlace) -> Settings:
    """Trust the configuration that is in the folder, and load it again."""
    remember_trust(place.load_found(REVIEWER), state_folder({"HOME": str(place.home)}))
    return place.load()


def uses_handler(settings: Settings) -> bool:
    """Return whether the reviewer's handler prompt is used. If not, check that it is refused as leading out."""
    handler = agent_prompt(settings, "reviewer").handler
    assert handler is not None
    prompt, mistake = handler.current()
    assert (prompt.source == "default") == (mistake is not None)
    assert mistake is None or "leads out of" in str(mistake)
    return mistake is None


# The file


@pytest.mark.parametrize("written", ["", "interruption_prompt:\n", "interruption_prompt: ''\n"])
def test_a_prompt_file_may_name_no_handler(place: ConfigPlace, prompt: Path, written: str) -> None:
    prompt.write_text(SYSTEM + written)
    assert agent_prompt(place.load_named(REVIEWER), "reviewer") == AgentPrompt("Review.")


HANDLER_PATHS = {
    "relative": ("../h.yaml", "work/prompts/../h.yaml"),
    "in the home folder": ("~/h.yaml", "home/h.yaml"),
    "a variable": ("'${WHERE}/h.yaml'", "work/prompts/there/h.yaml"),
}


@pytest.mark.parametrize(("written", "path"), HANDLER_PATHS.values(), ids=HANDLER_PATHS)
def test_a_handler_is_relative_to_its_prompt_file(place: ConfigPlace, tmp_path: Path, written: str, path: str) -> None:
    name_handler(place, written)
    handler = agent_prompt(place.load_named(REVIEWER, {"WHERE": "there"}), "reviewer").handler
    assert handler is not None
    assert handler.path == tmp_path / path
    _, mistake = handler.current()
    assert mistake is not None
    assert mistake.file == str(tmp_path / path)
    assert "prompts/reviewer.yaml:2 names it" in mistake.message


@pytest.mark.parametrize(
    ("text", "line", "message_part"),
    [
        ("version: 1\n", 1, "has no messages"),
        (f"{SYSTEM}interruption_promt: x\n", 2, "did you mean interruption_prompt?"),
        (f'{SYSTEM}interruption_prompt: "a\\0b"\n', 2, "interruption_prompt: is not a path"),
        (f"{SYSTEM}interruption_prompt: ${{NONE}}\n", 2, "variable NONE is not set"),
        ("messages:\n  - {role: user, content: x}\n", 2, "expected one of system"),
    ],
)
def test_a_mistake_in_a_prompt_has_its_line(
    place: ConfigPlace, prompt: Path, text: str, line: int, message_part: str
) -> None:
    prompt.write_text(text)
    with pytest.raises(ConfigError) as caught:
        agent_prompt(place.load_named(REVIEWER), "reviewer")
    assert (caught.value.file, caught.value.line) == (str(prompt), line)
    assert message_part in caught.value.message


@pytest.mark.parametrize(
    "path",
    ["gone.yaml", '"a\\0b"', "x" * 5_000, "${NONE}"],
    ids=["missing", "a null character", "too long", "no such variable"],
)
def test_a_path_that_leads_nowhere_is_a_mistake(place: ConfigPlace, path: str) -> None:
    name_handler(place, path)
    place.load_found(REVIEWER)
    with pytest.raises(ConfigError) as caught:
        agent_prompt(place.load_named(REVIEWER.replace("prompts/reviewer.yaml", path)), "reviewer")
    assert (caught.value.file, caught.value.line) == (str(place.work / "mine.yaml"), LINE)
    assert caught.value.message.startswith(f"{KEY}: ")


def test_a_kind_without_prompt_uses_that_of_agent(place: ConfigPlace, prompt: Path) -> None:
    name_handler(place, "handler.yaml")
    settings = place.load_found(
        "chains: {}\nagents: {agent: {prompt: prompts/reviewer.yaml}, other: {description: x}, explore: {prompt: }}"
    )
    assert {agent_prompt(settings, name).system for name in ("agent", "other", "explore")} == {"Review."}
    prompt.unlink()
    prompt.symlink_to(place.home / "handler.yaml")
    with pytest.raises(ConfigError, match="leads out of"):
        agent_prompt(settings, "other")


def test_no_prompt_of_the_agent_means_none(place: ConfigPlace) -> None:
    none = place.load_named("agents: {agent: {prompt: null}, other: {description: x}}")
    assert agent_prompt(none, "other") == agent_prompt(none, "agent") == AgentPrompt()


# Trust


def link_prompt(place: ConfigPlace) -> None:
    (place.work / "prompts/reviewer.yaml").unlink()
    (place.work / "prompts/reviewer.yaml").symlink_to(place.home / "reviewer.yaml")


def link_folder(place: ConfigPlace) -> None:
    (place.work / "prompts").rename(place.work / "moved")
    (place.work / "prompts").symlink_to(place.home)


LEADING_OUT = {
    "a link": "link.yaml",
    "upwards": "../../home/handler.yaml",
    "with a space": "'\u00a0~/handler.yaml '",
    "absolute": "HOME/handler.yaml",
    "by a variable": "${NONE:-..}/../home/handler.yaml",
}
"""Paths to the handler prompt outside the working folder."""


def lead_out(place: ConfigPlace, path: str = LEADING_OUT["upwards"]) -> None:
    """Let the prompt file name the handler prompt outside the working folder."""
    link = place.work / "prompts/link.yaml"
    link.unlink(missing_ok=True)
    link.symlink_to(place.home / "handler.yaml")
    name_handler(place, path.replace("HOME", str(place.home)))


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("agents: {reviewer: {description: x, prompt: ~/r.yaml}}", "agents.reviewer.prompt"),
        ("agents: {explore: {prompt: '\u00a0/etc/passwd'}}", "agents.explore.prompt"),
        # Kinds with the names of keys of a model.
        ("agents: {script: {description: x, prompt: p/../../r.yaml}}", "agents.script.prompt"),
        ("agents: {extra_body: {description: x, prompt: ~/r.yaml}}", "agents.extra_body.prompt"),
        # Variables, wherever they are.
        ("agents: {r: {description: '${HOME}'}}", "agents.r.description"),
        ("agents: {r: {description: x, model: '${NONE:-claude}'}}", "agents.r.model"),
        ("agents: {r: {description: x, tools: ['${HOME}']}}", "agents.r.tools"),
    ],
)
def test_a_found_kind_that_leads_out_needs_trust(place: ConfigPlace, text: str, key: str) -> None:
    settings = place.load_found(f"chains: {{}}\n{text}")
    assert [each.key for each in settings.untrusted_values] == [key]
    with pytest.raises(ConfigError, match=key):
        require_trust(settings)
    assert place.load("config.yaml").untrusted == ()


def test_a_kind_within_the_folder_needs_no_trust(place: ConfigPlace) -> None:
    name_handler(place, "handler.yaml")
    more = "    tools: [shell]\n    model: offline\n    max_iterations: 3\n  max_depth: 2\n"
    settings = place.load_found(REVIEWER + more)
    assert settings.untrusted == ()
    assert uses_handler(settings)
    assert (settings.required_folder(KEY), settings.required_folder("agents.explore.prompt")) == (place.work, None)


@pytest.mark.parametrize("path", LEADING_OUT.values(), ids=LEADING_OUT)
def test_a_handler_that_leads_out_needs_trust(place: ConfigPlace, path: str) -> None:
    name_handler(place, "handler.yaml")
    found_config, named_config = place.load_found(REVIEWER), place.load_named(REVIEWER)
    assert uses_handler(found_config)
    lead_out(place, path)
    assert uses_handler(named_config)
    assert not uses_handler(found_config), "a prompt file is judged whenever it is read"
    settings = place.load()
    assert settings.untrusted == (KEY,)
    target = "" if "$" in path else str(place.home / "handler.yaml")  # that of a variable is unknown
    (value,) = settings.untrusted_values
    assert (value.key, value.line) == (f"{KEY}.interruption_prompt", LINE)
    assert value.place == f"{place.work}/prompts/reviewer.yaml:2"
    assert value.leads_to == target
    shown = "".join(row.strip() for row in question(place.work / "config.yaml", settings.untrusted_values, 80))
    assert value.place in shown
    assert target in shown
    with pytest.raises(ConfigError, match="is not trusted yet"):
        agent_prompt(settings, "reviewer")
    for trusted in (load_trusted(place), place.load("config.yaml")):  # the user's answer, or --config
        assert trusted.untrusted == ()
        assert uses_handler(trusted)


def test_trust_covers_what_the_prompt_file_says(place: ConfigPlace) -> None:
    lead_out(place)
    session = load_trusted(place)
    assert uses_handler(session)
    (place.home / "other.yaml").write_text(HANDLER)
    name_handler(place, "../../home/other.yaml")
    assert not uses_handler(session), "the open session never asked about this value"
    assert place.load().untrusted == (KEY,)
    lead_out(place)
    assert uses_handler(session)
    assert place.load().untrusted == ()


def test_trust_in_a_handler_excludes_the_prompts_path(place: ConfigPlace) -> None:
    lead_out(place)
    settings = load_trusted(place)
    assert settings.required_folder(KEY) == place.work
    (place.home / "reviewer.yaml").write_text(SYSTEM)
    link_prompt(place)
    with pytest.raises(ConfigError, match="leads out of"):
        agent_prompt(settings, "reviewer")
    assert place.load().untrusted == (KEY,)


def test_the_handler_of_a_prompt_outside_is_judged(place: ConfigPlace) -> None:
    file = place.home / "reviewer.yaml"
    file.write_text(f"{SYSTEM}interruption_prompt: handler.yaml\n")
    settings = place.load_found(REVIEWER.replace("prompts/reviewer.yaml", "~/reviewer.yaml"))
    assert [(each.key, each.value, each.leads_to) for each in settings.untrusted_values] == [
        (KEY, "~/reviewer.yaml", str(file)),
        (f"{KEY}.interruption_prompt", "handler.yaml", str(place.home / "handler.yaml")),
    ]
    remember_trust(settings, state_folder({"HOME": str(place.home)}))
    settings = place.load()
    assert uses_handler(settings)
    (place.home / "other.yaml").write_text(HANDLER)
    file.write_text(f"{SYSTEM}interruption_prompt: other.yaml\n")
    assert not uses_handler(settings), "the user trusted handler.yaml only"


@pytest.mark.parametrize("link", [link_prompt, link_folder])
def test_a_prompt_that_becomes_a_link_needs_trust(place: ConfigPlace, link: Callable[[ConfigPlace], None]) -> None:
    (place.home / "reviewer.yaml").write_text(SYSTEM.replace("Review", "Private"))
    found_config, named_config = place.load_found(REVIEWER), place.load_named(REVIEWER)
    assert agent_prompt(found_config, "reviewer").system == "Review."
    link(place)
    assert agent_prompt(named_config, "reviewer").system == "Private."
    with pytest.raises(ConfigError, match=r"leads out of .*; if you trust its configuration, name it with --config"):
        agent_prompt(found_config, "reviewer")
    assert [(each.key, each.leads_to) for each in place.load().untrusted_values] == [
        (KEY, str(place.home / "reviewer.yaml"))
    ]


NOT_JUDGED: dict[str, Callable[[Path], object]] = {
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


@pytest.mark.parametrize("make", NOT_JUDGED.values(), ids=NOT_JUDGED)
def test_judging_opens_only_regular_files(
    place: ConfigPlace, prompt: Path, make: Callable[[Path], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    opened_paths, os_open = list[str](), os.open
    prompt.unlink()
    make(prompt)

    def record(path: Any, *args: Any, **options: Any) -> int:
        opened_paths.append(str(path))
        return os_open(path, *args, **options)

    monkeypatch.setattr(os, "open", record)
    settings = place.load_found(REVIEWER)
    assert (str(prompt) in opened_paths) == prompt.is_file()
    leads_out = prompt.is_symlink()  # a device is not in the folder, and a loop of links leads to no file in it
    assert settings.untrusted == ((KEY,) if leads_out else ())
    with pytest.raises(ConfigError):
        agent_prompt(settings, "reviewer")


def test_files_beyond_the_judged_size_are_refused(place: ConfigPlace) -> None:
    filler = f"{SYSTEM}description: ".ljust(trust.MAX_JUDGED_CHARS, "x")
    (place.work / "prompts/filler.yaml").write_text(filler)
    lead_out(place)
    settings = place.load_found(
        REVIEWER.replace("  reviewer:", "  filler: {description: x, prompt: prompts/filler.yaml}\n  reviewer:")
    )
    assert settings.untrusted == ()
    assert agent_prompt(settings, "filler").system == "Review."
    assert not uses_handler(settings)
