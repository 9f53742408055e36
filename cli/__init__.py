"""The `chain` program."""

import gc
import os
import signal
import sys

NEW_OBJECTS = 20_000
"""The number of allocations after which the garbage collector runs. Python's default of 700 would slow down imports,
which create many objects that are never freed."""


def console() -> None:
    """Run the command line: the entry point of the installed command."""
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])
    # During imports Python drops a KeyboardInterrupt raised in one of its own callbacks.
    raises = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if raises:
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    from cli.main import run_command

    if raises:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        run_command()
    except KeyboardInterrupt:
        sys.exit(130)
    finally:
        # Skip the garbage collection at exit, for which the user would wait.
        gc.freeze()
