"""Import of the module that a `python` service names: beside the document, or on `sys.path`.

A module beside the document is registered under a private name, made of its path and its last change, so
that two folders may both have a `tools.py` and an edited file is read again. While it is imported it can
import its neighbours by their plain names; so import them at the top of the file, not inside a function.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

__all__ = ["import_service_module"]

_PREFIX = "agentflow_service_"


def import_service_module(name: str, folder: Path | None) -> ModuleType:
    """The module of a dotted name. Runs its code, and raises whatever that raises; ImportError for a name
    that is none. Not safe for use from several threads at once."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise ImportError(f'"{name}" is not the name of a module')
    if folder is not None:
        folder = folder.resolve()
        top, _, rest = name.partition(".")
        package = folder / top / "__init__.py"
        if package.is_file() and (not rest or _is_module(folder.joinpath(*name.split(".")))):
            return _import_beside(package, folder, rest)
        file = folder.joinpath(*name.split(".")).with_suffix(".py")
        if file.is_file():
            return _import_beside(file, folder)
    return importlib.import_module(name)


def _is_module(path: Path) -> bool:
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def _import_beside(file: Path, folder: Path, rest: str = "") -> ModuleType:
    """The module of a file, or, of a package's `__init__.py`, the module `rest` inside the package."""
    is_package = file.name == "__init__.py"
    stem = file.parent.name if is_package else file.stem
    changed = max(f.stat().st_mtime_ns for f in (file.parent.rglob("*.py") if is_package else (file,)))
    key = hashlib.sha256(f"{file}:{changed}".encode()).hexdigest()[:12]
    name = f"{_PREFIX}{stem}_{key}"
    _forget_neighbours_of_other_folders(folder)
    sys.path.insert(0, str(folder))
    try:
        if name not in sys.modules:
            _execute(name, file, [str(file.parent)] if is_package else None)
        return importlib.import_module(f"{name}.{rest}") if rest else sys.modules[name]
    finally:
        sys.path.remove(str(folder))
        _folders.add(folder)


def _execute(name: str, file: Path, places: list[str] | None) -> None:
    spec = importlib.util.spec_from_file_location(name, file, submodule_search_locations=places)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise


# Folders from which services were imported.
_folders: set[Path] = set()


def _forget_neighbours_of_other_folders(folder: Path) -> None:
    """Let `import helpers` find this folder's `helpers`, not another service's that is already loaded.

    Whoever imported the other one keeps it; only the name is free again.
    """
    others = _folders - {folder}
    if not others:
        return
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file is None or name.startswith(_PREFIX):
            continue
        elsewhere = any(Path(file).is_relative_to(other) for other in others)
        if elsewhere and _is_module(folder / name.partition(".")[0]):
            del sys.modules[name]
