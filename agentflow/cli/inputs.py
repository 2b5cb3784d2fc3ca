"""Values from the command line: `--input`, `--data`, `--label`, the VALUE of an answer (page 000 §12)."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from agentflow.definition.source import Media
    from agentflow.errors import DefinitionError

__all__ = ["parse_budget", "parse_edits", "parse_inputs", "parse_labels", "parse_value", "read_json"]

_PAIR = re.compile(r"([A-Za-z_][A-Za-z0-9_-]*)=(.*)", re.DOTALL)
_SUFFIXES: dict[str, Media] = {".json": "json", ".yaml": "yaml", ".yml": "yaml"}
_EDITS = {("input", False), ("outputs", True), ("shared", True), ("state", True), ("messages", True)}
_FORMS = "write k=v, JSON (a text in quotes: '\"…\"'), or @FILE"


def parse_inputs(given: Sequence[str]) -> Any:
    """Parse the input of a run: None when nothing was given, the value of one JSON or @FILE, or an object.

    Objects and `k=v` pairs are merged in their order, the last one wins. Raises click.BadParameter, and
    DefinitionError for a file that is not JSON or YAML.
    """
    if not given:
        return None
    merged: dict[str, Any] = {}
    for text in given:
        pair = _PAIR.fullmatch(text)
        if pair is not None:
            merged[pair[1]] = parse_value(pair[2])
            continue
        value = read_json(text, "--input", _FORMS)
        if len(given) == 1:
            return value
        if not isinstance(value, dict):
            raise click.BadParameter("only objects and k=v can be given together", param_hint="--input")
        merged.update(value)  # pyright: ignore[reportUnknownArgumentType]
    return merged


def parse_labels(given: Sequence[str]) -> dict[str, str]:
    """Parse `k=v` pairs, all strings. Raises click.BadParameter."""
    labels: dict[str, str] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f'"{text}" is not written as k=v', param_hint="--label")
        labels[_text(key.strip(), "--label")] = _text(value, "--label")
    return labels


def parse_budget(given: Sequence[str]) -> dict[str, Any] | None:
    """Parse `k=v` pairs whose values are numbers (of on_exceeded a word). Raises click.BadParameter."""
    budget: dict[str, Any] = {}
    for text in given:
        key, equals, value = text.partition("=")
        if not equals or not key.strip():
            raise click.BadParameter(f'"{text}" is not written as k=v', param_hint="--budget")
        budget[key.strip()] = parse_value(value)
    return budget or None


def parse_edits(given: Sequence[str]) -> dict[str, Any] | None:
    """Parse `input=JSON`, `outputs.STEP=JSON`, `shared.KEY=JSON`, `state.NODE.KEY=JSON` and
    `messages.NODE=JSON`; None without any.

    Raises click.BadParameter.
    """
    edits: dict[str, Any] = {}
    for text in given:
        place, equals, value = text.partition("=")
        member, dot, name = place.partition(".")
        if not equals or (member, bool(dot and name)) not in _EDITS:
            forms = (
                "input=JSON, outputs.STEP=JSON, shared.KEY=JSON, state.NODE.KEY=JSON or messages.NODE=JSON"
            )
            raise click.BadParameter(f'"{text}" is not written as {forms}', param_hint="--edit")
        found = read_json(value, "--edit")
        if member == "state":
            node, _, key = name.partition(".")
            if not key:
                raise click.BadParameter(f'"{text}" names no key: state.NODE.KEY=JSON', param_hint="--edit")
            kept = edits.setdefault(member, {}).setdefault(_text(node, "--edit"), {})
            kept[_text(key, "--edit")] = found
        elif name:
            edits.setdefault(member, {})[_text(name, "--edit")] = found
        else:
            edits[member] = found
    return edits or None


def parse_value(text: str) -> Any:
    """Parse JSON; return the string itself if it is none."""
    from agentflow.errors import DefinitionError

    try:
        return _parse(text.encode(errors="surrogateescape"), "json", None)
    except DefinitionError:
        return _text(text, "the value")


def read_json(text: str, option: str, forms: str = "write JSON or @FILE") -> Any:
    """Return the value of JSON, of `@FILE` (JSON or YAML by its suffix), or of `@-` (JSON on stdin).

    Raises click.BadParameter for text that is no JSON, DefinitionError for a file that cannot be read.
    """
    from agentflow.errors import DefinitionError

    if text == "@-":
        return _parse(sys.stdin.buffer.read(), "json", "stdin")
    if text.startswith("@"):
        data, media = _read_file(text[1:])
        return _parse(data, media, text[1:])
    try:
        return _parse(text.encode(errors="surrogateescape"), "json", None)
    except DefinitionError as error:
        problem = error.diagnostics[0]
        where = f" at column {problem.column}" if problem.column and problem.line == 1 else ""
        raise click.BadParameter(f"not JSON{where}: {problem.message}; {forms}", param_hint=option) from None


def _read_file(name: str) -> tuple[bytes, Media]:
    """Return the bytes of an input file, which may be longer than a document, and what its suffix says."""
    path = Path(name)
    media = _SUFFIXES.get(path.suffix.lower())
    if media is None:
        raise _problem("E_FILE", "an input file is .json, .yaml or .yml", name)
    try:
        return path.read_bytes(), media
    except OSError as error:
        raise _problem("E_FILE", f"cannot be read: {error.strerror}", name) from None


def _problem(code: str, message: str, file: str | None) -> DefinitionError:
    from agentflow.definition.diagnostics import Diagnostic
    from agentflow.errors import DefinitionError

    return DefinitionError([Diagnostic(code=code, severity="error", message=message, file=file)])


def _parse(data: bytes, media: Media, file: str | None) -> Any:
    """Parse strictly, with positions: no key twice, no NaN, no half surrogate."""
    from agentflow.definition.report import Fatal, Report
    from agentflow.definition.source import MAX_BYTES, Source, decode, read_node
    from agentflow.definition.source_tree import to_value
    from agentflow.errors import DefinitionError

    if media == "json" and len(data) > MAX_BYTES:
        return _parse_large(data, file)
    report = Report(file)
    try:
        value = to_value(read_node(Source(decode(data, report, media), media, file), report))
    except Fatal:
        raise DefinitionError(report.diagnostics()) from None
    if report.has_errors:
        raise DefinitionError([d for d in report.diagnostics() if d.severity == "error"])
    return value


def _parse_large(data: bytes, file: str | None) -> Any:
    """Parse without positions: documents have a limit of 1 MiB, the input of a run has none."""
    import msgspec

    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        at = re.search(r"byte (\d+)|position (\d+)", str(error))
        where = f" at byte {at[1] or at[2]}" if at else ""
        raise _problem("E_SYNTAX", f"the text is not JSON{where}", file) from None


def _text(text: str, option: str) -> str:
    """Return a string that can be JSON: the shell may pass bytes that are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise click.BadParameter("is not UTF-8", param_hint=option) from None
    return text
