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
from support import settings as chain_settings
from support.certificates import self_signed
from support.wire import KEY, asked, check, model_at, wired
from trio.testing import MockClock, wait_all_tasks_blocked

from chain import events
from chain.config.load import load_settings
from chain.errors import ModelError, ParameterRefused
from chain.messages import TOO_LONG, Image, Message, Overrides, Usage, user_text
from chain.model import Reply, Request, Window
from chain.providers.anthropic.client import MAX_WINDOW_REQUESTS, AnthropicModel
from chain.providers.anthropic.service import SERVICE_CONNECT_S, Parameters, Price, Service
from chain.session import event_json


@pytest.fixture
def clock(mock_clock: MockClock) -> MockClock:
    return mock_clock


HELLO = Request("", (user_text("hello"),))


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
    found = []
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # that of the listing
            found.append(re.sub(r"\d+", "n", os.readlink(f"/proc/self/fd/{name}")))
    return sorted(found)


# ------------------------------------------------------------------------------------------------------------- faults

HOST = "127.0.0.1:PORT"
ELSEWHERE = {"location": "http://127.0.0.1:9/elsewhere"}
FAULTS: list[tuple[Step, str, str | None]] = [
    # The step, the message, and the short cause: empty if the answer is of no use, None if a retry cannot help.
    (Status(529, message="Overloaded"), "is overloaded: Overloaded; try again later", "overloaded"),
    (ErrorEvent(4), "ended the reply with an error: Overloaded", "overloaded"),
    (ErrorEvent(0, kind="api_error", message="Oh"), "with an error: Oh", "service failed"),
    (Reset(None), r"cannot be reached \(.+\); check the network and base_url", f"no connection to {HOST}"),
    (Reset(4), r"broke off: the connection to http.* was lost \(.+\)", ""),
    (Cut(None), r"cannot be reached \(.*disconnected.*\); check the network", f"no connection to {HOST}"),
    (Cut(4), "broke off: the connection to http.* was lost", ""),
    (Cut(4, extra=30), "broke off: the connection to http.* was lost", ""),
    (Cut(4, clean=True), "broke off: it ended too early", ""),
    (Stall(None), r"nothing for 120 s \(idle_timeout_s\)", f"no answer from {HOST}"),
    (Stall(4), r"sent nothing for 120 s \(idle_timeout_s\)", ""),
    (Garbage(4), "broke off: one of its events is not JSON", ""),
    (Raw(b"SSH-2.0-OpenSSH_9.9\r\n"), r"cannot be reached \(.+\); check the network", f"no connection to {HOST}"),
    (Status(401, message="invalid x-api-key"), "rejected the API key: invalid x-api-key; check api_key", None),
    (Status(301, b"", ELSEWHERE), "correct base_url", None),
    (Status(307, b"", ELSEWHERE), "correct base_url", None),
    (ErrorEvent(kind="invalid_request_error", message="No"), "the reply with an error: No", None),
    (html(200), "did not answer with a stream of events; check base_url", None),
    (Status(200, body={"type": "message"}), "did not answer with a stream", None),
]


async def test_a_fault_is_explained_and_leaves_nothing_behind(clock: MockClock) -> None:
    async with asked([text("One.")]) as (double, model):
        await ask(model)
        client = await model.connect()
        clock.autojump_threshold = 0
        await wait_all_tasks_blocked()
        before = open_files()
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for number, (step, message, cause) in enumerate(FAULTS, 1):
                double.add(step, text("Two."))
                error = await error_of(model)
                assert re.search(message, str(error)), str(error)
                assert error.retryable is (cause is not None), message
                assert error.cause == (cause or "").replace("PORT", double.url.rpartition(":")[2]), message
                assert (await ask(model)).message.text == "Two."
                assert len(double.requests) == 1 + 2 * number, "a redirect is not followed"
                await wait_all_tasks_blocked()
                assert double.open_connections == 1
            gc.collect()
        assert await model.connect() is client
        assert open_files() == before


async def test_a_retry_sends_the_same_bytes(clock: MockClock) -> None:
    async with wired([Cut(5, reply=text("Half of a", " reply")), text("Two.")]) as wire:
        wire.let_time_pass(clock)
        before = len(wire.session.events)
        result = await wire.session.run("Go")
        shown = [type(e) for e in wire.session.events[before:] if isinstance(e, events.TextDelta | events.Retry)]
        assert shown == [events.TextDelta, events.Retry, events.TextDelta]
        assert (result.status, result.replies) == ("done", ("Two.",))
        assert wire.bodies()[1] == wire.bodies()[2]
        assert "Half" not in wire.session.file.data.decode()


async def test_the_model_recovers_with_the_service() -> None:
    async with asked(text("x")) as (double, model):
        await ask(model)
        async with double.refusing():
            assert "cannot be reached" in str(await error_of(model))
        assert (await ask(model)).message.text == "x"


async def test_connecting_has_a_timeout(clock: MockClock) -> None:
    """The queue of the listener is full, so the kernel does not answer."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        address = listener.getsockname()
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(address)
        model = model_at(f"http://127.0.0.1:{address[1]}")
        await model.connect()
        clock.autojump_threshold = 0.05
        start = trio.current_time()
        error = await error_of(model)
        assert f"cannot be reached (no answer for {SERVICE_CONNECT_S:g} s)" in str(error)
        assert error.retryable
        assert trio.current_time() - start == pytest.approx(SERVICE_CONNECT_S, abs=0.5)
        await model.aclose()
        for filler in fillers:
            filler.close()


async def test_a_reply_has_a_timeout(clock: MockClock) -> None:
    endless = Say(({"type": "text", "text": "x" * 100},), text_chunk=1, delay_between=100)
    async with asked([text("x"), endless]) as (_, model):
        await ask(model)
        clock.autojump_threshold = 0
        start = trio.current_time()
        error = await error_of(model)
        assert (str(error), error.retryable) == ("the reply took more than 600 s (timeout_s of the model)", True)
        assert trio.current_time() - start == 600


@pytest.mark.parametrize(
    ("step", "tokens"),
    [
        (Status(400, message="prompt is too long: 210000 tokens > 200000 maximum"), 210_000),
        (ErrorEvent(0, kind="invalid_request_error", message="prompt is too long: 7 tokens > 6 maximum"), 7),
        (Status(413, message="Too big"), 25_000),
    ],
)
async def test_a_too_long_request_is_no_error(step: Step, tokens: int) -> None:
    async with asked([step]) as (_, model):
        request = replace(HELLO, messages=(user_text("long " * 20_000),))
        reply = await model.reply(request, lambda delta: None)
        assert reply.stop_reason == TOO_LONG
        assert reply.asked_tokens == pytest.approx(tokens, rel=0.01)


async def test_an_unknown_window_is_requested_from_the_service() -> None:
    async with asked([Status(400, message="no"), *[text("x")] * 3], context_window=0) as (_, model):
        await error_of(model)
        for _ in range(3):
            await ask(model)
        assert model.window == Window(200_000, 1_000)


@pytest.mark.parametrize(
    "answer",
    [Status(200, b"[]"), Status(200, b'{"max_tokens": "x"}'), Raw(b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n{")],
)
async def test_a_window_that_cannot_be_read_is_unknown(answer: Step) -> None:
    async with asked(text("x", delay_between=0.05), policy=Policy(lookup=lambda path: answer), context_window=0) as (
        _,
        model,
    ):
        assert (await ask(model)).message.text == "x"
        assert model.window is None


async def test_the_requests_for_the_window_are_limited() -> None:
    service = Policy(lookup=lambda path: Stall(None))
    async with asked(text("x", delay_between=0.02), policy=service, context_window=0) as (double, model):
        for _ in range(MAX_WINDOW_REQUESTS + 2):
            await ask(model)
        assert len(double.lookups) <= MAX_WINDOW_REQUESTS


async def test_an_exception_of_the_caller_is_raised() -> None:
    def fail(delta: object) -> None:
        raise ZeroDivisionError

    async with asked(text("x")) as (_, model):
        with pytest.raises(ZeroDivisionError):
            await model.reply(HELLO, fail)
        assert (await ask(model)).message.text == "x"


# --------------------------------------------------------------------------------------- the settings of one call


@pytest.mark.parametrize(
    ("model", "overrides", "fault"),
    [
        (NEWER, {"temperature": 0.3}, "`temperature` is deprecated for this model"),
        ("claude-sonnet-4-5", {"effort": "low"}, "does not support the effort parameter"),
        (NEWER, {"max_tokens": 900_000}, "max_tokens: 900000 > 128000"),
    ],
)
async def test_a_refused_parameter_of_a_call_is_named(model: str, overrides: dict[str, Any], fault: str) -> None:
    async with asked(text("x"), model=model) as (double, adapter):
        double.expect_fault(fault)
        with pytest.raises(ParameterRefused, match=fault) as refused:
            await ask(adapter, **overrides)
        assert refused.value.parameters == tuple(overrides)
        assert (await ask(adapter)).message.text == "x"


async def test_a_refused_image_is_named() -> None:
    image = Image("image/png", "", "bad.png", b64encode(b"\x89PNG\r\n\x1a\n and nothing more").decode())
    async with asked() as (double, model):
        double.expect_fault("Could not process image")
        with pytest.raises(ModelError, match="Could not process image") as caught:
            await model.reply(Request("", (Message("user", (image,)),)), lambda delta: None)
        assert caught.value.refused == ("content", image.digest)


@pytest.mark.parametrize("temperature", [0, 0.3])
async def test_temperature_is_sent_in_an_older_version(temperature: float) -> None:
    async with asked(text("x"), model=OLDER) as (double, model):
        await ask(model)
        await ask(model, temperature=temperature)
    assert [r.body.get("temperature") for r in double.requests] == [None, temperature]
    assert [r.headers["anthropic-version"] for r in double.requests] == ["2026-10-21", "2023-06-01"]


async def test_refused_settings_of_models_are_errors() -> None:
    async with asked(temperature=0.5) as (double, model):
        double.expect_fault("deprecated for this model")
        error = await error_of(model)
    assert "`temperature` is deprecated for this model.; check the model's settings" in str(error)
    assert not error.retryable


async def test_a_reply_names_the_signing_model() -> None:
    async with asked([thinking("Hm.", text("x")), text("y")]) as (_, model):
        assert [(await ask(model)).message.model for _ in range(2)] == [NEWER, ""]


# -------------------------------------------------------------------------------------------------- usage and budgets

UNCACHED = {"input_tokens": 0, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0}
PRICE = Price(input=2.0, output=10.0, cache_read=0.2, cache_write=2.5)
READ = {**UNCACHED, "input_tokens": 3000, "cache_read_input_tokens": 500}
"""The usage at the start of a reply, whose length the service does not know yet."""


@pytest.mark.parametrize(
    ("price", "cost"), [(PRICE, (1_000 * 2 + 200 * 10 + 30_000 * 0.2 + 4_000 * 2.5) / 1e6), (None, None)]
)
async def test_usage_is_counted_and_has_a_price(price: Price | None, cost: float | None) -> None:
    counts = {"input_tokens": 1_000, "output_tokens": 200}
    cached = {"cache_read_input_tokens": 30_000, "cache_creation_input_tokens": 4_000}
    async with asked(text("x", usage=counts | cached), price=price) as (_, model):
        assert (await ask(model)).usage == Usage(1_000, 200, 30_000, 4_000, pytest.approx(cost))


@pytest.mark.parametrize("how", ["interrupt", "stop", "!!go on", "time"])
async def test_a_cancelled_reply_has_a_usage(how: str, clock: MockClock) -> None:
    half = Stall(5, reply=text("Half of a", " reply", usage=READ))
    use = chain_settings(max_attempts=4, timeout_s=60)
    async with wired([half, text("Two.", usage=UNCACHED)], price=PRICE, use=use) as wire:
        before = len(wire.session.of(events.UsageReport))
        shown = trio.Event()
        wire.session.chain.listen(lambda e: shown.set() if isinstance(e, events.TextDelta) else None)
        wire.session.chain.submit("Go")
        await shown.wait()
        await wait_all_tasks_blocked()
        if how == "interrupt":
            wire.session.chain.interrupt()
        elif how != "time":
            wire.session.chain.submit(how)
        wire.let_time_pass(clock)
        await wire.session.chain.wait_idle()
        cut, *more = wire.session.of(events.UsageReport)[before:]
        assert (cut.input_tokens, cut.cache_read_tokens, len(more)) == (3000, 500, how == "!!go on")
        assert cut.cost_usd == pytest.approx((3000 * 2.0 + cut.output_tokens * 10.0 + 500 * 0.2) / 1e6)
        used = wire.session.result.usage
        assert (used.input_tokens, used.cache_read_tokens) == (3000, 500)
        assert (used.cost_usd or 0.0) >= cut.cost_usd
        interrupted = [r for r in wire.session.records if r["type"] == "interrupted" and "usage" in r]
        assert [r["usage"]["input_tokens"] for r in interrupted] == ([] if how == "interrupt" else [3000])


@pytest.mark.parametrize("fault", [Cut(5, reply=text("Half of a", " reply", usage=READ)), ErrorEvent(after=5)])
async def test_a_reply_that_breaks_off_has_a_usage(fault: Step, clock: MockClock) -> None:
    async with wired([fault, text("Two.", usage=UNCACHED)]) as wire:
        wire.let_time_pass(clock)
        before = len(wire.session.of(events.UsageReport))
        total = (await wire.session.run("Go")).usage.total_tokens
        broken, whole = wire.session.of(events.UsageReport)[before:]
        assert broken.input_tokens + broken.cache_write_tokens > 0
        counts = ("input_tokens", "output_tokens", "cache_read_tokens", "cache_write_tokens")
        assert total == sum(getattr(report, name) for report in (broken, whole) for name in counts)


CONFIG = """\
models:
  default: test
  definitions:
    test: {{provider: anthropic, model: {model}, base_url: "http://127.0.0.1:9", api_key: {key}, {more}}}
chains:
  default: {{model: test, tools: [todo], system_prompt: null, interruption_prompt: null, budget: {{max_cost_usd: 0.5}}}}
"""


async def test_a_budget_in_dollars_ends_the_run(tmp_path: Path, clock: MockClock) -> None:
    (tmp_path / "config.yaml").write_text(CONFIG.format(model=NEWER, key=KEY, more=""))
    use = load_settings(config=tmp_path / "config.yaml", environ={}, cwd=tmp_path, flags={})
    used = calls(("look", {}), usage={**UNCACHED, "output_tokens": 30_000})
    async with wired([used, used, text("x")], use=use, price=PRICE) as wire:
        result = await wire.session.run("Go")
        assert (result.status, result.iterations) == ("limit_reached", 2)
        assert "the run has cost $0.60, and its budget is $0.50" in result.result
        assert (await wire.session.run("Once more")).result == "x"


async def test_a_request_for_a_summary_uses_the_cache(clock: MockClock) -> None:
    async with wired([text("It is long."), text("A summary."), text("Two.")]) as wire:
        await wire.session.run("long " * 20_000)
        wire.session.chain.runs.compact("the numbers")
        await wire.session.chain.wait_idle()
        account = wire.double.accounts[-1]
        assert account.cache_read >= 0.99 * (account.input + account.cache_read + account.cache_write)
        before, summary = wire.bodies()[-2:]
        assert (summary["tools"], summary.get("tool_choice")) == (before["tools"], before.get("tool_choice"))
        wire.double.expect_withdrawal()
        assert (await wire.session.run("Once more")).result == "Two."


# ------------------------------------------------------------------------------------------------ keys and addresses


@pytest.fixture
def other_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    """Set variables that the SDK reads."""
    for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN"):
        monkeypatch.setenv(name, "env-value")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", "http://127.0.0.1:9/elsewhere")
    monkeypatch.setenv(
        "ANTHROPIC_CUSTOM_HEADERS", "X-Api-Key: env-value\nAuthorization: Bearer env-value\nX-More: env-"
    )


@pytest.mark.parametrize(
    ("key", "headers", "sent"),
    [
        (None, {}, None),
        ("", {}, None),
        (KEY, {"X-Gateway": "gate"}, f"Bearer {KEY}"),
        (None, {"Authorization": "Bearer own"}, "Bearer own"),
        (None, {"authorization": "Bearer own"}, "Bearer own"),
    ],
)
async def test_only_keys_of_the_configuration_are_sent(
    key: str | None, headers: dict[str, str], sent: str | None, other_keys: None
) -> None:
    async with asked([text("x")], policy=Policy(key=None), key=key, service={"extra_headers": headers}) as (
        double,
        model,
    ):
        assert (await ask(model)).message.text == "x"
        assert (await check(model)).is_good
    for seen in (*double.requests, *double.lookups):
        assert seen.headers.get("authorization") == sent
        assert seen.headers.get("x-gateway") == headers.get("X-Gateway")
        assert "x-api-key" not in seen.headers
        assert not any("env-" in value for value in seen.headers.values())


@pytest.mark.parametrize("path", ["/gateway", "/gateway/"])
async def test_an_address_may_have_a_path(path: str) -> None:
    async with asked(path=path) as (double, model):
        double.expect_fault("Not found")
        assert f"{double.url}{path} does not know {NEWER}: Not found" in str(await error_of(model))
    assert [s.path for s in double.lookups] == ["/gateway/v1/messages"]


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("SSL_CERT_FILE", "/nowhere/ca.pem", r"\(FileNotFoundError: .*No such file or directory\)"),
        ("HTTPS_PROXY", "ftp://127.0.0.1:9", r"\(ValueError: Unknown scheme for proxy URL .*\)"),
    ],
)
async def test_a_client_that_cannot_be_created(
    variable: str, value: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    model = model_at("https://127.0.0.1:9")
    message = f"the client for https://127.0.0.1:9 cannot be created {words}; check the installation, base_url, and"
    assert re.match(message, str(await error_of(model)))
    assert re.match(message, (await check(model)).message)
    for _ in range(2):
        await model.aclose()


async def test_one_client_is_built_for_concurrent_calls() -> None:
    async with asked(text("x")) as (_, model):
        clients: set[int] = set()

        async def connect() -> None:
            clients.add(id(await model.connect()))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(connect)
                nursery.start_soon(ask, model)
        assert len(clients) == 1


async def test_an_untrusted_certificate_gets_no_data(tmp_path: Path) -> None:
    _, tls = self_signed(tmp_path)
    heard = b""

    async def serve_one(stream: trio.SSLStream[trio.SocketStream]) -> None:
        nonlocal heard
        with suppress(trio.BrokenResourceError):
            heard += await stream.receive_some()

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_ssl_over_tcp_listeners(0, tls, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, serve_one, listeners)
        model = model_at(f"https://127.0.0.1:{listeners[0].transport_listener.socket.getsockname()[1]}")
        assert "cannot be reached" in str(await error_of(model))
        await model.aclose()
        nursery.cancel_scope.cancel()
    assert heard == b""


# ---------------------------------------------------------------------------------------------- checking the settings


@pytest.mark.parametrize(
    ("fault", "key", "model", "words"),
    [
        (None, KEY, NEWER, f"accepts the key and has {NEWER}"),
        ("invalid x-api-key", "wrong-key", NEWER, "rejected the API key: invalid x-api-key; check api_key"),
        ("model: claude-0", KEY, "claude-0", "does not know claude-0: model: claude-0; check model and base_url"),
    ],
)
async def test_a_check_of_key_and_model(fault: str | None, key: str, model: str, words: str) -> None:
    async with asked(key=key, model=model) as (double, adapter):
        if fault:
            double.expect_fault(fault)
        found = await check(adapter)
    assert words in found.message
    assert found.is_good is (fault is None)


async def test_a_check_of_an_address_without_a_server() -> None:
    with unused_port() as port:
        found = await check(model_at(f"http://127.0.0.1:{port}"))
    assert (found.is_good, "cannot be reached" in found.message) == (False, True)


@pytest.mark.parametrize(
    ("status", "answer", "is_good", "words"),
    [
        (404, {}, None, "does not list its models"),
        (200, ["qwen"], None, "does not list its models"),
        (200, {"data": []}, None, "accepts any name"),
        (200, {"data": [{"id": "qwen.gguf", "owned_by": "llamacpp"}]}, None, "accepts any name"),
        (200, {"data": [{"id": "qwen"}]}, False, "does not know mine"),
        (200, {"data": [{"id": "qwen"}, {"id": "mine"}]}, True, "has mine"),
        (529, {}, None, "is overloaded"),
    ],
)
async def test_a_check_of_a_server_that_lists_models(
    status: int, answer: Any, is_good: bool | None, words: str
) -> None:
    def lookup(path: str) -> Step:
        is_list = path == "/v1/models"
        return Status(status, json.dumps(answer).encode()) if is_list or status >= 500 else Status(404, message="no")

    async with asked(policy=Policy(lookup=lookup), model="mine", key=None) as (_, model):
        found = await check(model)
    assert found.is_good is is_good
    assert words in found.message


# ------------------------------------------------------------------------------------------------------- cancellation


async def test_a_call_may_be_cancelled_at_every_point(clock: MockClock) -> None:
    async with asked(text("one two three", text_chunk=2)) as (double, model):
        await ask(model)
        for steps in range(60):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(ask, model)
                for _ in range(steps):
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
SAID = f"{SECRETS['key']} and {SECRETS['header']} are wrong"
PAGE = f"{'x' * 480}{SECRETS['key']}{SECRETS['header']}"
REPEATING: list[Step] = [
    # Faults of a service that repeats what it was sent.
    *(Status(400, message=SAID), Status(401, message=PAGE), Status(401, body=PAGE.encode())),
    *(html(403, page=f"<html>{SAID}</html>"), html(200, page=f"<html>{SAID}</html>")),
    *(ErrorEvent(kind="invalid_request_error", message=SAID), ErrorEvent(message=SAID), Status(529, message=SAID)),
    *(text("x", stop_reason=SAID), calls((SAID, {})), Reset(4), Cut(4), Garbage(4), Stall(4)),
]
REPEATING_HEADS: list[Step] = [Raw(f"HTTP/1.1 {head}\r\n\r\n".encode()) for head in (SAID, f"200 OK\r\n{SAID}")]
"""The same in a status line and in headers. The debug logs of the libraries quote what they cannot parse."""


async def test_errors_of_a_model_contain_no_secrets() -> None:
    steps = [*REPEATING, *REPEATING_HEADS]
    async with asked(steps, **SECRET_OPTIONS) as (_, model):
        for _ in steps:
            error = await error_of(model)
            shown = f"{error!r} {error.args!r} {''.join(traceback.format_exception(error))}"
            assert not any(secret in shown for secret in SECRETS.values()), shown
        with unused_port() as port:
            error = await error_of(model_at(f"http://me:{SECRETS['key']}@127.0.0.1:{port}/x"))
        assert str(error).startswith(f"http://127.0.0.1:{port}/x cannot be reached")
        assert SECRETS["key"] not in str(error)


async def test_a_refused_parameter_is_named_without_the_key() -> None:
    said = f"prompt is too long for key {KEY}: lower max_tokens"
    async with asked([ErrorEvent(kind="invalid_request_error", message=said)]) as (_, model):
        with pytest.raises(ParameterRefused, match=r"^prompt is too long for key …: lower max_tokens$"):
            await ask(model, max_tokens=50)


async def test_a_session_shows_and_stores_no_secrets(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.DEBUG)
    for name in ("anthropic", "httpx2", "httpcore2", "httpx", "httpcore"):
        caplog.set_level(logging.DEBUG, logger=name)
    use = chain_settings(max_attempts=1)
    async with wired([*REPEATING, text("The end.")], use=use, **SECRET_OPTIONS) as wire:
        while wire.double.unplayed:
            assert (await wire.session.run("Go")).status in ("error", "done")
        assert {r.headers.get("x-gateway-token") for r in wire.double.requests} == {SECRETS["header"]}
        places = {
            "events": "\n".join(f"{e!r} {json.dumps(event_json.to_json(e))}" for e in wire.session.events),
            "journal": wire.session.file.data.decode(),
            "log": "\n".join(f"{r.getMessage()} {r.args!r} {r.exc_text} {r.__dict__!r}" for r in caplog.records),
            "formatted log": caplog.text,
            "model": f"{wire.model!r} {wire.model._service!r} {wire.model._parameters!r}",
            "requests": repr(wire.session.model.requests),
            "client": repr(await wire.model.connect()),
        }
    places["stdout"], places["stderr"] = capfd.readouterr()
    for place, found in places.items():
        for what, secret in SECRETS.items():
            assert secret[:16] not in found, f"the {what} is in the {place}"
    assert "… and … are wrong" in places["events"]
    assert len(caplog.records) > 100


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
