"""Registered definitions: documents by name and version, kept beside the store.

A version never changes once it is there. Documents are files, so that they can be read, copied and kept
under version control: `NAME/VERSION.json` holds one with its source as it was sent, who registered it, and
whether that client was trusted. A run of it is trusted only if both the registrar and the submitter are
(page 000 §8), so a name that a trusted client registered takes no version from an untrusted one.
"""

from __future__ import annotations

import asyncio
import builtins
import os
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from agentflow.definition.loader import Definition
from agentflow.errors import ConfigurationError, StorageUnavailable
from agentflow.events.envelope import iso
from agentflow.events.files import make_directories, put_file
from agentflow.server.answers import DefinitionInfoView
from agentflow.server.problems import Refusal

if TYPE_CHECKING:
    from agentflow.graphs import Workflow

__all__ = ["Definitions", "definitions_beside"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_VERSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")
_UNVERSIONED = "1"
_LOADED_BY = "daemon"


class Definitions:
    """The registered definitions of a daemon; `folder` None keeps them in memory. For one event loop."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._lock = asyncio.Lock()
        self._loaded: dict[str, tuple[Workflow, DefinitionInfoView]] = {}
        self._kept: dict[str, dict[str, DefinitionInfoView]] | None = {} if folder is None else None

    def load(self, workflows: Iterable[Workflow]) -> None:
        """Register workflows that were built in Python, as trusted definitions of this process.

        A document that is registered under the same name has to be named with its version. Raises
        ConfigurationError if two workflows have one name.
        """
        for workflow in workflows:
            known = self._loaded.get(workflow.name)
            if known is not None and known[0].definition.ir_hash != workflow.definition.ir_hash:
                message = f'two loaded workflows have the name "{workflow.name}"'
                raise ConfigurationError(message, hint="give one of them another name")
            view = _view(workflow.definition, workflow.name, workflow.version, _LOADED_BY, True)
            self._loaded[workflow.name] = workflow, view

    def loaded(self, name: str, version: str | None = None) -> Workflow | None:
        """Return the loaded workflow of a name; None if there is none, or of another version."""
        found = self._loaded.get(name)
        return found[0] if found is not None and version in (None, found[1].version) else None

    async def add(
        self, definition: Definition, *, name: str | None, version: str | None, by: str, trusted: bool = False
    ) -> DefinitionInfoView:
        """Register one for the client `by`. The same source again gives what is there; a trusted client that
        sends the source of an untrusted one becomes its registrar.

        Raises Refusal: `version_exists` for another source; `forbidden` if the client is not trusted and the
        name has a version of a trusted one.
        """
        name, version = name or definition.name, version or definition.version or _UNVERSIONED
        if not _NAME.fullmatch(name) or not _VERSION.fullmatch(version):
            raise Refusal(
                "invalid_parameter",
                "a definition is registered under a name and a version of letters, digits, _ . and -",
                hint="give name and version beside the definition",
            )
        made = _view(definition, name, version, by, trusted)
        loaded = self._loaded.get(name)
        if loaded is not None and loaded[1].version == version:
            raise Refusal("version_exists", f"{name} {version} is a workflow that this daemon has loaded")
        async with self._lock:
            kept = await self._all()
            versions = kept.get(name, {})
            known = versions.get(version)
            same = known is not None and known.hash == made.hash
            if known is not None and same and known.trusted >= trusted:
                return known
            if not trusted and any(one.trusted for one in versions.values()):
                raise Refusal(
                    "forbidden",
                    f"{name} was registered by a trusted client; this client may not add a version to it",
                    hint="register it under a name of its own",
                )
            if known is not None and not same:
                raise Refusal("version_exists", f"{name} {version} is there with another source")
            if self._folder is not None:
                await asyncio.to_thread(_write, self._folder / name / f"{version}.json", made)
            kept.setdefault(name, {})[version] = made
            return made

    async def find(self, name: str, version: str | None = None) -> DefinitionInfoView:
        """Return a registered definition with its source. Without a version it is the newest one: of the
        versions of trusted clients if there are any, so that an untrusted client cannot replace it.

        Raises Refusal (`definition_not_found`).
        """
        if self.loaded(name, version) is not None:
            return self._loaded[name][1]
        versions = (await self._all()).get(name)
        if versions:
            if version is None:
                return max(
                    versions.values(), key=lambda found: (found.trusted, found.created_at, found.version)
                )
            if version in versions:
                return versions[version]
        text = f"{name} {version}" if version is not None and versions else name
        hint = "`POST /definitions` registers a document; `agentflow serve --load` a workflow built in Python"
        raise Refusal("definition_not_found", f"there is no definition {text[:200]}", hint=hint)

    async def list(self) -> list[DefinitionInfoView]:
        """Return the newest version of each, by name, without their sources."""
        names = sorted({*await self._all(), *self._loaded})
        newest = [await self.find(name) for name in names]
        return [msgspec.structs.replace(found, source=msgspec.UNSET) for found in newest]

    async def versions(self, name: str) -> builtins.list[DefinitionInfoView]:
        """Return all versions of a definition without their sources, the newest first. Raises as `find`."""
        await self.find(name)
        found = {**(await self._all()).get(name, {})}
        loaded = self._loaded.get(name)
        if loaded is not None:
            found[loaded[1].version] = loaded[1]
        newest = sorted(found.values(), key=lambda one: (one.created_at, one.version), reverse=True)
        return [msgspec.structs.replace(one, source=msgspec.UNSET) for one in newest]

    async def _all(self) -> dict[str, dict[str, DefinitionInfoView]]:
        if self._kept is None:
            assert self._folder is not None
            self._kept = await asyncio.to_thread(_read_all, self._folder)
        return self._kept


def _view(definition: Definition, name: str, version: str, by: str, trusted: bool) -> DefinitionInfoView:
    return DefinitionInfoView(
        name=name,
        version=version,
        format=definition.format,
        hash=definition.hash,
        ir_hash=definition.ir_hash,
        created_at=iso(time.time_ns() // 1000),
        by=by,
        trusted=trusted,
        source=definition.source,
    )


def definitions_beside(store: str, configured: str | None) -> Definitions:
    """Return where the definitions of this store are kept."""
    if configured is not None:
        return Definitions(Path(configured))
    scheme, _, rest = store.partition(":")
    path = Path(rest[2:] if rest.startswith("///") else rest)
    if scheme == "sqlite" and rest:
        return Definitions(path.with_name(path.name + ".definitions"))
    return Definitions(path / "definitions" if scheme == "file" and rest else None)


class _Stored(DefinitionInfoView, frozen=True, kw_only=True):
    """A file as it is read: one of an earlier version does not say whether the registrar was trusted."""

    trusted: bool | None = None  # pyright: ignore[reportIncompatibleVariableOverride]


def _with_trust(stored: _Stored) -> DefinitionInfoView:
    """Return the definition of a file. If the file does not say so, its registrar was trusted only if `by` is
    the owner of this process, because that name came from the peer credentials of the Unix socket alone."""
    members = msgspec.structs.asdict(stored)
    if stored.trusted is None:
        members["trusted"] = stored.by == f"uid:{os.geteuid()}"
    return DefinitionInfoView(**members)


def _write(path: Path, definition: DefinitionInfoView) -> None:
    try:
        make_directories(path.parent)
        put_file(path, msgspec.json.format(msgspec.json.encode(definition), indent=2) + b"\n")
    except OSError as error:
        raise StorageUnavailable(f"the definition cannot be kept: {error.strerror}") from error


def _read_all(folder: Path) -> dict[str, dict[str, DefinitionInfoView]]:
    found: dict[str, dict[str, DefinitionInfoView]] = {}
    for path in sorted(folder.glob("*/*.json")):
        try:
            one = _with_trust(msgspec.json.decode(path.read_bytes(), type=_Stored))
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"the definition {path} cannot be read: {error}") from None
        found.setdefault(one.name, {})[one.version] = one
    return found
