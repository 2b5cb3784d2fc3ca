"""What a model is told of a call of a function: its result, what stands for a large or binary one, or its
error. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any, Final, cast

import msgspec

from agentflow.definition.conversation import MediaPart, Message
from agentflow.definition.ir import canonical_json
from agentflow.engine.agents.conversation import compact
from agentflow.engine.agents.progress import ToolRecord

__all__ = ["MAX_RESULT_BYTES", "tool_message"]

MAX_RESULT_BYTES: Final = 256 * 1024
"""The largest result that a model gets whole, in bytes of canonical JSON: page 000 stores a larger value as a
blob."""

_HEAD_CHARS: Final = 16 * 1024
_BLOCKS: Final = frozenset({"text", "image", "audio", "file", "resource", "resource_link"})
_BINARY: Final = frozenset({"image", "audio", "file", "resource"})


def tool_message(record: ToolRecord) -> Message:
    """Return the answer to a call that has ended.

    A binary content block, as MCP writes it, becomes a line of text, and an image `media` too. Of a result
    above MAX_RESULT_BYTES the model gets the first 16,384 characters and the reference to the whole of it.
    """
    call = record.call
    media: tuple[MediaPart, ...] = ()
    if record.state == "done":
        content = compact(record.output)
        blocks = _content_blocks(record.output)
        if blocks:
            content, media = _said(blocks)
        if len(content) > _HEAD_CHARS and _size(content) > MAX_RESULT_BYTES:
            content = _head(content, record)
    else:
        error = record.error
        body: dict[str, Any] = {"code": error.code, "message": error.message} if error else {}
        if error is not None and error.details:
            body["details"] = error.details
        content = canonical_json({"error": body}).decode()
    return Message(role="tool", content=content, tool_call_id=call.id, name=call.name, media=media)


def _size(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


def _head(content: str, record: ToolRecord) -> str:
    names = [
        {"$blob": f"sha256:{hashlib.sha256(body).hexdigest()}", "size": len(body), "type": "json"}
        for body in _large_values(record.output)
    ]
    shown = f"the first {_HEAD_CHARS:,} of {len(content):,} characters; the rest is in "
    said = " ".join(canonical_json(name).decode() for name in names) or f"call {record.call.id}"
    return f"{content[:_HEAD_CHARS]}\n[{shown}{said}]"


def _large_values(value: Any) -> list[bytes]:
    """Return the JSON of the values that the log stores as blobs: above the limit, the innermost ones."""
    body = msgspec.json.encode(value)
    if len(body) <= MAX_RESULT_BYTES:
        return []
    members: Iterable[Any] = ()
    if isinstance(value, dict):
        members = cast("dict[str, Any]", value).values()
    elif isinstance(value, list):
        members = cast("list[Any]", value)
    return [inner for member in members for inner in _large_values(member)] or [body]


# -- content blocks -------------------------------------------------------------------------------


def _content_blocks(output: Any) -> list[dict[str, Any]]:
    """Return the blocks of a result that consists of such and has a binary one; empty for any other."""
    if not isinstance(output, dict | list):
        return []
    blocks: list[Any] = cast("list[Any]", output) if isinstance(output, list) else [output]
    binary = False
    for block in blocks:
        if not isinstance(block, dict) or cast("dict[str, Any]", block).get("type") not in _BLOCKS:
            return []
        binary = binary or _part(cast("dict[str, Any]", block)) is not None
    return blocks if binary else []


def _part(block: dict[str, Any]) -> MediaPart | None:
    if block["type"] not in _BINARY:
        return None
    held = block.get("resource") if block["type"] == "resource" else block
    if not isinstance(held, dict):
        return None
    members = cast("dict[str, Any]", held)
    data, media_type = members.get("blob" if block["type"] == "resource" else "data"), members.get("mimeType")
    if not isinstance(data, str):
        return None
    return MediaPart(
        media_type=media_type if isinstance(media_type, str) else "application/octet-stream", data=data
    )


def _said(blocks: list[dict[str, Any]]) -> tuple[str, tuple[MediaPart, ...]]:
    """Return the text of content blocks, with a line for each binary one, and the images."""
    lines: list[str] = []
    media: list[MediaPart] = []
    for block in blocks:
        part = _part(block)
        if part is not None:
            if part.media_type.startswith("image/"):
                media.append(part)
            size = len(part.data) * 3 // 4 - part.data[-2:].count("=")
            lines.append(f"[{block['type']}: {part.media_type}, {size:,} bytes]")
        else:
            text = block.get("text")
            lines.append(text if block["type"] == "text" and isinstance(text, str) else compact(block))
    return "\n".join(lines), tuple(media)
