"""Generated streams of four wire formats, read by our adapters and by the providers' own libraries.

    python -m tests.benchmarks.model_wires [--peers-python PATH] [--streams N]

The bytes are the same, in pieces of random size. A figure is the number of streams whose text, calls, counts
and end both read alike; a stream that they read differently is printed and makes the exit code 1.
JSON lines {suite, case, subject, value, unit} on stdout. PATH is an interpreter in which anthropic,
google-genai and openai are installed.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

from agentflow.definition.conversation import Message
from agentflow.models import ModelReply, ModelRequest
from tests.unit.models.helpers import ids
from tests.unit.models.wire_formats import GEMINI, MESSAGES, RESPONSES, WIRES, Call, Wire, encode
from tests.unit.models.wire_server import Exchange, WireServer

PEER = Path(__file__).with_name("sdk_peer.py")
SUBJECTS = {
    "openai": "openai",
    "openai-responses": "openai",
    "anthropic": "anthropic",
    "gemini": "google-genai",
}
_LETTERS = 'abcdefghij \n\t"\\/{}[]:,0123456789äöüß世界流程🎉👩‍🚀\u2028'


def text(chance: random.Random, most: int) -> str:
    return "".join(chance.choice(_LETTERS) for _ in range(chance.randint(1, most)))


def pieces_of(whole: str, chance: random.Random) -> list[str]:
    cuts = sorted(chance.sample(range(1, len(whole)), min(len(whole) - 1, chance.randint(0, 5))))
    return [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]


def value(chance: random.Random, depth: int = 0) -> Any:
    kind = chance.randint(0, 6 if depth < 3 else 4)
    if kind == 5:
        return [value(chance, depth + 1) for _ in range(chance.randint(0, 3))]
    if kind == 6:
        return {text(chance, 6): value(chance, depth + 1) for _ in range(chance.randint(0, 3))}
    return [None, True, chance.randint(-(10**6), 10**6), chance.random(), text(chance, 20)][kind]


def stream(wire: Wire, seed: int) -> bytes:
    """Return the bytes of one whole answer."""
    chance = random.Random(f"{wire.name}:{seed}")
    said = [text(chance, 12) for _ in range(chance.randint(0, 8))]
    calls: list[Call] = []
    for number in range(chance.randint(0 if said else 1, 4)):
        arguments = {text(chance, 8): value(chance) for _ in range(chance.randint(0, 4))}
        written = json.dumps(arguments, ensure_ascii=chance.random() < 0.5)
        calls.append((f"call_{seed}_{number}", f"f_{number}", pieces_of(written, chance)))
    events = wire.events(said, calls, "complete")
    if wire in (MESSAGES, RESPONSES) and chance.random() < 0.5:
        events[1:1] = wire.reasoned()
        _number(events)
    if wire is GEMINI and chance.random() < 0.5:
        events.insert(0, wire.reasoned()[0])
    return encode(events)


def _number(events: list[dict[str, Any]]) -> None:
    """Number the content blocks of a message as they begin."""
    index = -1
    for event in events:
        index += event["type"] == "content_block_start"
        if "index" in event:
            event["index"] = index


def normal(reply: ModelReply) -> dict[str, Any]:
    usage = reply.usage
    return {
        "text": reply.message.content,
        "calls": [[c.provider_id, c.name, json.loads(c.arguments)] for c in reply.message.tool_calls],
        "usage": [usage.input_tokens, usage.output_tokens, usage.cache_read_input_tokens],
        "end": reply.provider_finish_reason,
    }


async def ours(wire: Wire, bodies: list[bytes]) -> list[dict[str, Any]]:
    position = 0

    async def answer(exchange: Exchange) -> None:
        nonlocal position
        body = bodies[position]
        chance = random.Random(position)
        position += 1
        await exchange.start_stream()
        while body:
            size = chance.choice((1, 3, 17, 200, 5_000))
            await exchange.chunk(body[:size])
            body = body[size:]
        await exchange.send(b"0\r\n\r\n")

    read: list[dict[str, Any]] = []
    async with WireServer(answer) as server:
        provider = wire.provider(base_url=server.url, api_key="k" * 8)
        for _ in bodies:
            request = ModelRequest(model="m", messages=(Message(role="user", content="go"),))
            read.append(normal(await provider.complete(request, new_call_id=ids())))
        await provider.aclose()
    return read


def theirs(python: str, wire: Wire, bodies: list[bytes]) -> list[dict[str, Any]]:
    lines = "".join(base64.b64encode(body).decode() + "\n" for body in bodies)
    done = subprocess.run(
        [python, str(PEER), wire.name], input=lines, capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode:
        sys.stderr.write(done.stderr)
        sys.exit(f"the library of {wire.name} failed")
    return [json.loads(line) for line in done.stdout.splitlines()]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.model_wires")
    parser.add_argument("--peers-python", default=sys.executable, metavar="PATH")
    parser.add_argument("--streams", type=int, default=1_000)
    options = parser.parse_args()
    differ = 0
    for wire in WIRES.values():
        bodies = [stream(wire, seed) for seed in range(options.streams)]
        read = zip(asyncio.run(ours(wire, bodies)), theirs(options.peers_python, wire, bodies), strict=True)
        alike = 0
        for seed, (mine, other) in enumerate(read):
            if mine == other:
                alike += 1
            else:
                differ += 1
                print(f"{wire.name} {seed}:\n  {mine}\n  {other}", file=sys.stderr)
        figure = {"case": f"{wire.name} streams read alike", "subject": SUBJECTS[wire.name]}
        print(json.dumps({"suite": "model_wires", **figure, "value": alike, "unit": "streams"}), flush=True)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
