"""`check --against-runs`: what the stored runs of an older version of a definition would do (page 002 §9).

Reads only. A run always goes on with the graph that it is pinned to; what can be asked is whether it could
be forked to the new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click
import msgspec

from agentflow.definition.compare import Difference, compare, unfit_results

if TYPE_CHECKING:
    from agentflow.cli.session import Interrupts
    from agentflow.cli.target import Where
    from agentflow.client import Client
    from agentflow.definition.loader import Definition
    from agentflow.records.read_model import ReadModel
    from agentflow.records.runs import RunSummary

__all__ = ["RunFit", "fit_of_runs", "render_fits"]

_OPEN_STATES = ("pending", "running", "waiting", "paused")


class RunFit(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is not at its end. `fits`: it could be forked to the new definition; `differences` say what
    is other there, or why it could not."""

    workflow_id: str
    state: str
    fits: bool
    differences: list[Difference]


def fit_of_runs(where: Where, definition: Definition) -> list[RunFit]:
    """Return the runs of this definition's name that are not at their end, newest first; none without a
    store."""
    from agentflow.cli.errors import Exit
    from agentflow.cli.session import run_async, store_exists
    from agentflow.cli.target import open_reader

    found: list[RunFit] = []
    if where.daemon() is None and not store_exists(where.config().store):
        return found

    async def read(views: ReadModel | Client) -> None:
        cursor: str | None = None
        while True:
            page = await views.summaries(state=_OPEN_STATES, name=definition.name, cursor=cursor)
            found.extend([await _fit(views, row, definition) for row in page.items])
            cursor = page.next_cursor
            if cursor is None:
                return

    async def work(interrupts: Interrupts) -> Exit:
        async with open_reader(where) as target:
            await interrupts.guard(read(target.reader))
        return Exit.DONE

    if run_async(work) is Exit.INTERRUPTED:
        raise click.Abort
    return found


async def _fit(views: ReadModel | Client, row: RunSummary, definition: Definition) -> RunFit:
    from agentflow.client import Unavailable, Unreachable
    from agentflow.errors import AgentflowError

    try:
        old = await views.graph(row.workflow_id)
        differences = compare(old, definition.workflow)
        if not any(d.structural for d in differences):
            state = await views.state(row.workflow_id)
            results = {name: step.output for name, step in state.steps.items() if step.state == "succeeded"}
            differences = [*unfit_results(definition.workflow, results), *differences]
    except (Unreachable, Unavailable):
        raise  # which says nothing of this run
    except AgentflowError as error:
        differences = [Difference(node=None, message=f"it cannot be read: {error}", structural=True)]
    return RunFit(
        workflow_id=row.workflow_id,
        state=row.state,
        fits=not any(d.structural for d in differences),
        differences=differences,
    )


def render_fits(fits: list[RunFit]) -> str:
    """Return one line for each run, and below it what differs for it."""
    from agentflow.cli.output import printable

    if not fits:
        return "no run of it is on its way"
    lines: list[str] = []
    width = max(len(fit.workflow_id) for fit in fits)
    for fit in fits:
        if not fit.differences:
            means = "has the same graph"
        else:
            can = "can" if fit.fits else "cannot"
            means = f"goes on with its own graph, and {can} be forked to this one"
        lines.append(f"{fit.workflow_id:<{width}}  {fit.state:<7}  {means}")
        lines += [f"  - {printable(d.message)}" for d in fit.differences]
    return "\n".join(lines)
