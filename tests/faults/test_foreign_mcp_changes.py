"""A server made with FastMCP, from a package, that changes its list of functions in the middle of a run."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentflow import Runtime
from agentflow.events import catalogue as ev
from agentflow.testing import ScriptedModel, call
from tests.faults.packages import python_environment
from tests.integration.support.runs import document, log_of, step

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SCRIPT = Path(__file__).parent / "foreign_changing.py"


@pytest.fixture(scope="module")
def python() -> str:
    return str(python_environment("mcp-servers/fastmcp", "fastmcp==4.0.11") / "bin/python")


@asynccontextmanager
async def service(transport: str, python: str) -> AsyncGenerator[dict[str, Any]]:
    if transport == "stdio":
        yield {"type": "mcp", "transport": "stdio", "command": python, "args": [str(SCRIPT)]}
        return
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    pipe = asyncio.subprocess.PIPE
    server = await asyncio.create_subprocess_exec(python, str(SCRIPT), str(port), stderr=pipe)
    assert server.stderr is not None
    try:
        while b"running on" not in await server.stderr.readline():
            assert server.returncode is None
        reader = asyncio.create_task(server.stderr.read())
        yield {"type": "mcp", "transport": "streamable_http", "url": f"http://127.0.0.1:{port}/mcp"}
    finally:
        server.kill()
        await server.wait()
    await reader


@pytest.mark.parametrize("transport", ["stdio", "streamable_http"])
async def test_a_run_keeps_its_functions_and_the_next_one_has_the_new_ones(
    transport: str, python: str
) -> None:
    """What vanished is not found, what came later is not offered; both until the run ends."""
    first = [
        call("desk__echo", message="1"),
        call("desk__change"),
        call("desk__echo", message="2"),
        call("desk__late", message="3"),
        "done",
    ]
    second = [call("desk__late", message="4"), "done"]
    model = ScriptedModel([*first, *second])
    made = step("a")
    del made["agent"]["resultSchema"], made["agent"]["attachedFunctions"]
    made["agent"]["model"] = "scripted:m"
    async with (
        service(transport, python) as options,
        Runtime(models=[model], implicit_side_effects="allow") as runtime,
    ):
        whole = {**document(made), "services": {"desk": options}}
        for offered, results in (
            (["desk__change", "desk__echo"], ["Echo: 1", "changed", "tool_not_found", "tool_not_found"]),
            (["desk__change", "desk__late"], ["Late: 4"]),
        ):
            result = await runtime.run(whole, {})
            events = [e.data for e in await log_of(runtime, result.workflow_id)]
            assert sorted(tool.name for tool in model.requests[-1].tools) == offered
            assert [_ending(e) for e in events if isinstance(e, _ENDS)] == results


_ENDS = (ev.ToolCallCompleted, ev.ToolCallFailed)


def _ending(event: Any) -> str:
    return event.error.code if isinstance(event, ev.ToolCallFailed) else event.output["result"]
