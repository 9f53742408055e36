"""The default ``max_tokens`` of a model: what is sent, and how it is lowered to what a service allows."""

from __future__ import annotations

import pytest
from double import NEWER, SHORT, Policy, Status, serve, text
from support.wire import KEY, model_at

from chain.errors import ModelError
from chain.messages import Overrides, user_text
from chain.model import Reply, Request
from chain.providers.anthropic.client import SAFE_MAX_TOKENS, AnthropicModel
from chain.providers.anthropic.service_settings import MAX_TOKENS

HELLO = Request("", (user_text("hello"),))
VLLM = (
    "This model's maximum context length is 32768 tokens. However, you requested 33000 tokens "
    "(1000 in the messages, 32000 in the completion). Please reduce the length of the messages or completion."
)


def default_at(url: str, model: str = NEWER, window: int = 0, key: str | None = KEY) -> AnthropicModel:
    return model_at(url, model=model, key=key, max_tokens=MAX_TOKENS, context_window=window, adapts_max_tokens=True)


async def ask(model: AnthropicModel, request: Request = HELLO) -> Reply:
    return await model.reply(request, lambda delta: None)


@pytest.mark.parametrize(
    ("name", "window", "sent"), [(NEWER, 0, 32_000), (NEWER, 200_000, 32_000), (NEWER, 20_000, 5_000)]
)
async def test_the_default_is_sent_unless_the_window_is_small(name: str, window: int, sent: int) -> None:
    async with serve([text("x")]) as double:
        model = default_at(double.url, name, window)
        await ask(model)
        assert [seen.body["max_tokens"] for seen in double.requests] == [sent]
        await model.aclose()


async def test_a_model_with_shorter_replies_is_asked_for_no_more_than_it_allows() -> None:
    async with serve([text("x"), text("y")], continuity=False) as double:
        double.expect_fault("max_tokens: 32000 > 4096")
        model = default_at(double.url, SHORT)
        assert (await ask(model)).message.text == "x"
        assert (await ask(model)).message.text == "y"
        assert [seen.body["max_tokens"] for seen in double.requests] == [32_000, 4_096, 4_096]
        assert model.window is not None
        assert model.window.longest_reply == 4_096
        await model.aclose()


@pytest.mark.parametrize("said", ["max_tokens: 32000 > 8192", "max_tokens is too large: 32000"])
async def test_a_service_that_reports_nothing_is_asked_for_what_nearly_all_allow(said: str) -> None:
    async with serve([Status(400, message=said), text("x")], policy=Policy(window=0), continuity=False) as double:
        model = default_at(double.url)
        assert (await ask(model)).message.text == "x"
        assert [seen.body["max_tokens"] for seen in double.requests] == [32_000, SAFE_MAX_TOKENS]
        await model.aclose()


async def test_a_server_that_counts_the_reply_as_part_of_the_window() -> None:
    async with serve([Status(400, message=VLLM), text("x")], policy=Policy(window=0), continuity=False) as double:
        model = default_at(double.url)
        assert (await ask(model)).message.text == "x"
        assert double.requests[-1].body["max_tokens"] == 8_192
        await model.aclose()


async def test_what_is_refused_for_good_is_an_error_after_one_more_try() -> None:
    steps = [Status(400, message="max_tokens: no")] * 3
    async with serve(steps, policy=Policy(window=0), continuity=False) as double:
        model = default_at(double.url)
        with pytest.raises(ModelError, match="max_tokens: no"):
            await ask(model)
        assert len(double.requests) == 2
        await model.aclose()


async def test_what_the_user_has_written_is_not_lowered() -> None:
    async with serve([], continuity=False) as double:
        double.expect_fault("max_tokens: 5000 > 4096", times=2)
        model = model_at(double.url, model=SHORT, max_tokens=5_000)
        with pytest.raises(ModelError, match="max_tokens: 5000 > 4096"):
            await ask(model)
        by_default = default_at(double.url, SHORT, 200_000)
        with pytest.raises(ModelError, match="max_tokens: 5000 > 4096"):
            await ask(by_default, Request("", HELLO.messages, overrides=Overrides(max_tokens=5_000)))
        await model.aclose()
        await by_default.aclose()
