"""Limits of file descriptors of this process, and of connections among them.

Runs need descriptors too: for the store, for connections to models, for processes of tools. What they need
is set aside before a connection is accepted, so that clients can never take it.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

try:
    import resource
except ImportError:  # Windows
    resource = None

__all__ = ["connection_limit", "raise_descriptor_limit"]

_MOST = 1 << 20
"""Descriptors asked for at most: limits of a billion slow programs down that close all they inherit."""
_FEWEST_CONNECTIONS = 8
_FALLBACK = 1_024


def raise_descriptor_limit() -> int:
    """Raise the soft limit RLIMIT_NOFILE to the hard one (at most 1,048,576); return the soft limit."""
    if resource is None:
        return _FALLBACK
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # some systems allow less than they say
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return _soft_limit()


def connection_limit(wanted: int) -> int:
    """Return how many connections may be open: `wanted`, or what the descriptors leave.

    A quarter of the soft limit, 64 to 1,024 descriptors, is set aside for runs, beside what is open now.
    """
    soft = _soft_limit()
    reserve = min(max(soft // 4, 64), 1_024)
    return max(_FEWEST_CONNECTIONS, min(wanted, soft - reserve - _open_descriptors()))


def _soft_limit() -> int:
    if resource is None:
        return _FALLBACK
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _MOST if soft == resource.RLIM_INFINITY else soft


def _open_descriptors() -> int:
    for folder in (Path("/proc/self/fd"), Path("/dev/fd")):
        with suppress(OSError):
            return len(os.listdir(folder))
    return 32
