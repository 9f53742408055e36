"""Calls of a service over real sockets: faults, the settings of a call, usage, keys, cancellation and secrets."""

from __future__ import annotations

import gc
import json
import logging
import os
import re
import socket
import traceback
import warnings
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
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
    text,
    thinking,
)
from support.sessions import make_settings
from support.sockets import create_certificate
from support.wire import KEY, check, model_at, open_model, open_wire
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.config.load import load_settings
from chain.errors import ModelError, ParameterRefused
from chain.messages import TOO_LONG, Image, Message, Overrides, Usage, user_text
from chain.model import Reply, Request, Window
from chain.providers.anthropic.client import MAX_WINDOW_REQUESTS, AnthropicModel
from chain.providers.anthropic.service import SERVICE_CONNECT_S, Parameters, Price, Service
from chain.session import event_json

HELLO = Request("", (user_text("hello"),))
FIRST_TEXT = 5
"""The events of a reply of several texts, sent in one piece each, until the first text is complete."""


async def ask(model: AnthropicModel, **overrides: Any) -> Reply:
    return await model.reply(replace(HELLO, overrides=Overrides(**overrides)), lambda delta: None)


async def error_of(model: AnthropicModel) -> ModelError:
    with pytest.raises(ModelError) as caught:
        await ask(model)
    return caught.value


@contextmanager
def unused_port() -> Iterator[int]:
    """Reserve a port that refuses connections."""
    with socket.socket() as reserved:
        reserved.bind(("127.0.0.1", 0))
        yield reserved.getsockname()[1]


def open_files() -> list[str]:
    """Return the targets of the open file descriptors, with "n" for each number."""
    targets = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the descriptor that listdir used
            targets.append(re.sub(r"\d+", "n", os.readlink(f"/proc/self/fd/{name}")))
    return sorted(targets)


# ------------------------------------------------------------------------------------------------------------- faults

UNREACHABLE = "no connection to 127.0.0.1:PORT"
ELSEWHERE = {"location": "http://127.0.0.1:9/elsewhere"}
# A fault (4: after a part of the text; None: before any byte), a pattern for the error, and the cause shown by a retry.
RETRYABLE_FAULTS: list[tuple[Step, str, str]] = [
    (Status(529, message="Overloaded"), "is overloaded: Overloaded; try again later", "overloaded"),
    (ErrorEvent(4), "ended the reply with an error: Overloaded", "overloaded"),
    (ErrorEvent(0, kind="api_error", message="Oh"), "with an error: Oh", "service failed"),
    (Reset(None), r"cannot be reached \(.+\); check the network and base_url", UNREACHABLE),
    (Reset(4), r"broke off: the connection to http.* was lost \(.+\)", ""),
    (Cut(None), r"cannot be reached \(.*disconnected.*\); check the network", UNREACHABLE),
    (Cut(4), "broke off: the connection to http.* was lost", ""),
    (Cut(4, extra=30), "broke off: the connection to http.* was lost", ""),
    (Cut(4, clean=True), "broke off: it ended too early", ""),
    (Stall(None), r"nothing for 120 s \(idle_timeout_s\)", "no answer from 127.0.0.1:PORT"),
    (Stall(4), r"sent nothing for 120 s \(idle_timeout_s\)", ""),
    (Garbage(4), "broke off: one of its events is not JSON", ""),
    (Raw(b"SSH-2.0-OpenSSH_9.9\r\n"), r"cannot be reached \(.+\); check the network", UNREACHABLE),
]
PERMANENT_FAULTS: list[tuple[Step, str]] = [
    (Status(401, message="invalid x-api-key"), "rejected the API key: invalid x-api-key; check api_key"),
    (Status(307, b"", ELSEWHERE), "correct base_url"),
    (ErrorEvent(kind="invalid_request_error", message="No"), "the reply with an error: No"),
    (html(200), "did not answer with a stream of events; check base_url"),
]


async def test_a_fault_is_explained_and_leaves_nothing_behind(mock_clock: MockClock) -> None:
    async with open_model([text("One.")]) as (double, model):
        await ask(model)
        client = await model.connect()
        mock_clock.autojump_threshold = 0
        await wait_all_tasks_blocked()
        before, expected_requests = open_files(), len(double.requests)
        _, _, port = double.url.rpartition(":")
        faults = [(*fault, True) for fault in RETRYABLE_FAULTS] + [(*fault, "", False) for fault in PERMANENT_FAULTS]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for step, message, cause, is_retryable in faults:
                double.add(step, text("Two."))
                error = await error_of(model)
                assert re.search(message, str(error)), str(error)
                assert error.retryable is is_retryable, message
                assert error.cause == cause.replace("PORT", port), message
                assert (await ask(model)).message.text == "Two."
                expected_requests += 2  # the failed one and the next one: a redirect is not followed
                assert len(double.requests) == expected_requests
                await wait_all_tasks_blocked()
                assert double.open_connections == 1, "that of the last reply"
            gc.collect()
        assert await model.connect() is client
        assert open_files() == before


async def test_a_retry_sends_the_same_bytes(mock_clock: MockClock) -> None:
    async with open_wire([Cut(FIRST_TEXT, reply=text("Half of a", " reply")), text("Two.")]) as wire:
        wire.let_time_pass(mock_clock)
        result = await wire.session.run("Go")
        assert (result.status, result.replies) == ("done", ("Two.",))
        shown = [event.type for event in wire.session.of(events.RunStarted, events.TextDelta, events.Retry)]
        assert shown == ["run_started", "text_delta", "run_started", "text_delta", "retry", "text_delta"]
        _first_run, failed, repeated = wire.bodies()
        assert failed == repeated
        assert "Half" not in wire.session.file.data.decode()


async def test_the_model_recovers_with_the_service() -> None:
    async with open_model(text("x")) as (double, model):
        await ask(model)
        async with double.refusing():
            assert "cannot be reached" in str(await error_of(model))
        assert (await ask(model)).message.text == "x"


async def test_connecting_has_a_timeout(mock_clock: MockClock) -> None:
    """The queue of the listener is full, so the kernel does not answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        model = model_at(f"http://127.0.0.1:{address[1]}")
        await model.connect()
        mock_clock.autojump_threshold = 0.05  # the kernel would answer in this time
        start = trio.current_time()
        error = await error_of(model)
        seconds = trio.current_time() - start
        assert f"cannot be reached (no answer for {SERVICE_CONNECT_S:g} s)" in str(error)
        assert error.retryable
        assert seconds == pytest.approx(SERVICE_CONNECT_S, abs=0.5)
        await model.aclose()
        for filler in fillers:
            filler.close()


async def test_a_reply_has_a_timeout(mock_clock: MockClock) -> None:
    less_than_idle_timeout_s = 100
    endless = Say(({"type": "text", "text": "x" * 100},), text_chunk=1, delay_between=less_than_idle_timeout_s)
    async with open_model([text("x"), endless]) as (_, model):
        await ask(model)
        mock_clock.autojump_threshold = 0
        start = trio.current_time()
        error = await error_of(model)
        seconds = trio.current_time() - start
        assert (str(error), error.retryable) == ("the reply took more than 600 s (timeout_s of the model)", True)
        assert seconds == 600


@pytest.mark.parametrize(
    ("step", "tokens"),
    [
        (Status(400, message="prompt is too long: 210000 tokens > 200000 maximum"), 210_000),
        (ErrorEvent(0, kind="invalid_request_error", message="prompt is too long: 7 tokens > 6 maximum"), 7),
        (Status(413, message="Too big"), 25_000),  # estimated: 100,000 characters of 4 per token
    ],
    ids=["status", "error event", "no number"],
)
async def test_a_too_long_request_is_no_error(step: Step, tokens: int) -> None:
    async with open_model([step]) as (_, model):
        request = replace(HELLO, messages=(user_text("long " * 20_000),))
        reply = await model.reply(request, lambda delta: None)
        assert reply.stop_reason == TOO_LONG
        assert reply.asked_tokens == pytest.approx(tokens, rel=0.01)


async def test_an_unknown_window_is_requested_from_the_service() -> None:
    async with open_model([Status(400, message="no"), *[text("x")] * 3], context_window=0) as (_, model):
        await error_of(model)
        for _ in range(3):
            await ask(model)
        assert model.window == Window(tokens=200_000, longest_reply=1_000)


@pytest.mark.parametrize(
    "answer",
    [Status(200, b"[]"), Status(200, b'{"max_tokens": "x"}'), Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{")],
    ids=["not an object", "not a number", "incomplete response"],
)
async def test_a_window_that_cannot_be_read_is_unknown(answer: Step) -> None:
    service = Policy(lookup=lambda path: answer)  # which arrives during the slow reply
    async with open_model(text("x", delay_between=0.05), policy=service, context_window=0) as (_, model):
        assert (await ask(model)).message.text == "x"
        assert model.window is None


async def test_the_requests_for_the_window_are_limited() -> None:
    service = Policy(lookup=lambda path: Stall(None))
    async with open_model(text("x", delay_between=0.02), policy=service, context_window=0) as (double, model):
        for _ in range(MAX_WINDOW_REQUESTS + 2):
            await ask(model)
        assert len(double.lookups) <= MAX_WINDOW_REQUESTS


async def test_an_exception_of_the_caller_is_raised() -> None:
    def fail(delta: object) -> None:
        raise ZeroDivisionError

    async with open_model(text("x")) as (_, model):
        with pytest.raises(ZeroDivisionError):
            await model.reply(HELLO, fail)
        assert (await ask(model)).message.text == "x"


# --------------------------------------------------------------------------------------- the settings of one call


@pytest.mark.parametrize(
    ("name", "overrides", "fault"),
    [
        (NEWER, {"temperature": 0.3}, "`temperature` is deprecated for this model"),
        ("claude-sonnet-4-5", {"effort": "low"}, "does not support the effort parameter"),
        (NEWER, {"max_tokens": 900_000}, "max_tokens: 900000 > 128000"),
    ],
    ids=["temperature", "effort", "max_tokens"],
)
async def test_a_refused_parameter_of_a_call_is_named(name: str, overrides: dict[str, Any], fault: str) -> None:
    async with open_model(text("x"), model=name) as (double, model):
        double.expect_fault(fault)
        with pytest.raises(ParameterRefused, match=fault) as caught:
            await ask(model, **overrides)
        assert caught.value.parameters == tuple(overrides)
        assert (await ask(model)).message.text == "x"


async def test_a_refused_image_is_named() -> None:
    image = Image("image/png", "", "bad.png", b64encode(b"\x89PNG\r\n\x1a\n and nothing more").decode())
    async with open_model() as (double, model):
        double.expect_fault("Could not process image")
        with pytest.raises(ModelError, match="Could not process image") as caught:
            await model.reply(Request("", (Message("user", (image,)),)), lambda delta: None)
        assert caught.value.refused == ("content", image.digest)


async def test_temperature_is_sent_in_an_older_version() -> None:
    async with open_model(text("x"), model=OLDER) as (double, model):
        await ask(model)
        await ask(model, temperature=0)
    assert [r.body.get("temperature") for r in double.requests] == [None, 0]
    assert [r.headers["anthropic-version"] for r in double.requests] == ["2026-10-21", "2023-06-01"]


async def test_refused_settings_of_models_are_errors() -> None:
    async with open_model(temperature=0.5) as (double, model):
        double.expect_fault("deprecated for this model")
        error = await error_of(model)
    assert "`temperature` is deprecated for this model.; check the model's settings" in str(error)
    assert not error.retryable


async def test_a_reply_names_the_signing_model() -> None:
    async with open_model([thinking("Hm.", text("x")), text("y")]) as (_, model):
        assert [(await ask(model)).message.model for _ in range(2)] == [NEWER, ""]


# -------------------------------------------------------------------------------------------------- usage and budgets

UNCACHED = {"input_tokens": 0, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
PRICE = Price(input=2.0, output=10.0, cache_read=0.2, cache_write=2.5)  # dollars for a million tokens
READ = {**UNCACHED, "input_tokens": 3000, "cache_read_input_tokens": 500}
"""The usage at the start of a reply, whose length the service does not know yet."""


@pytest.mark.parametrize(
    ("price", "cost"),
    [(PRICE, (1_000 * 2 + 200 * 10 + 30_000 * 0.2 + 4_000 * 2.5) / 1e6), (None, None)],
    ids=["known price", "unknown price"],
)
async def test_usage_is_counted_and_has_a_price(price: Price | None, cost: float | None) -> None:
    counts = {"input_tokens": 1_000, "output_tokens": 200}
    cached = {"cache_read_input_tokens": 30_000, "cache_creation_input_tokens": 4_000}
    async with open_model(text("x", usage=counts | cached), price=price) as (_, model):
        assert (await ask(model)).usage == Usage(1_000, 200, 30_000, 4_000, pytest.approx(cost))


@pytest.mark.parametrize(
    ("ending", "has_next_reply", "is_recorded"),
    [("interrupt", False, False), ("stop", False, True), ("!!go on", True, True), ("timeout", False, True)],
)
async def test_a_cancelled_reply_has_a_usage(
    ending: str, has_next_reply: bool, is_recorded: bool, mock_clock: MockClock
) -> None:
    half = Stall(FIRST_TEXT, reply=text("Half of a", " reply", usage=READ))
    settings = make_settings(max_attempts=4, timeout_s=60)
    async with open_wire([half, text("Two.", usage=UNCACHED)], price=PRICE, settings=settings) as wire:
        is_shown = trio.Event()
        wire.session.chain.listen(lambda e: is_shown.set() if isinstance(e, events.TextDelta) else None)
        wire.session.chain.submit("Go")
        await is_shown.wait()
        await wait_all_tasks_blocked()
        if ending == "interrupt":
            wire.session.chain.interrupt()
        elif ending != "timeout":
            wire.session.chain.submit(ending)
        wire.let_time_pass(mock_clock)
        await wire.session.chain.wait_idle()
        _first_run, cancelled, *next_replies = wire.session.of(events.UsageReport)
        assert (cancelled.input_tokens, cancelled.cache_read_tokens) == (3000, 500)
        assert cancelled.cost_usd == pytest.approx((3000 * 2.0 + cancelled.output_tokens * 10.0 + 500 * 0.2) / 1e6)
        assert len(next_replies) == has_next_reply
        of_run = wire.session.result.usage
        assert (of_run.input_tokens, of_run.cache_read_tokens) == (3000, 500)
        assert (of_run.cost_usd or 0.0) >= cancelled.cost_usd
        interrupted = [r for r in wire.session.records if r["type"] == "interrupted" and "usage" in r]
        assert [r["usage"]["input_tokens"] for r in interrupted] == ([3000] if is_recorded else [])


@pytest.mark.parametrize(
    "fault",
    [Cut(FIRST_TEXT, reply=text("Half of a", " reply", usage=READ)), ErrorEvent(after=FIRST_TEXT)],
    ids=["lost connection", "error event"],
)
async def test_a_reply_that_breaks_off_has_a_usage(fault: Step, mock_clock: MockClock) -> None:
    async with open_wire([fault, text("Two.", usage=UNCACHED)]) as wire:
        wire.let_time_pass(mock_clock)
        total = (await wire.session.run("Go")).usage.total_tokens
        _first_run, broken, complete = wire.session.of(events.UsageReport)
        assert broken.input_tokens + broken.cache_write_tokens > 0
        counts = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
        assert total == sum(getattr(report, name) for report in (broken, complete) for name in counts)


CONFIG = """\
models:
  default: test
  definitions:
    test: {{provider: anthropic, model: {model}, base_url: "http://127.0.0.1:9", api_key: {key}, {more}}}
chains:
  default: {{model: test, tools: [todo], system_prompt: null, interruption_prompt: null, budget: {{max_cost_usd: 0.5}}}}
"""


async def test_a_budget_in_dollars_ends_the_run(tmp_path: Path, mock_clock: MockClock) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG.format(model=NEWER, key=KEY, more=""))
    settings = load_settings(config=tmp_path / "config.yaml", environ={}, cwd=tmp_path, flags={})
    for_30_cents = calls(("look", {}), usage={**UNCACHED, "output_tokens": 30_000})
    async with open_wire([for_30_cents, for_30_cents, text("x")], settings=settings, price=PRICE) as wire:
        result = await wire.session.run("Go")
        assert (result.status, result.iterations) == ("limit_reached", 2)
        assert "the run has cost $0.60, and its budget is $0.50" in result.result
        assert (await wire.session.run("Once more")).result == "x"


async def test_a_request_for_a_summary_uses_the_cache(mock_clock: MockClock) -> None:
    async with open_wire([text("It is long."), text("A summary."), text("Two.")]) as wire:
        await wire.session.run("long " * 20_000)
        wire.session.chain.runs.compact("the numbers")
        await wire.session.chain.wait_idle()
        account = wire.double.accounts[-1]
        all_input = account.input + account.cache_read + account.cache_write
        assert account.cache_read >= 0.99 * all_input, "all but the request for a summary itself"
        *_, before, summary = wire.bodies()
        assert (summary["tools"], summary.get("tool_choice")) == (before["tools"], before.get("tool_choice"))
        wire.double.expect_withdrawal()  # the summary replaces the conversation
        assert (await wire.session.run("Once more")).result == "Two."


# ------------------------------------------------------------------------------------------------ keys and addresses


@pytest.fixture
def other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set variables that the SDK reads."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, "env-value")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9/elsewhere")
    headers = "X-Api-Key: env-value\nAuthorization: Bearer env-value\nX-More: env-value"
    monkeypatch.setenv("ANTHROPIC_CUSTOM_HEADERS", headers)


@pytest.mark.parametrize(
    ("key", "headers", "authorization"),
    [
        (None, {}, None),
        ("", {}, None),
        (KEY, {"X-Gateway": "gate"}, f"Bearer {KEY}"),
        (None, {"Authorization": "Bearer own"}, "Bearer own"),
        (None, {"authorization": "Bearer own"}, "Bearer own"),
    ],
    ids=["no key", "empty key", "key and gateway", "header", "header in lower case"],
)
async def test_only_keys_of_the_configuration_are_sent(
    key: str | None, headers: dict[str, str], authorization: str | None, other_keys: None
) -> None:
    service = {"extra_headers": headers}
    async with open_model([text("x")], policy=Policy(key=None), key=key, service=service) as (double, model):
        assert (await ask(model)).message.text == "x"
        assert (await check(model)).is_good
    for request in (*double.requests, *double.lookups):
        assert request.headers.get("authorization") == authorization
        assert request.headers.get("x-gateway") == headers.get("X-Gateway")
        assert "x-api-key" not in request.headers
        assert not any("env-value" in value for value in request.headers.values())


@pytest.mark.parametrize("path", ["/gateway", "/gateway/"])
async def test_an_address_may_have_a_path(path: str) -> None:
    async with open_model(path=path) as (double, model):
        double.expect_fault("Not found")
        assert f"{double.url}{path} does not know {NEWER}: Not found" in str(await error_of(model))
    assert [request.path for request in double.lookups] == ["/gateway/v1/messages"]


@pytest.mark.parametrize(
    ("variable", "value", "reason"),
    [
        ("SSL_CERT_FILE", "/nowhere/ca.pem", r"\(FileNotFoundError: .*No such file or directory\)"),
        ("HTTPS_PROXY", "ftp://127.0.0.1:9", r"\(ValueError: Unknown scheme for proxy URL .*\)"),
    ],
)
async def test_a_client_that_cannot_be_created(
    variable: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    model = model_at("https://127.0.0.1:9")
    message = f"the client for https://127.0.0.1:9 cannot be created {reason}; check the installation, base_url, and"
    assert re.match(message, str(await error_of(model)))
    assert re.match(message, (await check(model)).message)
    for _ in range(2):
        await model.aclose()


async def test_one_client_is_built_for_concurrent_calls() -> None:
    async with open_model(text("x")) as (_, model):
        clients: set[int] = set()

        async def connect() -> None:
            clients.add(id(await model.connect()))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(connect)
                nursery.start_soon(ask, model)
        assert len(clients) == 1


async def test_an_untrusted_certificate_gets_no_data(tmp_path: Path) -> None:
    _, tls = create_certificate(tmp_path)
    received = b""

    async def serve_one(stream: trio.SSLStream[trio.SocketStream]) -> None:
        nonlocal received
        with suppress(trio.BrokenResourceError):
            received += await stream.receive_some()

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_ssl_over_tcp_listeners(0, tls, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve_one, listeners)
        (listener,) = listeners
        _, port = listener.transport_listener.socket.getsockname()
        model = model_at(f"https://127.0.0.1:{port}")
        assert "cannot be reached" in str(await error_of(model))
        await model.aclose()
        nursery.cancel_scope.cancel()
    assert received == b""


# ---------------------------------------------------------------------------------------------- checking the settings


async def test_a_check_of_key_and_model() -> None:
    async with open_model() as (_, model):
        result = await check(model)
    assert f"accepts the key and has {NEWER}" in result.message
    assert result.is_good


@pytest.mark.parametrize(
    ("options", "fault", "message"),
    [
        ({"key": "bad"}, "invalid x-api-key", "rejected the API key: invalid x-api-key; check api_key"),
        ({"model": "claude-0"}, "model: claude-0", "does not know claude-0: model: claude-0; check model and base_url"),
    ],
    ids=["key", "model"],
)
async def test_a_check_explains_what_is_wrong(options: dict[str, Any], fault: str, message: str) -> None:
    async with open_model(**options) as (double, model):
        double.expect_fault(fault)
        result = await check(model)
    assert message in result.message
    assert result.is_good is False


async def test_a_check_of_an_address_without_a_server() -> None:
    with unused_port() as port:
        result = await check(model_at(f"http://127.0.0.1:{port}"))
    assert "cannot be reached" in result.message
    assert result.is_good is False


@pytest.mark.parametrize(
    ("status", "answer", "is_good", "message"),
    [
        (404, {}, None, "does not list its models"),
        (200, ["qwen"], None, "does not list its models"),
        (200, {"data": []}, None, "accepts any name"),
        (200, {"data": [{"id": "qwen.gguf", "owned_by": "llamacpp"}]}, None, "accepts any name"),
        (200, {"data": [{"id": "qwen"}]}, False, "does not know mine"),
        (200, {"data": [{"id": "qwen"}, {"id": "mine"}]}, True, "has mine"),
        (529, {}, None, "is overloaded"),
    ],
    ids=["no list", "unknown form", "empty list", "llama.cpp", "not listed", "listed", "overloaded"],
)
async def test_a_check_of_a_server_that_lists_models(
    status: int, answer: Any, is_good: bool | None, message: str
) -> None:
    def lookup(path: str) -> Step:
        is_answered = path == "/v1/models" or status == 529  # an overloaded server fails for every path
        return Status(status, json.dumps(answer).encode()) if is_answered else Status(404, message="no")

    async with open_model(policy=Policy(lookup=lookup), model="mine", key=None) as (_, model):
        result = await check(model)
    assert result.is_good is is_good
    assert message in result.message


# ------------------------------------------------------------------------------------------------------- cancellation


async def test_a_call_may_be_cancelled_at_every_point(mock_clock: MockClock) -> None:
    async with open_model(text("one two three", text_chunk=2)) as (double, model):
        await ask(model)
        for checkpoints in range(60):  # a whole call has fewer
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, model)
                for _ in range(checkpoints):
                    await trio.lowlevel.checkpoint()
                nursery.cancel_scope.cancel()
        assert (await ask(model)).message.text == "one two three"
        await wait_all_tasks_blocked()
        assert double.open_connections <= 1
        gc.collect()


# ------------------------------------------------------------------------------------------------------------- secrets

SECRETS = {"key": "sk-ant-very-secret-key-1234567890", "header": "gateway-secret-0987654321"}
SECRET_OPTIONS: dict[str, Any] = {
    "policy": Policy(key=SECRETS["key"]),
    "key": SECRETS["key"],
    "service": {"extra_headers": {"X-Gateway-Token": SECRETS["header"]}, "idle_timeout_s": 0.2},
}
LEAK = f"{SECRETS['key']} and {SECRETS['header']} are wrong"
LEAK_AT_LIMIT = f"{'x' * 480}{SECRETS['key']}{SECRETS['header']}"
"""A message whose secrets are where an error message is cut, at 500 characters."""
LEAKS: list[Step] = [
    # Faults of a service that repeats the secrets that it was sent.
    *(Status(400, message=LEAK), Status(401, message=LEAK_AT_LIMIT), Status(401, body=LEAK_AT_LIMIT.encode())),
    *(html(403, page=f"<html>{LEAK}</html>"), html(200, page=f"<html>{LEAK}</html>")),
    *(ErrorEvent(kind="invalid_request_error", message=LEAK), ErrorEvent(message=LEAK), Status(529, message=LEAK)),
    *(text("x", stop_reason=LEAK), calls((LEAK, {})), Reset(4), Cut(4), Garbage(4), Stall(4)),
]
LEAKS_IN_HEADS: list[Step] = [Raw(f"HTTP/1.1 {head}\r\n\r\n".encode()) for head in (LEAK, f"200 OK\r\n{LEAK}")]
"""The same in a status line and in headers. The debug logs of the libraries quote what they cannot parse."""


async def test_errors_of_a_model_contain_no_secrets() -> None:
    steps = [*LEAKS, *LEAKS_IN_HEADS]
    async with open_model(steps, **SECRET_OPTIONS) as (_, model):
        for _ in steps:
            error = await error_of(model)
            shown = f"{error!r} {error.args!r} {''.join(traceback.format_exception(error))}"
            assert not any(secret in shown for secret in SECRETS.values()), shown
        with unused_port() as port:
            error = await error_of(model_at(f"http://me:{SECRETS['key']}@127.0.0.1:{port}/x"))
        assert str(error).startswith(f"http://127.0.0.1:{port}/x cannot be reached")
        assert SECRETS["key"] not in str(error)


async def test_a_refused_parameter_is_named_without_the_key() -> None:
    message = f"prompt is too long for key {KEY}: lower max_tokens"
    async with open_model([ErrorEvent(kind="invalid_request_error", message=message)]) as (_, model):
        with pytest.raises(ParameterRefused, match=r"^prompt is too long for key …: lower max_tokens$"):
            await ask(model, max_tokens=50)


async def test_a_session_shows_and_stores_no_secrets(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("anthropic", "httpx2", "httpcore2", "httpx", "httpcore"):
        caplog.set_level(logging.DEBUG, logger=name)
    settings = make_settings(max_attempts=1)
    async with open_wire([*LEAKS, text("The end.")], settings=settings, **SECRET_OPTIONS) as wire:
        while wire.double.unplayed:
            assert (await wire.session.run("Go")).status in ("error", "done")
        assert {r.headers.get("x-gateway-token") for r in wire.double.requests} == {SECRETS["header"]}
        content_by_place = {
            "events": "\n".join(f"{e!r} {json.dumps(event_json.to_json(e))}" for e in wire.session.events),
            "journal": wire.session.file.data.decode(),
            "log": "\n".join(f"{r.getMessage()} {r.args!r} {r.exc_text} {r.__dict__!r}" for r in caplog.records),
            "formatted log": caplog.text,
            "model": f"{wire.model!r} {wire.model._service!r} {wire.model._parameters!r}",
            "requests": repr(wire.session.model.requests),
            "client": repr(await wire.model.connect()),
        }
    content_by_place["stdout"], content_by_place["stderr"] = capfd.readouterr()
    for place, content in content_by_place.items():
        for name, secret in SECRETS.items():
            assert secret[:16] not in content, f"a part of the {name} is in the {place}"
    assert "… and … are wrong" in content_by_place["events"]
    assert len(caplog.records) > 100, "the libraries log at this level"


def test_a_repr_contains_no_secrets(tmp_path: Path) -> None:
    more = f"extra_headers: {{X-Gateway-Token: {SECRETS['header']}}}"
    (tmp_path / "config.yaml").write_text(CONFIG.format(model=NEWER, key=SECRETS["key"], more=more))
    settings = load_settings(config=tmp_path / "config.yaml", environ={}, cwd=tmp_path, flags={})
    definition = settings.model("test")
    key, headers = definition.values["api_key"], definition.values["extra_headers"]
    assert key == SECRETS["key"]
    service = Service(key, extra_headers=headers)
    shown = f"{settings!r} {definition!r} {service!r} {AnthropicModel(Parameters('m', 1), service)!r}"
    assert not any(secret in shown for secret in SECRETS.values())
