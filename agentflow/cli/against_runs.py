"""`check --against-runs`: what the stored runs of an older version of a definition would do (page 002 §9).

Reads only. A run always goes on with the graph that it is pinned to; what can be asked is whether it could
be forked to the new one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from agentflow.definition.compare import Difference, compare, unfit_results

if TYPE_CHECKING:
    from agentflow.cli.session import Interrupts
    from agentflow.config import Config
    from agentflow.definition.loader import Definition
    from agentflow.events.log import RunRow
    from agentflow.runtime import Runtime

__all__ = ["RunFit", "fit_of_runs", "render_fits"]

_OPEN_STATES = ("pending", "running", "waiting", "paused")


class RunFit(msgspec.Struct, frozen=True, kw_only=True):
    """A run that is not at its end. `fits`: it could be forked to the new definition; `differences` say what
    is other there, or why it could not."""

    workflow_id: str
    state: str
    fits: bool
    differences: list[Difference]


def fit_of_runs(config: Config, definition: Definition) -> list[RunFit]:
    """The runs of this definition's name that are not at their end, newest first; none without a store."""
    from agentflow.cli.errors import Exit
    from agentflow.cli.session import open_runtime, run_async, store_exists

    found: list[RunFit] = []
    if not store_exists(config.store):
        return found

    async def work(interrupts: Interrupts) -> Exit:
        async with open_runtime(config) as runtime:
            cursor: str | None = None
            while True:
                page = await runtime.log.runs(state=_OPEN_STATES, name=definition.name, cursor=cursor)
                found.extend([await _fit(runtime, row, definition) for row in page.items])
                cursor = page.next_cursor
                if cursor is None:
                    return Exit.DONE

    run_async(work)
    return found


async def _fit(runtime: Runtime, row: RunRow, definition: Definition) -> RunFit:
    from agentflow.errors import AgentflowError

    try:
        old = await runtime.graph(row.workflow_id)
        differences = compare(old, definition.workflow)
        if not any(d.structural for d in differences):
            state = await runtime.state(row.workflow_id)
            results = {
                step: view["output"]
                for step, view in state.nodes_view.items()
                if view["status"] == "succeeded"
            }
            differences = [*unfit_results(definition.workflow, results), *differences]
    except AgentflowError as error:
        differences = [Difference(node=None, message=f"it cannot be read: {error}", structural=True)]
    return RunFit(
        workflow_id=row.workflow_id,
        state=row.state,
        fits=not any(d.structural for d in differences),
        differences=differences,
    )


def render_fits(fits: list[RunFit]) -> str:
    """One line for each run, and below it what differs for it."""
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
