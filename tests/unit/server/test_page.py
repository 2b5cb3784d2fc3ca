"""The wheel has the page of the dashboard, whole and nothing else."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from agentflow.server.page import page_files

ROOT = Path(__file__).parents[3]


def test_every_module_that_the_page_names_is_served():
    files = page_files()
    assert {"index.html", "app.js", "app.css", "icon.svg", "lib/fold.js", "views/run.js"} <= files.keys()
    for name, file in files.items():
        if not name.endswith(".js"):
            continue
        folder = Path(name).parent
        for line in file.data.decode().splitlines():
            if ' from ".' in line and line.startswith(("import", "}")):
                target = (folder / line.rpartition(" from ")[2].strip('";')).as_posix()
                parts: list[str] = []
                for part in target.split("/"):
                    parts = parts[:-1] if part == ".." else [*parts, part] if part != "." else parts
                assert "/".join(parts) in files, f"{name} imports {target}"


def test_nothing_of_the_page_leads_elsewhere():
    """No address of another host, and no way by which text could become markup or code."""
    for name, file in page_files().items():
        text = file.data.decode().replace("http://www.w3.org/2000/svg", "")
        for forbidden in (
            "http://",
            "innerHTML",
            "outerHTML",
            "insertAdjacentHTML",
            "eval(",
            "document.write",
        ):
            assert forbidden not in text, f"{forbidden} in {name}"


@pytest.mark.slow
def test_the_wheel_has_the_page(tmp_path):
    source = tmp_path / "source"
    source.mkdir()
    for name in ("agentflow", "actors"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    command = (sys.executable, "-m", "pip", "wheel", "--no-deps", "-q", "-w", str(tmp_path), str(source))
    subprocess.run(command, check=True)
    [wheel] = tmp_path.glob("agentflow-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    shipped = {name.removeprefix("agentflow/ui/") for name in names if name.startswith("agentflow/ui/")}
    assert page_files().keys() <= shipped
