"""`chain init`: the shipped configuration in a folder of the user's."""

from pathlib import Path

import pytest

from chain.config.load import defaults_folder, load_settings
from chain.errors import UserError
from cli.subcommands.init import init


def test_a_new_folder_gets_a_configuration_that_works_and_is_not_asked_about(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "new"
    lines = init(folder)
    assert lines[0] == f"wrote {folder / 'config.yaml'}"
    got = load_settings(config=None, environ={"HOME": str(tmp_path)}, cwd=folder)
    assert got.file == folder / "config.yaml"
    assert got.untrusted == ()
    assert got.chain().system_prompt == folder / "prompts/system.yaml"
    assert got.model("offline").files["script"] == folder / "prompts/offline_model.yaml"


def test_the_files_are_the_shipped_ones_and_each_is_told(tmp_path: Path) -> None:
    lines = init(tmp_path)
    written = {path.relative_to(tmp_path): path.read_bytes() for path in tmp_path.rglob("*.yaml")}
    assert Path("config.yaml") in written
    assert {path.parts[0] for path in written} <= {"config.yaml", "prompts"}
    for path, content in written.items():
        assert content == (defaults_folder() / path).read_bytes()
        assert f"wrote {tmp_path / path}" in lines


def test_the_current_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert f"run `chain check` in {tmp_path.resolve()} to" in init(Path())[-1]


def test_every_file_that_the_configuration_names_is_there(tmp_path: Path) -> None:
    init(tmp_path)
    got = load_settings(config=None, environ={"HOME": str(tmp_path)}, cwd=tmp_path)
    kinds = {kind.name: kind.prompt for kind in got.agents.kinds}
    assert list(kinds) == ["explore", "plan", "agent"]
    chain = got.chain()
    for path in (chain.system_prompt, chain.interruption_prompt, got.model("offline").files["script"], *kinds.values()):
        assert path is not None
        assert path.is_file()
        assert path.is_relative_to(tmp_path)


@pytest.mark.parametrize("dangling", [False, True])
def test_a_file_that_is_there_is_left_alone_and_nothing_is_written(tmp_path: Path, dangling: bool) -> None:
    mine = tmp_path / "config.yaml"
    if dangling:
        mine.symlink_to(tmp_path / "nowhere")
    else:
        mine.write_text("mine")
    with pytest.raises(UserError) as caught:
        init(tmp_path)
    assert caught.value.file == str(mine)
    assert "move it away" in str(caught.value)
    assert list(tmp_path.iterdir()) == [mine]
    assert dangling or mine.read_text() == "mine"


def test_a_second_init_is_refused(tmp_path: Path) -> None:
    init(tmp_path)
    with pytest.raises(UserError, match="overwrites nothing"):
        init(tmp_path)


def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        init(tmp_path / "file")
