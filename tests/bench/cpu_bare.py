"""The CPU time of a loop on the SDK's ``messages.stream``: ``python cpu_bare.py URL [ITERATIONS...]``.

It prints the same figures as ``cpu_chain.py``. Without numbers it has one conversation of one reply. The loop has no
events, no journal and no checks. It appends replies as dicts, the cheapest form.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import anthropic
import trio
from workload import KEY, MAX_TOKENS, MODEL, QUERY, SYSTEM, WARM_UP, price, price_of

TOOLS: list[Any] = [{"name": price.name, "description": price.description, "input_schema": dict(price.input_schema)}]


async def cpu_seconds(url: str, iterations: int) -> float:
    """Return the CPU seconds of one conversation with a new client."""
    async with anthropic.AsyncAnthropic(api_key=KEY, base_url=url) as client:
        start = time.process_time()
        await converse(client, iterations)
        return time.process_time() - start


async def converse(client: anthropic.AsyncAnthropic, iterations: int) -> None:
    messages: list[Any] = [{"role": "user", "content": QUERY}]
    for _ in range(iterations):
        async with client.messages.stream(
            model=MODEL, max_tokens=MAX_TOKENS, system=SYSTEM, tools=TOOLS, messages=messages
        ) as stream:
            async for _event in stream:
                pass
            reply = await stream.get_final_message()
        content: list[Any] = []
        results: list[Any] = []
        for block in reply.content:
            if block.type == "text":
                content.append({"type": "text", "text": block.text})
            elif block.type == "tool_use":
                content.append({"type": "tool_use", "id": block.id, "name": block.name, "input": block.input})
                result = price_of(str(block.input["part"]))
                results.append({"type": "tool_result", "tool_use_id": block.id, "content": result})
        messages.append({"role": "assistant", "content": content})
        if results:
            messages.append({"role": "user", "content": results})
    if reply.stop_reason != "end_turn":
        raise RuntimeError(f"the conversation must end here, but its stop reason is {reply.stop_reason}")


async def main(url: str, runs: list[int]) -> None:
    await cpu_seconds(url, WARM_UP if runs else 1)
    sys.stdout.write(json.dumps([await cpu_seconds(url, iterations) / iterations for iterations in runs]) + "\n")


if __name__ == "__main__":
    trio.run(main, sys.argv[1], [int(n) for n in sys.argv[2:]])
