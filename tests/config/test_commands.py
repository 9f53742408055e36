"""Custom commands: which files are commands, what is wrong with others, and what arguments do."""

from pathlib import Path

import pytest
from support.configuration import Setting

from chain.config.commands import (
    MAX_COMMAND_BYTES,
    MAX_COMMANDS,
    CustomCommand,
    FoundCommands,
    find_commands,
    trust_commands,
)


def own(at: Setting) -> Path:
    folder = at.home / ".config/chain/commands"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def foreign(at: Setting) -> Path:
    folder = at.work / ".chain/commands"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def found(at: Setting, **environ: str) -> FoundCommands:
    return find_commands(at.load(environ=environ), at.work, at.home / "state", ["help"])


def test_a_file_is_a_command_with_front_matter_or_without(at: Setting) -> None:
    (own(at) / "Review.md").write_text("---\ndescription: Reviews a file\nmodel: offline\n---\n\nReview $1.\n")
    (own(at) / "plain.md").write_text("Just do it.\n---\nAll of it.\n")
    (own(at) / "notes.txt").write_text("no command")
    plain, review = found(at).commands
    assert (plain.name, plain.body, plain.description, plain.model) == ("plain", "Just do it.\n---\nAll of it.", "", "")
    assert (review.name, review.body) == ("review", "Review $1.")
    assert (review.description, review.model) == ("Reviews a file", "offline")


def test_the_folder_is_beneath_xdg_config_home(at: Setting) -> None:
    folder = at.home / "xdg/chain/commands"
    folder.mkdir(parents=True)
    (folder / "here.md").write_text("Text.")
    (own(at) / "there.md").write_text("Text.")
    assert [command.name for command in found(at, XDG_CONFIG_HOME=str(at.home / "xdg")).commands] == ["here"]


@pytest.mark.parametrize(
    ("name", "content", "line", "says"),
    [
        ("x.md", b"one\ntwo \xff", 2, "is not UTF-8 text; save it as UTF-8"),
        ("x.md", b"x" * (MAX_COMMAND_BYTES + 1), None, "is larger than 64 kB"),
        ("x.md", b"---\ndescription: a\n", 1, "the front matter has no end"),
        ("x.md", b"---\ndescription: [\n---\ntext", None, "is not valid YAML"),
        ("x.md", b"---\n- a\n---\ntext", None, "expected a mapping"),
        ("x.md", b"---\ndescription: 3\n---\ntext", 2, "description: expected text, found 3"),
        ("x.md", b"---\ndescription: a\n---\n \n", None, "has no text"),
        ("help.md", b"text", None, "/help is a built-in command"),
        ("two words.md", b"text", None, "two words.md cannot be a command"),
        ("\x1b[2J.md", b"text", None, r"\x1b[2J.md cannot be a command"),
    ],
)
def test_a_file_that_cannot_be_used_gives_one_sentence(
    at: Setting, name: str, content: bytes, line: int | None, says: str
) -> None:
    (own(at) / name).write_bytes(content)
    (own(at) / "good.md").write_text("Text.")
    result = found(at)
    assert [command.name for command in result.commands] == ["good"]
    (fault,) = result.faults
    assert says in fault
    assert fault.isprintable()
    assert line is None or f"{own(at) / name}:{line}: " in fault


def test_keys_of_other_programs_are_ignored(at: Setting) -> None:
    file = own(at) / "fix.md"
    file.write_text(
        "---\nargument-hint: [issue]\ndescription: Fixes it\nallowed-tools: Bash(git:*), Read\nmodel: sonnet\n---\nFix."
    )
    result = found(at)
    assert result.commands == (CustomCommand("fix", file, "Fix.", "Fixes it"),)
    assert result.faults == ()
    assert result.notes == (
        f"{file}:2: unknown key argument-hint is ignored; a command may have description and model",
        f"{file}:4: unknown key allowed-tools is ignored; a command may have description and model",
        f"{file}:5: model: there is no model 'sonnet', so the current one is used: the models are claude, offline",
    )


def test_a_fifo_and_a_crowded_folder_hold_nobody_up(at: Setting) -> None:
    import os

    os.mkfifo(own(at) / "pipe.md")
    for n in range(MAX_COMMANDS + 1):
        (foreign(at) / f"c{n}.md").write_text("Text.")
    result = found(at)
    assert not result.commands
    assert not result.untrusted
    assert ["cannot be read" in result.faults[0], f"has {MAX_COMMANDS + 1} commands" in result.faults[1]] == [True] * 2


def test_a_command_of_the_workspace_needs_trust_in_what_it_says(at: Setting) -> None:
    file = foreign(at) / "ship.md"
    file.write_text("---\nunknown: key\n---\nShip it.")
    result = found(at)
    assert not result.commands
    assert not result.faults, "nothing of it is parsed before it is trusted"
    assert [command.name for command in result.untrusted] == ["ship"]
    file.write_text("Ship it.")
    trust_commands(found(at).untrusted, at.home / "state")
    assert [command.body for command in found(at).commands] == ["Ship it."]
    file.write_text("Ship it to mallory.")
    assert not found(at).commands
    assert [command.name for command in found(at).untrusted] == ["ship"]


def test_a_command_of_the_workspace_replaces_none_of_the_users_own(at: Setting) -> None:
    (own(at) / "ship.md").write_text("Mine.")
    (foreign(at) / "ship.md").write_text("Yours.")
    result = found(at)
    assert [command.body for command in result.commands] == ["Mine."]
    assert not result.untrusted
    assert "/ship is already one of your own commands" in result.faults[0]


def test_a_link_does_not_lead_out_of_the_workspace(at: Setting) -> None:
    secret = at.home / "secret.md"
    secret.write_text("key")
    (foreign(at) / "leak.md").symlink_to(secret)
    result = found(at)
    assert not result.untrusted
    assert "leak.md: cannot be read" in result.faults[0]


def test_a_folder_that_is_a_link_out_of_the_workspace_is_not_read(at: Setting) -> None:
    (own(at) / "mine.md").write_text("Mine.")
    (at.work / ".chain").mkdir()
    (at.work / ".chain/commands").symlink_to(own(at))
    result = found(at)
    assert not result.untrusted
    assert "leads out of the workspace" in result.faults[0]


@pytest.mark.parametrize(
    ("body", "arguments", "text"),
    [
        ("Review $ARGUMENTS.", "a b  c", "Review a b  c."),
        ("Review $ARGUMENTS.", "", "Review ."),
        ("$2 then $1, not $3", "one 'two words'", "two words then one, not "),
        ("$1", "don't stop", "don't"),
        ("$1 costs $10 and $ARGUMENTS_X", "it", "it costs $10 and $ARGUMENTS_X"),
        ("No field.", "", "No field."),
        ("No field.", "more words", "No field.\n\nmore words"),
        ("$1 $2", "$2 $ARGUMENTS", "$2 $ARGUMENTS"),
    ],
)
def test_arguments_are_filled_in_once(body: str, arguments: str, text: str) -> None:
    assert CustomCommand("x", Path("x.md"), body).expand(arguments) == text
