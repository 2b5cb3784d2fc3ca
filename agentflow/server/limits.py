"""Limits of the HTTP entrance: what a connection may cost before, beside and after its requests.

Numbers only; `request_parser`, `connection` and `acceptor` enforce them. Whatever exceeds one is answered
with 400 or closed; nothing here grows with what a client sends.
"""

from __future__ import annotations

import msgspec

__all__ = ["HIGH_WATER", "Limits"]

HIGH_WATER = 128 * 1024
"""Bytes in front of a client at which a stream waits; with the chunk on its way that makes 256 KiB."""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of each connection. Times are in seconds, and checked once in `check_s`."""

    check_s: float = 1.0
    """Between two checks of all deadlines; also how exact the header Date is."""

    framing_bytes: int = 64 * 1024
    """Head, trailers and chunk extensions of one request together; 32 bytes a chunk are free."""

    head_fields: int = 256
    """Fields of a head: a field of 4 bytes costs 150 bytes of memory."""

    turn_bytes: int = 64 * 1024
    """Bytes parsed before other connections get their turn; also what a request body buffers."""

    turn_s: float = 0.002
    """Time after which a turn ends with its slice: each request and each CR LF CR LF in a body is one."""

    slice_bytes: int = 8 * 1024
    """Bytes of a slice outside a body with Content-Length: 1,365 chunks of one byte, or 2 ms."""

    head_s: float = 30.0
    """From the first byte of a head, or from the accept, to its end."""

    body_silence_s: float = 30.0
    """Silence inside a request body."""

    body_s: float = 300.0
    """A whole request body, however steadily its bytes arrive."""

    keep_alive_s: float = 75.0
    """Silence between an answer and the next request."""

    linger_s: float = 10.0
    """Reading on after an answer that came before the end of its request: closing would discard it."""

    refusal_s: float = 1.0
    """The same after the 400 or 503 that ends a connection."""

    stall_s: float = 60.0
    """A client that reads nothing of a pending answer."""

    shutdown_s: float = 5.0
    """Answers in progress when the daemon stops."""

    handshake_s: float = 10.0
    """A TLS handshake."""
