"""`agentflow diff`: where two runs part (page 000 §12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import Exit
from agentflow.cli.options import json_option, run_or_file
from agentflow.cli.output import emit, emit_json, printable
from agentflow.cli.target import Where, read_only_option, target_options

if TYPE_CHECKING:
    from agentflow.runtime.execution_records import StepExecution
    from agentflow.runtime.views import ExecutionRecord

__all__ = ["diff"]

_SHOWN = 400  # characters of a value
_COMPARED = ("state", "attempt", "input", "output", "error", "reason")


@click.command("diff", cls=Command)
@click.argument("a", type=run_or_file)
@click.argument("b", type=run_or_file)
@json_option("Print {equal, activation, input, output, usage} as JSON; each null where the runs agree.")
@target_options
@read_only_option
def diff(a: str, b: str, as_json: bool, where: Where) -> Exit:
    """Compare the runs A and B.

    \b
    Exit codes: 0 the runs are equal; 1 they differ.

    Printed are the first activation of a step that differs, then input, output and usage. Times and ids do
    not count. A and B may be exported .ndjson files.
    """
    from agentflow.cli.history import views_of
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.cli.target import open_target

    async def work(interrupts: Interrupts) -> Exit:
        records: list[ExecutionRecord] = []
        for run in (a, b):
            async with open_target(where, run_id=run) as target:
                records.append(await interrupts.guard(views_of(target).history(str(run))))
        found = differences(*records)
        if as_json:
            emit_json(found)
        else:
            emit(printable(_as_text(found, str(a), str(b))))
        return Exit.DONE if found["equal"] else Exit.FAILED

    return run_async(work)


def differences(a: ExecutionRecord, b: ExecutionRecord) -> dict[str, Any]:
    """Return the first differing activation, then input, output and usage as pairs; null where equal."""
    found: dict[str, Any] = {
        "activation": _activation(a.steps, b.steps),
        "input": _pair(a.workflow.input, b.workflow.input),
        "output": _pair([a.workflow.state, a.workflow.output], [b.workflow.state, b.workflow.output]),
        "usage": _pair(a.workflow.usage, b.workflow.usage),
    }
    return {"equal": not any(found.values()), **found}


def _activation(a: Sequence[StepExecution], b: Sequence[StepExecution]) -> dict[str, Any] | None:
    """Activations are paired by step, iteration and their number, so the order of parallel ones is free."""
    others = _numbered(b)
    for key, mine in _numbered(a).items():
        theirs = others.pop(key, None)
        parts = [name for name in _COMPARED if _member(mine, name) != _member(theirs, name)]
        if theirs is None or parts:
            shown = {name: [_member(mine, name), _member(theirs, name)] for name in parts}
            return {"step_id": key[0], "iteration": key[1], "differs": shown}
    for key, theirs in others.items():
        return {
            "step_id": key[0],
            "iteration": key[1],
            "differs": {"state": [None, _member(theirs, "state")]},
        }
    return None


def _numbered(steps: Sequence[StepExecution]) -> dict[tuple[str, int | None, int], StepExecution]:
    found: dict[tuple[str, int | None, int], StepExecution] = {}
    for step in steps:
        number = 0
        while (step.step_id, step.iteration, number) in found:
            number += 1
        found[step.step_id, step.iteration, number] = step
    return found


def _member(step: StepExecution | None, name: str) -> Any:
    value = getattr(step, name, None)
    return getattr(value, "code", value) if name == "error" else value


def _pair(a: Any, b: Any) -> list[Any] | None:
    return None if a == b else [a, b]


def _as_text(found: dict[str, Any], a: str, b: str) -> str:
    if found["equal"]:
        return f"{a} and {b} are equal"
    lines = [f"- {a}", f"+ {b}"]
    activation = found["activation"]
    if activation is not None:
        item = "" if activation["iteration"] is None else f"[{activation['iteration']}]"
        lines.append(f"first difference: {activation['step_id']}{item}")
        for name, pair in activation["differs"].items():
            lines += _lines(f"  {name}", pair)
    for name in ("input", "output", "usage"):
        if found[name] is not None:
            lines += _lines(name, found[name])
    return "\n".join(lines)


def _lines(name: str, pair: Sequence[Any]) -> list[str]:
    import msgspec

    texts = [msgspec.json.encode(value).decode() for value in pair]
    cut = [text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… (cut; --json has all)" for text in texts]
    return [name, f"  - {cut[0]}", f"  + {cut[1]}"]
