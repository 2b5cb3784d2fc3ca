"""The documents of this folder, one after the other, with functions and a model that are written down here.

python examples/node_graphs/demo.py        (offline)
"""

import asyncio
import json
from pathlib import Path
from typing import Any

from agentflow import Runtime, Service, function
from agentflow.testing import ScriptedModel

HERE = Path(__file__).parent
ORDERS = (
    {"id": "o-1", "item": "lamp", "total": 40},
    {"id": "o-2", "item": "sofa", "total": 900},
    {"id": "o-3", "item": "bed", "total": 700},
    {"id": "o-4", "item": "rug", "total": 60},
)


class Shop:
    """The functions of the order: the charge of `o-1` works at its second attempt, that of `o-4` never."""

    def __init__(self) -> None:
        self.failures = {"o-1": 1, "o-4": 99}

    def service(self) -> Service:
        @function(side_effect="external", idempotent=True)
        async def charge(order: str, total: int) -> str:
            """Charge the customer."""
            if self.failures.get(order, 0) > 0:
                self.failures[order] -= 1
                raise RuntimeError("the bank does not answer")
            return f"charge of {total}"

        @function(side_effect="external", idempotent=True)
        async def release(order: str) -> str:
            """Release what was reserved for an order."""
            return f"reservation of {order}"

        @function(side_effect="external", idempotent=True)
        async def ship(order: str, item: str) -> str:
            """Hand an item to the carrier."""
            return f"parcel with a {item}"

        return Service.of("shop", charge, release, ship)


@function(side_effect="read")
async def read(name: str) -> list[str]:
    """Return the rows of a depot."""
    return [f"{name} {number}" for number in range({"north": 3, "south": 2, "east": 4}[name])]


@function(side_effect="write", idempotent=True)
async def store(rows: list[list[str]]) -> int:
    """Store the rows of some depots; return how many."""
    return sum(len(depot) for depot in rows)


@function(side_effect="read")
async def look(city: str) -> str:
    """Return the weather of a city."""
    return f"rain in {city}"


def plan(request: Any) -> dict[str, Any]:
    """Answer as a model would that writes graphs: the first one has no end, and a typing error."""
    call = {"id": "call", "type": "tool", "tool": "desk.look", "input": {"city": "{{ input.city }}"}}
    nodes = [{"id": "start", "type": "start", "next": "call"}, {**call, "nxt": "end"}]
    if "E_MISSING_END" in request.messages[-1].content:
        nodes = [nodes[0], {**call, "next": "end"}, {"id": "end", "type": "end"}]
    return {"name": "weather", "nodes": nodes}


async def orders(runtime: Runtime) -> None:
    """Run the orders; the person lets the sofa pass, and refuses the bed."""
    for order in ORDERS:
        result = await runtime.run(HERE / "order.yaml", order)
        if result.pending_requests:
            (request,) = result.pending_requests
            granted = order["item"] == "sofa"
            handle = await runtime.decide(
                result.workflow_id, granted=granted, request_id=request.request_id, by="ann"
            )
            result = await handle.result()
        print(f"order:   {json.dumps(result.output)}")


async def nightly(runtime: Runtime) -> None:
    """Run the nightly batch; its night has come."""
    handle = await runtime.submit(HERE / "nightly.yaml", {"at": "2026-01-31T02:00:00Z", "report": "night"})
    async for event in runtime.events(handle.workflow_id):
        if event.type == "workflow.completed":
            print(f"nightly: {event.data.output}")


async def planner(runtime: Runtime) -> None:
    """Run the planner."""
    result = await runtime.run(HERE / "planner.yaml", {"task": "the weather", "city": "Oslo"})
    print(f"planner: {json.dumps(result.output)}")


async def main() -> None:
    services = [Shop().service(), Service.of("depot", read, store), Service.of("desk", look)]
    model = ScriptedModel(lambda request: json.dumps(plan(request)), name="offline")
    async with Runtime(models=[model], services=services) as runtime:
        await orders(runtime)
        await nightly(runtime)
        await planner(runtime)


if __name__ == "__main__":
    asyncio.run(main())
