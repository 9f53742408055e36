"""The way out of the program at a terminal."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.house import ROOT
from support.program import gates
from support.screen import Screen
from support.terminal import Start, idle, send

pytest_plugins = ["support.terminal"]

IMPATIENT = f"""
import runpy, sys
from cli import ending
ending.EXIT_S = 0.1
runpy.run_path({str(ROOT / "tests/support/slow_disk_program.py")!r}, run_name="__main__")
"""
"""The program on a disk that can be held, which ends itself soon after its last row."""


INTERRUPTED = """
import signal, sys, weakref

class Thing: pass

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {name!r}:
            thing = Thing()
            callback = weakref.ref(thing, lambda _: signal.raise_signal(signal.SIGINT))
            del thing

sys.meta_path.insert(0, Finder())
from cli import console
console()
"""
"""The program, with a Ctrl-C in a callback, where Python drops exceptions, while the module ``name`` is imported."""


@pytest.mark.parametrize("name", ["cli.main", pytest.param("cli.terminal.plain_question", marks=pytest.mark.slow)])
def test_ctrl_c_during_an_import_ends_the_program(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text("chains: {default: {model: offline}}\ntools: {allow: [shell]}\n")
    with Screen([sys.executable, "-c", INTERRUPTED.format(name=name)], home=tmp_path, cwd=tmp_path) as screen:
        assert screen.wait() == 130


@pytest.mark.slow
def test_quitting_exits_with_0_on_a_disk_that_hangs(start: Start, tmp_path: Path) -> None:
    script = tmp_path / "impatient.py"
    script.write_text(IMPATIENT)
    screen = idle(start(under=(sys.executable, str(script)), never=()))
    send(screen, "hello").until("Done: hello")
    os.mkfifo(gates(screen.home) / "disk")
    send(idle(screen), "todo: add buy milk").until("added")
    send(screen, "/quit")
    assert screen.wait() == 0
