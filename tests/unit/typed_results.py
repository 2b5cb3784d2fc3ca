"""What a type checker infers of results; a line that must be refused ends in `# rejected`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, assert_type

from agentflow import Client, RunHandle, RunResult, Runtime, SyncClient
from agentflow.client import RemoteRun
from agentflow.client.sync import SyncRun


@dataclass
class Triage:
    urgency: int


async def embedded(runtime: Runtime) -> None:
    result = await runtime.run("triage.yaml", {"ticket": "x"}, output_type=Triage)
    assert_type(result, RunResult[Triage])
    assert_type(result.output.urgency, int)
    print(result.output.urgent)  # rejected
    handle = await runtime.submit("triage.yaml", output_type=Triage, labels={"a": "b"})
    assert_type(handle, RunHandle[Triage])
    assert_type(await handle.result(), RunResult[Triage])
    assert_type(await handle.result(output_type=str), RunResult[str])
    assert_type((await handle.result(raise_on_failure=False)).state, str)
    assert_type(await runtime.attach("wf_1", output_type=Triage), RunHandle[Triage])
    assert_type(await runtime.result("wf_1", output_type=Triage), RunResult[Triage])
    await runtime.run("triage.yaml", output_type=Triage(1))  # rejected


async def untyped(runtime: Runtime) -> None:
    assert_type((await runtime.run("triage.yaml")).output, Any)
    assert_type(await runtime.submit("triage.yaml"), RunHandle[Any])
    assert_type((await (await runtime.attach("wf_1")).result()).output, Any)
    plain: RunResult = await runtime.result("wf_1")
    assert_type(plain.output, Any)


async def remote(client: Client) -> None:
    assert_type(await client.run("triage.yaml", output_type=Triage), RunResult[Triage])
    handle = await client.submit("triage.yaml", output_type=Triage)
    assert_type(handle, RemoteRun[Triage])
    assert_type(await handle.result(), RunResult[Triage])
    print((await handle.result()).output.urgency)


def blocking(client: SyncClient) -> None:
    run = client.attach("wf_1").typed(Triage)
    assert_type(run, SyncRun[Triage])
    assert_type(run.result(), RunResult[Triage])
