"""The `chain` program."""

import sys


def console() -> None:
    """The entry point of the installed command: imports the rest where an impatient Ctrl-C is understood."""
    try:
        from cli.main import console as run

        run()
    except KeyboardInterrupt:
        sys.exit(130)
