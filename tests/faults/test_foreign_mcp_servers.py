"""MCP servers of other people, from packages, each in the environment of the SDK that it was written for."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from agentflow.definition.ir import ServiceSpec
from agentflow.tools.mcp_service import McpService
from tests.faults.packages import python_environment
from tests.unit.tools.servers import CTX

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PACKAGES = {
    "current": ["mcp-server-time==2026.10.19", "mcp-server-git==2026.10.19", "mcp-server-fetch==2026.10.24"],
    "older": ["mcp-server-sqlite==2025.4.25", "mcp-server-calculator==0.2.1", "mcp<2"],
}


class Server(NamedTuple):
    environment: str
    command: str
    args: tuple[str, ...]
    functions: int
    function: str
    arguments: dict[str, Any]
    answer: str


SERVERS = [
    Server("current", "mcp-server-time", (), 2, "get_current_time", {"timezone": "UTC"}, "datetime"),
    Server(
        "current",
        "mcp-server-git",
        ("--repository", "{folder}"),
        12,
        "git_status",
        {"repo_path": "{folder}"},
        "branch",
    ),
    Server("current", "mcp-server-fetch", (), 1, "fetch", {"url": "http://127.0.0.1:9/"}, "127.0.0.1:9"),
    Server("older", "mcp-server-sqlite", ("--db-path", "{folder}/x.db"), 6, "list_tables", {}, "[]"),
    Server("older", "mcp-server-calculator", (), 1, "calculate", {"expression": "2+3"}, "5"),
]


@pytest.fixture(scope="module")
def environments() -> dict[str, Path]:
    """Install the servers once; the folder is kept for the next time."""
    return {name: python_environment(f"mcp-servers/{name}", *wanted) for name, wanted in PACKAGES.items()}


@pytest.fixture
def repository(tmp_path: Path) -> None:
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)


@pytest.mark.parametrize("server", [pytest.param(s, id=s.command) for s in SERVERS])
@pytest.mark.usefixtures("repository")
async def test_a_server_from_a_package(server: Server, environments: dict[str, Path], tmp_path: Path) -> None:
    def filled(text: Any) -> Any:
        return text.replace("{folder}", str(tmp_path)) if isinstance(text, str) else text

    options = {
        "transport": "stdio",
        "command": str(environments[server.environment] / "bin" / server.command),
        "args": [filled(arg) for arg in server.args],
    }
    made = McpService("tools", ServiceSpec(type="mcp", options=options), tmp_path)
    try:
        assert await made.open() == []
        assert len(made.tools) == server.functions
        tool = made.tools[server.function]
        assert tool.description
        arguments = {key: filled(value) for key, value in server.arguments.items()}
        try:
            said = str(await made.call(tool, arguments, CTX))
        except Exception as error:
            said = str(error)
        assert server.answer in said
    finally:
        await made.aclose()
