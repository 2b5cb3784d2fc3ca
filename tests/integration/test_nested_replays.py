"""Replays of kinds inside kinds (page 003 §9).

`Always` gives equal bytes of the logical trace, takes no time and sends nothing outside; `Mixed` ends as the
recorded run did.
"""

from __future__ import annotations

import asyncio
from itertools import product
from typing import Any

import pytest

from actors.testing import virtual
from agentflow import Runtime, Service, function
from agentflow.definition import load_value
from agentflow.records.trace import encode_trace
from agentflow.runtime import RunHandle
from agentflow.testing import ScriptedModel
from tests.conformance.kinds.test_nested import LEAVES, OPENERS, block
from tests.integration.virtual import LoopClock, seconds

_OUTER, _INNER = ("parallel", "map", "loop", "inline", "quorum"), ("map", "loop", "inline", "all")
SPECS = [
    *(pytest.param(one, id=" of ".join(one)) for one in product(("collect", "first", "map", "loop"), LEAVES)),
    *(
        pytest.param(one, id=" of ".join(one), marks=pytest.mark.slow)
        for one in [
            *product([name for name in OPENERS if name not in ("collect", "first", "map", "loop")], LEAVES),
            *product(_OUTER, _INNER, LEAVES),
        ]
    ),
]


class World:
    """The functions and the model of the leaves; counts what they are asked."""

    sent = 0

    def runtime(self) -> Runtime:
        idempotent: Any = {"side_effect": "external", "idempotent": True}

        @function(**idempotent)
        async def pay() -> int:
            """Pay."""
            self.sent += 1
            return 1

        @function(**idempotent)
        async def undo() -> str:
            """Undo."""
            self.sent += 1
            return "undone"

        @function(**idempotent)
        async def bad() -> str:
            """Fail."""
            self.sent += 1
            raise ValueError("bad")

        @function(**idempotent)
        async def flaky() -> int:
            """Fail once."""
            self.sent += 1
            if self.sent == 1:
                raise ValueError("not yet")
            return 7

        def say(request: Any) -> str:
            self.sent += 1
            return "hi"

        services = [Service.of("s", pay, undo, bad, flaky)]
        return Runtime(models=[ScriptedModel(say)], services=services, clock=LoopClock())


def without_arguments(nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Let the functions of these nodes be called with nothing, and be tried again by the default rule."""
    for node in nodes:
        if "tool" in node:
            node["input"] = {}
        if "compensate_tool" in node:
            node["compensate_input"] = {}
        if "policy" in node and "retry" in node["policy"]:
            retry = {key: value for key, value in node["policy"]["retry"].items() if key != "retry_on"}
            node["policy"] = {"retry": retry}
        if "inline" in node:
            without_arguments(node["inline"]["nodes"])
    return nodes


async def end(runtime: Runtime, handle: RunHandle[Any], *, has_signals: bool) -> str:
    """Answer what a run asks, and signal, until it ends; return its state."""
    run = handle.workflow_id
    for number in range(60):
        state = (await runtime.rest(run)).state
        if state in ("completed", "failed"):
            return state
        requests = [one for one in await runtime.requests(run) if one.request_type != "choice"]
        for request in requests[:1]:
            if request.kind == "step":
                await runtime.decide(run, granted=True, request_id=request.request_id)
            else:
                await runtime.answer(run, request.request_id, "yes")
        if not requests and has_signals:
            await runtime.signal(run, "go", {"n": number})
        await asyncio.sleep(1)  # on the virtual clock: timers fire
    raise AssertionError("the run has no end")


@pytest.mark.parametrize("spec", SPECS)
@virtual
async def test_a_kind_in_an_opener_is_replayed(spec: tuple[str, ...]):
    world = World()
    nodes, entry = block(spec, "", "end")
    ends = [{"id": "start", "type": "start", "next": entry}, {"id": "end", "type": "end"}]
    definition = load_value({"name": "w", "nodes": [*ends, *without_arguments(nodes)]})
    async with world.runtime() as runtime:
        handle = await runtime.submit(definition, {"k": "a", "items": [1, 2, 3]})
        ended = await end(runtime, handle, has_signals="signal" in spec)
        sent, began = world.sent, seconds()
        replayed = await runtime.replay(handle.workflow_id, "Always")
        result = await replayed.result(raise_on_failure=False)
        assert result.state == ended, result.error
        traces = [await runtime.trace(one.workflow_id, "logical") for one in (handle, replayed)]
        assert encode_trace(traces[0]) == encode_trace(traces[1])
        assert world.sent == sent
        assert seconds() == pytest.approx(began, abs=0.01)
        mixed = await runtime.replay(handle.workflow_id, "Mixed")
        assert await end(runtime, mixed, has_signals="signal" in spec) == ended
