"""``chain replay ID``: compares the model requests of a recorded session with those of the current prompts and code."""

from __future__ import annotations

import argparse
import os

from chain.app.replay import read_recorded, replay
from chain.app.sessions import open_store
from chain.config.load import require_trust, state_folder
from chain.errors import UserError
from cli.arguments import one_word, read_settings
from cli.command_output import show


def run(args: argparse.Namespace) -> int:
    """Show the first difference, if any. Return the exit code: 1 if the session differs, 0 if it does not."""
    id = one_word(args, "ID")
    if id is None:
        raise UserError("chain replay needs the id of a session; chain sessions lists them")
    settings = read_settings(args)
    require_trust(settings)
    store = open_store(state_folder(os.environ), settings.state)
    found = replay(settings, read_recorded(store, id), tools=args.tools)
    return show(args, found.rows) or int(not found.is_same)
