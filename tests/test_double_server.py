"""The double over real sockets: the SDK can talk to it, each fault is on the wire what it is said to be, it keeps
records, and it raises for broken rules."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
import double as double_package
import h11
import httpx2
import pytest
import trio
from double import (
    NEWER,
    OLDER,
    Cut,
    Double,
    ErrorEvent,
    Garbage,
    Gate,
    Html,
    Policy,
    Raw,
    Reset,
    RulesBroken,
    Say,
    Stall,
    Status,
    Step,
    calls,
    cut_call,
    nameless_call,
    nothing,
    rate_limited,
    serve,
    text,
    thinking,
    twin_calls,
)
from double.acts import Facts, complete, events
from double.script import setup

# What the program under test sends comes from the SDK; a raw client speaks the older version, which knows temperature.
HEADERS = {"x-api-key": "test-key", "anthropic-version": "2023-06-01", "content-type": "application/json"}
ASK: dict[str, Any] = {"model": NEWER, "max_tokens": 100, "messages": [{"role": "user", "content": "hello"}]}


leaky = pytest.mark.filterwarnings("ignore:Async generator:ResourceWarning")
"""The SDK leaves its generators and those of httpx2 open when a stream ends in an error, which trio remarks upon."""


@dataclass
class Got:
    """What a client got: how it ended is "done", "closed" or "reset"."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    data: bytes = b""
    end: str = "done"

    @property
    def json(self) -> Any:
        return json.loads(self.data)

    @property
    def events(self) -> list[dict[str, Any]]:
        lines = self.data.decode().splitlines()
        return [json.loads(line[len("data: ") :]) for line in lines if line.startswith("data: ")]

    @property
    def types(self) -> list[str]:
        return [e["type"] for e in self.events]


class Line:
    """A raw client: one connection, h11 and nothing else."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream
        self.http = h11.Connection(h11.CLIENT)
        self.got = Got()
        self.raw = b""

    async def ask(
        self, body: Any = ASK, *, path: str = "/v1/messages", method: str = "POST", headers: Any = HEADERS
    ) -> Got:
        self.got = Got()
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        sized = {**headers, "host": "localhost", "content-length": str(len(data))}
        for event in (
            h11.Request(method=method, target=path, headers=[*sized.items()]),
            h11.Data(data=data),
            h11.EndOfMessage(),
        ):
            await self.stream.send_all(self.http.send(event) or b"")
        await self._answer()
        return self.got

    async def _answer(self) -> None:
        try:
            while True:
                match self.http.next_event():
                    case h11.NEED_DATA:
                        received = await self.stream.receive_some(1 << 16)
                        self.raw += received
                        self.http.receive_data(received)
                    case h11.Response() as response:
                        self.got.status = response.status_code
                        self.got.headers = {k.decode(): v.decode() for k, v in response.headers}
                    case h11.Data(data=data):
                        self.got.data += bytes(data)
                    case _:
                        break
            self.http.start_next_cycle()
        except h11.RemoteProtocolError:
            self.got.end = "closed"
        except trio.BrokenResourceError:
            self.got.end = "reset"


@asynccontextmanager
async def line(double: Double) -> AsyncIterator[Line]:
    stream = await trio.open_tcp_stream("127.0.0.1", int(double.url.rsplit(":", 1)[1]))
    async with stream:
        yield Line(stream)


async def play(*steps: Step, stream: bool = True) -> Got:
    """One request to a double with this script."""
    async with serve(steps) as double, line(double) as client:
        return await client.ask({**ASK, "stream": stream})


def sdk(double: Double) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(api_key="test-key", base_url=double.url, max_retries=0)


# ---- replies


async def test_a_streamed_reply_has_the_events_of_the_api() -> None:
    got = await play(calls(("look", {"at": "x"}), say="Looking."))
    assert (got.status, got.end) == (200, "done")
    assert got.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert got.headers["request-id"] == "req_000001"
    assert got.types == [
        *("message_start", "content_block_start", "ping", "content_block_delta", "content_block_stop"),
        *("content_block_start", "content_block_delta", "content_block_delta", "content_block_stop"),
        *("message_delta", "message_stop"),
    ]
    pieces = [e["delta"]["partial_json"] for e in got.events if e.get("delta", {}).get("type") == "input_json_delta"]
    assert json.loads("".join(pieces)) == {"at": "x"}
    assert got.events[-2]["delta"]["stop_reason"] == "tool_use"


async def test_a_reply_that_is_not_streamed_is_one_message() -> None:
    got = await play(text("Hi.", usage={"output_tokens": 7}), stream=False)
    assert got.headers["content-type"] == "application/json"
    assert got.json["content"] == [{"type": "text", "text": "Hi."}]
    assert (got.json["stop_reason"], got.json["usage"]["output_tokens"]) == ("end_turn", 7)


async def test_a_reply_can_be_chopped_up() -> None:
    whole = await play(text("one two three", text_chunk=3))
    bytewise = await play(text("one two three", text_chunk=3, write_size=1))
    assert whole.data == bytewise.data
    assert whole.types.count("content_block_delta") == 5


async def test_the_sdk_streams() -> None:
    script = [thinking("Hm.", calls(("look", {"at": "x"}), say="Looking."))]
    async with serve(script) as double, sdk(double) as client, client.messages.stream(**ASK) as stream:
        said = "".join([piece async for piece in stream.text_stream])
        message = await stream.get_final_message()
    assert said == "Looking."
    thought, _, call = message.content
    assert thought.type == "thinking"
    assert thought.signature
    assert call.type == "tool_use"
    assert (call.name, call.input) == ("look", {"at": "x"})
    assert message.usage.input_tokens == double.accounts[0].input


async def test_the_sdk_asks_without_streaming() -> None:
    async with serve([text("Hi.")]) as double, sdk(double) as client:
        message = await client.messages.create(**ASK)
    assert message.content[0].to_dict() == {"type": "text", "text": "Hi."}
    assert message.stop_reason == "end_turn"


async def test_the_sdk_looks_things_up() -> None:
    async with serve() as double, sdk(double) as client:
        assert (await client.models.retrieve(NEWER)).id == NEWER
        assert NEWER in [m.id async for m in client.models.list()]
        counted = await client.messages.count_tokens(model=NEWER, messages=ASK["messages"])
        assert counted.input_tokens > 0
        with pytest.raises(anthropic.NotFoundError):
            await client.models.retrieve("claude-0")
        double.expect_fault("model: claude-0")
        assert [s.path for s in double.lookups][:2] == [f"/v1/models/{NEWER}", "/v1/models"]


async def test_thinking_can_be_sent_back_as_it_came_and_no_other_way() -> None:
    script = [thinking("Hm.", calls(("look", {}))), text("Done."), text("Done.")]
    async with serve(script) as double, line(double) as client:
        first = {**ASK, "thinking": {"type": "adaptive"}}
        await client.ask(first)
        reply = list(double.requests[0].reply)
        result = {"type": "tool_result", "tool_use_id": reply[1]["id"], "content": "x"}

        def then(*blocks: Any) -> dict[str, Any]:
            more = [{"role": "assistant", "content": list(blocks)}, {"role": "user", "content": [result]}]
            return {**first, "messages": [*first["messages"], *more]}

        assert (await client.ask(then(*reply))).status == 200
        double.expect_fault("cannot be modified")
        assert (await client.ask(then(reply[1]))).status == 400
        double.expect_fault("Invalid `signature`")
        assert (await client.ask(then({**reply[0], "thinking": "Ha."}, reply[1]))).status == 400


# ---- faults: each as a client sees it


@pytest.mark.sampled(every=4)
@pytest.mark.parametrize(
    ("code", "kind", "error"),
    [
        (400, "invalid_request_error", anthropic.BadRequestError),
        (401, "authentication_error", anthropic.AuthenticationError),
        (403, "permission_error", anthropic.PermissionDeniedError),
        (404, "not_found_error", anthropic.NotFoundError),
        (413, "request_too_large", anthropic.APIStatusError),
        (429, "rate_limit_error", anthropic.RateLimitError),
        (500, "api_error", anthropic.InternalServerError),
        (529, "overloaded_error", anthropic.InternalServerError),
    ],
)
async def test_a_status(code: int, kind: str, error: type[anthropic.APIStatusError]) -> None:
    got = await play(Status(code, message="because"))
    assert got.status == code
    assert got.json["error"] == {"type": kind, "message": "because"}
    async with serve([Status(code)]) as double, sdk(double) as client:
        with pytest.raises(error) as caught:
            await client.messages.create(**ASK)
    assert caught.value.status_code == code


async def test_a_rate_limit_says_when_to_come_back() -> None:
    got = await play(rate_limited("7"))
    assert (got.status, got.headers["retry-after"]) == (429, "7")


async def test_an_error_event_in_mid_stream() -> None:
    got = await play(ErrorEvent(after=4, message="Too much"))
    assert got.types[-2:] == ["content_block_delta", "error"]
    assert got.events[-1]["error"] == {"type": "overloaded_error", "message": "Too much"}
    assert got.end == "done"


@leaky
async def test_the_sdk_sees_an_error_event() -> None:
    async with serve([ErrorEvent()]) as double, sdk(double) as client:
        with pytest.raises(anthropic.APIStatusError, match="Overloaded"):
            async with client.messages.stream(**ASK) as stream:
                await stream.until_done()


async def test_an_error_event_without_a_stream_is_a_status() -> None:
    assert (await play(ErrorEvent(kind="api_error"), stream=False)).status == 500


async def test_a_refused_connection() -> None:
    async with serve([text("one"), text("two")], continuity=False) as double, line(double) as client:
        await client.ask()
        async with double.refusing():
            with pytest.raises(OSError, match="attempts to connect"):
                async with line(double):
                    pass
            assert double.open_connections == 0
        async with line(double) as later:
            assert (await later.ask()).status == 200


@pytest.mark.parametrize("after", [None, 0, 4])
async def test_a_reset(after: int | None) -> None:
    async with serve([Reset(after)]) as double, line(double) as client:
        got = await client.ask({**ASK, "stream": True})
    assert got.end == "reset"
    # A reset may overtake what was sent before it, so there is at most as much.
    assert len(got.types) <= (after or 0)
    assert double.requests[0].finished.is_set()


async def test_a_cut_in_mid_event() -> None:
    got = await play(Cut(after=4, extra=30))
    assert got.end == "closed"
    assert got.data.count(b"\n\n") == 4
    assert got.data.endswith(b"event: content_block_stop\ndata")


async def test_a_cut_before_the_response() -> None:
    got = await play(Cut(after=None))
    assert (got.status, got.end) == (0, "closed")


async def test_a_cut_that_http_does_not_see() -> None:
    got = await play(Cut(after=4, clean=True))
    assert got.end == "done"
    assert got.types[-1] == "content_block_delta"


@pytest.mark.parametrize("after", [None, 4])
async def test_a_stall_ends_when_the_client_goes_away(after: int | None) -> None:
    async with serve([Stall(after)]) as double, line(double) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.ask, {**ASK, "stream": True})
        seen = await double.request(1)
        await trio.testing.wait_all_tasks_blocked()
        assert client.got.data.count(b"\n\n") == (after or 0)
        assert not seen.disconnected.is_set()
        nursery.cancel_scope.cancel()
        await client.stream.aclose()
        await seen.disconnected.wait()
        assert not seen.finished.is_set()


async def test_a_stall_ends_with_the_double() -> None:
    async with trio.open_nursery() as nursery, serve([Stall()]) as double:

        async def ask() -> None:
            async with line(double) as client:
                assert (await client.ask()).end == "closed"

        nursery.start_soon(ask)
        await double.request(1)


@pytest.mark.parametrize("kind", ["sse", "json", "shape"])
async def test_garbage(kind: Any) -> None:
    got = await play(Garbage(kind, after=3))
    assert got.end == "done"
    with pytest.raises((ValueError, UnicodeDecodeError, TypeError)):
        _ = got.types


@leaky
async def test_the_sdk_sees_garbage() -> None:
    async with serve([Garbage("json")]) as double, sdk(double) as client:
        with pytest.raises(json.JSONDecodeError):
            async with client.messages.stream(**ASK) as stream:
                await stream.get_final_message()


async def test_a_delta_for_a_block_that_never_began() -> None:
    got = await play(Garbage("orphan_delta"))
    assert got.events[-1]["index"] == 7


async def test_an_event_of_the_future_does_not_end_the_reply() -> None:
    got = await play(Garbage("unknown_event", reply=text("Hi.")))
    assert "weather_report" in got.types
    assert got.types[-1] == "message_stop"
    script = [Garbage("unknown_event", reply=text("Hi."))]
    async with serve(script) as double, sdk(double) as client, client.messages.stream(**ASK) as stream:
        assert await stream.get_final_text() == "Hi."


async def test_a_body_that_does_not_parse() -> None:
    got = await play(Garbage("json"), stream=False)
    assert got.status == 200
    with pytest.raises(ValueError, match="Expecting"):
        _ = got.json


async def test_a_reply_without_content() -> None:
    got = await play(nothing())
    assert got.types == ["message_start", "ping", "message_delta", "message_stop"]
    assert (await play(nothing(), stream=False)).json["content"] == []


async def test_an_empty_tool_name() -> None:
    (call,) = (await play(nameless_call(), stream=False)).json["content"]
    assert (call["type"], call["name"]) == ("tool_use", "")


async def test_duplicate_tool_ids() -> None:
    one, other = (await play(twin_calls("look", {}), stream=False)).json["content"]
    assert one["id"] == other["id"]


async def test_a_call_that_the_limit_cut_off() -> None:
    got = await play(cut_call("look", '{"at": "x'))
    assert (
        "".join(e["delta"].get("partial_json", "") for e in got.events if e["type"] == "content_block_delta")
        == '{"at": "x'
    )
    assert got.events[-2]["delta"]["stop_reason"] == "max_tokens"


async def test_a_page_from_a_proxy() -> None:
    got = await play(Html(503))
    assert (got.status, got.headers["content-type"]) == (503, "text/html")
    assert got.data.startswith(b"<html>")


async def test_raw_bytes() -> None:
    async with serve([Raw(b"SSH-2.0-OpenSSH_9.9\r\n")]) as double, line(double) as client:
        got = await client.ask()
    assert (got.end, client.raw) == ("closed", b"SSH-2.0-OpenSSH_9.9\r\n")


# ---- refusals and records


async def test_a_broken_rule_is_answered_and_raised() -> None:
    got = Got()
    with pytest.raises(RulesBroken, match="request 1: `temperature` is deprecated"):  # noqa: PT012 - the end raises
        async with serve([text("never")]) as double, line(double) as client:
            got = await client.ask({**ASK, "temperature": 0})
            assert double.unplayed == 1, "a refused request takes no step"
    assert got.status == 400
    assert got.json["error"]["type"] == "invalid_request_error"


async def test_a_broken_rule_can_be_expected() -> None:
    async with serve([text("Hi.")]) as double, line(double) as client:
        double.expect_fault("`temperature` is deprecated")
        assert (await client.ask({**ASK, "temperature": 0})).status == 400
        assert (await client.ask()).status == 200
    assert [r.fault is None for r in double.requests] == [False, True]


async def test_an_expected_fault_has_to_come() -> None:
    with pytest.raises(RulesBroken, match="no request broke the rule 'temperature'"):
        async with serve() as double:
            double.expect_fault("temperature")


async def test_a_conversation_that_shrinks_is_answered_and_raised() -> None:
    with pytest.raises(RulesBroken, match="not a prefix"):  # noqa: PT012 - the end raises
        async with serve([text("Hi."), text("Hi.")]) as double, line(double) as client:
            await client.ask()
            other = {**ASK, "messages": [{"role": "user", "content": "other"}]}
            assert (await client.ask(other)).status == 200


async def test_a_new_conversation_can_be_expected() -> None:
    async with serve(text("Hi.")) as double, line(double) as client:
        await client.ask()
        double.expect_new_conversation()
        await client.ask({**ASK, "messages": [{"role": "user", "content": "other"}]})


async def test_a_script_that_is_too_short_is_a_mistake() -> None:
    with pytest.raises(RulesBroken, match="no step left"):
        async with serve() as double, line(double) as client:
            assert (await client.ask()).status == 500


async def test_a_script_can_be_added_to() -> None:
    async with serve() as double, line(double) as client:
        double.add(text("Hi."))
        assert (await client.ask()).status == 200
    async with serve(text("Hi.")) as double:
        with pytest.raises(TypeError, match="sequence"):
            double.add(text("Hi."))


async def test_a_script_can_be_a_function() -> None:
    def script(body: Any, n: int) -> Step:
        return text(f"{n}: {body['messages'][-1]['content']}")

    async with serve(script, continuity=False) as double, line(double) as client:
        replies = [(await client.ask()).json["content"][0]["text"] for _ in range(2)]
    assert replies == ["0: hello", "1: hello"]


async def test_a_script_that_raises_is_told() -> None:
    with pytest.raises(RulesBroken, match="the script raised KeyError"):
        async with serve(lambda body, n: body["no"]) as double, line(double) as client:
            assert (await client.ask()).status == 500


async def test_the_tests_own_exception_is_more_important() -> None:
    with pytest.raises(KeyError) as caught:  # noqa: PT012 - both raise
        async with serve([text("Hi.")]) as double, line(double) as client:
            await client.ask({**ASK, "colour": 1})
            raise KeyError("mine")
    assert "colour: Extra inputs" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "The request body is not valid JSON"),
        (b'{"max_tokens": NaN}', 400, "NaN is not JSON"),
        (b"[]", 400, "Input should be a valid dictionary"),
        (json.dumps({**ASK, "system": "half \ud83d"}).encode(), 400, "surrogates not allowed"),
        (b"\xff\xfe", 400, "The request body is not valid JSON"),
        (b'"%s"' % (b"x" * 2000), 413, "Request exceeds the maximum allowed number of bytes"),
    ],
)
async def test_a_body_that_is_none(body: bytes, status: int, message: str) -> None:
    async with serve(max_body=1000) as double, line(double) as client:
        double.expect_fault(message)
        got = await client.ask(body)
        assert got.status == status
        assert message in got.json["error"]["message"]


async def test_an_emoji_is_no_half_character() -> None:
    body = {**ASK, "messages": [{"role": "user", "content": "⏳ 👩‍🚀"}]}
    async with serve([text("👍")]) as double, line(double) as client:
        assert (await client.ask(json.dumps(body).encode())).json["content"][0]["text"] == "👍"


async def test_the_key_is_asked_for_and_not_shown() -> None:
    async with serve(policy=Policy(key="sesame")) as double, line(double) as client:
        double.expect_fault("invalid x-api-key", times=2)
        assert (await client.ask()).status == 401
        assert (await client.ask(None, path="/v1/models", method="GET")).status == 401
    assert "test-key" not in repr(double.requests[0])
    assert double.requests[0].headers["x-api-key"] == "test-key"


@pytest.mark.parametrize(("method", "path"), [("GET", "/v1/messages"), ("POST", "/v1/complete"), ("GET", "/")])
async def test_nothing_else_is_there(method: str, path: str) -> None:
    async with serve() as double, line(double) as client:
        double.expect_fault("Not found")
        assert (await client.ask(None, path=path, method=method)).status == 404


async def test_what_is_no_http_is_refused() -> None:
    async with serve() as double:
        stream = await trio.open_tcp_stream("127.0.0.1", int(double.url.rsplit(":", 1)[1]))
        async with stream:
            await stream.send_all(b"hello\r\n\r\n")
            assert (await stream.receive_some()).startswith(b"HTTP/1.1 400")


async def test_an_older_model_takes_what_a_newer_one_refuses() -> None:
    async with serve([text("Hi.")]) as double, line(double) as client:
        assert (await client.ask({**ASK, "model": OLDER, "temperature": 0})).status == 200


# ---- lock-step, connections, time


async def test_a_gate_holds_a_reply_in_the_middle() -> None:
    gates = Gate(), Gate(after=4)
    async with serve([text("one two", text_chunk=4).holding(*gates)]) as double, line(double) as client:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.ask, {**ASK, "stream": True})
            await gates[0].reached.wait()
            assert client.got.status == 0
            gates[0].open.set()
            await gates[1].reached.wait()
            await trio.testing.wait_all_tasks_blocked()
            assert client.got.types[-1] == "content_block_delta"
            assert not double.requests[0].finished.is_set()
            gates[1].open.set()
        assert client.got.types[-1] == "message_stop"
        await double.requests[0].finished.wait()


async def test_a_client_that_leaves_at_a_gate_is_noticed() -> None:
    gate = Gate(after=2)
    async with serve([text("Hi.").holding(gate)]) as double, sdk(double) as client:
        async with trio.open_nursery() as nursery:

            async def ask() -> None:
                async with client.messages.stream(**ASK) as stream:
                    await stream.until_done()

            nursery.start_soon(ask)
            await gate.reached.wait()
            nursery.cancel_scope.cancel()
        await double.requests[0].disconnected.wait()


async def test_an_error_can_be_held_too() -> None:
    gate = Gate()
    async with serve([Status(500, gates=(gate,))]) as double, line(double) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.ask)
        await gate.reached.wait()
        assert client.got.status == 0
        gate.open.set()
    assert client.got.status == 500


async def test_requests_can_be_waited_for() -> None:
    async with serve(text("Hi."), continuity=False) as double, line(double) as client, trio.open_nursery() as nursery:
        came: list[int] = []

        async def wait(n: int) -> None:
            came.append((await double.request(n)).number)

        nursery.start_soon(wait, 2)
        await client.ask()
        await trio.testing.wait_all_tasks_blocked()
        assert came == []
        await client.ask()
        await trio.testing.wait_all_tasks_blocked()
        assert came == [2]


async def test_a_connection_is_kept() -> None:
    steps: list[Step] = [text("Hi."), Status(500), text("Hi."), Cut()]
    async with serve(steps, continuity=False) as double, line(double) as client:
        for stream in (True, False, False):
            await client.ask({**ASK, "stream": stream})
        assert (double.open_connections, double.connections_made) == (1, 1)
        assert {r.connection for r in double.requests} == {1}
        await client.ask({**ASK, "stream": True})
        await trio.testing.wait_all_tasks_blocked()
        assert double.open_connections == 0


async def test_a_refused_request_leaves_the_connection_usable() -> None:
    async with serve([text("Hi.")], max_body=1000) as double, line(double) as client:
        double.expect_fault("maximum allowed")
        await client.ask(b"x" * 3000)
        assert (await client.ask()).status == 200
    assert double.connections_made == 1


async def test_a_request_that_comes_early_is_answered_later() -> None:
    gate = Gate(after=2)
    async with serve([text("one").holding(gate), text("two")], continuity=False) as double:
        stream = await trio.open_tcp_stream("127.0.0.1", int(double.url.rsplit(":", 1)[1]))
        async with stream:
            request = httpx2.Request("POST", double.url, json=ASK)
            data = request.read()
            head = "".join(
                f"{k}: {v}\r\n" for k, v in {**HEADERS, "host": "x", "content-length": str(len(data))}.items()
            )
            await stream.send_all((b"POST /v1/messages HTTP/1.1\r\n" + head.encode() + b"\r\n" + data) * 2)
            await gate.reached.wait()
            await trio.testing.wait_all_tasks_blocked()
            gate.open.set()
            await (await double.request(2)).finished.wait()
        assert len(double.requests) == 2


async def test_delays_pass_in_trios_time(autojump_clock: trio.testing.MockClock) -> None:
    start = trio.current_time()
    async with serve([text("Hi.", delay_before=5, delay_between=1)]) as double, line(double) as client:
        got = await client.ask({**ASK, "stream": True})
    assert got.types[-1] == "message_stop"
    assert trio.current_time() - start == pytest.approx(5 + len(got.types) - 1)


# ---- accounting


@pytest.mark.slow
async def test_two_hundred_iterations_read_what_they_can_from_the_cache() -> None:
    """The way a chain asks: a breakpoint on the last block of the conversation, a tail now and then."""

    def marked(messages: list[Any]) -> list[Any]:
        *rest, last = messages
        *blocks, end = last["content"]
        return [*rest, {**last, "content": [*blocks, {**end, "cache_control": {"type": "ephemeral"}}]}]

    def script(body: Any, n: int) -> Step:
        return calls(("look", {"n": n}), say=f"Looking, for the {n}th time.")

    messages: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "Count."}]}]
    async with serve(script) as double, line(double) as client:
        for n in range(200):
            sent = marked(messages)
            if n % 10 == 0:
                tail = {"type": "text", "text": f"The plan, version {n}."}
                sent[-1]["content"].append(tail)
            assert (await client.ask({**ASK, "messages": sent, "system": "s" * 400})).status == 200
            reply = [*double.requests[-1].reply]
            result = {"type": "tool_result", "tool_use_id": reply[-1]["id"], "content": "x" * 50}
            messages += [{"role": "assistant", "content": reply}, {"role": "user", "content": [result]}]
    assert len(double.accounts) == 200
    assert double.reuse >= 0.99
    assert double.report()["reuse"] == double.reuse


async def test_what_was_not_begun_is_not_accounted_for() -> None:
    steps: list[Step] = [Status(529), Reset(None), text("Hi.")]
    async with serve(steps, continuity=False) as double:
        for _ in steps:
            async with line(double) as client:
                await client.ask()
    assert [r.account is None for r in double.requests] == [True, True, False]


# ---- in a process of its own


def _process(script: dict[str, Any], folder: Path, ask: Callable[[str], None]) -> tuple[int, dict[str, Any]]:
    file = folder / "script.json"
    file.write_text(json.dumps(script))
    command = [sys.executable, "-m", "double.server", "--script", str(file)]
    home = Path(double_package.__file__).parents[1]
    with subprocess.Popen(command, cwd=home, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin
        assert process.stdout
        ask(f"http://127.0.0.1:{int(process.stdout.readline())}")
        process.stdin.close()
        report = process.stdout.readlines()[-1]
        return process.wait(), json.loads(report or "{}")


def test_a_process_of_its_own(tmp_path: Path) -> None:
    def ask(url: str) -> None:
        with httpx2.Client(base_url=url, headers=HEADERS, trust_env=False) as client:
            for _ in range(3):
                assert "toolu_" in client.post("/v1/messages", json={**ASK, "stream": True}).text
            assert client.post("/v1/messages", json=ASK).json()["content"] == [{"type": "text", "text": "done"}]
            assert client.get("/double/report").json()["requests"] == 4

    call = {"type": "say", "blocks": [{"type": "tool_use", "name": "echo", "input": {}}], "times": 3}
    steps = [call, {"type": "say", "blocks": [{"type": "text", "text": "done"}]}]
    status, report = _process({"steps": steps}, tmp_path, ask)
    assert (status, report["requests"], report["connections"], report["complaints"]) == (0, 4, 1, [])


def test_a_process_says_when_rules_were_broken(tmp_path: Path) -> None:
    def ask(url: str) -> None:
        httpx2.post(f"{url}/v1/messages", json={**ASK, "top_k": 1}, headers=HEADERS, trust_env=False)

    status, report = _process({"steps": []}, tmp_path, ask)
    assert (status, report["complaints"]) == (1, ["`top_k` is deprecated for this model."])


def test_a_lean_process_checks_nothing(tmp_path: Path) -> None:
    def ask(url: str) -> None:
        for _ in range(3):
            got = httpx2.post(f"{url}/v1/messages", json={"stream": True}, trust_env=False)
            assert got.text.endswith('data: {"type":"message_stop"}\n\n')

    say = {"type": "say", "blocks": [{"type": "text", "text": "x"}]}
    status, report = _process({"steps": [say], "lean": True, "repeat": True}, tmp_path, ask)
    assert (status, report["requests"]) == (0, 3)


def test_scripts_as_json() -> None:
    steps = setup(
        {
            "steps": [
                {"type": "status", "code": 429, "headers": {"retry-after": "1"}},
                {"type": "cut", "after": 2, "reply": {"blocks": []}},
                {"type": "error"},
            ]
        }
    ).script
    assert steps == [Status(429, headers={"retry-after": "1"}), Cut(2, reply=Say(())), ErrorEvent()]
    with pytest.raises(ValueError, match="no such step: 'sing'"):
        setup({"steps": [{"type": "sing"}]})


def test_ids_are_the_same_for_the_same_request() -> None:
    say = calls(("a", {}), ("b", {}))
    one, other = complete(say.blocks, 7)
    assert (one["id"], other["id"]) == ("toolu_000007_0", "toolu_000007_1")
    assert complete(say.blocks, 7) == (one, other)
    assert len(events(Say((one,)), Facts(7, True, "m", {}))) == 7
