"""An MCP server that answers a call with an endless stream of data, over its standard streams or over HTTP.

``flooding_server.py stdio ACT`` or ``flooding_server.py http ACT``, which writes its port.
"""

import json
import os
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from itertools import count, repeat

TRANSPORT, ACT = sys.argv[1:]
SIZE = 8_300_000  # slightly less than the largest message that is accepted
NOTE = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":%s}}'
RESULT = b'{"jsonrpc":"2.0","id":%d,"result":{"content":[{"type":"text","text":%s}]}}'
DATA = {
    "text": b'"' + b"A" * SIZE + b'"',
    "escapes": b'"' + b"\\n," * (SIZE // 3) + b'"',
    "quotes": b'"' + b'\\"' * (SIZE // 2) + b'"',
    "wide": b'"' + b"A" * (SIZE - 8) + "😀".encode() + b'"',
    "lists": b"[" + b"[]," * (SIZE // 3) + b"1]",
    "objects": b"[" + b'{"a":1},' * 18_000 + b"1]",
}


def messages(id: int) -> Iterator[bytes]:
    """Yield the messages that answer a call, without end."""
    if ACT == "results":
        yield from (RESULT % (n, DATA["wide"]) for n in count(id))
    elif ACT == "requests":
        yield from (
            b'{"jsonrpc":"2.0","id":%d,"method":"ping","params":{"a":"%s"}}' % (n, b"A" * 9_000) for n in count()
        )
    elif ACT == "progress":
        yield from repeat(
            b'{"jsonrpc":"2.0","method":"notifications/progress","params":{"progressToken":%d,"progress":1}}' % id
        )
    else:
        yield from repeat(b"x" * SIZE if ACT == "junk" else NOTE % DATA[ACT])


def answer_handshake(message: dict[str, object], send: Callable[[bytes], object]) -> bool:
    """Answer a message if it is a request of the handshake. Return whether it is one."""
    info = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": {"name": "f", "version": "1"}}
    results = {"initialize": info, "tools/list": {"tools": [{"name": "t", "inputSchema": {"type": "object"}}]}}
    if (result := results.get(str(message.get("method")))) is not None:
        send(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode())
    return result is not None


def write(data: bytes) -> None:
    view = memoryview(data + b"\n")
    while view:
        view = view[os.write(1, view) :]


def serve(connection: socket.socket) -> None:
    rows = connection.makefile("rb")

    def respond(status: bytes, kind: bytes, body: bytes) -> None:
        head = b"HTTP/1.1 %s\r\ncontent-type: %s\r\ncontent-length: %d\r\n\r\n" % (status, kind, len(body))
        connection.sendall(head + body)

    while verb := rows.readline():
        length = 0
        while header := rows.readline().strip().lower():
            length = int(header.partition(b":")[2]) if header.startswith(b"content-length") else length
        message = json.loads(rows.read(length)) if length else {}
        if not verb.startswith(b"POST"):
            respond(b"405 No", b"text/plain", b"")
        elif message.get("method") == "tools/call":
            connection.sendall(
                b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
            )
            if ACT == "chunks":
                while True:
                    connection.sendall(b"1\r\n:\r\n" * 10_000)
            for data in messages(message["id"]):
                connection.sendall(b"%x\r\ndata: %s\n\n\r\n" % (len(data) + 8, data))
        elif not answer_handshake(message, lambda body: respond(b"200 OK", b"application/json", body)):
            respond(b"202 Accepted", b"text/plain", b"")


def serve_quietly(connection: socket.socket) -> None:
    try:
        serve(connection)
    except OSError:  # the client has disconnected
        connection.close()


if TRANSPORT == "http":
    listening = socket.create_server(("127.0.0.1", 0))
    write(str(listening.getsockname()[1]).encode())
    while True:
        threading.Thread(target=serve_quietly, args=listening.accept()[:1], daemon=True).start()
for row in sys.stdin:
    message = json.loads(row)
    if not answer_handshake(message, write) and message.get("method") == "tools/call":
        for data in messages(message["id"]):
            write(data)
