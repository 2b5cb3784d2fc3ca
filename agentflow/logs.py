"""The product's own logs: structlog over the standard `logging`, so that whoever owns the process decides.

An application that embeds agentflow sees ordinary loggers below `agentflow` and `actors` and configures them
as it configures the rest; without configuration nothing below a warning is written, and nothing ever to
stdout. Whoever owns the process (the command line, the daemon) calls `configure`; then what libraries log
goes the same way. A record that is written while a run is worked for names it: `workflow_id`, `trace_id`.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Mapping, MutableMapping
from typing import Any, TextIO, cast

from agentflow.errors import ConfigurationError

__all__ = ["LEVEL_VARIABLE", "configure", "get_logger", "load", "redact", "redacted", "span_of_work"]

LEVEL_VARIABLE = "AGENTFLOW_LOG_LEVEL"

_LEVELS = ("debug", "info", "warning", "error")
_OURS = ("agentflow", "actors")
_LEVEL_OF = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "exception": logging.ERROR,
    "critical": logging.CRITICAL,
}


def get_logger(name: str) -> Any:
    """Return a structured logger: `log.info("event_name", key=value)`; pairs become `extra` of the record.

    structlog is imported with the first record that is written: it loads rich, 100 ms of CPU.
    """
    return _LazyLogger(name)


class _LazyLogger:
    """Passes everything to the logger of structlog; records below the level of the logger load nothing."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._logger: Any = None

    def __getattr__(self, method: str) -> Any:
        if self._logger is None:
            level = _LEVEL_OF.get(method)
            if level is not None and not logging.getLogger(self._name).isEnabledFor(level):
                return _ignore
            self._logger = _make_logger(self._name)
        return getattr(self._logger, method)


def load() -> None:
    """Import what records are written with now, for a process that must be able to write one at any time: an
    import needs descriptors, memory and 100 ms, and a daemon may have to tell that it lacks them."""
    _make_logger("agentflow")


def _ignore(*_: Any, **__: Any) -> None:
    """Take a record that is below the level."""


def _make_logger(name: str) -> Any:
    import structlog

    return structlog.wrap_logger(
        logging.getLogger(name),
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.contextvars.merge_contextvars,
            _hide_known,
            structlog.stdlib.render_to_log_kwargs,
        ],
        wrapper_class=structlog.stdlib.BoundLogger,
    )


def configure(level: str | None = None) -> None:
    """Write logs from `level` on to stderr: lines for people on a terminal, else one JSON object a line.

    Without `level` it is that of AGENTFLOW_LOG_LEVEL, else `warning`. It holds for agentflow; libraries are
    heard from `warning` on, and from `info` on when the level is `debug`. Other handlers of the process stay.
    Raises ConfigurationError for a level other than debug, info, warning, error.
    """
    chosen = (level or os.environ.get(LEVEL_VARIABLE) or "warning").lower()
    if chosen not in _LEVELS:
        raise ConfigurationError(
            f"{chosen!r} is no log level ({LEVEL_VARIABLE})", hint=f"write one of {', '.join(_LEVELS)}"
        )
    handler = _Stderr()
    handler.setFormatter(_LazyFormatter(terminal=sys.stderr.isatty()))
    root = logging.getLogger()
    for earlier in [h for h in root.handlers if isinstance(h, _Stderr)]:
        root.removeHandler(earlier)
    root.addHandler(handler)
    root.setLevel("INFO" if chosen == "debug" else "WARNING")
    for name in _OURS:
        logging.getLogger(name).setLevel(chosen.upper())
    logging.captureWarnings(True)  # a warning of a library is a record too, not a line among JSON


class _LazyFormatter(logging.Formatter):
    """Makes the formatter of structlog when the first record is written."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal
        self._formatter: logging.Formatter | None = None

    def format(self, record: logging.LogRecord) -> str:
        if self._formatter is None:
            self._formatter = _formatter(terminal=self._terminal)
        return self._formatter.format(record)


def _formatter(*, terminal: bool) -> logging.Formatter:
    import structlog

    shared: list[Any] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.stdlib.ExtraAdder(),
        _add_run,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    renderer: Any
    if terminal:
        # Plain tracebacks: those with local variables would show keys and passwords.
        renderer = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)
    else:
        renderer = structlog.processors.JSONRenderer(default=repr)
    # A traceback is a text before it is redacted.
    last = [structlog.processors.format_exc_info, redact, renderer]
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=shared,
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *last],
    )


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is at that moment: it may be another one than when logs were configured."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:  # pyright: ignore[reportIncompatibleVariableOverride]
        return sys.stderr


def _add_run(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """Name the run that is worked for."""
    span = span_of_work()
    if span is not None:
        event.setdefault("workflow_id", span.workflow_id)
        event.setdefault("trace_id", span.trace_id)
    return event


def span_of_work() -> Any:
    """Return the SpanContext of the call or of the run that is worked for; None if there is none. Looked up
    only if tracing is loaded, else there is no run."""
    tracing, actors = sys.modules.get("agentflow.events.tracing"), sys.modules.get("actors.trace")
    span = None if tracing is None else tracing.current()
    if span is None and tracing is not None and actors is not None:
        carried = actors.current_trace()
        span = carried if isinstance(carried, tracing.SpanContext) else None
    return span


REDACTED = "[redacted]"

_SECRET = ("authorization", "cookie", "password", "api_key", "apikey", "token", "secret")
_IN_TEXT = (
    (re.compile(r"(?i)\b(bearer|basic)\s+[A-Za-z0-9._~+/=-]{12,}"), r"\1 " + REDACTED),
    (
        re.compile(r"(?i)\b(authorization|cookie|password|api[_-]?key|secret)(\s*[=:]\s*)[^\s,;&'\"]+"),
        r"\1\2" + REDACTED,
    ),
    (re.compile(r"(://)[^/@\s]+@"), r"\1" + REDACTED + "@"),
)
_DEPTH = 8


def redact(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor: values of secret keys, known secrets, and credentials inside of texts, are not
    written. What is no JSON is written as its `repr`."""
    hide = _hider()
    for key, value in event.items():
        event[key] = REDACTED if _is_secret(key) else _redacted(value, _DEPTH, hide)
    return event


def redacted(text: str) -> str:
    """Return a text without known secrets, and without credentials that show by how they are written."""
    return _without_credentials(_hider()(text))


def _without_credentials(text: str) -> str:
    for pattern, instead in _IN_TEXT:
        text = pattern.sub(instead, text)
    return text


def _hide_known(_: Any, __: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    """A structlog processor for records that an embedding application formats: its texts lose known secrets,
    all other values stay the objects that they are."""
    hide = _hider()
    for key, value in event.items():
        if isinstance(value, str):
            event[key] = hide(value)
    return event


def _hider() -> Callable[[Any], Any]:
    from agentflow.known_secrets import hider  # not before something is written

    return hider()


def _is_secret(key: str) -> bool:
    name = key.lower().replace("-", "_")
    return name.endswith(_SECRET) and (
        name in _SECRET or name.endswith(tuple(f"_{word}" for word in _SECRET))
    )


def _redacted(value: Any, depth: int, hide: Callable[[Any], Any]) -> Any:
    if isinstance(value, str):
        return _without_credentials(hide(value))
    if value is None or isinstance(value, int | float):
        return value
    if depth == 0:
        return REDACTED
    if isinstance(value, Mapping):
        items = cast("Mapping[Any, Any]", value).items()
        return {k: REDACTED if _is_secret(str(k)) else _redacted(v, depth - 1, hide) for k, v in items}
    if isinstance(value, list | tuple):
        return [_redacted(item, depth - 1, hide) for item in cast("list[Any]", value)]
    return _without_credentials(hide(repr(value)))
