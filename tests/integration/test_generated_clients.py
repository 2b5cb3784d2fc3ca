"""The OpenAPI document as others use it: clients that generators make submit, stream and approve without a
cast. The generators come from the package registries into .cache."""

from __future__ import annotations

import asyncio
import json
import subprocess
import venv
from pathlib import Path

import pytest

from agentflow.server.app import described
from tests.unit.server.kit import serving

ROOT = Path(__file__).parents[2]
NODE = ROOT / ".cache" / "node" / "node_modules" / ".bin"
SUPPORT = Path(__file__).parent / "support"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_types_for_typescript(tmp_path: Path):
    if not (NODE / "openapi-typescript").exists():
        pytest.skip("npm is not on this machine, or `make check` has not been run")
    (tmp_path / "openapi.json").write_bytes(described())
    made = [NODE / "openapi-typescript", tmp_path / "openapi.json", "-o", tmp_path / "api.d.ts"]
    subprocess.run(made, check=True, capture_output=True)
    (tmp_path / "use.ts").write_text((SUPPORT / "use_of_types.ts").read_text())
    (tmp_path / "every.ts").write_text(every_operation())
    strict = ("--strict", "--noEmit", "--exactOptionalPropertyTypes", "--noUncheckedIndexedAccess")
    where = (
        "--target",
        "ES2022",
        "--lib",
        "ES2022,DOM",
        "--module",
        "ES2022",
        "--moduleResolution",
        "bundler",
    )
    done = subprocess.run(
        [NODE / "tsc", *strict, *where, tmp_path / "use.ts", tmp_path / "every.ts"],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


def every_operation() -> str:
    """TypeScript that compiles only if each operation has types for its body and for each of its answers."""
    lines = ['import type { operations } from "./api";']
    lines += ["type Known<T> = unknown extends T ? never : [T] extends [never] ? never : true;"]
    for methods in json.loads(described())["paths"].values():
        for one in methods.values():
            name = f"operations[{json.dumps(one['operationId'])}]"
            for status, answer in one["responses"].items():
                for media, content in answer.get("content", {}).items():
                    place = f"{name}['responses'][{status}]['content'][{json.dumps(media)}]"
                    if content["schema"]:
                        lines.append(f"export const a{len(lines)}: Known<{place}> = true;")
            if "requestBody" in one:
                body = f"NonNullable<{name}['requestBody']>['content']['application/json']"
                for example in one["requestBody"]["content"]["application/json"]["examples"].values():
                    lines.append(f"export const a{len(lines)}: {body} = {json.dumps(example['value'])};")
    return "\n".join(lines)


@pytest.fixture(scope="module")
def generator() -> Path:
    """An environment of its own with openapi-python-client, which needs other versions than the product."""
    folder = ROOT / ".cache" / "openapi-client"
    if not (folder / "bin" / "openapi-python-client").exists():
        venv.create(folder, with_pip=True, clear=True)
        install = (folder / "bin" / "python", "-m", "pip", "install", "-q", "openapi-python-client>=0.26,<1")
        done = subprocess.run(install, capture_output=True, text=True)
        if done.returncode:
            pytest.skip(f"openapi-python-client cannot be installed: {done.stderr[-300:]}")
    return folder / "bin"


async def test_a_client_for_python(tmp_path: Path, generator: Path):
    (tmp_path / "openapi.json").write_bytes(described())
    made = [generator / "openapi-python-client", "generate", "--path", tmp_path / "openapi.json"]
    made += ["--meta", "none", "--output-path", tmp_path / "agentflow_api"]
    done = await asyncio.to_thread(subprocess.run, made, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "removal of" not in done.stdout  # every schema was understood
    async with serving(tmp_path) as served:
        process = await asyncio.create_subprocess_exec(
            *(generator / "python", SUPPORT / "use_of_client.py", tmp_path, served.tcp_url),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        out, _ = await process.communicate()
    assert out.decode().strip().endswith("done"), out.decode()
