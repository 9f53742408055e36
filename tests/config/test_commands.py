"""Custom commands (`/review x`): the files that define them, mistakes in the files, and arguments."""

import os
from pathlib import Path

import pytest
from support.configuration import ConfigPlace

from chain.config.commands import (
    MAX_COMMAND_BYTES,
    MAX_COMMANDS,
    CustomCommand,
    FoundCommands,
    find_commands,
    trust_commands,
)


@pytest.fixture(autouse=True)
def own_folder(place: ConfigPlace) -> Path:
    """The folder of the user's own commands."""
    folder = place.home / ".config/chain/commands"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def workspace_folder(place: ConfigPlace) -> Path:
    """The folder of the workspace's commands."""
    folder = place.work / ".chain/commands"
    folder.mkdir(parents=True)
    return folder


def find(place: ConfigPlace, **environ: str) -> FoundCommands:
    return find_commands(place.load(environ=environ), place.work, place.home / "state", ["help"])


def test_front_matter_is_optional(place: ConfigPlace, own_folder: Path) -> None:
    (own_folder / "Review.md").write_text("---\ndescription: Reviews a file\nmodel: offline\n---\n\nReview $1.\n")
    (own_folder / "plain.md").write_text("Just do it.\n---\nAll of it.\n")
    (own_folder / "notes.txt").write_text("no command")
    assert find(place).commands == (
        CustomCommand("plain", own_folder / "plain.md", "Just do it.\n---\nAll of it."),
        CustomCommand("review", own_folder / "Review.md", "Review $1.", "Reviews a file", "offline"),
    )
    assert find(place, XDG_CONFIG_HOME=str(place.home / "xdg")).commands == ()


UNUSABLE: dict[str, tuple[str, bytes, int | None]] = {
    "is not UTF-8 text; save it as UTF-8": ("x.md", b"one\ntwo \xff", 2),
    "is larger than 64 kB": ("x.md", b"x" * (MAX_COMMAND_BYTES + 1), None),
    "the front matter has no end": ("x.md", b"---\ndescription: a\n", 1),
    "is not valid YAML": ("x.md", b"---\ndescription: [\n---\ntext", None),
    "expected a mapping": ("x.md", b"---\n- a\n---\ntext", None),
    "description: expected text, found 3": ("x.md", b"---\ndescription: 3\n---\ntext", 2),
    "has no text": ("x.md", b"---\ndescription: a\n---\n \n", None),
    "/help is a built-in command": ("help.md", b"text", None),
    "two words.md cannot be a command": ("two words.md", b"text", None),
    r"\x1b[2J.md cannot be a command": ("\x1b[2J.md", b"text", None),
}
"""The fault of each file: its name, its content, and the line of the fault if known."""


@pytest.mark.parametrize("fault", UNUSABLE)
def test_an_unusable_file_gives_one_sentence(place: ConfigPlace, own_folder: Path, fault: str) -> None:
    name, content, line = UNUSABLE[fault]
    (own_folder / name).write_bytes(content)
    (own_folder / "good.md").write_text("Text.")
    result = find(place)
    assert [command.name for command in result.commands] == ["good"]
    (sentence,) = result.faults
    assert fault in sentence
    assert sentence.isprintable()
    assert line is None or f"{own_folder / name}:{line}: " in sentence


def test_keys_of_other_programs_are_ignored(place: ConfigPlace, own_folder: Path) -> None:
    file = own_folder / "fix.md"
    file.write_text("---\nargument-hint: [issue]\ndescription: Fixes it\nallowed-tools: Read\n---\nFix.")
    result = find(place)
    assert (result.commands, result.faults) == ((CustomCommand("fix", file, "Fix.", "Fixes it"),), ())
    assert result.notes == (
        f"{file}:2: unknown key argument-hint is ignored; a command may have description and model",
        f"{file}:4: unknown key allowed-tools is ignored; a command may have description and model",
    )


def test_an_unknown_model_is_a_fault(place: ConfigPlace, own_folder: Path) -> None:
    file = own_folder / "fix.md"
    file.write_text("---\nmodel: sonnet\n---\nFix.")
    result = find(place)
    assert result.commands == (CustomCommand("fix", file, "Fix."),)
    sentence = "there is no model 'sonnet', so /fix uses the current one: the models are claude, offline"
    assert result.faults == (f"{file}: {sentence}",)


def test_a_pipe_and_a_crowded_folder_are_skipped(place: ConfigPlace, own_folder: Path, workspace_folder: Path) -> None:
    os.mkfifo(own_folder / "pipe.md")
    for n in range(MAX_COMMANDS + 1):
        (workspace_folder / f"c{n}.md").write_text("Text.")
    result = find(place)
    assert not result.commands
    assert not result.untrusted_commands
    pipe, folder = result.faults
    assert "cannot be read" in pipe
    assert f"has {MAX_COMMANDS + 1} commands" in folder


def test_a_workspaces_command_needs_trust_in_its_content(place: ConfigPlace, workspace_folder: Path) -> None:
    file = workspace_folder / "ship.md"
    file.write_text("---\nunknown: key\n---\nShip it.")
    result = find(place)
    assert not result.commands
    assert not result.faults, "an untrusted file is not parsed"
    assert [command.name for command in result.untrusted_commands] == ["ship"]
    file.write_text("Ship it.")
    trust_commands(find(place).untrusted_commands, place.home / "state")
    assert [command.body for command in find(place).commands] == ["Ship it."]
    file.write_text("Ship it to mallory.")
    assert not find(place).commands
    assert [command.name for command in find(place).untrusted_commands] == ["ship"]


def test_the_users_own_command_takes_precedence(place: ConfigPlace, own_folder: Path, workspace_folder: Path) -> None:
    (own_folder / "ship.md").write_text("Mine.")
    (workspace_folder / "ship.md").write_text("Yours.")
    result = find(place)
    assert [command.body for command in result.commands] == ["Mine."]
    assert not result.untrusted_commands
    (fault,) = result.faults
    assert "/ship is already one of your own commands" in fault


def test_no_link_leads_out_of_the_workspace(place: ConfigPlace, own_folder: Path, workspace_folder: Path) -> None:
    (own_folder / "mine.md").write_text("Mine.")
    (workspace_folder / "leak.md").symlink_to(own_folder / "mine.md")
    result = find(place)
    assert not result.untrusted_commands
    (fault,) = result.faults
    assert "leak.md: cannot be read" in fault
    workspace_folder.rename(place.work / "moved")
    workspace_folder.symlink_to(own_folder)
    result = find(place)
    assert not result.untrusted_commands
    (fault,) = result.faults
    assert "leads out of the workspace" in fault


EXPANSIONS = {
    "all arguments": ("Review $ARGUMENTS.", "a b  c", "Review a b  c."),
    "no arguments": ("Review $ARGUMENTS.", "", "Review ."),
    "by number, with quotes": ("$2 then $1, not $3", "one 'two words'", "two words then one, not "),
    "an apostrophe": ("$1", "don't stop", "don't"),
    "longer than a field": ("$1 costs $10 and $ARGUMENTS_X", "it", "it costs $10 and $ARGUMENTS_X"),
    "no field, no arguments": ("No field.", "", "No field."),
    "no field": ("No field.", "more words", "No field.\n\nmore words"),
    "fields in the arguments": ("$1 $2", "$2 $ARGUMENTS", "$2 $ARGUMENTS"),
}


@pytest.mark.parametrize(("body", "arguments", "expanded"), EXPANSIONS.values(), ids=EXPANSIONS)
def test_arguments_are_substituted_once(body: str, arguments: str, expanded: str) -> None:
    assert CustomCommand("x", Path("x.md"), body).expand(arguments) == expanded
