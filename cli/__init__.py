"""The `chain` program."""

import gc
import os
import signal
import sys

NEW_OBJECTS = 20_000
"""Objects after which the garbage collector runs, 700 by default: imports make many, and all of them stay."""


def console() -> None:
    """Run the command line: the entry point of the installed command."""
    gc.set_threshold(NEW_OBJECTS, *gc.get_threshold()[1:])
    # While modules are imported Python drops a KeyboardInterrupt that it raises in a callback of its own.
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
        # Python ends with a collection of all that was imported, for which the user would wait.
        gc.freeze()
