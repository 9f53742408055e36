"""Forks the programs of the benchmark in a trial run: ``python -m forks.bench_parent FD``, as ``forks.parent`` does.

It imports what most of them do, which takes longer than all that they then do a few times.
"""

from __future__ import annotations

import gc
import importlib
import socket
import sys

from .parent import run_each

_IMPORTED = (
    *("chain.app.open", "chain.app.serving", "chain.providers.anthropic.client", "chain.session.projection"),
    *("anthropic", "chain.tools.mcp.running", "mcp.client.stdio", "double", "pydantic.type_adapter", "yaml.cyaml"),
    *("cli.event_rows", "support.servers"),
)
"""A name that is missing here costs time and nothing else."""


def _main() -> None:
    channel = socket.socket(fileno=int(sys.argv[1]))
    path = sys.path[1:]
    for name in _IMPORTED:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    run_each(channel, path)


if __name__ == "__main__":
    _main()
