"""The default ``max_tokens`` of a model: what is sent, and how it is lowered to what the service allows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from double import SHORT, Policy, Status, Step, text
from support.wire import open_model

from chain.errors import ModelError
from chain.messages import Overrides, user_text
from chain.model import Request
from chain.providers.anthropic.client import SAFE_MAX_TOKENS
from chain.providers.anthropic.service_settings import MAX_TOKENS

VLLM = (
    "This model's maximum context length is 32768 tokens. However, you requested 33000 tokens "
    "(1000 in the messages, 32000 in the completion). Please reduce the length of the messages or completion."
)
HELLO = Request("", (user_text("hi"),))
DEFAULT: dict[str, Any] = {"max_tokens": MAX_TOKENS, "context_window": 0, "adapts_max_tokens": True}


@pytest.mark.parametrize(
    ("options", "window", "refusals", "sent"),
    [
        ({}, 200_000, [], [32_000]),
        ({"context_window": 200_000}, 200_000, [], [32_000]),
        ({"context_window": 20_000}, 200_000, [], [5_000]),
        ({}, 0, ["max_tokens: 32000 > 8192"], [32_000, SAFE_MAX_TOKENS]),
        ({}, 0, [VLLM], [32_000, 32_768 // 4]),
        ({}, 0, ["max_tokens: no", "max_tokens: no"], [32_000, SAFE_MAX_TOKENS]),
        ({"max_tokens": 5_000, "adapts_max_tokens": False}, 0, ["max_tokens: 5000 > 4096"], [5_000]),
    ],
    ids=["no window", "window", "small window", "no limit known", "vLLM", "refused again", "configured"],
)
async def test_the_longest_reply(options: dict[str, Any], window: int, refusals: list[str], sent: list[int]) -> None:
    script: list[Step] = [*(Status(400, message=said) for said in refusals), text("x")]
    async with open_model(script, policy=Policy(window=window), **{**DEFAULT, **options}) as (double, model):
        if len(sent) > len(refusals):
            assert (await model.reply(HELLO, lambda delta: None)).message.text == "x"
        else:
            with pytest.raises(ModelError, match="max_tokens"):
                await model.reply(HELLO, lambda delta: None)
        assert [seen.body["max_tokens"] for seen in double.requests] == sent


async def test_the_limit_that_the_service_reports() -> None:
    async with open_model([text("x"), text("y")], model=SHORT, **DEFAULT) as (double, model):
        double.expect_fault("max_tokens: 32000 > 4096")
        for _ in range(2):
            await model.reply(HELLO, lambda delta: None)
        assert [seen.body["max_tokens"] for seen in double.requests] == [32_000, 4_096, 4_096]
        assert model.window is not None
        assert model.window.longest_reply == 4_096


async def test_a_parameter_of_one_call_is_not_lowered() -> None:
    async with open_model(model=SHORT, **DEFAULT) as (double, model):
        double.expect_fault("max_tokens: 5000 > 4096")
        with pytest.raises(ModelError, match="max_tokens: 5000 > 4096"):
            await model.reply(replace(HELLO, overrides=Overrides(max_tokens=5_000)), lambda delta: None)
