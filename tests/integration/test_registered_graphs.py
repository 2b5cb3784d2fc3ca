"""Definitions that a daemon has registered, as subgraphs: whose they are decides what they may do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit.server.kit import serving

CALLER = {
    "version": "v0",
    "name": "caller",
    "nodes": [
        {"id": "s", "type": "start", "next": "c"},
        {"id": "c", "type": "subgraph", "graph": "inner", "next": "e"},
        {"id": "e", "type": "end"},
    ],
}


def inner(value: Any = 1, **more: Any) -> dict[str, Any]:
    nodes = [
        {"id": "s", "type": "start", "next": "t"},
        {"id": "t", "type": "transform", "value": value, "next": "e"},
        {"id": "e", "type": "end"},
    ]
    return {"version": "v0", "name": "inner", "nodes": nodes, **more}


async def register(http: Any, definition: dict[str, Any], version: str = "1") -> int:
    answer = await http.post(
        "/definitions", json={"definition": definition, "name": "inner", "version": version}
    )
    return answer.status_code


async def run(http: Any) -> dict[str, Any]:
    return (await http.post("/workflows?wait=5", json={"definition": CALLER})).json()


def codes(answer: dict[str, Any]) -> set[str]:
    return {found["code"] for found in answer["diagnostics"]}


async def test_a_registered_definition_is_a_subgraph(tmp_path: Path):
    async with serving(tmp_path) as served, served.http() as owner, served.http(tcp=True) as other:
        assert codes(await run(owner)) == {"E_UNKNOWN_SUBGRAPH"}
        assert await register(owner, inner())
        for http in (owner, other):
            done = await run(http)
            assert (done["state"], done["output"]["output"]) == ("completed", 1), done
        (child,) = done["children"]
        begun = (await owner.get(f"/workflows/{child}/events?limit=1")).json()
        assert begun["data"]["options"]["trusted"] is False  # of the run that the other client began


async def test_a_trusted_run_takes_no_graph_of_an_untrusted_client(tmp_path: Path):
    async with serving(tmp_path) as served, served.http() as owner, served.http(tcp=True) as other:
        assert await register(other, inner("theirs")) == 201
        assert (await run(other))["output"]["output"] == "theirs"
        assert codes(await run(owner)) == {"E_UNKNOWN_SUBGRAPH"}
        assert await register(owner, inner("ours"), "2") == 201
        assert (await run(owner))["output"]["output"] == "ours"
        assert (await run(other))["output"]["output"] == "ours"
        assert await register(other, inner("theirs"), "3") == 403


async def test_a_trusted_graph_gives_an_untrusted_run_no_trust(tmp_path: Path):
    code = tmp_path / "sneaky_graph.py"
    code.write_text("from pathlib import Path\nPath(__file__).with_name('ran').touch()\n")
    service = {"sneaky": {"type": "python", "module": "sneaky_graph", "include": ["Path"]}}
    async with serving(tmp_path) as served, served.http() as owner, served.http(tcp=True) as other:
        assert await register(owner, inner(services=service)) == 201
        failed = await run(other)
        assert failed["state"] == "failed", failed
        assert not (tmp_path / "ran").exists()
