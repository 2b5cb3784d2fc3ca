"""Documents to definitions: read, check everything that the text alone can tell, compile (page 001 §2).

Pure beside reading the one file that is named; the same text gives the same definition and the same
diagnostics. No run, no service, no model is touched.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from agentflow.definition.diagnostics import Diagnostic, sort_diagnostics
from agentflow.definition.inputs import (
    ANY_INPUT,
    InputNeeds,
    RequiredInput,
    check_input_values,
    check_whole_input,
    needs_of,
)
from agentflow.definition.ir import Workflow, canonical_json, ir_hash
from agentflow.definition.report import NOWHERE, Fatal, Report, shown
from agentflow.definition.source import decode, media_of, node_of_value, read_file, read_node
from agentflow.definition.source_text import Media, Source
from agentflow.definition.source_tree import (
    Array,
    Node,
    Object,
    Place,
    Positions,
    Scalar,
    child_pointer,
    json_type,
    to_value,
)
from agentflow.errors import DefinitionError

__all__ = [
    "Definition",
    "Submission",
    "check_file",
    "check_inputs",
    "check_text",
    "definition_of",
    "load_file",
    "load_text",
    "load_value",
]

STEPS, AGENTS, GRAPH, NODES = "agent-workflow/1.0", "linear", "ir/v0", "yaml"
_FORMATS = (STEPS, AGENTS, GRAPH, NODES)
_LATER = ("graph", "pipeline")
_VERSIONS = {STEPS: "1.0", GRAPH: "v0"}
_UNNAMED = "workflow"
_LONGEST_NAME = 128


class Definition(msgspec.Struct, frozen=True):
    """An accepted document and the graph that it means.

    `source` is its text as it was read (of a Python value: its canonical JSON). `hash` is the sha256 of
    the canonical JSON of its value, so it ignores comments and layout. `positions` gives line and column
    of a JSON pointer of the document. `warnings` are sorted.
    """

    name: str
    version: str | None
    format: str
    source: str
    media: Media
    file: str | None
    folder: Path | None
    hash: str
    workflow: Workflow
    ir_hash: str
    warnings: list[Diagnostic]
    positions: Positions
    inputs: InputNeeds

    @property
    def required_inputs(self) -> tuple[RequiredInput, ...]:
        """The inputs that every run must be given, declared or inferred from references."""
        return self.inputs.required


Submission = Definition | Workflow | Mapping[str, Any] | str | Path
"""A loaded definition, a graph built in Python, a document as a mapping, or the path of a file."""


def load_file(path: str | os.PathLike[str], *, strict: bool = False) -> Definition:
    """Load `.yaml`, `.yml` or `.json`. Raises DefinitionError with every diagnostic; blocks for the read."""
    loaded, diagnostics = _Load(Path(path), None, None, strict).run()
    return _accepted(loaded, diagnostics)


def load_text(
    text: str | bytes,
    *,
    media: str | None = None,
    file: str | None = None,
    folder: Path | None = None,
    format: str | None = None,
    strict: bool = False,
) -> Definition:
    """Load a text. `media` is yaml, json or a media type; without it, a text that begins with `{` is JSON.

    `file` is named in diagnostics, `folder` is where Python services are looked up; neither is read.
    `format`: as given with a submission. With `strict` warnings are errors. Raises DefinitionError.
    """
    loaded, diagnostics = _Load(text, media, format, strict, file, folder).run()
    return _accepted(loaded, diagnostics)


def load_value(
    value: Mapping[str, Any],
    *,
    folder: Path | None = None,
    format: str | None = None,
    strict: bool = False,
) -> Definition:
    """Load a document that is a Python value already; its diagnostics have paths, but no line and column.

    Raises DefinitionError.
    """
    loaded, diagnostics = _Load(dict(value), None, format, strict, None, folder).run()
    return _accepted(loaded, diagnostics)


def check_file(path: str | os.PathLike[str], *, strict: bool = False) -> list[Diagnostic]:
    """Return all that is wrong with a file (phase L), sorted; never raises for a bad document or file."""
    return _Load(Path(path), None, None, strict).run()[1]


def check_text(
    text: str | bytes,
    *,
    media: str | None = None,
    file: str | None = None,
    format: str | None = None,
    strict: bool = False,
) -> list[Diagnostic]:
    """Return all that is wrong with a text (phase L), sorted; never raises for a bad document."""
    return _Load(text, media, format, strict, file).run()[1]


def check_inputs(definition: Definition, inputs: Any) -> tuple[Any, list[Diagnostic]]:
    """Return the inputs of one run, defaults filled in, and what is wrong with them (phase S), sorted.

    An agent list takes any JSON, unchanged. With an error among the diagnostics the value is not to be used.
    """
    report = Report(definition.file)
    declared = definition.workflow.inputs
    value = check_input_values(definition.inputs, declared, definition.positions.key_at, inputs, report)
    if not report.has_errors:
        check_whole_input(definition.workflow, definition.positions.key_at, value, report)
    return value, report.diagnostics()


def definition_of(workflow: Workflow, *, strict: bool = False, is_own: bool = False) -> Definition:
    """Return a graph built in Python, as a definition: its canonical JSON is its source.

    It is checked as documents are, and what is accepted is what the stored bytes of it say. Diagnostics have
    a path into the canonical JSON, but no line. `is_own`: see `accepted_graph`. Raises DefinitionError.
    """
    from agentflow.definition.ir_checks import accepted_graph

    report = Report()
    with suppress(Fatal):
        workflow = accepted_graph(workflow, report, is_own=is_own)
    diagnostics = report.diagnostics(strict=strict)
    if any(d.severity == "error" for d in diagnostics):
        raise DefinitionError(diagnostics)
    digest = ir_hash(workflow)
    return Definition(
        name=workflow.name,
        version=None,
        format="ir/v0",
        source=canonical_json(workflow).decode(),
        media="json",
        file=None,
        folder=None,
        hash=digest,
        workflow=workflow,
        ir_hash=digest,
        warnings=diagnostics,
        positions=Positions(node_of_value({}, Report(None))),
        inputs=needs_of(workflow),
    )


def _accepted(definition: Definition | None, diagnostics: list[Diagnostic]) -> Definition:
    if definition is None:
        raise DefinitionError(diagnostics)
    return definition


class _Load:
    """One load, from a path, a text or a value to a definition."""

    def __init__(
        self,
        origin: Path | str | bytes | dict[str, Any],
        media: str | None,
        format: str | None,
        strict: bool,
        file: str | None = None,
        folder: Path | None = None,
    ) -> None:
        if isinstance(origin, Path):
            file, folder = str(origin), origin.parent
        if file is not None:
            # The name of a file may be bytes that are no text; the name in messages is.
            file = file.encode(errors="replace").decode()
        self._origin = origin
        self._media = media
        self._format = format
        self._strict = strict
        self._file = file
        self._folder = folder
        self._report = Report(file)

    def run(self) -> tuple[Definition | None, list[Diagnostic]]:
        """Return the definition, None if refused, and all diagnostics."""
        try:
            definition = self._load()
        except Fatal:
            definition = None
        diagnostics = self._report.diagnostics(strict=self._strict)
        if definition is None or any(d.severity == "error" for d in diagnostics):
            return None, diagnostics
        definition.warnings.extend(sort_diagnostics(diagnostics))
        return definition, diagnostics

    def _load(self) -> Definition | None:
        report = self._report
        if isinstance(self._origin, dict):
            root = node_of_value(self._origin, report)
            source = Source(canonical_json(self._origin).decode(), "json", self._file)
        else:
            source = self._read(self._origin)
            root = read_node(source, report)
        if not isinstance(root, Object):
            place = (root.line, root.column)
            raise report.fatal("E_TYPE", f"document must be a mapping, not {json_type(root)}", place, "")
        chosen = _format_of(root, self._format, report)
        default = _default_name(self._file)
        needs, positions = ANY_INPUT, Positions(root)
        from agentflow.definition.document_lints import warn_of_secrets

        if chosen == STEPS:
            from agentflow.definition.step_document import compile_step_document

            workflow, needs = compile_step_document(root, source, default, report)
        elif chosen == NODES:
            from agentflow.definition.node_yaml import compile_node_yaml

            workflow, positions = compile_node_yaml(root, source, report)
            needs = needs_of(workflow)
        elif chosen == GRAPH:
            from agentflow.definition.ir_document import compile_ir_document

            workflow, positions = compile_ir_document(root, source, report)
            needs = needs_of(workflow)
        else:
            from agentflow.definition.agent_list import compile_agent_list

            workflow = compile_agent_list(root, default, report)
        warn_of_secrets(root, source.text, report)
        if report.has_errors:
            return None
        return self._definition(root, source, chosen, workflow, needs, positions)

    def _read(self, origin: Path | str | bytes) -> Source:
        report = self._report
        media = media_of(self._media, report) if self._media is not None else None
        if isinstance(origin, Path):
            origin, media = read_file(origin, report)
        if media is None:
            start = origin[:1024] if isinstance(origin, str) else origin[:1024].decode(errors="replace")
            media = "json" if start.lstrip("\ufeff \t\r\n").startswith("{") else "yaml"
        return Source(decode(origin, report, media), media, self._file)

    def _definition(
        self,
        root: Object,
        source: Source,
        chosen: str,
        workflow: Workflow,
        needs: InputNeeds,
        positions: Positions,
    ) -> Definition:
        value = to_value(root)
        version = value.get("version")
        return Definition(
            name=workflow.name,
            version=version if isinstance(version, str) else _VERSIONS.get(chosen),
            format=chosen,
            source=source.text,
            media=source.media,
            file=self._file,
            folder=self._folder,
            hash="sha256:" + hashlib.sha256(canonical_json(value)).hexdigest(),
            workflow=workflow,
            ir_hash=ir_hash(workflow),
            warnings=[],
            positions=positions,
            inputs=needs,
        )


def _default_name(file: str | None) -> str:
    """Return the stem of the file, as far as it can be a name."""
    stem = shown(Path(file).stem, _LONGEST_NAME) if file else ""
    return stem if stem.strip() else _UNNAMED


def _format_of(root: Object, submitted: str | None, report: Report) -> str:
    """Return the format, by what is declared and by the keys (page 000 §2). Raises Fatal with E_FORMAT."""
    member = root.members.get("format")
    declared: Node | None = member.node if member else None
    top = NOWHERE if root.line is None else (1, 1)
    place, path = top, ""
    named = submitted
    if isinstance(declared, Scalar) and isinstance(declared.value, str):
        if submitted is not None and submitted != declared.value:
            message = f'document says format "{shown(declared.value)}", the submission "{shown(submitted)}"'
            raise report.fatal("E_FORMAT", message, (declared.line, declared.column), "/format")
        named, place, path = declared.value, (declared.line, declared.column), "/format"
    if named in _LATER:
        raise report.fatal("E_FORMAT", f'format "{named}" is not supported yet by this version', place, path)
    if named is not None and named not in _FORMATS:
        hint = report.did_you_mean(named, _FORMATS)
        raise report.fatal("E_FORMAT", f'unknown format "{shown(named)}"', place, path, hint)
    keys = [key for key in _KEYS if key in root.members]
    if len(keys) > 1:
        message = f"document has {'both' if len(keys) == 2 else 'all of'} "
        message += " and ".join(f'"{key}"' for key in keys)
        raise report.fatal("E_FORMAT", message, top, "", hint="keep one of them")
    if not keys and named is None and "entry_node" in root.members:
        return NODES
    if not keys or (named is not None and named not in _KEYS[keys[0]]):
        raise _lacks_its_key(root, named, place, path, report)
    return named or (_graph_format(root) if keys[0] == "nodes" else _KEYS[keys[0]][0])


_KEYS = {"workflow": (STEPS,), "agents": (AGENTS,), "nodes": (GRAPH, NODES)}
"""The key that a document of each format has, and no other has."""


def _lacks_its_key(root: Object, named: str | None, place: Place, path: str, report: Report) -> Fatal:
    """Return the refusal of a document without the key of its format; a misspelt one is named."""
    if named is not None:
        wanted = next(key for key, formats in _KEYS.items() if named in formats)
        return report.fatal("E_FORMAT", f'document needs "{wanted}"', place, path)
    message = 'document needs either "workflow" or "agents", or "nodes" of a graph'
    for key in _KEYS:
        near = report.nearest(key, root.members)
        if near is not None:
            meant = root.members[near]
            at = (meant.line, meant.column)
            pointer = child_pointer("", near)
            return report.fatal("E_FORMAT", message, at, pointer, f'did you mean "{key}"?')
    return report.fatal("E_FORMAT", message, place, path)


def _graph_format(root: Object) -> str:
    """Return which of the two formats with `nodes` is meant: node YAML says where it enters, and has its
    kinds in `node_type`."""
    if "entry_node" in root.members:
        return NODES
    nodes = root.members["nodes"].node
    items = nodes.items if isinstance(nodes, Array) else []
    keys = [item.members for item in items if isinstance(item, Object)]
    has_type = any("type" in members for members in keys)
    return NODES if any("node_type" in members for members in keys) and not has_type else GRAPH
