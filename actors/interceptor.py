"""The seam for tracing and metrics: code that runs around sending and handling, for the message types it
asks for."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from actors.ref import Ref

__all__ = ["Interceptor"]


class Interceptor(Protocol):
    """Given to `ActorSystem(interceptor=...)`; without one the message path has no such step at all."""

    def wants(self, message_type: type) -> bool:
        """Whether to intercept messages of this class; asked once for each class of actors."""
        ...

    def handling(self, ref: Ref[Any], message: Any, trace: Any) -> AbstractContextManager[object]:
        """Entered before the handler starts and left after it ended, with its exception if it raised."""
        ...
