"""How the events of a provider's stream are read: JSON with the slips that servers make."""

from __future__ import annotations

import json
from typing import Annotated, Any, Final, TypeVar, cast

import msgspec
from msgspec import Meta

__all__ = ["TokenCount", "decode_event", "object_of", "token_count"]

T = TypeVar("T")

_MAX_COUNT: Final = 1 << 53
"""A count of tokens beyond this is none: an event could not hold it exactly."""


def decode_event(data: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    """Read one event's data. Half a surrogate pair, which its other half may follow in the next event, stays
    half a pair. Raises msgspec.DecodeError or ValueError."""
    try:
        return decoder.decode(data)
    except msgspec.ValidationError:
        raise
    except msgspec.DecodeError:
        # The fast decoder refuses half a pair; the standard one keeps it.
        try:
            value = json.loads(data, parse_constant=_refuse)
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        return msgspec.convert(value, decoder.type)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def object_of(value: object) -> dict[str, Any]:
    """Return a copy of a JSON object; an empty one for any other value."""
    return dict(cast("dict[str, Any]", value)) if isinstance(value, dict) else {}


TokenCount = int | float | Annotated[str, Meta(pattern=r"\A[0-9]{1,15}\Z")] | None
"""A count of tokens as servers write it; some gateways write whole numbers as text."""


def token_count(value: TokenCount) -> int:
    """Return a count as a whole number; 0 for a value that is none."""
    if isinstance(value, str):
        value = int(value)
    return int(value) if value is not None and 0 <= value <= _MAX_COUNT else 0
