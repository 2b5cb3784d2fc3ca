"""The span `workflow.build` of a graph in Python, for programs that trace themselves (page 002 §14).

Nothing of a run exists yet, so this span goes to the tracer provider of the program, below the span in which
it builds. Without OpenTelemetry in the program nothing is imported and nothing happens.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from agentflow.errors import WorkflowValidationError
from agentflow.telemetry import conventions as c

__all__ = ["build_span"]


@contextmanager
def build_span(name: str) -> Generator[dict[str, Any] | None]:
    """Open the span for a block that builds the workflow `name`; what it adds to the mapping are attributes.
    None instead of a mapping: nothing is traced.

    A block that raises ends the span with status ERROR; `error.type` is the first diagnostic's code.
    """
    trace: Any = sys.modules.get("opentelemetry.trace")
    attributes: dict[str, Any] = {}
    if trace is None:
        yield None
        return
    tracer = trace.get_tracer("agentflow")
    with tracer.start_as_current_span(
        c.BUILD, attributes={c.WORKFLOW_NAME: name}, record_exception=False, set_status_on_exception=False
    ) as span:
        try:
            yield attributes
        except Exception as error:
            refused = error.diagnostics if isinstance(error, WorkflowValidationError) else ()
            codes = [found.code for found in refused if found.severity == "error"]
            span.set_attribute(c.ERROR_TYPE, codes[0] if codes else type(error).__name__)
            span.set_status(trace.StatusCode.ERROR, ", ".join(dict.fromkeys(codes)))
            raise
        span.set_attributes(attributes)
