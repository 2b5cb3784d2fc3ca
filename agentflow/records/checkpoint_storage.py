"""CheckpointStorage: the read side of a store, by checkpoints (page 002 §9). It writes nothing."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from agentflow.errors import CheckpointNotFound, RunGone, RunNotFound
from agentflow.events.log import EventLog
from agentflow.records.checkpoints import Checkpoint, parse_checkpoint

if TYPE_CHECKING:
    import builtins

    from agentflow.records.read_model import ReadModel
    from agentflow.records.runs import FoldedState

__all__ = ["CheckpointStorage", "HasLog", "found_checkpoint"]


@runtime_checkable
class HasLog(Protocol):
    """What has an open store, as a Runtime."""

    @property
    def log(self) -> EventLog: ...


class CheckpointStorage:
    """Reads the checkpoints of the runs of a store: `sqlite:FILE`, `file:DIR`, an EventLog or a Runtime.

    A checkpoint is a position of a log, so there is nothing to save and nothing that a save could miss. A URL
    is opened for each call, read only, beside processes that write; `memory:` has no reader but the Runtime
    that writes it. `WorkflowBuilder.with_checkpointing` takes a storage as it takes its store.
    """

    def __init__(self, store: str | EventLog | HasLog) -> None:
        self.store = store

    async def list(self, workflow_id: str) -> builtins.list[Checkpoint]:
        """Return the checkpoints of a run, in the order of its log. Raises RunNotFound, RunGone or
        OffsetTrimmed."""
        async with self._reader() as reader:
            return await reader.checkpoints(workflow_id)

    async def latest(self, workflow_id: str) -> Checkpoint:
        """Return the last checkpoint of a run. Raises as `list`, and CheckpointNotFound if there is none."""
        found = await self.list(workflow_id)
        if not found:
            raise CheckpointNotFound(f"{workflow_id} has no checkpoint yet")
        return found[-1]

    async def load(self, checkpoint: str | Checkpoint) -> FoldedState:
        """Return the state of a run at a checkpoint. Raises CheckpointNotFound."""
        async with self._reader() as reader:
            workflow_id, offset = await found_checkpoint(reader.log, _id(checkpoint))
            return await reader.state(workflow_id, offset)

    async def export(self, checkpoint: str | Checkpoint) -> bytes:
        """Return the log of a run up to a checkpoint, with what it names, as the file that `agentflow open`
        reads. Raises CheckpointNotFound."""
        from agentflow.records.export import export_pieces

        async with self._reader() as reader:
            workflow_id, offset = await found_checkpoint(reader.log, _id(checkpoint))
            return b"".join([piece async for piece in export_pieces(reader.log, workflow_id, offset)])

    @asynccontextmanager
    async def _reader(self) -> AsyncGenerator[ReadModel]:
        from agentflow.records.read_model import ReadModel

        store = self.store
        if isinstance(store, str):
            from agentflow.events.open import open_log

            log = open_log(store, read_only=True)
            try:
                yield ReadModel(log)
            finally:
                await log.close()
        else:
            yield ReadModel(store.log if isinstance(store, HasLog) else store)


async def found_checkpoint(log: EventLog, id: str) -> tuple[str, int]:
    """Return run and offset of a checkpoint. Raises CheckpointNotFound."""
    found = parse_checkpoint(id)
    if found is None:
        raise CheckpointNotFound(f'"{id}" is not the id of a checkpoint', hint="write <workflow_id>@<offset>")
    source_id, offset = found
    try:
        row = await log.run(source_id)
    except (RunNotFound, RunGone) as error:
        raise CheckpointNotFound(f"{id}: {error}") from None
    if offset > row.last_offset:
        message = f"{source_id} has offsets 0 to {row.last_offset}, and {offset} is none of them"
        raise CheckpointNotFound(message, details={"last_offset": row.last_offset})
    return found


def _id(checkpoint: str | Checkpoint) -> str:
    return checkpoint if isinstance(checkpoint, str) else checkpoint.id
