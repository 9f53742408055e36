"""Send a file as a request with ``httpx2`` alone, and print the reply: ``python bare_request.py URL FILE``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import httpx2
import trio

HEADERS = {"authorization": "Bearer test-key", "anthropic-version": "2026-10-21", "content-type": "application/json"}


async def main(url: str, body: bytes) -> None:
    async with (
        httpx2.AsyncClient(trust_env=False) as client,
        client.stream("POST", f"{url}/v1/messages", headers=HEADERS, content=body) as response,
    ):
        async for line in response.aiter_lines():
            if line.startswith("data:") and (delta := json.loads(line[5:]).get("delta")):
                sys.stdout.write(delta.get("text", ""))


if __name__ == "__main__":
    trio.run(main, sys.argv[1], Path(sys.argv[2]).read_bytes())
