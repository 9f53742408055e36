"""What a command may write and what of this program it may not, whatever lies in the place of a folder by now."""

from __future__ import annotations

import importlib
import json
import os
import site
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from chain.errors import ToolError
from chain.tools import protected
from chain.tools.processes.probe import probe
from chain.tools.processes.writable_paths import WritablePaths
from chain.tools.protected import Protected, Refused

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or not probe().writes, reason="this machine cannot refuse writes"
)

NOTHING = Refused(frozenset(), frozenset(), frozenset())


def own(*kept: Path, open: tuple[Path, ...] = (), wide: tuple[Path, ...] = ()) -> Refused:
    return Refused(*(frozenset(map(str, each)) for each in ((*kept, *wide), open, wide)))


@pytest.fixture
def work(tmp_path: Path) -> Path:
    """A workspace with a program, and things beside it at each level."""
    for folder in ("work/venv/bin", "work/lib/ours", "work/lib/theirs", "work/src", "outside", "temporary"):
        (tmp_path / folder).mkdir(parents=True)
    for file in ("work/file", "work/venv/bin/python", "work/lib/ours/module", "work/lib/theirs/file", "outside/kept"):
        (tmp_path / file).write_text("before\n")
    (tmp_path / "work/link").symlink_to("venv")
    return tmp_path / "work"


TRY = """
import json, subprocess, sys
from chain.tools.processes import fence
fence.enter(fence.Fence(int(sys.argv[1])))
print(json.dumps([not subprocess.run(["sh", "-c", each], stderr=-3).returncode for each in sys.argv[2:]]))
"""


def tried(opened: WritablePaths, folder: Path, *attempts: str) -> list[bool]:
    """Which of these shell commands succeed by the rules."""
    temporary = os.open(folder.parent / "temporary", os.O_PATH)
    rules = opened.rules(temporary, signals=False)
    try:
        done = subprocess.run(
            [sys.executable, "-c", TRY, str(rules), *attempts],
            pass_fds=[rules],
            cwd=folder,
            env={**os.environ, "TMP": str(folder.parent / "temporary")},
            capture_output=True,
            check=True,
            text=True,
        )
    finally:
        os.close(rules)
        os.close(temporary)
    found: list[bool] = json.loads(done.stdout)
    return found


def test_a_link_that_is_put_in_the_place_of_a_folder_gives_nothing(work: Path) -> None:
    opened = WritablePaths(work, [work.parent / "outside/later"], NOTHING)
    outside = work.parent / "outside"
    work.rename(work.parent / "moved")
    work.symlink_to(outside)
    (outside / "later").mkdir()
    try:
        attempts = ("echo x >> kept", "touch later/new", "touch ../moved/new", "touch $TMP/new")
        assert tried(opened, work, *attempts) == [False, False, True, True]
    finally:
        opened.close()


def test_what_is_this_program_s_is_left_out_and_all_else_is_not(work: Path) -> None:
    opened = WritablePaths(work, [], own(work / "venv", work / "lib/ours"))
    yes = ("echo x >> file", "echo x >> lib/theirs/file", "mkdir src/new", "mv lib/theirs/file src/", "touch src/link")
    no = (
        "echo x >> venv/bin/python",
        "echo x >> link/bin/python",
        "rm venv/bin/python",
        "mv venv other",
        "mv lib other",
        "rmdir venv/bin || rm -r venv",
        "ln venv/bin/python src/python && echo x > src/python",
        "echo x >> lib/ours/module",
        "touch new",
        "touch lib/new",
        "touch ../outside/new",
        "rm link",
    )
    try:
        assert tried(opened, work, *yes, *no) == [True] * len(yes) + [False] * len(no)
        (work / "new").mkdir()  # by the user, or by a tool that asked
        assert tried(opened, work, "touch new/file") == [True]
    finally:
        opened.close()
    assert not opened.is_exposed
    assert opened.kept == (str(work / "lib/ours"), str(work / "venv"))
    assert opened.closed == (str(work), str(work / "lib"))


def test_in_a_folder_where_modules_are_looked_for_nothing_is_added(work: Path) -> None:
    opened = WritablePaths(work, [], own(work / "src/chain", open=(work / "src",)))
    (work / "src/mine").mkdir()
    try:
        assert tried(opened, work, "touch src/new.py", "mkdir src/chain", "touch src/mine/new.py", "touch lib/new") == [
            False,
            False,
            True,
            True,
        ]
    finally:
        opened.close()


@pytest.mark.sampled(every=5)
@pytest.mark.parametrize(
    ("chosen", "kept", "is_exposed"),
    [
        (("work",), ("work/venv",), False),
        (("work/venv",), ("work/venv",), True),
        (("work/venv/bin",), ("work/venv",), True),
        (("work", "work/venv"), ("work/venv",), True),
        (("work/venv2",), ("work/venv",), False),
        (("work",), (), False),
    ],
)
def test_a_folder_of_this_program_that_the_user_chose_is_given_and_that_is_known(
    work: Path, chosen: tuple[str, ...], kept: tuple[str, ...], is_exposed: bool
) -> None:
    first, *others = (work.parent / each for each in chosen)
    opened = WritablePaths(first, others, own(*(work.parent / each for each in kept)))
    try:
        assert opened.is_exposed == is_exposed
        assert not is_exposed or opened.closed == ()
        expected = is_exposed or not kept
        assert tried(opened, work, "touch venv/bin/new") == [expected]
    finally:
        opened.close()


def test_a_folder_within_one_that_holds_much_else_is_given(work: Path) -> None:
    opened = WritablePaths(work, [], own(wide=(work.parent,)))
    opened.close()
    assert not opened.is_exposed
    assert opened.closed == ()


def test_a_link_of_an_earlier_session_is_refused(work: Path) -> None:
    (work / "build").symlink_to("../outside")
    with pytest.raises(ToolError, match="behind a link"):
        WritablePaths(work, [work / "build"], NOTHING)
    WritablePaths(work / "src", [work / "build"], NOTHING).close()


@pytest.mark.parametrize(
    "place",
    [
        lambda: sys.prefix,
        lambda: sys.executable,
        lambda: os.path.realpath(sys.executable),
        lambda: os.__file__,
        lambda: protected.__file__,
        lambda: pytest.__file__,
        lambda: "/somewhere/state/chain/sessions",
    ],
)
def test_what_is_this_program_s(place: Callable[[], str]) -> None:
    found = Protected((Path("/somewhere/state/chain"),)).refused_places([])
    assert any(Path(place()).is_relative_to(each) for each in found.kept)


def test_each_link_on_the_way_is_this_program_s(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "python").symlink_to("lib/python")
    (work / "lib/python").symlink_to("../venv/bin/python")
    (work / "modules").symlink_to("lib/theirs")
    monkeypatch.setattr(sys, "executable", str(work / "python"))
    monkeypatch.syspath_prepend(str(work / "modules"))
    found = Protected().refused_places([])
    assert {str(work / each) for each in ("python", "lib/python", "venv/bin/python")} <= found.kept
    assert {str(work / each) for each in ("modules", "lib/theirs")} <= found.open


def test_installed_packages_are_kept_and_a_source_folder_is_not(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "lib/some-1.0.dist-info").mkdir()
    for folder in ("lib", "src"):
        monkeypatch.syspath_prepend(str(work / folder))
    found = Protected().refused_places([])
    assert str(work / "lib") in found.kept
    assert str(work / "src") in found.open


def test_a_loaded_module_is_kept_compiled_too(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "src/loose_module.py").write_text("")
    monkeypatch.syspath_prepend(str(work / "src"))
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    monkeypatch.setattr(sys, "pycache_prefix", None)
    monkeypatch.delitem(sys.modules, "loose_module", raising=False)
    importlib.import_module("loose_module")
    monkeypatch.setattr(sys, "pycache_prefix", str(work / "venv/cache"))
    opened = WritablePaths(work, [], Protected().refused_places([]))
    try:
        attempts = ("echo x >> src/__pycache__/*.pyc", "rm src/__pycache__/*.pyc", "mv src/__pycache__ lib/")
        assert tried(opened, work, *attempts, "mkdir venv/cache", "touch src/__init__.py") == [False] * 5
    finally:
        opened.close()
        sys.modules.pop("loose_module")


def test_a_module_in_a_package_without_a_file_is_kept(work: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (work / "src/no_file").mkdir()
    (work / "src/no_file/loose_module.py").write_text("")
    monkeypatch.syspath_prepend(str(work / "src"))
    importlib.import_module("no_file.loose_module")
    try:
        assert str(work / "src/no_file/loose_module.py") in Protected().refused_places([]).kept
    finally:
        for name in ("no_file.loose_module", "no_file"):
            sys.modules.pop(name)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("is_searched", [True, False])
def test_nothing_is_added_to_the_users_own_packages(
    work: Path, monkeypatch: pytest.MonkeyPatch, is_searched: bool
) -> None:
    monkeypatch.setattr(site, "USER_SITE", str(work / "src/site-packages"))
    monkeypatch.setattr(site, "ENABLE_USER_SITE", is_searched)
    opened = WritablePaths(work, [], Protected().refused_places([]))
    try:
        assert tried(opened, work, "mkdir src/site-packages") == [not is_searched]
    finally:
        opened.close()
