"""Runs that have ended, kept in an object store (page 000 §7): `s3://BUCKET/PREFIX`, or any URL of obstore.

    {prefix}/{workflow_id}/events-{first}-{last}.ndjson.gz   the events as readers see them, one a line
    {prefix}/{workflow_id}/blobs/{sha256}                    the values that they name, and a fork's base
    {prefix}/{workflow_id}/attached.ndjson.gz                graph and records, as in an exported file
    {prefix}/{workflow_id}/manifest.json                     written last, once, and only if it is absent

A run without a manifest is not archived: whatever else is there is written again. Needs the extra `archive`.
"""

from __future__ import annotations

import asyncio
import gzip
import hashlib
import uuid
from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import msgspec

from agentflow.errors import AgentflowError, ConfigurationError, LogCorrupt, StorageUnavailable
from agentflow.events.blobs import Blob, insert_blobs
from agentflow.events.envelope import SCHEMA_VERSION
from agentflow.events.exported import ExportedLog, encode_attachment, read_lines
from agentflow.events.log import EventLog, RunRow
from agentflow.events.references import names_in

if TYPE_CHECKING:
    from obstore.store import ObjectStore

__all__ = ["Archive", "Manifest", "open_archive"]

_PAGE = 512
_HINT = "see that the object store can be reached and written to; nothing was removed"


class _File(msgspec.Struct, frozen=True):
    """An object of a run, below its prefix: its length and checksum as it is stored."""

    name: str
    size: int
    sha256: str


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What an archived run consists of. `blobs` says where in which line of the events a value goes."""

    workflow_id: str
    state: str
    schema_version: int
    first: int
    last: int
    events: int
    bytes: int
    files: list[_File]
    blobs: list[tuple[int, int, str]] = []
    ended_at: int


def open_archive(url: str, **options: Any) -> Archive:
    """Return the archive that `url` names; `options` are those of obstore.

    Credentials come from the environment, as in other tools of the provider. Raises ConfigurationError if the
    extra is missing or the URL names no object store.
    """
    try:
        from obstore.store import from_url
    except ImportError:
        raise ConfigurationError(
            "an archive needs the package obstore", hint="install agentflow[archive]"
        ) from None
    try:
        return Archive(url, from_url(url, **options))
    except Exception as error:
        raise ConfigurationError(f"archive: {url!r} names no object store: {error}") from error


class Archive:
    """Runs in an object store. Its methods are for any event loop; none blocks it.

    Raises StorageUnavailable where the object store does not do what it is asked to.
    """

    def __init__(self, url: str, store: ObjectStore) -> None:
        self.url = url
        self._store = store

    async def check(self) -> None:
        """Check that an object can be created only if it is absent. Raises ConfigurationError if not."""
        name = f".agentflow-{uuid.uuid4().hex}"
        try:
            created = [await self._create(name, b"probe") for _ in range(2)]
        except StorageUnavailable as error:
            raise ConfigurationError(f"the archive {self.url} cannot be used: {error}", hint=_HINT) from error
        await self._delete(name)
        if created != [True, False]:
            raise ConfigurationError(
                f"the archive {self.url} has no conditional create, so two processes could overwrite a run",
                hint="use a bucket that honours `If-None-Match: *`",
            )

    async def manifest(self, workflow_id: str) -> Manifest | None:
        """Return the manifest of a run, None if it is not archived. Raises LogCorrupt."""
        body = await self._get(f"{workflow_id}/manifest.json")
        if body is None:
            return None
        try:
            return msgspec.json.decode(body, type=Manifest)
        except msgspec.DecodeError as error:
            raise LogCorrupt(f"the manifest of {workflow_id} in {self.url} is damaged: {error}") from None

    async def put(self, log: EventLog, row: RunRow, attached: Iterable[bytes]) -> Manifest:
        """Write a run that has ended, with `attached` lines of an exported file; return its manifest.

        On return the manifest was read back and is what was written. A run that is archived already stays.
        """
        present = await self.manifest(row.workflow_id)
        if present is not None:
            return _same(present, row)
        lines: list[bytes] = []
        places: list[tuple[int, int, str]] = []
        blobs: dict[str, bytes] = {}
        size, offset = 0, row.earliest_offset
        while page := await log.read(row.workflow_id, offset, _PAGE):
            for event in page:
                size += event.size
                for blob in event.blobs:
                    blobs[blob.name] = blob.data
                    places.append((len(lines), blob.at, blob.name))
                for name in names_in(event.text) - blobs.keys():
                    await _collect(log, name, blobs)
                lines.append(event.text)
            offset = page[-1].offset + 1
        files = [
            await self._put_file(row, f"blobs/{name.removeprefix('sha256:')}", data)
            for name, data in blobs.items()
        ]
        events = f"events-{row.earliest_offset}-{row.last_offset}.ndjson.gz"
        files.append(await self._put_file(row, events, await asyncio.to_thread(_pack, lines)))
        files.append(
            await self._put_file(row, "attached.ndjson.gz", await asyncio.to_thread(_pack, attached))
        )
        manifest = Manifest(
            workflow_id=row.workflow_id,
            state=row.state,
            schema_version=SCHEMA_VERSION,
            first=row.earliest_offset,
            last=row.last_offset,
            events=len(lines),
            bytes=size,
            files=files,
            blobs=places,
            ended_at=row.updated_at,
        )
        await self._create(f"{row.workflow_id}/manifest.json", msgspec.json.encode(manifest))
        written = await self.manifest(row.workflow_id)
        if written is None:
            raise StorageUnavailable(f"the manifest of {row.workflow_id} is not in {self.url}", hint=_HINT)
        return _same(written, row)

    async def get(self, workflow_id: str) -> ExportedLog | None:
        """Return an archived run as a log of its own, None if it is not archived. Raises LogCorrupt."""
        manifest = await self.manifest(workflow_id)
        if manifest is None:
            return None
        found = {file.name: await self._get_file(workflow_id, file) for file in manifest.files}
        events = f"events-{manifest.first}-{manifest.last}.ndjson.gz"
        return await asyncio.to_thread(_assemble, self.url, manifest, events, found)

    # -- objects

    async def _put_file(self, row: RunRow, name: str, data: bytes) -> _File:
        path = f"{row.workflow_id}/{name}"
        await self._ask("put", path, data)
        if await self._get(path) != data:
            raise StorageUnavailable(f"{path} in {self.url} is not what was written", hint=_HINT)
        return _File(name, len(data), hashlib.sha256(data).hexdigest())

    async def _get_file(self, workflow_id: str, file: _File) -> bytes:
        data = await self._get(f"{workflow_id}/{file.name}")
        if data is None or hashlib.sha256(data).hexdigest() != file.sha256:
            raise LogCorrupt(f"{workflow_id}/{file.name} in {self.url} is missing or damaged")
        return data

    async def _create(self, path: str, data: bytes) -> bool:
        """Write an object unless there is one; return whether it was written."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        try:
            await self._ask("put", path, data, mode="create")
        except (AlreadyExistsError, PreconditionError):
            return False
        return True

    async def _get(self, path: str) -> bytes | None:
        try:
            found = await self._ask("get", path)
            return bytes(await found.bytes_async())
        except FileNotFoundError:
            return None

    async def _delete(self, path: str) -> None:
        with suppress(FileNotFoundError):
            await self._ask("delete", path)

    async def _ask(self, name: str, path: str, *arguments: Any, **options: Any) -> Any:
        """Call a function of obstore. Raises StorageUnavailable for all but the answers to a condition."""
        import obstore
        from obstore import exceptions

        try:
            return await getattr(obstore, f"{name}_async")(self._store, path, *arguments, **options)
        except (exceptions.AlreadyExistsError, exceptions.PreconditionError, FileNotFoundError):
            raise
        except Exception as error:
            raise StorageUnavailable(f"{self.url}: {name} {path}: {error}", hint=_HINT) from error


def _same(manifest: Manifest, row: RunRow) -> Manifest:
    """Return the manifest if it is of this run as it stands. Raises LogCorrupt."""
    there = (manifest.workflow_id, manifest.state, manifest.last, manifest.ended_at)
    if there != (row.workflow_id, row.state, row.last_offset, row.updated_at):
        raise LogCorrupt(
            f"the archive holds another run {row.workflow_id}", hint="give each store a prefix of its own"
        )
    return manifest


async def _collect(log: EventLog, name: str, blobs: dict[str, bytes]) -> None:
    """Add a blob that an event names, and those that it names itself."""
    data = await log.get_blob(name)
    if data is None:  # a definition, or a value of a user that looks like a name
        return
    blobs[name] = data
    for inner in names_in(data) - blobs.keys():
        await _collect(log, inner, blobs)


def _pack(lines: Iterable[bytes]) -> bytes:
    return gzip.compress(b"".join([line + b"\n" for line in lines]), 6, mtime=0)


def _unpack(data: bytes) -> list[bytes]:
    return gzip.decompress(data).split(b"\n")[:-1]


def _assemble(url: str, manifest: Manifest, events: str, found: dict[str, bytes]) -> ExportedLog:
    """Return the log that the objects of a run make, in the form of an exported file."""
    blobs = {f"sha256:{name[6:]}": data for name, data in found.items() if name.startswith("blobs/")}
    places: dict[int, list[Blob]] = {}
    for line, at, name in manifest.blobs:
        places.setdefault(line, []).append(Blob(at, name, blobs[name]))
    lines = [insert_blobs(text, places.get(n, ())) for n, text in enumerate(_unpack(found[events]))]
    lines += [encode_attachment("blob", name, data) for name, data in blobs.items()]
    lines += _unpack(found["attached.ndjson.gz"])
    try:
        return read_lines(f"{url}/{manifest.workflow_id}", lines)
    except AgentflowError as error:
        raise LogCorrupt(f"the archived run {manifest.workflow_id} cannot be read: {error}") from error
