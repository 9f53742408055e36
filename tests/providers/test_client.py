"""The adapter over real sockets: every fault that the service can give, through a whole chain, and what it must not do.

After each fault the next run on the same session works; the double raises for every request that the API would refuse.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import socket
import traceback
import warnings
from base64 import b64decode, b64encode
from contextlib import suppress
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
import trio
from double import (
    NEWER,
    OLDER,
    Cut,
    ErrorEvent,
    Garbage,
    Policy,
    Raw,
    Reset,
    Say,
    Stall,
    Status,
    Step,
    calls,
    html,
    serve,
    text,
    thinking,
)
from support import OneConversation
from support import settings as chain_settings
from support.certificates import self_signed
from support.wire import KEY, check, model_at, wired
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.config.load import load_settings
from chain.errors import ModelError, ParameterRefused
from chain.messages import TOO_LONG, Image, Message, Overrides, Usage, user_text
from chain.model import Reply, Request, Window
from chain.providers.anthropic import encoding
from chain.providers.anthropic.client import AnthropicModel
from chain.providers.anthropic.encoding import Parameters
from chain.providers.anthropic.failures import BadStatus, Failures, TooLong, retry_after
from chain.providers.anthropic.service import SERVICE_CONNECT_S, Price, Service
from chain.session import event_json

ATTEMPTS = 4


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.lower().endswith("_proxy") or name.startswith("ANTHROPIC_"):
            monkeypatch.delenv(name)


@pytest.fixture
def clock(mock_clock: MockClock) -> MockClock:
    return mock_clock


HELLO = Request("", (user_text("hello"),))


async def ask(model: AnthropicModel) -> Reply:
    return await model.reply(HELLO, lambda delta: None)


async def error_of(model: AnthropicModel) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await ask(model)
    return caught.value


# ------------------------------------------------------------------------------------------------- what goes wrong

HOST = "127.0.0.1:PORT"
NO_CONNECTION = f"no connection to {HOST}"

FAULTS: dict[str, tuple[Step, str, str | None]] = {
    # The step, what the error says, and its short cause: empty for a reply of no use, None where asking again is none.
    "429": (
        Status(429, message="Too many tokens"),
        "the rate of requests: Too many tokens; .*higher limit",
        "rate limited",
    ),
    "500": (
        Status(500, message="Internal error"),
        "failed with 500: Internal error; try again later",
        "failed with 500",
    ),
    "503 without words": (Status(503, body=b""), "failed with 503: nothing more; try again later", "failed with 503"),
    "529": (Status(529, message="Overloaded"), "is overloaded: Overloaded; try again later", "overloaded"),
    "408": (Status(408), "failed with 408", "failed with 408"),
    "a page of HTML": (html(502), "failed with 502: an HTML page, so a proxy or another server", "failed with 502"),
    "an error event": (ErrorEvent(4), "ended the reply with an error: Overloaded", "overloaded"),
    "an error event at once": (ErrorEvent(0, kind="api_error", message="Oh"), "with an error: Oh", "service failed"),
    "a limit in mid-stream": (ErrorEvent(4, kind="rate_limit_error"), "ended the reply with an error", "rate limited"),
    "reset before the reply": (Reset(None), r"cannot be reached \(.+\); check the network and base_url", NO_CONNECTION),
    "reset in mid-stream": (Reset(4), r"broke off: the connection to http.* was lost \(.+\)", ""),
    "closed before the reply": (Cut(None), r"cannot be reached \(.*disconnected.*\); check the network", NO_CONNECTION),
    "cut between events": (Cut(4), "broke off: the connection to http.* was lost", ""),
    "cut in mid-event": (Cut(4, extra=30), "broke off: the connection to http.* was lost", ""),
    "cut by a proxy": (Cut(4, clean=True), "broke off: it ended too early", ""),
    "stalled before the reply": (Stall(None), r"nothing for 120 s \(idle_timeout_s\)", f"no answer from {HOST}"),
    "stalled in mid-stream": (Stall(4), r"sent nothing for 120 s \(idle_timeout_s\)", ""),
    "malformed JSON": (Garbage(4), "broke off: one of its events is not JSON", ""),
    "no HTTP": (Raw(b"SSH-2.0-OpenSSH_9.9\r\n"), r"cannot be reached \(.+\); check the network", NO_CONNECTION),
    "400": (
        Status(400, message="max_tokens: 9 > 8"),
        "refused the request: max_tokens: 9 > 8; check the model's",
        None,
    ),
    "401": (Status(401, message="invalid x-api-key"), "rejected the API key: invalid x-api-key; check api_key", None),
    "402": (Status(402, message="No credit"), "answered 402: No credit", None),
    "403": (Status(403, message="No access"), f"may not use {NEWER} at http.*: No access; use another key", None),
    "404": (Status(404, message="model: x"), f"does not know {NEWER}: model: x; check model and base_url", None),
    "413": (Status(413, message="Too big"), "too large for http.*: Too big; /new starts a new", None),
    "418": (Status(418, body={"no": "error"}), "answered 418: .*; check base_url", None),
    "301": (Status(301, b"", {"location": "http://127.0.0.1:9/elsewhere"}), "correct base_url", None),
    "307": (Status(307, b"", {"location": "http://127.0.0.1:9/elsewhere"}), "correct base_url", None),
    "an error event that stays": (
        ErrorEvent(kind="invalid_request_error", message="No"),
        "the reply with an error: No",
        None,
    ),
    "HTML with 200": (html(200), "did not answer with a stream of events; check base_url", None),
    "HTML with 403": (html(403), "an HTML page, so a proxy or another server answered", None),
    "JSON instead of a stream": (Status(200, body={"type": "message"}), "did not answer with a stream", None),
}


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize("name", FAULTS)
async def test_a_fault_says_what_to_do_and_whether_to_ask_again(name: str, clock: MockClock) -> None:
    step, words, cause = FAULTS[name]
    async with serve([text("One."), step, text("Two.")], continuity=False) as double:
        model = model_at(double.url)
        await ask(model)
        client = await model.connect()
        clock.autojump_threshold = 0
        error = await error_of(model)
        assert re.search(words, str(error)), str(error)
        assert error.retryable is (cause is not None)
        assert error.cause == (cause or "").replace("PORT", double.url.rpartition(":")[2])
        assert (await ask(model)).message.text == "Two."
        assert await model.connect() is client
        assert len(double.requests) == 3, "a redirect is not followed"
        await wait_all_tasks_blocked()
        assert double.open_connections == 1
        await model.aclose()


async def test_a_fault_that_passes_is_asked_again_with_the_same_bytes(clock: MockClock) -> None:
    async with wired([Cut(5, reply=text("Half of a", " reply")), text("Two.")]) as wire:
        wire.let_time_pass(clock)
        before = len(wire.session.events)
        result = await wire.session.run("Go")
        shown = [type(e) for e in wire.session.events[before:] if isinstance(e, events.TextDelta | events.Retry)]
        assert shown == [events.TextDelta, events.Retry, events.TextDelta]
        assert (result.status, result.replies) == ("done", ("Two.",))
        assert wire.bodies()[1] == wire.bodies()[2]
        assert "Half" not in wire.session.file.data.decode()


async def test_a_connection_that_is_refused_and_a_service_that_comes_back() -> None:
    async with serve(text("x"), continuity=False) as double:
        model = model_at(double.url)
        await ask(model)
        async with double.refusing():
            error = str(await error_of(model))
        assert re.fullmatch(r"http://127.0.0.1:\d+ cannot be reached \(.+\); check the network and base_url", error)
        assert (await ask(model)).message.text == "x"
        await model.aclose()


async def test_a_connection_that_is_never_made(clock: MockClock) -> None:
    """The listener's queue is full, so the kernel does not answer."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        model = model_at(f"http://127.0.0.1:{address[1]}")
        await model.connect()
        clock.autojump_threshold = 0.05
        begun = trio.current_time()
        error = await error_of(model)
        assert f"cannot be reached (no answer for {SERVICE_CONNECT_S:g} s)" in str(error)
        assert error.retryable
        assert trio.current_time() - begun == pytest.approx(SERVICE_CONNECT_S, abs=0.5)
        await model.aclose()
        for filler in fillers:
            filler.close()


async def test_a_reply_that_never_ends(clock: MockClock) -> None:
    """Pings keep the connection alive; the whole reply has a limit of its own."""
    endless = Say(({"type": "text", "text": "x" * 100},), text_chunk=1, delay_between=100)
    async with serve([text("x"), endless], continuity=False) as double:
        model = model_at(double.url)
        await ask(model)
        clock.autojump_threshold = 0
        begun = trio.current_time()
        error = await error_of(model)
        assert (str(error), error.retryable) == ("the reply took more than 600 s (timeout_s of the model)", True)
        assert trio.current_time() - begun == 600
        await model.aclose()


async def test_a_prompt_that_is_too_long_is_no_error() -> None:
    said = "prompt is too long: 210000 tokens > 200000 maximum"
    late = ErrorEvent(0, kind="invalid_request_error", message=said)
    async with serve([Status(400, message=said), late], continuity=False) as double:
        model = model_at(double.url, context_window=0)
        for _ in range(2):
            reply = await ask(model)
            assert (reply.stop_reason, reply.asked_tokens) == (TOO_LONG, 210_000)
        await model.aclose()


async def test_a_long_request_that_is_too_large_is_a_question_of_length() -> None:
    async with serve([Status(413, message="Too big")], continuity=False) as double:
        model = model_at(double.url)
        reply = await model.reply(Request("", (user_text("long " * 20_000),)), lambda delta: None)
        assert reply.stop_reason == TOO_LONG
        assert reply.asked_tokens > 25_000
        await model.aclose()


async def test_a_reply_says_which_model_has_signed_its_thinking() -> None:
    async with serve([thinking("Hm.", text("x")), text("y")], continuity=False) as double:
        model = model_at(double.url)
        assert [(await ask(model)).message.model for _ in range(2)] == [NEWER, ""]
        await model.aclose()


@pytest.mark.parametrize(
    ("said", "tokens", "window"),
    [
        ("prompt is too long: 210000 tokens > 200000 maximum", 210_000, 200_000),
        ("input length and `max_tokens` exceed context limit: 188240 + 21333 > 200000, decrease", 188_240, 200_000),
        ("Input is too long for requested model.", 0, 0),
        ("the request (6152 tokens) exceeds the available context size (4096 tokens), try increasing it", 6_152, 4_096),
        (
            "This model's maximum context length is 4096 tokens. However, you requested 5000 tokens (4000 in the "
            "messages, 1000 in the completion).",
            5_000,
            4_096,
        ),
        (
            "This model's maximum context length is 32768 tokens and your request has 40000 input tokens.",
            40_000,
            32_768,
        ),
        ("maximum context length is 131072 tokens. However, you requested about 140000 tokens", 140_000, 131_072),
        ("The prompt (total length 9000) is longer than the maximum model length of 8192.", 9_000, 8_192),
        ("Your input exceeds the context window of this model.", 0, 0),
        ("the prompt exceeds the model's context window", 0, 0),
        ("The number of tokens is greater than the context length.", 0, 0),
        ("model loaded with context length of only 4096 tokens", 0, 0),
        ("context_length_exceeded", 0, 0),
        ("Context length exceeded", 0, 0),
        ("Prompt exceeds max length", 0, 0),
        ("Invalid request: Your request exceeded model token limit: 131072", 0, 0),
    ],
)
def test_what_services_say_of_a_conversation_that_is_too_long(said: str, tokens: int, window: int) -> None:
    refused = Failures(Parameters("m", 1_000), Service()).of_status(BadStatus(400, error_body(said), None))
    assert isinstance(refused, TooLong)
    assert (refused.tokens, refused.window) == (tokens, window)


@pytest.mark.parametrize(
    "said",
    [
        "max_tokens: 99999 > 8192, the maximum",
        "tools.0: Input should be an object",
        "max_tokens (64000) exceeds the model's output token limit of 8192",
        "Your monthly token limit has been reached. Upgrade your plan",
        "The 1M context window beta is not available for your organization",
        "context_management: context window strategy clear_tool_uses is not supported",
        "tools.3.custom.description: input is too long (max 1024 characters)",
        "'max_tokens' is too large: 5000. This model's maximum context length is 4096 tokens and your request has 1000 "
        "input tokens",
    ],
)
def test_what_is_wrong_with_a_request_besides_its_length_is_no_question_of_length(said: str) -> None:
    refused = Failures(Parameters("m", 1_000), Service()).of_status(BadStatus(400, error_body(said), None))
    assert not isinstance(refused, TooLong)


def error_body(message: str) -> str:
    return json.dumps({"type": "error", "error": {"type": "invalid_request_error", "message": message}})


async def test_the_service_is_asked_for_a_window_that_nobody_told() -> None:
    async with serve([Status(400, message="no"), *[text("x")] * 3], continuity=False) as double:
        model = model_at(double.url, context_window=0)
        await error_of(model)
        for _ in range(3):
            await ask(model)
        assert model.window == Window(200_000, 1_000)
        await model.aclose()


async def test_the_request_for_a_summary_is_read_from_the_cache(clock: MockClock) -> None:
    async with wired([text("It is long."), text("A summary."), text("Two.")]) as wire:
        await wire.session.run("long " * 20_000)
        wire.session.chain.runs.compact("the numbers")
        await wire.session.chain.wait_idle()
        account = wire.double.accounts[-1]
        assert account.cache_read >= 0.99 * (account.input + account.cache_read + account.cache_write)
        asked, before = wire.bodies()[-1], wire.bodies()[-2]
        assert (asked["tools"], asked.get("tool_choice")) == (before["tools"], before.get("tool_choice"))
        wire.double.expect_withdrawal()
        assert (await wire.session.run("Once more")).result == "Two."


@pytest.mark.parametrize(
    ("header", "delay"),
    [
        ("2", 2),
        ("0.5", 0.5),
        ("0", 0),
        ("-3", 0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0),
        ("later", None),
        ("inf", None),
        ("Mon, 01 Jan 2024 00:00:00 +99999999999999", None),
    ],
)
def test_what_retry_after_may_say(header: str, delay: float | None) -> None:
    assert retry_after({"retry-after": header}) == delay


@pytest.mark.parametrize("status", [429, 503, 529])
async def test_how_long_to_wait_is_said_with_the_error(status: int) -> None:
    async with serve([Status(status, headers={"retry-after": "2"})]) as double:
        model = model_at(double.url)
        assert (await error_of(model)).retry_after == 2
        await model.aclose()


CONFIG = """\
models:
  default: test
  definitions:
    test: {{provider: anthropic, model: {model}, base_url: "{url}", api_key: {key}, {more}}}
chains:
  default: {{model: test, tools: [todo, files], system_prompt: null, interruption_prompt: null}}
"""


# --------------------------------------------------------------------------------------- the settings of one call


@pytest.mark.parametrize(
    ("model", "overrides", "fault"),
    [
        (NEWER, Overrides(temperature=0.3), "`temperature` is deprecated for this model"),
        ("claude-sonnet-4-5", Overrides(effort="low"), "does not support the effort parameter"),
        (NEWER, Overrides(max_tokens=900_000), "max_tokens: 900000 > 128000"),
    ],
)
async def test_a_setting_of_one_call_that_the_service_refuses_is_named(
    model: str, overrides: Overrides, fault: str
) -> None:
    async with serve([text("x")]) as double:
        double.expect_fault(fault)
        asked = model_at(double.url, model=model)
        with pytest.raises(ParameterRefused, match=fault) as refused:
            await asked.reply(replace(HELLO, overrides=overrides), lambda delta: None)
        assert refused.value.parameters == tuple(overrides.given)
        assert (await ask(asked)).message.text == "x"
        await asked.aclose()


async def test_an_image_that_the_service_refuses_is_named() -> None:
    image = Image("image/png", "", "bad.png", b64encode(b"\x89PNG\r\n\x1a\n and nothing more").decode())
    async with serve() as double:
        double.expect_fault("Could not process image")
        model = model_at(double.url)
        with pytest.raises(ModelError, match="Could not process image") as caught:
            await model.reply(Request("", (Message("user", (image,)),)), lambda delta: None)
        assert caught.value.refused == ("content", image.digest)
        await model.aclose()


async def test_an_image_is_sent_whole_and_cached_with_the_rest(clock: MockClock) -> None:
    async with wired([text("One."), text("Two.")]) as wire:
        picture = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + bytes(17)
        (wire.session.chain.workspace / "dot.png").write_bytes(picture)
        await wire.session.run("What is on @dot.png?")
        await wire.session.run("Sure?")
        (block,) = [b for m in wire.bodies()[-1]["messages"] for b in m["content"] if b["type"] == "image"]
        assert b64decode(block["source"]["data"]) == picture


@pytest.mark.parametrize("temperature", [0, 0.3])
async def test_a_temperature_that_the_model_takes(temperature: float) -> None:
    async with serve(text("x"), continuity=False) as double:
        model = model_at(double.url, model=OLDER)
        for overrides in (Overrides(), Overrides(temperature=temperature)):
            await model.reply(replace(HELLO, overrides=overrides), lambda delta: None)
        await model.aclose()
    assert [r.body.get("temperature") for r in double.requests] == [None, temperature]
    assert [r.headers["anthropic-version"] for r in double.requests] == ["2026-10-21", "2023-06-01"]


async def test_a_setting_of_the_models_own_that_is_refused_is_an_error(clock: MockClock) -> None:
    async with serve([]) as double:
        double.expect_fault("deprecated for this model")
        model = model_at(double.url, temperature=0.5)
        error = await error_of(model)
        await model.aclose()
    assert re.search(
        "refused the request: `temperature` is deprecated for this model.; check the model's settings", str(error)
    )
    assert not error.retryable


# -------------------------------------------------------------------------------------------------- usage and budgets


UNCACHED = {"input_tokens": 0, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
PRICE = Price(input=2.0, output=10.0, cache_read=0.2, cache_write=2.5)


async def test_usage_is_what_the_service_counted_and_costs_what_the_prices_say() -> None:
    used = {
        "input_tokens": 1000,
        "output_tokens": 200,
        "cache_read_input_tokens": 30_000,
        "cache_creation_input_tokens": 4000,
    }
    cost = pytest.approx((1000 * 2.0 + 200 * 10.0 + 30_000 * 0.2 + 4000 * 2.5) / 1e6)
    async with serve(text("x", usage=used), continuity=False) as double:
        for price, expected in ((PRICE, cost), (None, None)):
            model = model_at(double.url, price=price)
            assert (await ask(model)).usage == Usage(1000, 200, 30_000, 4000, expected)
            await model.aclose()


READ = {**UNCACHED, "input_tokens": 3000, "cache_read_input_tokens": 500}
"""What the service has counted when a reply begins; how much of it will be said it does not know yet."""


@pytest.mark.parametrize("how", ["interrupt", "stop", "now", "time"])
async def test_a_reply_that_is_cut_has_used_what_the_service_said(how: str, clock: MockClock) -> None:
    half = Stall(5, reply=text("Half of a", " reply", usage=READ))
    use = chain_settings(max_attempts=4, timeout_s=60)
    async with wired([half, text("Two.", usage=UNCACHED)], price=PRICE, use=use) as wire:
        before = len(wire.session.of(events.UsageReport))
        shown = wire.next(events.TextDelta)
        wire.session.chain.submit("Go")
        await shown.wait()
        await wait_all_tasks_blocked()
        if how == "interrupt":
            wire.session.chain.interrupt()
        elif how != "time":
            wire.session.chain.submit("stop" if how == "stop" else "!!go on")
        wire.let_time_pass(clock)
        await wire.session.chain.wait_idle()
        cut, *more = wire.session.of(events.UsageReport)[before:]
        assert (cut.input_tokens, cut.cache_read_tokens, len(more)) == (3000, 500, how == "now")
        assert cut.cost_usd == pytest.approx((3000 * 2.0 + cut.output_tokens * 10.0 + 500 * 0.2) / 1e6)
        used = wire.session.result.usage
        assert (used.input_tokens, used.cache_read_tokens) == (3000, 500)
        assert (used.cost_usd or 0.0) >= cut.cost_usd
        recorded = [
            r["usage"]["input_tokens"] for r in wire.session.records if r["type"] == "interrupted" and "usage" in r
        ]
        assert recorded == ([] if how == "interrupt" else [3000])


@pytest.mark.parametrize("fault", [Cut(5, reply=text("Half of a", " reply", usage=READ)), ErrorEvent(after=5)])
async def test_a_reply_that_breaks_off_has_used_what_the_service_said(fault: Step, clock: MockClock) -> None:
    async with wired([fault, text("Two.", usage=UNCACHED)]) as wire:
        wire.let_time_pass(clock)
        before = len(wire.session.of(events.UsageReport))
        used = (await wire.session.run("Go")).usage
        broken, whole = wire.session.of(events.UsageReport)[before:]
        assert broken.input_tokens + broken.cache_write_tokens > 0
        assert used.total_tokens == broken.input_tokens + broken.output_tokens + broken.cache_read_tokens + (
            broken.cache_write_tokens + whole.output_tokens
        )


async def test_a_budget_of_money_ends_the_run(tmp_path: Path, clock: MockClock) -> None:
    path = tmp_path / "config.yaml"
    text_of_config = CONFIG.format(model=NEWER, url="http://127.0.0.1:9", key=KEY, more="")
    path.write_text(text_of_config.replace("tools: [todo, files]", "tools: [todo], budget: {max_cost_usd: 0.5}"))
    use = load_settings(config=path, environ={}, cwd=tmp_path, flags={})
    used = calls(("look", {}), usage={**UNCACHED, "output_tokens": 30_000})
    async with wired([used, used, text("x")], use=use, price=PRICE) as wire:
        result = await wire.session.run("Go")
        assert (result.status, result.iterations) == ("limit_reached", 2)
        assert "the run has cost $0.60, and its budget is $0.50" in result.result
        assert (await wire.session.run("Once more")).result == "x"


# ------------------------------------------------------------------------------------------------ keys and addresses

ENVIRONMENT = {
    "ANTHROPIC_API_KEY": "env-key-value",
    "ANTHROPIC_AUTH_TOKEN": "env-token-value",
    "ANTHROPIC_BASE_URL": "http://127.0.0.1:9/elsewhere",
    "ANTHROPIC_CUSTOM_HEADERS": "X-Api-Key: env-header-value\nAuthorization: Bearer env-header-value\nX-More: env-more",
}


@pytest.fixture
def full_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


@pytest.mark.parametrize("key", [None, ""])
async def test_a_server_without_a_key_gets_none(key: str | None, full_environment: None) -> None:
    async with serve([text("x")], policy=Policy(key=None)) as double:
        model = model_at(double.url, key=key)
        assert (await ask(model)).message.text == "x"
        assert (await check(model)).is_good
        await model.aclose()
    for seen in (*double.requests, *double.lookups):
        assert "authorization" not in seen.headers
        assert "x-api-key" not in seen.headers
        assert not any("env-" in value for value in seen.headers.values())


async def test_a_key_is_sent_and_nothing_of_the_environment(full_environment: None) -> None:
    async with serve([text("x")]) as double:
        model = model_at(double.url, service={"extra_headers": {"X-Gateway": "gate"}})
        assert (await ask(model)).message.text == "x"
        await model.aclose()
    headers = double.requests[0].headers
    assert (headers["authorization"], headers["x-gateway"]) == (f"Bearer {KEY}", "gate")
    assert not any("env-" in value for value in headers.values())


@pytest.mark.parametrize("name", ["Authorization", "authorization"])
async def test_an_authorization_of_the_users_own(name: str) -> None:
    async with serve([text("x")], policy=Policy(key="own")) as double:
        model = model_at(double.url, key=None, service={"extra_headers": {name: "Bearer own"}})
        assert (await ask(model)).message.text == "x"
        await model.aclose()
    assert double.requests[0].headers["authorization"] == "Bearer own"


async def test_the_address_may_have_a_path_and_a_slash() -> None:
    async with serve([]) as double:
        double.expect_fault("Not found", times=2)
        for path in ("/gateway", "/gateway/"):
            model = model_at(double.url + path)
            assert f"{double.url}{path} does not know {NEWER}: Not found" in str(await error_of(model))
            await model.aclose()
    assert [s.path for s in double.lookups] == ["/gateway/v1/messages"] * 2


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("SSL_CERT_FILE", "/nowhere/ca.pem", r"\(FileNotFoundError: .*No such file or directory\)"),
        ("HTTPS_PROXY", "ftp://127.0.0.1:9", r"\(ValueError: Unknown scheme for proxy URL .*\)"),
    ],
)
async def test_an_environment_in_which_no_client_can_be_made(
    variable: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    model = model_at("https://127.0.0.1:9")
    whole = (
        f"the client for https://127.0.0.1:9 cannot be created {words}; check the installation, base_url, and the cert"
    )
    assert re.match(whole, str(await error_of(model)))
    assert re.match(whole, (await check(model)).message)


async def test_a_model_that_nobody_closed_and_one_that_was_never_used() -> None:
    model = model_at("http://127.0.0.1:9")
    await model.aclose()
    await model.aclose()


async def test_one_client_is_built_however_many_ask_at_once() -> None:
    async with serve(text("x"), continuity=False) as double:
        model = model_at(double.url)
        clients: list[Any] = []

        async def connect() -> None:
            clients.append(await model.connect())

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(connect)
                nursery.start_soon(ask, model)
        assert len(set(map(id, clients))) == 1
        await model.aclose()


@pytest.mark.parametrize(
    ("fault", "key", "model", "words"),
    [
        (None, KEY, NEWER, f"accepts the key and has {NEWER}"),
        ("invalid x-api-key", "wrong-key", NEWER, "rejected the API key: invalid x-api-key; check api_key"),
        ("model: claude-0", KEY, "claude-0", "does not know claude-0: model: claude-0; check model and base_url"),
    ],
)
async def test_a_check_says_what_is_wrong(fault: str | None, key: str, model: str, words: str) -> None:
    async with serve([]) as double:
        if fault:
            double.expect_fault(fault)
        adapter = model_at(double.url, key=key, model=model)
        found = await check(adapter)
    assert words in found.message
    assert found.is_good is (fault is None)


async def test_a_check_where_nobody_is() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        adapter = model_at(f"http://127.0.0.1:{nobody.getsockname()[1]}")
        found = await check(adapter)
        assert (found.is_good, "cannot be reached" in found.message) == (False, True)


SERVERS = {
    "no list": (404, {"error": {"type": "not_found_error"}}, None, "does not list its models"),
    "a list in another form": (200, ["qwen"], None, "does not list its models"),
    "an empty list": (200, {"data": []}, None, "accepts any name"),
    "llama.cpp": (200, {"data": [{"id": "qwen.gguf", "owned_by": "llamacpp"}]}, None, "accepts any name"),
    "others": (200, {"data": [{"id": "qwen"}]}, False, "does not know mine"),
    "it and others": (200, {"data": [{"id": "qwen"}, {"id": "mine"}]}, True, "has mine"),
    "not well": (529, {}, None, "is overloaded"),
    "out of order": (500, {}, None, "failed with 500"),
}


@pytest.mark.parametrize("name", SERVERS)
async def test_what_a_server_says_of_its_models_decides_and_nothing_else(name: str) -> None:
    status, listed, is_good, words = SERVERS[name]

    class Server(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            is_list = self.path.startswith("/v1/models?")
            body = json.dumps(listed if is_list else {"error": {"type": "not_found_error", "message": "no"}}).encode()
            self.send_response(status if is_list or status >= 500 else 404)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Be quiet."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        adapter = model_at(f"http://127.0.0.1:{server.server_address[1]}", model="mine", key=None)
        found = await check(adapter)
        server.shutdown()
        thread.join()
    assert found.is_good is is_good
    assert words in found.message


async def test_a_bug_of_ours_is_no_fault_of_the_service(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serve([text("x"), text("x")]) as double:
        model = model_at(double.url)

        def shows(delta: object) -> None:
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            await model.reply(HELLO, shows)
        assert (await ask(model)).message.text == "x"
        await model.aclose()


async def test_of_two_conversations_on_one_model_only_what_is_new_is_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    encoded: list[Message] = []
    sent = encoding._sendable_blocks
    monkeypatch.setattr(
        encoding, "_sendable_blocks", lambda message, name: encoded.append(message) or sent(message, name)
    )
    async with serve(text("An answer."), continuity=False) as double:
        model = model_at(double.url)
        talks = {"A": OneConversation(model), "B": OneConversation(model)}
        histories: dict[str, list[Message]] = {name: [] for name in talks}
        for n in range(8):
            for name, talk in talks.items():
                history = histories[name]
                history.append(user_text(f"{name}, question {n}"))
                encoded.clear()
                reply = await talk.reply(Request(name, tuple(history)))
                assert encoded == history[-2:], "the reply before and the question"
                said = [block["text"] for message in double.requests[-1].messages for block in message["content"]]
                assert said == [message.text for message in history]
                history.append(reply.message)
        await model.aclose()


# ------------------------------------------------------------------------------------------------------- cancellation


def open_files() -> list[str]:
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            found.append(os.readlink(f"/proc/self/fd/{name}"))
        except FileNotFoundError:
            continue  # the listing's own
    return sorted(re.sub(r"\d+", "n", target) for target in found)


async def test_a_call_cancelled_at_every_point_of_its_way(clock: MockClock) -> None:
    """Before it connects, while it connects, while it sends, while it reads."""
    async with serve(text("one two three", text_chunk=2), continuity=False) as double:
        model = model_at(double.url)
        await ask(model)
        for steps in range(60):
            with trio.CancelScope() as scope:
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(ask, model)
                    for _ in range(steps):
                        await trio.lowlevel.checkpoint()
                    nursery.cancel_scope.cancel()
            assert not scope.cancelled_caught
        assert (await ask(model)).message.text == "one two three"
        await wait_all_tasks_blocked()
        assert double.open_connections <= 1
        gc.collect()
        await model.aclose()


async def test_faults_leave_nothing_behind(clock: MockClock) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        async with serve([text("x")], continuity=False) as double:
            model = model_at(double.url)
            await ask(model)
            clock.autojump_threshold = 0
            await wait_all_tasks_blocked()
            before = open_files()
            for fault, _, _ in FAULTS.values():
                double.add(fault)
                await error_of(model)
            double.add(text("The end."))
            assert (await ask(model)).message.text == "The end."
            await wait_all_tasks_blocked()
            assert double.open_connections == 1
            assert open_files() == before
            await model.aclose()
        gc.collect()


# ------------------------------------------------------------------------------------------------------------- secrets

SECRETS = {"key": "sk-ant-very-secret-key-1234567890", "header": "gateway-secret-0987654321"}


def told(message: str) -> list[Step]:
    """Every fault, from a service that repeats what it got."""
    said = f"{message}: {SECRETS['key']} and {SECRETS['header']} are wrong"
    page = f"{'x' * 480}{SECRETS['key']}{SECRETS['header']}"
    return [
        *(Status(code, message=said) for code in (400, 401, 403, 404, 413, 418)),
        Status(401, message=page),
        Status(401, body=page.encode()),
        html(403, page=f"<html>{said}</html>"),
        html(200, page=f"<html>{said}</html>"),
        ErrorEvent(kind="invalid_request_error", message=said),
        *[Status(429, message=said, headers={"retry-after": "1"})] * ATTEMPTS,
        *[Status(529, message=said)] * ATTEMPTS,
        *[ErrorEvent(message=said)] * ATTEMPTS,
        text("x", stop_reason=said),
        *[calls((said, {}))] * ATTEMPTS,
        *[Reset(4), Cut(4), Cut(4, clean=True), Garbage(4)],
        *[Stall(4)] * ATTEMPTS,
    ]


def told_in_heads(message: str) -> list[Step]:
    """The same where a status line and headers should be. The libraries' own debug logs show what they cannot parse."""
    said = f"{message}: {SECRETS['key']} and {SECRETS['header']} are wrong"
    return [Raw(f"HTTP/1.1 {head}\r\n\r\n".encode()) for head in (said, f"200 OK\r\n{said}") for _ in range(ATTEMPTS)]


async def test_nothing_secret_is_told(
    clock: MockClock, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("anthropic", "httpx2", "httpcore2", "httpx", "httpcore"):
        caplog.set_level(logging.DEBUG, logger=name)
    service = {"extra_headers": {"X-Gateway-Token": SECRETS["header"], "X-Short": "1"}}
    async with wired(told("Oh"), policy=Policy(key=SECRETS["key"]), key=SECRETS["key"], service=service) as wire:
        wire.let_time_pass(clock)
        while wire.double.unplayed:
            assert (await wire.session.run("Go")).status in ("error", "done")
        wire.double.add(text("The end."))
        assert (await wire.session.run("And now?")).status == "done"
        log = "\n".join(f"{r.getMessage()} {r.args!r} {r.exc_text} {r.__dict__!r}" for r in caplog.records)
        formatted = caplog.text
        wire.double.add(*told_in_heads("Ah"))
        while wire.double.unplayed:
            assert (await wire.session.run("Go")).status == "error"
        heard = {r.headers.get("x-gateway-token") for r in wire.double.requests}
        assert heard == {SECRETS["header"]}
        places = {
            "events": "\n".join(f"{e!r} {json.dumps(event_json.to_json(e))}" for e in wire.session.events),
            "journal": wire.session.file.data.decode(),
            "log": log,
            "formatted log": formatted,
            "model": f"{wire.model!r} {wire.model._service!r} {wire.model._parameters!r}",
            "requests": repr(wire.session.model.requests),
            "client": repr(await wire.model.connect()),
        }
    out, err = capfd.readouterr()
    for place, found in {**places, "stdout": out, "stderr": err}.items():
        for what, secret in SECRETS.items():
            assert secret not in found, f"the {what} is in the {place}"
            assert secret[:16] not in found, f"the beginning of the {what} is in the {place}"
    assert "Oh: … and … are wrong" in places["events"]
    assert len(caplog.records) > 100


async def test_a_key_in_an_error_about_the_length_is_not_told() -> None:
    key = SECRETS["key"]
    said = f"prompt is too long for key {key}: lower max_tokens"
    async with serve([ErrorEvent(kind="invalid_request_error", message=said)], policy=Policy(key=key)) as double:
        model = model_at(double.url, key=key)
        with pytest.raises(ParameterRefused, match=r"^prompt is too long for key …: lower max_tokens$"):
            await model.reply(replace(HELLO, overrides=Overrides(max_tokens=50)), lambda delta: None)
        await model.aclose()


async def test_nothing_secret_is_in_an_exception() -> None:
    service = {"extra_headers": {"X-Gateway-Token": SECRETS["header"]}}
    steps = [*told("Oh"), *told_in_heads("Ah")]
    async with serve(steps, policy=Policy(key=SECRETS["key"]), continuity=False) as double:
        model = model_at(double.url, key=SECRETS["key"], service={**service, "idle_timeout_s": 0.2})
        for _ in steps:
            error = await error_of(model)
            shown = f"{error!r} {error.args!r} {''.join(traceback.format_exception(error))}"
            assert not any(secret in shown for secret in SECRETS.values()), shown
        await model.aclose()


async def test_an_address_with_a_password_is_shown_without() -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        port = nobody.getsockname()[1]
        model = model_at(f"http://me:{SECRETS['key']}@127.0.0.1:{port}/x")
        error = str(await error_of(model))
        await model.aclose()
    assert error.startswith(f"http://127.0.0.1:{port}/x cannot be reached")
    assert SECRETS["key"] not in error


def test_settings_and_models_do_not_show_what_is_secret(tmp_path: Path) -> None:
    more = f"extra_headers: {{X-Gateway-Token: {SECRETS['header']}}}"
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG.format(model=NEWER, url="http://127.0.0.1:9", key=SECRETS["key"], more=more))
    settings = load_settings(config=path, environ={}, cwd=tmp_path, flags={})
    definition = settings.model("test")
    key, headers = definition.values["api_key"], definition.values["extra_headers"]
    assert key == SECRETS["key"]
    service = Service(key, extra_headers=headers)
    shown = f"{settings!r} {definition!r} {service!r} {AnthropicModel(Parameters('m', 1), service)!r}"
    assert not any(secret in shown for secret in SECRETS.values())


# ------------------------------------------------------------------------------------- what a second reading found


def test_an_address_is_shown_without_what_may_be_a_key() -> None:
    service = Service("sk-key", "http://u:pa@ssword1@127.0.0.1:1/v1?key=topsecret")
    failures = Failures(Parameters("m", 10, extra_body={"x": {"y": ["bodysecret"]}}), service)
    assert service.label == "http://127.0.0.1:1/v1"
    assert failures.redacted("topsecret pa@ssword1 bodysecret sk-key") == "… … … …"


async def test_a_service_whose_certificate_nobody_vouches_for_is_told_nothing(tmp_path: Path) -> None:
    _, tls = self_signed(tmp_path)
    heard = b""

    async def serve_one(stream: trio.SSLStream[trio.SocketStream]) -> None:
        nonlocal heard
        with suppress(trio.BrokenResourceError):
            heard += await stream.receive_some()

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_ssl_over_tcp_listeners(0, tls, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve_one, listeners)
        port = listeners[0].transport_listener.socket.getsockname()[1]
        with pytest.raises(ModelError, match="cannot be reached"):
            await OneConversation(model_at(f"https://127.0.0.1:{port}")).reply(HELLO)
        nursery.cancel_scope.cancel()
    assert heard == b""
