"""Bytes that a function returned, as a content block in the form of MCP: what they are stands beside them."""

from __future__ import annotations

from base64 import b64encode
from typing import Any, Final

__all__ = ["media_block"]

_SIGNATURES: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
)


def media_block(data: bytes) -> dict[str, Any]:
    """Return `{type, mimeType, data}`: type `image` for PNG, JPEG, GIF and WebP, by their first bytes, else
    `file`. `data` is base64."""
    media_type = next((kind for start, kind in _SIGNATURES if data.startswith(start)), None)
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        media_type = "image/webp"
    media_type = media_type or "application/octet-stream"
    kind = "image" if media_type.startswith("image/") else "file"
    return {"type": kind, "mimeType": media_type, "data": b64encode(data).decode()}
