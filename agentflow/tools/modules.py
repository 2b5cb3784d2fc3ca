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
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from importlib.machinery import ModuleSpec, PathFinder
from pathlib import Path
from types import ModuleType
from typing import NamedTuple

__all__ = ["import_service_module", "imported_service_module"]

_PREFIX = "agentflow_service_"
_one_at_a_time = threading.Lock()


class _Beside(NamedTuple):
    """A module beside the document: its file (a package's `__init__.py`), its private name in `sys.modules`,
    and the module `rest` that is wanted inside a package."""

    file: Path
    name: str
    rest: str = ""

    @property
    def wanted(self) -> str:
        return f"{self.name}.{self.rest}" if self.rest else self.name


def import_service_module(name: str, folder: Path | None) -> ModuleType:
    """Return the module of a dotted name. Runs its code, and raises whatever that raises; ImportError for a
    name that is none. Waits while another thread imports one."""
    if not all(part.isidentifier() for part in name.split(".")):
        raise ImportError(f'"{name}" is not the name of a module')
    with _one_at_a_time:
        beside = _find(name, folder.resolve()) if folder is not None else None
        if beside is None or folder is None:
            return importlib.import_module(name)
        return _import_beside(beside, folder.resolve())


def imported_service_module(name: str, folder: Path | None) -> ModuleType | None:
    """Return the same module if it was imported before and has not changed since; runs no code."""
    beside = _find(name, folder.resolve()) if folder is not None else None
    return sys.modules.get(beside.wanted if beside is not None else name)


def _find(name: str, folder: Path) -> _Beside | None:
    if not all(part.isidentifier() for part in name.split(".")):
        return None
    top, _, rest = name.partition(".")
    package = folder / top / "__init__.py"
    if package.is_file() and (not rest or _is_module(folder.joinpath(*name.split(".")))):
        return _Beside(package, _private_name(package), rest)
    file = folder.joinpath(*name.split(".")).with_suffix(".py")
    return _Beside(file, _private_name(file)) if file.is_file() else None


def _private_name(file: Path) -> str:
    is_package = file.name == "__init__.py"
    changed = max(f.stat().st_mtime_ns for f in (file.parent.rglob("*.py") if is_package else (file,)))
    key = hashlib.sha256(f"{file}:{changed}".encode()).hexdigest()[:12]
    return f"{_PREFIX}{file.parent.name if is_package else file.stem}_{key}"


def _is_module(path: Path) -> bool:
    return path.with_suffix(".py").is_file() or (path / "__init__.py").is_file()


def _import_beside(module: _Beside, folder: Path) -> ModuleType:
    _forget_neighbours_of_other_folders(folder)
    is_package = module.file.name == "__init__.py"
    with _neighbours(folder):
        if module.name not in sys.modules:
            _execute(module.name, module.file, [str(module.file.parent)] if is_package else None)
        return importlib.import_module(module.wanted)


class _Neighbours:
    """Finds modules in one folder, before the import path, for one thread."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._thread = threading.get_ident()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if path is not None or threading.get_ident() != self._thread:
            return None
        spec = PathFinder.find_spec(fullname, [str(self._folder)], target)
        if spec is not None:
            _found[fullname] = self._folder
        return spec


@contextmanager
def _neighbours(folder: Path) -> Generator[None]:
    finder = _Neighbours(folder)
    # Where the import path is searched: what is built in comes before.
    path_finder = next((i for i, f in enumerate(sys.meta_path) if f is PathFinder), len(sys.meta_path))
    sys.meta_path.insert(path_finder, finder)
    importlib.invalidate_caches()  # a file may be younger than the last look into its folder
    try:
        yield
    finally:
        sys.meta_path.remove(finder)


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


# Modules that were found beside a document under their plain names, and in which folder.
_found: dict[str, Path] = {}


def _forget_neighbours_of_other_folders(folder: Path) -> None:
    """Let `import helpers` find this folder's `helpers`, not another service's that is already loaded.

    A module that imported the other one keeps it; only the name is free again.
    """
    for name, home in list(_found.items()):
        if home == folder or not _is_module(folder / name):
            continue
        del _found[name]
        for loaded in [m for m in sys.modules if m == name or m.startswith(name + ".")]:
            del sys.modules[loaded]
