"""Opaque cursors of lists and queries: a position as URL-safe text."""

from __future__ import annotations

import base64
from typing import TypeVar

import msgspec

__all__ = ["decode_cursor", "encode_cursor"]

T = TypeVar("T")


def encode_cursor(*position: int | str) -> str:
    """Return an opaque, URL-safe cursor for a position."""
    return base64.urlsafe_b64encode(msgspec.json.encode(position)).rstrip(b"=").decode()


def decode_cursor(cursor: str, shape: type[T]) -> T:
    """Return the position of a cursor. Raises ValueError if it is no cursor of this release."""
    try:
        return msgspec.json.decode(base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=shape)
    except (ValueError, msgspec.DecodeError) as error:
        raise ValueError(f"{cursor!r} is not a cursor of this list") from error
