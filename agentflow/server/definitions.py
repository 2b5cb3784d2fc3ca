"""Registered definitions: documents by name and version, kept beside the store.

A version never changes once it is there. Documents are files, so that they can be read, copied and kept
under version control: `NAME/VERSION.json` holds one with its source as it was sent.
"""

from __future__ import annotations

import asyncio
import re
import time
from pathlib import Path

import msgspec

from agentflow.definition.loader import Definition
from agentflow.errors import ConfigurationError, StorageUnavailable
from agentflow.events.envelope import iso
from agentflow.events.files import make_directories, put_file
from agentflow.server.answers import DefinitionInfoView
from agentflow.server.problems import Refusal

__all__ = ["Definitions", "definitions_beside"]

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}")
_VERSION = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.+-]{0,127}")
_UNVERSIONED = "1"


class Definitions:
    """The registered definitions of a daemon; `folder` None keeps them in memory. For one event loop."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder
        self._lock = asyncio.Lock()
        self._kept: dict[str, dict[str, DefinitionInfoView]] | None = {} if folder is None else None

    async def add(
        self, definition: Definition, *, name: str | None, version: str | None, by: str
    ) -> DefinitionInfoView:
        """Register one. The same source again gives what is there; another one is `version_exists`."""
        name, version = name or definition.name, version or definition.version or _UNVERSIONED
        if not _NAME.fullmatch(name) or not _VERSION.fullmatch(version):
            raise Refusal(
                "invalid_parameter",
                "a definition is registered under a name and a version of letters, digits, _ . and -",
                hint="give name and version beside the definition",
            )
        made = DefinitionInfoView(
            name=name,
            version=version,
            format=definition.format,
            hash=definition.hash,
            ir_hash=definition.ir_hash,
            created_at=iso(time.time_ns() // 1000),
            by=by,
            source=definition.source,
        )
        async with self._lock:
            kept = await self._all()
            known = kept.get(name, {}).get(version)
            if known is not None:
                if known.hash != made.hash:
                    raise Refusal("version_exists", f"{name} {version} is there with another source")
                return known
            if self._folder is not None:
                await asyncio.to_thread(_write, self._folder / name / f"{version}.json", made)
            kept.setdefault(name, {})[version] = made
            return made

    async def find(self, name: str, version: str | None = None) -> DefinitionInfoView:
        """A registered definition with its source; the newest without a version. Refusal."""
        versions = (await self._all()).get(name)
        if versions:
            if version is None:
                return max(versions.values(), key=lambda found: (found.created_at, found.version))
            if version in versions:
                return versions[version]
        text = f"{name} {version}" if version is not None and versions else name
        raise Refusal("definition_not_found", f"there is no definition {text[:200]}")

    async def list(self) -> list[DefinitionInfoView]:
        """The newest version of each, by name, without their sources."""
        names = sorted(await self._all())
        newest = [await self.find(name) for name in names]
        return [msgspec.structs.replace(found, source=msgspec.UNSET) for found in newest]

    async def _all(self) -> dict[str, dict[str, DefinitionInfoView]]:
        if self._kept is None:
            assert self._folder is not None
            self._kept = await asyncio.to_thread(_read_all, self._folder)
        return self._kept


def definitions_beside(store: str, configured: str | None) -> Definitions:
    """Where the definitions of this store are kept."""
    if configured is not None:
        return Definitions(Path(configured))
    scheme, _, rest = store.partition(":")
    path = Path(rest[2:] if rest.startswith("///") else rest)
    if scheme == "sqlite" and rest:
        return Definitions(path.with_name(path.name + ".definitions"))
    return Definitions(path / "definitions" if scheme == "file" and rest else None)


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
            one = msgspec.json.decode(path.read_bytes(), type=DefinitionInfoView)
        except (OSError, msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ConfigurationError(f"the definition {path} cannot be read: {error}") from None
        found.setdefault(one.name, {})[one.version] = one
    return found
