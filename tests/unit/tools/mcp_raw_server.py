"""An MCP server on stdio in plain Python, which starts at once and misbehaves as it is told to.

Arguments: a folder to leave notes in, then the ways to misbehave. It knows the handshake of 2025 alone.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

notes, ways = Path(sys.argv[1]), sys.argv[2:]


def note(name: str, text: str = "") -> None:
    (notes / name).write_text(text or str(os.getpid()))


def send(**message: object) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


def text(value: str) -> dict:
    return {"content": [{"type": "text", "text": value}]}


SCHEMA = {"$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": {"n": {}}}
TOOLS = [{"name": "echo", "inputSchema": SCHEMA}, {"name": "slow", "inputSchema": SCHEMA}]
listed = 0


def tools(cursor: str | None) -> dict:
    global listed
    listed += 1
    note("listed", str(listed))
    if "pages" in ways:
        page = int(cursor or 0)
        following = {"nextCursor": str(page + 1)} if page < 2 else {}
        return {"tools": [{"name": f"tool{page}", "inputSchema": SCHEMA}], **following}
    if "endless" in ways:
        page = int(cursor or 0)
        return {"tools": [{"name": f"t{page}", "inputSchema": SCHEMA}] * 500, "nextCursor": str(page + 1)}
    if "twice" in ways:
        return {"tools": TOOLS[:1] * 2}
    if "empty" in ways:
        return {"tools": []}
    if "schemas" in ways:
        remote = {"type": "object", "properties": {"a": {"$ref": "https://example.test/s.json"}}}
        pair = {"type": "object", "properties": {"a": {"type": "array", "items": [{"type": "string"}]}}}
        return {"tools": [{"name": "remote", "inputSchema": remote}, {"name": "pair", "inputSchema": pair}]}
    if "shrinks" in ways and listed > 1:
        return {"tools": TOOLS[1:]}
    if "grows" in ways and listed > 1:
        return {"tools": [*TOOLS, {"name": "new", "inputSchema": SCHEMA}]}
    return {"tools": TOOLS}


def call(number: object, name: str, arguments: dict, meta: dict) -> None:
    if name == "slow":
        note("slow", json.dumps(meta))
        return
    what = arguments.get("n")
    if what == "die":
        note("died")
        os._exit(7)
    if what == "grow":
        send(method="notifications/tools/list_changed")
    if what == "huge":
        print("x" * (17 << 20), flush=True)
    if what == "large":
        send(id=number, result=text("x" * (5 << 20)))
    elif what == "picture":
        picture = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
        send(id=number, result={"content": [picture, {"type": "text", "text": "hi"}]})
    elif what == "nothing":
        send(id=number, result={"content": []})
    elif what == "structured":
        send(id=number, result={"content": [], "structuredContent": {"a": 1}})
    elif what == "wrong":
        send(id=number, result={"content": "no list"})
    elif what == "env":
        send(id=number, result=text(json.dumps(dict(os.environ))))
    elif what == "refuse":
        send(id=number, error={"code": -32602, "message": "n is refused"})
    elif what == "break":
        send(id=number, error={"code": -32603, "message": "it broke"})
    elif what == "fail":
        send(id=number, result={**text("it failed: " + os.environ.get("KEY", "")), "isError": True})
    else:
        send(id=number, result=text(json.dumps(what)))


note("started")
if "stubborn" in ways:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    note("grandchild", str(child.pid))
if "exit" in ways:
    print("first line", file=sys.stderr)
    sys.exit(f"cannot start: {os.environ.get('KEY', '')}")
if "noisy" in ways:
    sys.stderr.write("x" * (5 << 20))
    print("this is no message", flush=True)
    print('{"jsonrpc": "2.0", "method": 7}', flush=True)
if "silent" in ways:
    time.sleep(1000)

for line in sys.stdin:
    message = json.loads(line)
    method, params = message["method"], message.get("params") or {}
    if method == "initialize":
        result = {
            "protocolVersion": "2025-06-18",
            "capabilities": {"tools": {"listChanged": True}},
            "serverInfo": {"name": "raw", "version": "1"},
        }
        send(id=message["id"], result=result)
    elif method == "tools/list":
        send(id=message["id"], result=tools(params.get("cursor")))
    elif method == "tools/call":
        call(message["id"], params["name"], params.get("arguments") or {}, params.get("_meta") or {})
    elif method == "notifications/cancelled":
        note("cancelled", json.dumps(params))
    elif "id" in message:
        send(id=message["id"], error={"code": -32601, "message": "Method not found"})

if "stubborn" in ways:
    time.sleep(1000)
note("left")
