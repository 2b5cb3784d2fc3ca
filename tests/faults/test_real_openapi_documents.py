"""OpenAPI documents of other people, from packages of npm: what is offered, what is refused and why."""

from __future__ import annotations

import subprocess
import tarfile
import time
from pathlib import Path

import pytest

from agentflow.tools.openapi_operations import Operations, read_operations
from agentflow.tools.openapi_text import parse_openapi

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

CACHE = Path(__file__).parents[2] / ".cache" / "openapi-documents"


def package(name: str, version: str) -> Path:
    """Return the folder of a package, which is fetched once."""
    folder = CACHE / f"{name.replace('/', '_')}-{version}"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        pack = ["npm", "pack", f"{name}@{version}", "--silent", "--pack-destination", str(CACHE)]
        archive = subprocess.run(pack, check=True, capture_output=True, text=True).stdout.split()[-1]
        with tarfile.open(CACHE / archive) as opened:
            opened.extractall(folder, filter="data")
    return folder / "package"


def offered(file: Path) -> Operations:
    return read_operations(parse_openapi(file.read_bytes()))


def test_every_operation_of_github_is_offered_within_a_second_of_cpu() -> None:
    file = package("@octokit/openapi", "23.0.2") / "generated" / "api.github.com.json"
    began = time.process_time()
    found = offered(file)
    assert time.process_time() - began < 1.0
    assert (len(found.offered), found.refused) == (1_223, {})
    create = found.offered["issues/create"]
    arguments = create.input_schema["properties"]
    assert arguments.keys() == {"owner", "repo", "body"}
    assert {"title", "body", "labels"} <= arguments["body"]["properties"].keys()


def test_the_example_collection_has_six_operations_that_are_refused_with_a_reason() -> None:
    reasons: list[str] = []
    count = 0
    for file in sorted(package("@readme/oas-examples", "8.2.2").rglob("*.json")):
        if b'"openapi"' not in file.read_bytes()[:100_000]:
            continue
        found = offered(file)
        count += len(found.offered)
        reasons += found.refused.values()
    assert count == 637
    known = ("its path has ?, #, a blank or a control character", "its schema is not valid: exclusiveMinimum")
    assert [why for why in reasons if not why.startswith(known)] == []
    assert len(reasons) == 6
