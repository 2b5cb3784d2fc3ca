"""From bytes, text or a value to the tree of a document, within the limits (page 001 §2, rules 1 to 5).

Reads at most one file; never guesses an encoding. Everything that is wrong goes to the report.
"""

from __future__ import annotations

import contextlib
import math
import re
import stat
from itertools import islice
from pathlib import Path
from typing import Any, cast

import msgspec

from agentflow.definition.diagnostics import did_you_mean
from agentflow.definition.report import NOWHERE, Fatal, Report, shown
from agentflow.definition.source_text import Lines, Media, Source
from agentflow.definition.source_tree import Array, Member, Node, Object, Place, Scalar, child_pointer
from agentflow.json_numbers import costly_numbers

__all__ = [
    "MAX_BYTES",
    "MAX_DEPTH",
    "MAX_DIGITS",
    "MAX_NODES",
    "Lines",
    "Media",
    "Source",
    "Tally",
    "decode",
    "media_of",
    "node_of_value",
    "read_file",
    "read_node",
]

MAX_BYTES = 1 << 20
MAX_DEPTH = 64
MAX_NODES = 100_000
MAX_DIGITS = 1_000

_SUFFIXES: dict[str, Media] = {".yaml": "yaml", ".yml": "yaml", ".json": "json"}
_MEDIA_TYPES: dict[str, Media] = {
    "yaml": "yaml",
    "json": "json",
    "application/yaml": "yaml",
    "application/json": "json",
}
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
_YAML_UNPRINTABLE = re.compile("[\x7f-\x84\x86-\x9f\ufeff\ufffe\uffff]")


class Tally(msgspec.Struct):
    """What the limits of rule 5 count: nodes and text, each use of an alias included."""

    report: Report
    nodes: int = 0
    text: int = 0

    def add(self, place: Place, depth: int, nodes: int = 1, text: int = 0) -> None:
        """Count a node that is about to be read. Raises Fatal beyond a limit."""
        self.nodes += nodes
        self.text += text
        if depth > MAX_DEPTH:
            raise self.report.fatal(
                "E_LIMIT", f"values are nested deeper than {MAX_DEPTH}", place, hint="flatten the document"
            )
        if self.nodes > MAX_NODES:
            raise self.report.fatal(
                "E_LIMIT",
                f"document has more than {MAX_NODES:,} values, each use of an alias counted",
                place,
                hint="split the workflow",
            )
        if self.text > MAX_BYTES:
            raise self.report.fatal(
                "E_LIMIT",
                "document has more than 1 MiB of text, each use of an alias counted",
                place,
                hint="split the workflow",
            )

    def digits(self, text: str, place: Place) -> None:
        """Raise Fatal for a number of too many digits."""
        if len(text) > MAX_DIGITS and sum(c.isdigit() for c in text) > MAX_DIGITS:
            raise self.report.fatal(
                "E_LIMIT", f"number has more than {MAX_DIGITS:,} digits", place, hint="write it as a string"
            )


def media_of(kind: str, report: Report) -> Media:
    """Return the media of a name (`yaml`, `application/json` …). Raises Fatal for another one."""
    media = _MEDIA_TYPES.get(kind.partition(";")[0].strip().lower())
    if media is None:
        raise report.fatal(
            "E_FILE", f"media type {shown(kind)} is not read", hint="use application/yaml or application/json"
        )
    return media


def read_file(path: Path, report: Report) -> tuple[bytes, Media]:
    """Return the bytes of a file and what its suffix says. Raises Fatal if it cannot be read or is too
    long."""
    media = _SUFFIXES.get(path.suffix.lower())
    if media is None and path.is_dir():
        hint = "name a file in it, such as flow.yaml"
        raise report.fatal("E_FILE", "cannot be read: it is a folder, not a file", hint=hint)
    if media is None:
        raise report.fatal(
            "E_FILE",
            f'suffix "{shown(path.suffix)}" is not read' if path.suffix else "file has no suffix",
            hint="name it .yaml, .yml or .json",
        )
    try:
        state = path.stat()
        if not stat.S_ISREG(state.st_mode):
            what = "it is a folder, not a file" if stat.S_ISDIR(state.st_mode) else "not a regular file"
            raise report.fatal("E_FILE", f"cannot be read: {what}")
        with path.open("rb") as stream:
            data = stream.read(MAX_BYTES + 4)
    except FileNotFoundError as error:
        raise report.fatal("E_FILE", "there is no such file", hint=_near_file(path)) from error
    except OSError as error:
        raise report.fatal("E_FILE", f"cannot be read: {error.strerror or type(error).__name__}") from error
    if len(data) > MAX_BYTES + 3:
        raise _too_long(max(state.st_size, len(data)), report)
    return data, media


def _near_file(path: Path) -> str | None:
    """Return a hint: the file of the folder that is probably meant, or the folder that is missing."""
    if not path.parent.is_dir():
        return f"there is no folder {shown(str(path.parent))}"
    with contextlib.suppress(OSError):
        names = [entry.name for entry in islice(path.parent.iterdir(), 1000) if entry.suffix in _SUFFIXES]
        return did_you_mean(path.name, sorted(names))
    return None


def _too_long(size: int, report: Report) -> Fatal:
    shown_size = f"{size / MAX_BYTES:.1f}" if size >= 1.05 * MAX_BYTES else "more than 1"
    message = f"source is {shown_size} MiB, the limit is 1 MiB"
    return report.fatal("E_LIMIT", message, (1, 1), hint="split the workflow")


def decode(data: bytes | str, report: Report, media: Media | None) -> str:
    """Return the text, checked: size, UTF-8, no control character; without byte order mark. Raises Fatal."""
    if isinstance(data, str):
        try:
            data = data.encode()
        except UnicodeEncodeError as error:
            place = Lines(data).place(error.start)
            raise report.fatal(
                "E_FILE", f"text holds the lone surrogate U+{ord(data[error.start]):04X}", place
            ) from None
    data = data.removeprefix(b"\xef\xbb\xbf")
    if len(data) > MAX_BYTES:
        raise _too_long(len(data), report)
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        place = Lines(data[: error.start].decode() + "?").place(len(data[: error.start].decode()))
        raise report.fatal(
            "E_FILE",
            f"byte 0x{data[error.start]:02x} at {place[0]}:{place[1]} is not UTF-8",
            place,
            hint="save as UTF-8",
        ) from None
    costly = costly_numbers(data)
    if costly is not None:
        raise report.fatal("E_LIMIT", f"document has {costly}", (1, 1), hint="write them as strings")
    bad = _CONTROL.search(text) or (_YAML_UNPRINTABLE.search(text) if media != "json" else None)
    if bad:
        place = Lines(text).place(bad.start())
        raise report.fatal(
            "E_FILE",
            f"control character U+{ord(bad[0]):04X} at {place[0]}:{place[1]}",
            place,
            hint="remove it, or write it as an escape",
        )
    return text


def read_node(source: Source, report: Report) -> Node:
    """Return the tree of a text. Raises Fatal if reading cannot go on."""
    if source.media == "json":
        from agentflow.definition.json_source import parse_json

        return parse_json(source, report)
    from agentflow.definition.yaml_source import parse_yaml

    return parse_yaml(source, report)


def node_of_value(value: Any, report: Report) -> Node:
    """Return the tree of a Python value (dict, list, tuple, str, int, float, bool, None). Raises Fatal.

    Its nodes have no line and column.
    """
    return _of_value(value, "", 1, Tally(report))


def _of_value(value: Any, pointer: str, depth: int, tally: Tally) -> Node:
    report = tally.report
    if isinstance(value, dict):
        tally.add(NOWHERE, depth)
        members: dict[str, Member] = {}
        for key, item in cast("dict[Any, Any]", value).items():
            if not isinstance(key, str):
                raise report.fatal("E_TYPE", f"key {shown(repr(key))} is not a string", path=pointer)
            _check_text(key, pointer, tally)
            members[key] = Member(_of_value(item, child_pointer(pointer, key), depth + 1, tally))
        return Object(members)
    if isinstance(value, list | tuple):
        tally.add(NOWHERE, depth)
        items = cast("list[Any]", value)
        return Array([_of_value(v, f"{pointer}/{i}", depth + 1, tally) for i, v in enumerate(items)])
    tally.add(NOWHERE, 0)
    if isinstance(value, str):
        _check_text(value, pointer, tally)
        return Scalar(str(value), style="double")
    if isinstance(value, bool) or value is None:
        return Scalar(value)
    if isinstance(value, int):
        if value.bit_length() > MAX_DIGITS * 3.33 or abs(value) >= 10**MAX_DIGITS:
            raise report.fatal("E_LIMIT", f"number has more than {MAX_DIGITS:,} digits", path=pointer)
        return Scalar(int(value))
    if isinstance(value, float):
        if not math.isfinite(value):
            raise report.fatal("E_SYNTAX", f"{value} is not a JSON number", path=pointer)
        return Scalar(float(value))
    raise report.fatal("E_TYPE", f"{type(value).__name__} is not a JSON type", path=pointer)


def _check_text(text: str, pointer: str, tally: Tally) -> None:
    tally.add(NOWHERE, 0, nodes=0, text=len(text))
    if not text.isascii():
        try:
            tally.text += len(text.encode()) - len(text)
        except UnicodeEncodeError:
            raise tally.report.fatal("E_SYNTAX", "string holds a lone surrogate", path=pointer) from None
