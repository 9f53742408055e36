"""The paths that a command may write, without the protected ones."""

from __future__ import annotations

import json
import os
import site
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path

import pytest
from support.fences import skip_without

from chain.errors import ToolError
from chain.tools import protected
from chain.tools.processes.writable_paths import WritablePaths
from chain.tools.protected import Protected, Refused

pytestmark = skip_without("writes")


def refusing(*places: Path, code_folders: tuple[Path, ...] = (), wide_folders: tuple[Path, ...] = ()) -> Refused:
    """Return protected places: ``Refused`` says what is refused in each kind."""
    return Refused(*(frozenset(map(str, each)) for each in ((*places, *wide_folders), code_folders, wide_folders)))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """Return a workspace that contains a program and modules, next to other directories."""
    for folder in ("work/venv/bin", "work/lib/ours", "work/lib/theirs", "work/src", "outside", "temporary"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("work/file", "work/venv/bin/python", "work/lib/ours/module", "work/lib/theirs/file", "outside/kept"):
        (tmp_path / file).write_text("before\n")
    (tmp_path / "work/link").symlink_to("venv")
    return tmp_path / "work"


OpenPaths = Callable[..., WritablePaths]


@pytest.fixture
def open_paths() -> Iterator[OpenPaths]:
    """Return a function that creates ``WritablePaths``, which are closed after the test."""
    with ExitStack() as stack:

        def create(workspace: Path, *more: Path, refused: Refused | None = None) -> WritablePaths:
            paths = WritablePaths(workspace, more, refused or refusing())
            stack.callback(paths.close)
            return paths

        yield create


RUN_IN_FENCE = """
import json, sys
from subprocess import DEVNULL, run
from chain.tools.processes import fence
_, rules_fd, *commands = sys.argv
fence.enter(fence.Fence(int(rules_fd)))
print(json.dumps([each for each in commands if run(["sh", "-c", each], stderr=DEVNULL).returncode == 0]))
"""


def successful(paths: WritablePaths, folder: Path, *commands: str) -> list[str]:
    """Run shell commands that may write these paths. Return those that succeed."""
    temporary = os.open(folder.parent / "temporary", os.O_PATH)
    rules_fd = paths.rules(temporary, signals=False)
    try:
        process = subprocess.run(
            [sys.executable, "-c", RUN_IN_FENCE, str(rules_fd), *commands],
            pass_fds=[rules_fd],
            cwd=folder,
            env={**os.environ, "TMP": str(folder.parent / "temporary")},
            capture_output=True,
            check=True,
            text=True,
        )
    finally:
        os.close(rules_fd)
        os.close(temporary)
    succeeded: list[str] = json.loads(process.stdout)
    return succeeded


# ------------------------------------------------------------------------------------------------------------- paths


def test_protected_places_are_refused_and_others_allowed(work: Path, open_paths: OpenPaths) -> None:
    paths = open_paths(work, refused=refusing(work / "venv", work / "lib/ours"))
    allowed_commands = [
        *("echo x >> file", "echo x >> lib/theirs/file", "mkdir src/new", "mv lib/theirs/file src/", "touch src/link")
    ]
    refused_commands = [
        *("echo x >> venv/bin/python", "rm venv/bin/python", "rmdir venv/bin || rm -r venv", "mv venv other"),
        *("echo x >> link/bin/python", "ln venv/bin/python src/python && echo x > src/python"),  # by a link
        *("echo x >> lib/ours/module", "touch ../outside/new"),
        *("touch new", "rm link", "touch lib/new", "mv lib other"),  # in the folders around the protected ones
    ]
    assert successful(paths, work, *allowed_commands, *refused_commands) == allowed_commands
    (work / "new").mkdir()  # by the user, or by another tool
    assert successful(paths, work, "touch new/file") == ["touch new/file"]
    assert not paths.is_exposed
    assert paths.protected == (str(work / "lib/ours"), str(work / "venv"))
    assert paths.closed_folders == (str(work), str(work / "lib"))


def test_nothing_is_added_to_a_folder_of_modules(work: Path, open_paths: OpenPaths) -> None:
    paths = open_paths(work, refused=refusing(work / "src/chain", code_folders=(work / "src",)))
    (work / "src/mine").mkdir()
    refused_commands = ["touch src/new.py", "mkdir src/chain"]
    allowed_commands = ["touch src/mine/new.py", "touch lib/new"]
    assert successful(paths, work, *refused_commands, *allowed_commands) == allowed_commands


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(
    ("writable", "is_exposed"),
    [
        pytest.param(("work",), False, id="only the workspace"),
        pytest.param(("work/venv",), True, id="the protected folder"),
        pytest.param(("work/venv/bin",), True, id="a folder in the protected one"),
        pytest.param(("work", "work/venv"), True, id="the workspace and the protected folder"),
        pytest.param(("work/venv2",), False, id="a folder with a similar name"),
    ],
)
def test_user_can_make_a_protected_folder_writable(
    work: Path, open_paths: OpenPaths, writable: tuple[str, ...], is_exposed: bool
) -> None:
    """``is_exposed``: then commands may change the protected folder too."""
    paths = open_paths(*(work.parent / each for each in writable), refused=refusing(work / "venv"))
    assert paths.is_exposed == is_exposed
    if is_exposed:
        assert paths.closed_folders == ()
    assert bool(successful(paths, work, "touch venv/bin/new")) == is_exposed


def test_workspace_in_a_wide_protected_folder_is_writable(work: Path, open_paths: OpenPaths) -> None:
    paths = open_paths(work, refused=refusing(wide_folders=(work.parent,)))
    assert (paths.is_exposed, paths.closed_folders) == (False, ())
    assert successful(paths, work, "touch new") == ["touch new"]


def test_link_that_replaces_a_folder_allows_nothing(work: Path, open_paths: OpenPaths) -> None:
    outside = work.parent / "outside"
    paths = open_paths(work, outside / "later")  # a writable folder that does not exist yet
    assert not paths.is_exposed
    work.rename(work.parent / "moved")
    work.symlink_to(outside)
    (outside / "later").mkdir()
    refused_commands = ["echo x >> kept", "touch later/new"]
    allowed_commands = ["touch ../moved/new", "touch $TMP/new"]
    assert successful(paths, work, *refused_commands, *allowed_commands) == allowed_commands


def test_link_inside_a_writable_folder_is_an_error(work: Path, open_paths: OpenPaths) -> None:
    """A command of an earlier session may have created such a link."""
    (work / "build").symlink_to("../outside")
    with pytest.raises(ToolError, match="behind a link"):
        open_paths(work, work / "build")
    open_paths(work / "src", work / "build")  # no error: the link is not in a writable folder


# -------------------------------------------------------------------------------------------------- protected places


@pytest.mark.parametrize(
    "place",
    [sys.prefix, sys.executable, os.path.realpath(sys.executable), os.__file__, protected.__file__, pytest.__file__],
)
def test_files_of_this_program_are_protected(place: str) -> None:
    assert any(Path(place).is_relative_to(each) for each in Protected().refused_places([]).places)


def test_every_link_to_this_program_is_protected(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "python").symlink_to("lib/python")
    (work / "lib/python").symlink_to("../venv/bin/python")
    (work / "modules").symlink_to("lib/theirs")
    monkeypatch.setattr(sys, "executable", str(work / "python"))
    monkeypatch.syspath_prepend(str(work / "modules"))
    refused = Protected().refused_places([])
    assert {str(work / each) for each in ("python", "lib/python", "venv/bin/python")} <= refused.places
    assert {str(work / each) for each in ("modules", "lib/theirs")} <= refused.code_folders


def test_installed_packages_are_protected_and_sources_open(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "lib/some-1.0.dist-info").mkdir()
    for folder in ("lib", "src"):
        monkeypatch.syspath_prepend(str(work / folder))
    refused = Protected().refused_places([])
    assert str(work / "lib") in refused.places
    assert str(work / "src") in refused.code_folders


def test_loaded_module_and_its_cache_are_protected(
    work: Path, open_paths: OpenPaths, monkeypatch: pytest.MonkeyPatch
) -> None:
    (work / "src/no_file").mkdir()
    (work / "src/no_file/inner_module.py").write_text("")
    (work / "src/loose_module.py").write_text("")
    monkeypatch.syspath_prepend(str(work / "src"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    names = ("loose_module", "no_file", "no_file.inner_module")
    try:
        for name in names:
            import_module(name)
        monkeypatch.setattr(sys, "pycache_prefix", str(work / "venv/cache"))
        refused = Protected().refused_places([])
        paths = open_paths(work, refused=refused)
        commands = ("echo x >> src/__pycache__/*.pyc", "rm src/__pycache__/*.pyc", "mv src/__pycache__ lib/")
        assert successful(paths, work, *commands, "mkdir venv/cache", "touch src/__init__.py") == []
        assert str(work / "src/no_file/inner_module.py") in refused.places
    finally:
        for name in names:
            sys.modules.pop(name, None)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("is_searched", [True, False], ids=["searched", "not searched"])
def test_user_packages_are_closed_if_python_searches_them(
    work: Path, open_paths: OpenPaths, monkeypatch: pytest.MonkeyPatch, is_searched: bool
) -> None:
    monkeypatch.setattr(site, "USER_SITE", str(work / "src/site-packages"))
    monkeypatch.setattr(site, "ENABLE_USER_SITE", is_searched)
    paths = open_paths(work, refused=Protected().refused_places([]))
    assert bool(successful(paths, work, "mkdir src/site-packages")) == (not is_searched)
