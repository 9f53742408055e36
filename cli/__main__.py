"""``python -m cli`` is the ``chain`` command."""

from cli.main import console

console()
