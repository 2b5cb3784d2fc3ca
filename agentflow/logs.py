"""The product's own logs: structlog over the standard `logging`, so that whoever owns the process decides.

An application that embeds agentflow sees ordinary loggers below `agentflow` and configures them as it
configures the rest; without configuration nothing below a warning is written, and nothing ever to stdout.
The command line calls `configure`.
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import structlog

__all__ = ["configure", "get_logger"]

_LEVELS = ("debug", "info", "warning", "error")


def get_logger(name: str) -> Any:
    """A structured logger: `log.info("event_name", key=value)`. The pairs become `extra` of the record."""
    return structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            structlog.stdlib.render_to_log_kwargs,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def configure(level: str = "warning") -> None:
    """Write logs from `level` on to stderr: lines for people on a terminal, else one JSON object a line.

    Raises ValueError for a level other than debug, info, warning, error.
    """
    if level not in _LEVELS:
        raise ValueError(f"{level!r} is no log level: write one of {', '.join(_LEVELS)}")
    shared = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if sys.stderr.isatty():
        renderer: Any = structlog.dev.ConsoleRenderer()
    else:
        renderer = structlog.processors.JSONRenderer()
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
        )
    )
    for name in ("agentflow", "actors"):
        logger = logging.getLogger(name)
        logger.handlers = [handler]
        logger.setLevel(level.upper())
        logger.propagate = False
