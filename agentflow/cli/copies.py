"""A run as a log of this process, wherever it is: a run of the daemon is read from a copy.

The copy is the file that `agentflow log` writes. It lasts as long as the command, and only its owner can read
it.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from agentflow.cli.options import ExportedRun
from agentflow.cli.target import StoreTarget, Where, open_reader

if TYPE_CHECKING:
    from agentflow.events.log import EventLog

__all__ = ["open_copy"]


@asynccontextmanager
async def open_copy(where: Where, run_id: str) -> AsyncGenerator[EventLog]:
    """Open a log that has the run, for reading only. Raises RunNotFound, RunGone or InvalidExport."""
    from agentflow.cli.session import open_store

    async with open_reader(where, run_id=run_id) as target:
        if isinstance(target, StoreTarget):
            yield target.log
            return
        with TemporaryDirectory(prefix="agentflow-") as folder:
            path = Path(folder) / f"{run_id}.ndjson"
            with path.open("wb") as file:
                async for piece in target.client.export(run_id):
                    file.write(piece)
            async with open_store(where.config(), run_id=ExportedRun.of_file(str(path))) as log:
                yield log
