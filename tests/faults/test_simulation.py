"""Seeds of the whole-run simulation, and what its checker of logs catches."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from agentflow import Runtime
from agentflow.testing import ScriptedModel
from tests.faults.simulated.invariants import assert_log_invariants
from tests.integration.support.runs import document, log_of, step


def test_forty_seeds_keep_every_law():
    """In a process of its own: the virtual clock must not wait for threads of the test runner."""
    arguments = [sys.executable, "-m", "tests.faults.simulate", "--seeds", "40"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=55, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "40 seeds, 0 failed" in done.stdout


@pytest.mark.slow
@pytest.mark.timeout(1_800)
def test_a_thousand_more_seeds_keep_every_law():
    arguments = [sys.executable, "-m", "tests.faults.simulate", "--seeds", "1000", "--from", "40"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=1_700, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


class TestTheCheckerOfLogs:
    """It knows a sound log, and each of these damages."""

    @staticmethod
    async def a_log():
        async with Runtime(models=[ScriptedModel(lambda r: {"ok": True}, name="s")]) as runtime:
            graph = document(step("a", input="x"), models={}) | {"models": {"default": "s:m"}}
            del graph["workflow"]["models"]
            handle = await runtime.submit(graph, {})
            assert (await handle.result()).state == "completed"
            return await log_of(runtime, handle.workflow_id)

    async def test_a_sound_log_passes(self):
        assert_log_invariants(await self.a_log())

    @pytest.mark.parametrize(
        "damage",
        [
            lambda e: e[:3] + e[4:],
            lambda e: e[:-1],
            lambda e: [*e, msgspec.structs.replace(e[3], offset=len(e), id="evt_x")],
            lambda e: [*e[:2], *numbered([e[1], *e[2:]], 2)],
            lambda e: numbered([x for x in e if x.type != "model.call_completed"], 0),
            lambda e: numbered([x for x in e if x.type != "agent.initialized"], 0),
            lambda e: numbered([x for x in e if x.type != "agent.completed"], 0),
            lambda e: numbered([x for x in e if x.type != "workflow.step_completed"], 0),
        ],
        ids=["gap", "no end", "behind the end", "twice", "open call", "no context", "no answer", "open step"],
    )
    async def test_a_damaged_one_does_not(self, damage):
        events = await self.a_log()
        with pytest.raises(AssertionError):
            assert_log_invariants(damage(events))


def numbered(events, first):
    """The events with offsets from `first` on."""
    return [msgspec.structs.replace(e, offset=first + i, id=f"evt_{i}_{first}") for i, e in enumerate(events)]
