"""``python -m cli`` is the ``chain`` command."""

from cli import console

console()
