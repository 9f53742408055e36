"""``chain init``: the shipped configuration in a folder of the user."""

from collections.abc import Callable
from pathlib import Path

import pytest

from chain.config.load import defaults_folder, load_settings
from chain.errors import UserError
from cli.subcommands.init import init


def test_a_folder_gets_a_working_configuration(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "a" / "new"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    rows = init(Path())
    written = {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    assert {path.parts[0] for path in written} == {"config.yaml", "prompts"}
    for path, content in written.items():
        assert content == (defaults_folder() / path).read_bytes()
        assert f"wrote {path}" in rows
    assert f"run `chain check` in {folder} to" in rows[-1]
    config = load_settings(config=None, environ={"HOME": str(tmp_path)}, cwd=folder)
    assert (config.file, config.untrusted) == (folder / "config.yaml", ())
    chain, kinds = config.chain(), {kind.name: kind.prompt for kind in config.agents.kinds}
    assert list(kinds) == ["explore", "plan", "agent"]
    script = config.model("offline").files["script"]
    for file in (chain.system_prompt, chain.interruption_prompt, script, *kinds.values()):
        assert file is not None
        assert file.is_file()
        assert file.is_relative_to(folder)


@pytest.mark.parametrize(
    "make",
    [lambda file: file.write_text("mine"), lambda file: file.symlink_to("nowhere")],
    ids=["a file", "a broken link"],
)
def test_nothing_is_overwritten(tmp_path: Path, make: Callable[[Path], object]) -> None:
    mine = tmp_path / "config.yaml"
    make(mine)
    with pytest.raises(UserError, match="move it away") as caught:
        init(tmp_path)
    assert caught.value.file == str(mine)
    assert list(tmp_path.iterdir()) == [mine], "the link's target was not created"
    assert mine.is_symlink() or mine.read_text() == "mine"


def test_an_unusable_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        init(tmp_path / "file")
