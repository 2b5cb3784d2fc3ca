"""The world of a golden scene: a store that outlives processes, a virtual clock, scripted answers.

Nothing here is left to chance: ids, draws and times come from fixed seeds and the loop's virtual clock, and
a commit takes no time, so that the same decisions give the same bytes.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, NamedTuple

from actors.testing import VirtualLoop
from agentflow import Runtime, Service, ToolContext, function
from agentflow.definition.failure import ErrorInfo
from agentflow.events.ids import Ids
from agentflow.events.memory import MemoryLog
from agentflow.events.owner import Owner
from agentflow.models import ModelError, ModelRequest
from agentflow.testing import ScriptedModel
from tests.faults.simulated.world import LifeLog, SimClock, World

__all__ = ["EARLIER", "HANG", "RUN", "SCENES", "After", "Stage", "failure", "scene"]

RUN = "wf_golden"
Life = Callable[[Runtime], Awaitable[object]]


class After(NamedTuple):
    """A turn that comes after so many seconds."""

    seconds: float
    turn: Any


EARLIER = 1e-7
"""Seconds between two things of the same recorded time (µs): timers of one moment fire in no order."""

HANG = After(1e9, None)
"""A turn that does not come while the scene lasts."""


def failure(category: Any, *, retry_after: float | None = None, retryable: bool | None = None) -> ModelError:
    """A turn of a model that fails."""
    info = ErrorInfo(category=category, code=f"{category}_error", message=f"{category} failure")
    return ModelError(info, retry_after=retry_after)


class _FirstChoice(Random):
    """Chance that LifeLog asks for: every commit takes no time."""

    def choice(self, seq: Any) -> Any:
        return seq[0]


class Stage(World):
    """One scene. `runs` lists the runs whose logs are golden."""

    def __init__(self) -> None:
        super().__init__(0)
        self.rng = _FirstChoice(0)
        self.draws = Random(1)
        self.bits = Random(2)
        self.runs = [RUN]
        self.workflows: list[Any] = []
        """Workflows whose code each process has."""
        self.store = MemoryLog()
        self.began: dict[str, asyncio.Event] = {}
        self._turns: dict[str, list[Any]] = {}
        self._used: defaultdict[str, int] = defaultdict(int)

    # -- what models and functions do -----------------------------------------------------------

    def says(self, prompt: str, *turns: Any) -> None:
        """Set the turns of a model call with this system prompt; the last one is repeated.

        `MODEL: PROMPT` sets those of one model.
        """
        self._turns[prompt] = list(turns)

    def does(self, name: str, *turns: Any) -> None:
        """Set the results of a function, an exception to raise it; the last one is repeated."""
        self._turns[f"{name}()"] = list(turns)

    def _next(self, key: str, default: Any) -> Any:
        turns = self._turns.get(key, [default])
        turn = turns[min(self._used[key], len(turns) - 1)]
        self._used[key] += 1
        if key in self.began:
            self.began[key].set()
        return turn

    async def _answer(self, request: ModelRequest) -> Any:
        prompt = next(m.content for m in request.messages if m.role == "system")
        key = f"{request.model}: {prompt}"
        return await _when_due(self._next(key if key in self._turns else prompt, {"said": prompt}))

    async def _execute(self, name: str, ctx: ToolContext) -> Any:
        turn = await _when_due(self._next(f"{name}()", {"done": name}))
        if isinstance(turn, BaseException):
            raise turn
        return turn

    def service(self) -> Service:
        """The service `desk`: `look` only reads, `pay` cannot be repeated, `wire` is idempotent."""

        @function(side_effect="read")
        async def look(ctx: ToolContext, x: int = 0) -> Any:
            """Look something up."""
            return await self._execute("look", ctx)

        @function(side_effect="external")
        async def pay(ctx: ToolContext, x: int = 0) -> Any:
            """Pay."""
            return await self._execute("pay", ctx)

        @function(side_effect="external", idempotent=True)
        async def wire(ctx: ToolContext, x: int = 0) -> Any:
            """Wire money, once for each key."""
            return await self._execute("wire", ctx)

        @function(side_effect="none")
        async def add(ctx: ToolContext, x: int = 0) -> Any:
            """Add one."""
            return {"x": x + 1}

        return Service.of("desk", look, pay, wire, add)

    def start_of(self, key: str) -> asyncio.Event:
        """Return the event that is set when a prompt, or a function as `pay()`, is next asked."""
        self.began[key] = asyncio.Event()
        return self.began[key]

    # -- lives ----------------------------------------------------------------------------------

    def process(self, life: Life, *, crash: bool = False, **more: Any) -> None:
        """Run one process. With `crash` it dies when `life` returns, with nothing closed."""

        async def main() -> None:
            log = LifeLog(self)
            runtime = self._runtime(log, **more)
            await runtime.__aenter__()
            for workflow in self.workflows:
                runtime.register(workflow)
            await life(runtime)
            if crash:
                log.die()
            else:
                await runtime.__aexit__(None, None, None)

        self.live(main)

    def live(self, main: Any) -> None:
        """Run one life in declared order: no seed of the loop, other than in the simulation."""
        loop = VirtualLoop()
        loop.set_exception_handler(lambda loop, context: None)
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(main())
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
                task._log_destroy_pending = False  # type: ignore[attr-defined]
            self.elapsed += loop.time()
            self.lives += 1
            asyncio.set_event_loop(None)
            loop.close()

    def _runtime(self, log: LifeLog, **more: Any) -> Runtime:
        clock = _Clock(self)
        runtime = Runtime(
            log,  # type: ignore[arg-type]
            clock=clock,
            ids=Ids(clock.now, self.bits.getrandbits),
            models=[ScriptedModel(self._answer)],
            services=[self.service()],
            **more,
        )
        runtime.owner = Owner(2**22 + 1, "never", f"life {self.lives}")
        return runtime

    def logs(self) -> dict[str, list[bytes]]:
        """Return the stored events of each golden run, as readers get them."""

        async def read() -> dict[str, list[bytes]]:
            return {run: [row.body for row in await self.store.read(run, 0, 100_000)] for run in self.runs}

        return asyncio.run(read())

    def blob(self, ref: str) -> bytes:
        """Return what the store keeps under this hash."""

        async def read() -> bytes:
            body = await self.store.get_blob(ref)
            assert body is not None
            return body

        return asyncio.run(read())


class _Clock(SimClock):
    """The wall time of the stage; draws have a seed of their own."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(stage)
        self._stage = stage

    def draw(self) -> float:
        return round(self._stage.draws.random(), 6)


async def _when_due(turn: Any) -> Any:
    while isinstance(turn, After):
        await asyncio.sleep(turn.seconds)
        turn = turn.turn
    return turn


Scene = Callable[[Stage], None]
SCENES: dict[str, tuple[str, Scene]] = {}


def scene(mechanism: str) -> Callable[[Scene], Scene]:
    """Register a scene under its function's name."""

    def register(play: Scene) -> Scene:
        SCENES[play.__name__] = (mechanism, play)
        return play

    return register
