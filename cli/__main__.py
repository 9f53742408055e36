"""``python -m cli`` is the ``chain`` command."""

import os
import sys

if not sys.flags.safe_path and sys.path[0] != os.path.dirname(os.path.dirname(os.path.abspath(__file__))):
    # Never import from the current folder: commands of the model write there.
    del sys.path[0]

from cli import console

console()
