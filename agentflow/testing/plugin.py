"""The pytest plugin: fixtures for tests of workflows. pytest finds it by the entry point `pytest11`.

Nothing of agentflow is imported until a fixture is used, so that other test suites start as before.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from agentflow.models import ModelProvider
    from agentflow.records.runs import RunResult
    from agentflow.runtime import Runtime

__all__ = ["agentflow_offline", "agentflow_runtime", "agentflow_snapshot", "run_workflow"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--agentflow-update`."""
    group = parser.getgroup("agentflow")
    group.addoption("--agentflow-update", action="store_true", help="Write the snapshots of runs anew.")


@pytest.fixture
def agentflow_offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests to models are forbidden for the length of the test."""
    monkeypatch.setenv("AGENTFLOW_ALLOW_MODEL_REQUESTS", "0")
    monkeypatch.delenv("AGENTFLOW_MODEL", raising=False)


@pytest.fixture
def agentflow_runtime(agentflow_offline: None) -> Callable[..., Runtime]:
    """A function that makes a Runtime on a store in memory: `async with agentflow_runtime(model) as runtime`.

    Its arguments are models, and the keyword arguments of Runtime. The first model serves documents that name
    none.
    """

    def make(*models: ModelProvider, store: str = "memory:", **options: Any) -> Runtime:
        from agentflow.models import Models
        from agentflow.runtime import Runtime

        config = {"model": f"{models[0].name}:any"} if models else {}
        return Runtime(store, models=Models(models, config=config), **options)

    return make


@pytest.fixture
def run_workflow(agentflow_runtime: Callable[..., Runtime]) -> Callable[..., RunResult[Any]]:
    """A function that runs a definition to its rest on the virtual clock, where an hour of waiting takes no
    time: `run_workflow(definition, input, models=[…], services=[…])`. It returns the RunResult, of a run that
    failed too; `events` of the result are those of its log.
    """

    def work(
        definition: Any, input: Any = None, *, models: Any = (), real_time: bool = False, **options: Any
    ) -> RunResult[Any]:
        import asyncio

        import msgspec

        from actors.testing import run

        async def main() -> RunResult[Any]:
            async with agentflow_runtime(*models, **options) as runtime:
                result: RunResult[Any] = await runtime.run(definition, input, raise_on_failure=False)
                log = [event async for event in runtime.events(result.workflow_id, follow=False)]
                return msgspec.structs.replace(result, events=tuple(log))

        return asyncio.run(main()) if real_time else run(main())

    return work


@pytest.fixture
def agentflow_snapshot(request: pytest.FixtureRequest) -> Callable[..., None]:
    """A function that compares the events of a run with those of a file beside the test:
    `agentflow_snapshot(result.events)`. Ids, times and durations are left out.

    A file that is not there yet is written, and the test fails once; `--agentflow-update` writes it anew.
    """
    path = Path(request.path).parent / "snapshots" / f"{request.path.stem}.{request.node.name}.json"

    def compare(events: Any) -> None:
        from agentflow.testing.snapshots import difference, normal_events

        found = normal_events(events)
        written = json.dumps(found, indent=2, ensure_ascii=False) + "\n"
        is_new = not path.exists()
        if is_new or request.config.getoption("--agentflow-update"):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(written, encoding="utf-8")
            if is_new:
                pytest.fail(f"{path.name} was written; look at it, keep it and run again", pytrace=False)
            return
        problem = difference(path.read_text(encoding="utf-8"), written)
        if problem:
            pytest.fail(f"the events differ from {path.name}:\n{problem}", pytrace=False)

    return compare
