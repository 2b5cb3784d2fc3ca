"""The writing half of a store that is only read: every method refuses."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, NoReturn

from agentflow.errors import AgentflowError
from agentflow.events.owner import Owner
from agentflow.events.rows import Append, Swept
from agentflow.events.tombstone import Tombstone

__all__ = ["ReadOnlyWrites"]


class ReadOnlyWrites:
    """The writes of an EventLog; each raises what `_refusal` returns. Stands before the base that reads."""

    @property
    def read_only(self) -> bool:
        """As `EventLog.read_only`."""
        return True

    @abstractmethod
    def _refusal(self) -> AgentflowError:
        """Return the error that a write ends with."""

    def _refuse(self) -> NoReturn:
        raise self._refusal()

    def append(self, batch: Append) -> asyncio.Future[None]:
        """Return a future that has failed."""
        refused: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        refused.set_exception(self._refusal())
        return refused

    async def put_blob(self, data: bytes) -> str:
        """Refuse."""
        self._refuse()

    async def put_definition(self, hash: str, source: bytes, *more: Any) -> None:
        """Refuse."""
        self._refuse()

    async def put_snapshot(self, workflow_id: str, kind: str, offset: int, data: bytes) -> None:
        """Refuse."""
        self._refuse()

    async def save_cursor(self, consumer: str, cursor: str) -> None:
        """Refuse."""
        self._refuse()

    async def drop_cursor(self, consumer: str) -> None:
        """Refuse."""
        self._refuse()

    async def claim(self, workflow_id: str, owner: Owner) -> int:
        """Refuse."""
        self._refuse()

    async def probe(self) -> None:
        """Refuse."""
        self._refuse()

    async def trim(self, workflow_id: str, before: int) -> int:
        """Refuse."""
        self._refuse()

    async def delete(self, workflow_id: str, at: int) -> Tombstone:
        """Refuse."""
        self._refuse()

    async def delete_all(self, workflow_ids: Sequence[str], at: int) -> dict[str, Tombstone | AgentflowError]:
        """Refuse."""
        self._refuse()

    async def sweep(self, before: int) -> Swept:
        """Refuse."""
        self._refuse()
