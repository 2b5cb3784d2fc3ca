"""The official test suite of JSON Schema, as the source package of `jsonschema` brings it.

The package is fetched once, into `.cache`, in the version that is installed.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

_CACHE = Path(__file__).parents[2] / ".cache" / "schema-suite"


class Case(NamedTuple):
    """One value and whether it satisfies the schema. `name` is file, group and case."""

    name: str
    schema: Any
    value: Any
    valid: bool


def mandatory_cases() -> list[Case]:
    """Return the cases of draft 2020-12 without those below `optional`."""
    found: list[Case] = []
    with tarfile.open(_archive()) as files:
        for member in files:
            parts = member.name.split("/")
            if parts[1:4] != ["json", "tests", "draft2020-12"] or len(parts) != 5:
                continue
            content = files.extractfile(member)
            assert content is not None
            for group in json.load(content):
                for case in group["tests"]:
                    name = f"{parts[4]}: {group['description']}: {case['description']}"
                    found.append(Case(name, group["schema"], case["data"], case["valid"]))
    return found


def _archive() -> Path:
    wanted = f"jsonschema=={version('jsonschema')}"
    name = f"{wanted.replace('==', '-')}.tar.gz"
    kept = _CACHE / name
    if not kept.exists():
        _CACHE.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(dir=_CACHE) as folder:
            download = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "-q"]
            only = ["--no-deps", "--no-binary", "jsonschema", "-d", folder]
            subprocess.run([*download, *only, wanted], check=True, timeout=150)
            (Path(folder) / name).replace(kept)  # another process may do the same
    return kept
