"""Packages of other people that the tests run against: fetched once, and kept below `.cache`."""

from __future__ import annotations

import subprocess
import sys
import tarfile
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".cache"


def npm_package(name: str, version: str) -> Path:
    """Return the folder of a package of npm, without what it depends on."""
    folder = CACHE / "openapi-documents" / f"{name.replace('/', '_')}-{version}"
    if not folder.is_dir():
        folder.parent.mkdir(parents=True, exist_ok=True)
        pack = ["npm", "pack", f"{name}@{version}", "--silent", "--pack-destination", str(folder.parent)]
        archive = subprocess.run(pack, check=True, capture_output=True, text=True).stdout.split()[-1]
        with tarfile.open(folder.parent / archive) as opened:
            opened.extractall(folder, filter="data")
    return folder / "package"


def npm_installed(*packages: str) -> Path:
    """Return `node_modules` with these packages (`name@version`) and what they depend on."""
    folder = CACHE / "node-packages" / "-".join(sorted(packages)).replace("/", "_")
    mark = folder / ".installed"
    if not mark.exists():
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "package.json").write_text("{}")
        install = ["npm", "install", "--silent", "--no-audit", "--no-fund", "--prefix", str(folder)]
        subprocess.run([*install, *packages], check=True)
        mark.touch()
    return folder / "node_modules"


def python_environment(name: str, *packages: str) -> Path:
    """Return the folder of a virtual environment of its own with these packages."""
    folder = CACHE / name
    mark = folder / ".installed"
    if not mark.exists() or mark.read_text() != "\n".join(packages):
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(folder / "bin/python"), "-m", "pip", "--disable-pip-version-check", "install", "-q"]
        subprocess.run([*pip, *packages], check=True)
        mark.write_text("\n".join(packages))
    return folder
