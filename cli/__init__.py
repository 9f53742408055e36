"""The `chain` program."""

import sys


def console() -> None:
    """The entry point of the installed command. It imports the rest, so that Ctrl-C meanwhile exits cleanly."""
    try:
        from cli.main import run_command

        run_command()
    except KeyboardInterrupt:
        sys.exit(130)
