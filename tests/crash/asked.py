"""What the model is asked: each request as the Messages API would get it, kept in a file.

The rules answer; the body is what the encoder of the real adapter makes of the same request, with the model that the
double knows. So the rules of the double judge it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from chain.model import Delta, Reply, Request
from chain.providers.anthropic.encoding import Encoder, Parameters
from chain.providers.scripted.scripted_model import ScriptedModel

HEADERS = {"x-api-key": "test-key", "anthropic-version": "2023-06-01"}

_PARAMETERS = Parameters(model="claude-sonnet-5-5", max_tokens=1024)


def keep(path: Path) -> None:
    """Append each request of this process to the file, as a row of JSON, before it is answered."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    reply = ScriptedModel.reply

    async def kept(self: ScriptedModel, request: Request, on_delta: Callable[[Delta], None]) -> Reply:
        os.write(fd, Encoder(_PARAMETERS).encode(request) + b"\n")
        return await reply(self, request, on_delta)

    ScriptedModel.reply = kept  # type: ignore[method-assign]
