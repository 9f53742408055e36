"""The `chain` program."""

import os
import signal
import sys


def console() -> None:
    """Run the command line: the entry point of the installed command."""
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
