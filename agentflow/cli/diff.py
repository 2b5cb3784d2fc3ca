"""`agentflow diff`: where two runs part (page 000 §12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from agentflow.cli.app import Command
from agentflow.cli.errors import Exit
from agentflow.cli.options import ExportedRun, json_option, run_or_file
from agentflow.cli.output import emit, emit_json, printable
from agentflow.cli.target import Where, read_only_option, target_options

if TYPE_CHECKING:
    from agentflow.records.comparison import Comparison

__all__ = ["diff"]

_SHOWN = 400  # characters of a value


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
    from agentflow.cli.session import Interrupts, run_async

    async def work(interrupts: Interrupts) -> Exit:
        found = await interrupts.guard(_compared(a, b, where))
        if as_json:
            emit_json(found)
        else:
            emit(printable(_as_text(found, str(a), str(b))))
        return Exit.DONE if found.equal else Exit.FAILED

    return run_async(work)


async def _compared(a: str, b: str, where: Where) -> Comparison:
    """Compare where both runs are; a file with another run is compared here."""
    from agentflow.cli.target import open_reader

    async with open_reader(where, run_id=a) as one:
        if not isinstance(a, ExportedRun) and not isinstance(b, ExportedRun):
            return await one.reader.compare(str(a), str(b))
        async with open_reader(where, run_id=b) as other:
            from agentflow.records.comparison import compare

            return compare(await one.reader.history(str(a)), await other.reader.history(str(b)))


def _as_text(found: Comparison, a: str, b: str) -> str:
    if found.equal:
        return f"{a} and {b} are equal"
    lines = [f"- {a}", f"+ {b}"]
    first = found.activation
    if first is not None:
        item = "" if first.iteration is None else f"[{first.iteration}]"
        lines.append(f"first difference: {first.step_id}{item}")
        for name, pair in first.differs.items():
            lines += _lines(f"  {name}", pair)
    for name, pair in (("input", found.input), ("output", found.output), ("usage", found.usage)):
        if pair is not None:
            lines += _lines(name, pair)
    return "\n".join(lines)


def _lines(name: str, pair: Sequence[Any]) -> list[str]:
    import msgspec

    texts = [msgspec.json.encode(value).decode() for value in pair]
    cut = [text if len(text) <= _SHOWN else f"{text[:_SHOWN]}… (cut; --json has all)" for text in texts]
    return [name, f"  - {cut[0]}", f"  + {cut[1]}"]
