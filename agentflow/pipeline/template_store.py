"""Where templates are: `./workflows`, the folder of the user, and those of the product (page 004 §12).

The first of a name wins. Installing, editing and removing changes the folder of the user alone. Blocking, but
for `install_url`: call it in a thread.
"""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from contextlib import suppress
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urljoin, urlsplit

import msgspec

from agentflow import __version__
from agentflow.definition.diagnostics import Diagnostic, or_which
from agentflow.errors import AgentflowError, DefinitionError
from agentflow.http import AnswerTooLarge, HttpClient, HttpFailure
from agentflow.pipeline.templates import NAME, Origin, Template, media_of_path, read_template

__all__ = [
    "MAX_TEMPLATE_BYTES",
    "StoredTemplate",
    "TemplateError",
    "TemplateExists",
    "TemplateNotFound",
    "TemplateStore",
]

MAX_TEMPLATE_BYTES: Final = 1 << 20
_FETCH_TIMEOUT_S: Final = 30.0
_MAX_REDIRECTS: Final = 5
_MAX_FILES: Final = 1_000


class TemplateError(AgentflowError):
    """The template cannot be installed or changed; nothing was stored."""

    code = "validation_failed"


class TemplateNotFound(AgentflowError):
    """There is no template of that name; `agentflow template list` lists them."""

    code = "template_not_found"


class TemplateExists(AgentflowError):
    """The name is taken; install with overwrite to replace it."""

    code = "template_exists"


class StoredTemplate(NamedTuple):
    """A template with the place that it stands at. `warnings` name the templates that it hides."""

    template: Template
    origin: Origin
    path: str
    warnings: tuple[Diagnostic, ...] = ()


class TemplateStore:
    """The templates of one working directory and one user. Files are read anew at each call."""

    def __init__(self, user: Path, local: Path | None = None) -> None:
        self._user = user
        self._local = local

    def list(self) -> tuple[list[StoredTemplate], list[Diagnostic]]:
        """Return the templates by name, and what is wrong with files that are none, or are hidden."""
        found: dict[str, StoredTemplate] = {}
        problems: list[Diagnostic] = []
        for origin, folder in self._folders():
            for path in _template_files(folder):
                try:
                    template = _read(path)
                except DefinitionError as error:
                    problems.extend(error.diagnostics)
                    continue
                first = found.get(template.name)
                if first is None:
                    found[template.name] = StoredTemplate(template, origin, str(path))
                    continue
                warning = _shadowed(template.name, first.path, str(path))
                problems.append(warning)
                found[template.name] = first._replace(warnings=(*first.warnings, warning))
        return [found[name] for name in sorted(found)], problems

    def get(self, name: str) -> StoredTemplate:
        """Return the template of a name.

        Raises TemplateNotFound, or DefinitionError if a file of that name is no template.
        """
        found, problems = self.list()
        for one in found:
            if one.template.name == name:
                return one
        broken = [p for p in problems if p.severity == "error" and Path(p.file or "").stem == name]
        if broken:
            raise DefinitionError(broken)
        names = [one.template.name for one in found]
        raise TemplateNotFound(f'there is no template "{name[:60]}"{or_which(name, names)}')

    # -- changing -------------------------------------------------------------------------------

    def install(self, source: Path, *, sha256: str | None = None, overwrite: bool = False) -> StoredTemplate:
        """Check the template in a file and store it for the user.

        Raises DefinitionError, TemplateExists, or TemplateError if it has another hash or cannot be read.
        """
        media = media_of_path(source)
        if media is None:
            raise TemplateError(f"{source} is no .yaml, .yml or .json file")
        try:
            with source.open("rb") as stream:
                data = stream.read(MAX_TEMPLATE_BYTES + 1)
        except OSError as error:
            raise TemplateError(f"{source} cannot be read: {error.strerror}") from error
        return self.put(data, media, sha256=sha256, overwrite=overwrite, file=str(source))

    async def install_url(
        self, url: str, *, sha256: str | None, overwrite: bool = False, allowed_hosts: tuple[str, ...] = ()
    ) -> StoredTemplate:
        """Fetch a template by https and store it. `sha256` is required: what was read is what is installed.

        No private address is asked unless its host is allowed. Raises as `install`.
        """
        if sha256 is None:
            raise TemplateError(
                "a template from a URL needs its sha256", hint="compute it from a copy that you have read"
            )
        from agentflow.aside import compute_aside

        data, media = await _fetch(url, allowed_hosts)
        return await compute_aside(self.put, data, media, sha256=sha256, overwrite=overwrite, file=url)

    def put(
        self,
        data: bytes | str,
        media: Any = "yaml",
        *,
        sha256: str | None = None,
        overwrite: bool = False,
        file: str | None = None,
    ) -> StoredTemplate:
        """Check the text of a template and store it for the user. Raises as `install`."""
        body = data.encode() if isinstance(data, str) else data
        if len(body) > MAX_TEMPLATE_BYTES:
            raise TemplateError(f"the template has more than {MAX_TEMPLATE_BYTES:,} bytes")
        if sha256 is not None:
            wanted = sha256.lower().removeprefix("sha256:")
            if not re.fullmatch("[0-9a-f]{64}", wanted):
                raise TemplateError("sha256 is no hash of 64 hexadecimal digits")
            actual = hashlib.sha256(body).hexdigest()
            if actual != wanted:
                raise TemplateError(f"the template has the hash {actual}, not the one that was given")
        template = read_template(body, media, file=file)
        taken = self._file_of(template.name)
        if not overwrite:
            with suppress(TemplateNotFound):
                self.get(template.name)
                raise TemplateExists(f'there is a template "{template.name}"')
        path = self._write(template.name, body, media)
        if taken is not None and taken != path:
            taken.unlink(missing_ok=True)
        return StoredTemplate(template, "user", str(path))

    def set(self, name: str, changes: Mapping[str, Any]) -> StoredTemplate:
        """Change description or summary of a template of the user; of one of the product a copy is stored.

        Comments and the form of its text are lost, so that a new hash is what it has. Raises TemplateError
        for any other key, TemplateNotFound or DefinitionError.
        """
        unknown = [key for key in changes if key not in ("description", "summary")]
        if unknown:
            raise TemplateError(
                f'"{unknown[0]}" of a template cannot be changed', hint="edit the file for more than a text"
            )
        wrong = [key for key, value in changes.items() if not isinstance(value, str)]
        if wrong:
            raise TemplateError(f'"{wrong[0]}" is no text')
        stored = self.get(name)
        template = stored.template
        if stored.origin == "workflows":
            raise TemplateError(f"the template stands in {stored.path}", hint="edit that file")
        from agentflow.definition.report import Report
        from agentflow.definition.source import read_node
        from agentflow.definition.source_text import Source
        from agentflow.definition.source_tree import to_value

        value = to_value(read_node(Source(template.source, template.media), Report()))
        value.update(changes)
        body = msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"
        return self.put(body, "json", overwrite=True, file=f"{name}.json")

    def remove(self, name: str) -> None:
        """Remove a template of the user. Raises TemplateNotFound, and TemplateError for one of another
        place."""
        path = self._file_of(name)
        if path is None:
            origin = self.get(name).origin
            raise TemplateError(f'template "{name}" is not one of the user ({origin}): it is not removed')
        path.unlink(missing_ok=True)

    # -- files ----------------------------------------------------------------------------------

    def _folders(self) -> list[tuple[Origin, Any]]:
        found: list[tuple[Origin, Any]] = [
            ("user", self._user),
            ("built-in", files("agentflow.pipeline.builtin")),
        ]
        return [("workflows", self._local), *found] if self._local is not None else found

    def _file_of(self, name: str) -> Path | None:
        """Return the file of the user that holds a template."""
        for path in _template_files(self._user):
            with suppress(DefinitionError):
                if _read(path).name == name:
                    return Path(str(path))
        return None

    def _write(self, name: str, body: bytes, media: str) -> Path:
        assert NAME.fullmatch(name)  # so that no name leads out of the folder
        path = self._user / f"{name}.{media}"
        temporary = self._user / f".{name}-{secrets.token_hex(4)}"
        try:
            self._user.mkdir(parents=True, exist_ok=True, mode=0o700)
            temporary.write_bytes(body)
            os.replace(temporary, path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink()
            raise TemplateError(f"{path} cannot be written: {error.strerror}") from error
        return path


def _template_files(folder: Any) -> list[Any]:
    """Return the template files of a folder by name: at most 1,000, and none that begins with a dot."""
    try:
        found = [one for one in folder.iterdir() if one.is_file() and not one.name.startswith(".")]
    except OSError:
        return []
    fitting = [one for one in found if media_of_path(Path(one.name)) is not None]
    return sorted(fitting, key=lambda one: one.name)[:_MAX_FILES]


def _read(path: Any) -> Template:
    try:
        with path.open("rb") as stream:
            data = stream.read(MAX_TEMPLATE_BYTES + 1)
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror}"
        raise DefinitionError(
            [Diagnostic(code="E_FILE", severity="error", message=message, file=str(path))]
        ) from error
    return read_template(data, media_of_path(Path(path.name)) or "yaml", file=str(path))


def _shadowed(name: str, first: str, second: str) -> Diagnostic:
    message = f'template "{name}" is hidden by the one in {first}'
    return Diagnostic(
        code="W_TEMPLATE_SHADOWED",
        severity="warning",
        message=message,
        file=second,
        hint="rename one of them",
    )


async def _fetch(url: str, allowed: tuple[str, ...]) -> tuple[bytes, str]:
    client = HttpClient(first_byte_timeout=_FETCH_TIMEOUT_S, public_only=True, allowed=allowed)
    headers = {"user-agent": f"agentflow/{__version__}", "accept": "*/*"}
    try:
        for _ in range(_MAX_REDIRECTS + 1):
            _check_url(url)
            async with client.request("GET", url, headers=headers) as response:
                target = response.headers.get("location")
                if response.status in (301, 302, 303, 307, 308) and target:
                    url = urljoin(url, target)
                    continue
                if response.status != 200:
                    raise TemplateError(f"{url} answered HTTP {response.status}")
                body = await response.read(MAX_TEMPLATE_BYTES)
                return body, media_of_path(Path(urlsplit(url).path)) or _media_of(response.headers)
        raise TemplateError(f"more than {_MAX_REDIRECTS} redirects")
    except AnswerTooLarge:
        raise TemplateError(f"the template has more than {MAX_TEMPLATE_BYTES:,} bytes") from None
    except HttpFailure as failure:
        reason = "its address is not public" if failure.kind == "denied" else str(failure)
        raise TemplateError(f"the template could not be fetched: {reason}") from None
    finally:
        await client.aclose()


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        fits = parts.scheme.lower() == "https" and bool(parts.hostname) and "@" not in parts.netloc
    except ValueError:
        fits = False
    if not fits:
        raise TemplateError("the address is no https URL without credentials")


def _media_of(headers: Mapping[str, str]) -> str:
    return "json" if headers.get("content-type", "").partition(";")[0].strip().endswith("json") else "yaml"
