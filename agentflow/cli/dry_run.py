"""Facts of a document before it runs: `run --dry-run` and `tools FILE`. Nothing is written."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from agentflow.cli.errors import Exit, exit_of_diagnostics
from agentflow.cli.excerpt import render_diagnostics
from agentflow.cli.output import emit, emit_json, say
from agentflow.cli.python_workflows import definition_of_subject

if TYPE_CHECKING:
    from agentflow.cli.target import Where
    from agentflow.client import RegisteredDefinition
    from agentflow.config import Config
    from agentflow.definition.diagnostics import Diagnostic
    from agentflow.definition.loader import Definition
    from agentflow.graphs import Workflow
    from agentflow.runtime.bound import Bound

__all__ = ["bind_here", "check_run"]


def check_run(
    where: Where,
    config: Config,
    subject: Definition | Workflow | RegisteredDefinition,
    value: Any,
    *,
    as_json: bool,
) -> Exit:
    """Bind the document and check its input, as a submission would; print what is wrong."""
    from agentflow.definition.diagnostics import sort_diagnostics
    from agentflow.definition.loader import Definition, check_inputs

    url = where.daemon()
    if url is not None and isinstance(subject, tuple | Definition):
        found = _ask_daemon(url, subject, value)
    else:  # a daemon is not sent Python code
        assert not isinstance(subject, tuple), "a registered definition is the daemon's"
        if not isinstance(subject, Definition):
            subject.read_input(value)
        definition = definition_of_subject(subject)
        _, problems = check_inputs(definition, value)
        bound = bind_here(config, subject)
        found = sort_diagnostics([*definition.warnings, *bound.diagnostics, *problems])
    valid = not any(d.severity == "error" for d in found)
    if as_json:
        emit_json({"valid": valid, "diagnostics": found})
    else:
        if found:
            say(render_diagnostics(found))
        if valid:
            emit(f"{subject.name} would run")
    return exit_of_diagnostics(found)


def bind_here(config: Config, subject: Definition | Workflow) -> Bound:
    """Resolve models and functions in this process, on a store in memory."""
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.definition.loader import Definition
    from agentflow.models import Models
    from agentflow.runtime import Runtime

    found: list[Bound] = []

    async def work(interrupts: Interrupts) -> Exit:
        async with Runtime("memory:", models=Models(config=config.for_models())) as runtime:
            code = None if isinstance(subject, Definition) else subject.callables
            work = runtime.bind(definition_of_subject(subject), code=code)
            found.append(await interrupts.guard(work))
        return Exit.DONE

    run_async(work)
    return found[0]


def _ask_daemon(url: str, definition: Definition | RegisteredDefinition, value: Any) -> list[Diagnostic]:
    from agentflow.cli.session import Interrupts, run_async
    from agentflow.client import Client

    found: list[Diagnostic] = []

    async def work(interrupts: Interrupts) -> Exit:
        async with Client(url) as client:
            found.extend((await interrupts.guard(client.validate(definition, value))).diagnostics)
        return Exit.DONE

    run_async(work)
    return found
