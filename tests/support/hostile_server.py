"""An MCP server that misbehaves as its arguments say: ``hostile_server.py LOG [ACT...]``.

It appends every received method, and the pid of every process that it starts, to the file LOG. Tests start it thousands
of times, so it uses no library and imports some modules late.
"""

import json
import os
import sys
import time
from binascii import b2a_base64

LOG, *ACTS = sys.argv[1:]

PNG = b"\x89PNG\r\n\x1a\n" + bytes.fromhex(
    "0000000d49484452000000010000000108060000001f15c4890000000d49444154789c6360606060000000050001a5f645400000000049454e44ae426082"
)

OBJECT = {"type": "object", "properties": {"text": {"type": "string"}}}
PLAIN: list[object] = [
    {"name": "echo", "description": "Say it again.", "inputSchema": {**OBJECT, "required": ["text"]}},
    {"name": "look", "inputSchema": OBJECT, "annotations": {"readOnlyHint": True}},
    *({"name": name, "description": f"Does {name}.", "inputSchema": {"type": "object"}}
      for name in ("hang", "die", "fail", "picture", "everything", "huge", "rows", "ask", "steps", "spawn", "change",
                   "late", "empty", "wrong", "gush")),
]  # fmt: skip


def log(text: str) -> None:
    with open(LOG, "a") as file:
        file.write(f"{text}\n")


def send(message: dict[str, object]) -> None:
    data = json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n"
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


def in_base64(data: bytes) -> str:
    return b2a_base64(data, newline=False).decode()


def text(*texts: str) -> dict[str, object]:
    return {"content": [{"type": "text", "text": each} for each in texts]}


def start_daemon() -> None:
    """Start a process that tries to outlive the server. It has its own session and ignores signals. Log its pid."""
    import _signal

    logged, end = os.pipe()
    if pid := os.fork():
        os.waitpid(pid, 0)
        os.read(logged, 1)
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (1, 2, 3, 13, 15):
        _signal.signal(number, _signal.SIG_IGN)
    log(f"left {os.getpid()}")
    os.write(end, b"x")
    time.sleep(600)
    os._exit(0)


def tools() -> list[object]:
    found = list(PLAIN)
    if "many" in ACTS:
        found += [{"name": f"t{n}", "inputSchema": {"type": "object"}} for n in range(5_000)]
    if changed:
        found = [each for each in found if each["name"] != "look"]
        found.append({"name": "new", "inputSchema": {"type": "object"}})
    return found


def call(id: int, params: dict[str, object]) -> None:
    name, arguments = params["name"], params.get("arguments") or {}
    if "random" in ACTS:
        name = chance.choice(("echo", "echo", "hang", "die", "fail", "rows", "steps", "wrong"))
    match name:
        case "echo":
            send({"id": id, "result": text(arguments.get("text", ""))})
        case "look":
            send({"id": id, "result": text("It looked.")})
        case "hang":
            return
        case "die":
            os._exit(7)
        case "fail":
            send({"id": id, "result": {**text("It failed."), "isError": True}})
        case "picture":
            data = in_base64(PNG)
            send({"id": id, "result": {"content": [{"type": "image", "mimeType": "image/png", "data": data}]}})
        case "everything":
            content = [
                {"type": "text", "text": "A text."},
                {"type": "audio", "mimeType": "audio/wav", "data": in_base64(b"RIFF")},
                {"type": "image", "mimeType": "image/png", "data": "no base64!"},
                {"type": "resource_link", "uri": "file:///x", "name": "x"},
                {"type": "resource", "resource": {"uri": "file:///y", "text": "Of a resource."}},
                {"type": "resource", "resource": {"uri": "file:///z", "blob": in_base64(PNG)}},
                {"type": "hologram"},
                "nothing",
            ]
            send({"id": id, "result": {"content": content, "structuredContent": {"a": 1}}})
        case "huge":
            head = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":"' % id
            os.write(1, head)
            for _ in range(1024):
                os.write(1, b"x" * (1 << 20))
        case "rows":
            for _ in range(50):
                os.write(1, b"this is no message\n")
            send({"method": "notifications/unheard"})
            send({"id": 999, "result": {}})
            send({"id": id, "result": text("x" * 7_000_000 if arguments.get("text") == "large" else "After noise.")})
        case "gush":
            while True:
                send({"method": "notifications/message", "params": {"level": "info", "data": "x"}})
        case "ask":
            schema = {"type": "object", "properties": {"colour": {"type": "string", "enum": ["red", "blue"]}}}
            question = {"message": "Which \x1b[31mcolour?", "requestedSchema": schema}
            calls_by_question[1000 + id] = id
            send({"id": 1000 + id, "method": "elicitation/create", "params": question})
        case "steps":
            token = params.get("_meta", {}).get("progressToken")
            for n in range(3):
                progress = {"progressToken": token, "progress": n + 1, "total": 3, "message": f"step {n + 1}"}
                send({"method": "notifications/progress", "params": progress})
            send({"id": id, "result": text("All steps.")})
        case "spawn":
            start_daemon()
            send({"id": id, "result": text("Started a daemon.")})
        case "change":
            global changed
            changed = True
            send({"method": "notifications/tools/list_changed"})
            send({"id": id, "result": text("Changed.")})
        case "late":
            late_calls.append(id)
        case "empty" if "deaf" in ACTS:
            os.close(0)
            send({"id": id, "result": {}})
            time.sleep(600)
        case "empty" if "mute" in ACTS:
            os.close(1)
            time.sleep(600)
        case "empty":
            send({"id": id, "result": {}})
        case "wrong":
            send({"id": id, "result": ["no", "object"]})
        case _:
            send({"id": id, "error": {"code": -32602, "message": f"no tool {name}"}})


changed = False
calls_by_question: dict[int, int] = {}
late_calls: list[int] = []
if "spawn-first" in ACTS:
    start_daemon()
if "not-json" in ACTS:
    os.write(1, b"Welcome to the server!\n{\n")
if "flood" in ACTS:
    while True:
        os.write(1, b"no message\n" * 1000)
if "one-row" in ACTS:
    while True:
        os.write(1, b"x" * 65536)
if "die-first" in ACTS:
    sys.stderr.write("cannot read the settings\n")
    sys.exit(3)
if "random" in ACTS:
    from random import Random

    chance = Random(ACTS[ACTS.index("random") + 1])

for row in sys.stdin:
    message = json.loads(row)
    method = message.get("method", "answer")
    log(method)
    id = message.get("id")
    match method:
        case "initialize" if "silent" in ACTS:
            continue
        case "initialize":
            capabilities = {"tools": {"listChanged": True}, "prompts": {}}
            info = {"name": "hostile", "version": "1"}
            version = message["params"]["protocolVersion"]
            send({"id": id, "result": {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}})
        case "notifications/initialized" if "roots" in ACTS:
            send({"id": 7, "method": "roots/list"})
        case "tools/list" if changed and "slow-list" in ACTS:
            ACTS.remove("slow-list")
        case "tools/list":
            send({"id": id, "result": {"tools": tools()}})
        case "prompts/list":
            prompt = {"name": "greet", "description": "A greeting.", "arguments": [{"name": "who", "required": True}]}
            invalid = {"description": "x" * 1_000, "arguments": 5}
            more = [{**invalid, "name": f"p{n}"} for n in range(5_000 if "many" in ACTS else 0)]
            send({"id": id, "result": {"prompts": [prompt, *more]}})
        case "prompts/get" if "many" in ACTS:
            send({"id": id, "error": {"code": -32602, "message": "no\n" * 10_000}})
        case "prompts/get":
            greeting = f"Greet {message['params']['arguments']['who']}."
            content = {"role": "user", "content": {"type": "text", "text": greeting}}
            send({"id": id, "result": {"messages": [content]}})
        case "tools/call":
            call(id, message["params"])
        case "notifications/cancelled":
            for late_id in late_calls:
                send({"id": late_id, "result": text("Too late.")})
        case "answer" if id in calls_by_question:
            answer = json.dumps(message.get("result"))
            send({"id": calls_by_question.pop(id), "result": text(f"You said {answer}.")})
        case "ping":
            send({"id": id, "result": {}})
        case "answer":
            log(json.dumps(message.get("result")))
if "hang-at-end" in ACTS:
    while True:
        time.sleep(60)
