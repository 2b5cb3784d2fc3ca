"""Durations and sizes as people write them in configuration, and as they are told. Pure functions."""

from __future__ import annotations

import re

__all__ = ["bytes_of", "seconds_of", "size_text"]

_DURATIONS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION = re.compile(rf"([0-9]+(?:\.[0-9]+)?) ?({'|'.join(_DURATIONS)})")
_SIZES = {
    "b": 1,
    **{f"{letter}b": 1_000**power for power, letter in enumerate("kmgt", start=1)},
    **{f"{letter}ib": 1_024**power for power, letter in enumerate("kmgt", start=1)},
}
_SIZE = re.compile(rf"([0-9]+(?:\.[0-9]+)?) ?({'|'.join(_SIZES)})", re.IGNORECASE)


def seconds_of(text: str) -> float | None:
    """`90s`, `12h`, `30d`, `8w` in seconds; None if it is no duration."""
    match = _DURATION.fullmatch(text.strip())
    return None if match is None else float(match[1]) * _DURATIONS[match[2]]


def bytes_of(text: str) -> int | None:
    """`500MB` (decimal), `10GiB` (binary) in bytes; None if it is no size."""
    match = _SIZE.fullmatch(text.strip())
    return None if match is None else int(float(match[1]) * _SIZES[match[2].lower()])


def size_text(size: int) -> str:
    """A number of bytes for people: `340 B`, `1.2 MB`."""
    for unit, length in (("TB", 10**12), ("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if abs(size) >= length:
            return f"{size / length:.1f} {unit}"
    return f"{size} B"
