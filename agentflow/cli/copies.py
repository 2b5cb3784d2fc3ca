"""A run as a Runtime of this process reads it, wherever it is: a run of the daemon is read from a copy.

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
from agentflow.cli.target import LocalTarget, Where, open_target

if TYPE_CHECKING:
    from agentflow.runtime import Runtime

__all__ = ["open_reader"]


@asynccontextmanager
async def open_reader(where: Where, run_id: str) -> AsyncGenerator[Runtime]:
    """A Runtime whose log has the run, to read it only. RunNotFound, RunGone, InvalidExport."""
    from agentflow.cli.session import open_runtime

    async with open_target(where, run_id=run_id) as target:
        if isinstance(target, LocalTarget):
            yield target.runtime
            return
        with TemporaryDirectory(prefix="agentflow-") as folder:
            path = Path(folder) / f"{run_id}.ndjson"
            with path.open("wb") as file:
                async for piece in target.client.export(run_id):
                    file.write(piece)
            async with open_runtime(where.config(), run_id=ExportedRun.of_file(str(path))) as runtime:
                yield runtime
