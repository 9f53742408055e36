"""The bare loop as a process, for one answer without tools: ``python whole_bare.py URL``."""

from __future__ import annotations

import sys

import anthropic
import trio
from workload import KEY, MAX_TOKENS, MODEL, QUERY, SYSTEM


async def main(url: str) -> None:
    async with (
        anthropic.AsyncAnthropic(api_key=KEY, base_url=url) as client,
        client.messages.stream(
            model=MODEL, max_tokens=MAX_TOKENS, system=SYSTEM, messages=[{"role": "user", "content": QUERY}]
        ) as stream,
    ):
        async for _event in stream:
            pass
        reply = await stream.get_final_message()
    sys.stdout.write(f"{next(block.text for block in reply.content if block.type == 'text')}\n")


if __name__ == "__main__":
    trio.run(main, sys.argv[1])
