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
from chain.providers.anthropic.client import SAFE_MAX_TOKENS, AnthropicModel
from chain.providers.anthropic.service_settings import MAX_TOKENS

VLLM = (
    "This model's maximum context length is 40000 tokens. However, you requested 41000 tokens "
    "(9000 in the messages, 32000 in the completion). Please reduce the length of the messages or completion."
)
HELLO = Request("", (user_text("hi"),))
DEFAULT: dict[str, Any] = {"max_tokens": MAX_TOKENS, "context_window": 0, "adapts_max_tokens": True}


@pytest.mark.parametrize(
    ("options", "window", "refusals", "sent"),
    [
        pytest.param({}, 200_000, [], [MAX_TOKENS], id="reported window"),
        pytest.param({"context_window": 200_000}, 200_000, [], [MAX_TOKENS], id="configured window"),
        pytest.param({"context_window": 20_000}, 200_000, [], [5_000], id="quarter of a small window"),
        pytest.param({}, 0, ["max_tokens: 32000 > 8192"], [MAX_TOKENS, SAFE_MAX_TOKENS], id="refused"),
        pytest.param({}, 0, [VLLM], [MAX_TOKENS, 10_000], id="quarter of the refused window of vLLM"),
    ],
)
async def test_the_default_is_lowered_until_accepted(
    options: dict[str, Any], window: int, refusals: list[str], sent: list[int]
) -> None:
    script: list[Step] = [*(Status(400, message=message) for message in refusals), text("x")]
    async with open_model(script, policy=Policy(window=window), **{**DEFAULT, **options}) as (double, model):
        assert (await model.reply(HELLO, lambda delta: None)).message.text == "x"
        assert [request.body["max_tokens"] for request in double.requests] == sent


async def error_of(model: AnthropicModel) -> str:
    with pytest.raises(ModelError) as caught:
        await model.reply(HELLO, lambda delta: None)
    return str(caught.value)


async def test_the_default_is_lowered_only_once() -> None:
    script = [Status(400, message="max_tokens: no")] * 2
    async with open_model(script, policy=Policy(window=0), **DEFAULT) as (double, model):
        assert "max_tokens: no" in await error_of(model)
        assert [request.body["max_tokens"] for request in double.requests] == [MAX_TOKENS, SAFE_MAX_TOKENS]


async def test_a_configured_number_is_not_lowered() -> None:
    script = [Status(400, message="max_tokens: 5000 > 4096")]
    async with open_model(script, policy=Policy(window=0), max_tokens=5_000, context_window=0) as (double, model):
        assert "max_tokens: 5000 > 4096" in await error_of(model)
        assert [request.body["max_tokens"] for request in double.requests] == [5_000]


async def test_the_limit_in_a_refusal_is_remembered() -> None:
    async with open_model([text("x"), text("y")], model=SHORT, **DEFAULT) as (double, model):
        double.expect_fault("max_tokens: 32000 > 4096")
        for _ in range(2):
            await model.reply(HELLO, lambda delta: None)
        assert [request.body["max_tokens"] for request in double.requests] == [MAX_TOKENS, 4_096, 4_096]
        assert model.window is not None
        assert model.window.longest_reply == 4_096


async def test_a_parameter_of_one_call_is_not_lowered() -> None:
    async with open_model(model=SHORT, **DEFAULT) as (double, model):
        double.expect_fault("max_tokens: 5000 > 4096")
        with pytest.raises(ModelError, match="max_tokens: 5000 > 4096"):
            await model.reply(replace(HELLO, overrides=Overrides(max_tokens=5_000)), lambda delta: None)
