"""Teams for tests: scripted agents, executors that take part, and runs of them on one Runtime."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from agentflow import (
    Agent,
    AgentResponse,
    Executor,
    Message,
    Runtime,
    TeamResult,
    Workflow,
    WorkflowContext,
    handler,
)
from agentflow.testing import ScriptedModel

__all__ = ["Speaker", "Teller", "agents", "model", "opened", "run", "told"]


def agents(*names: str, **more: Any) -> list[Agent]:
    """Return agents whose prompts say who they are, for scripts of `model`."""
    return [Agent(name, f"You are {name}.", model="scripted:m", **more) for name in names]


def model(**steps: Any) -> ScriptedModel:
    """Return a model with a script for each agent, by name."""
    made = ScriptedModel()
    for name, script in steps.items():
        made.add(script, when=f"You are {name}.")
    return made


def told(model: ScriptedModel, name: str) -> list[list[str]]:
    """Return what each call of an agent's model was told behind its prompt."""
    return [
        [m.content for m in request.messages[1:]]
        for request in model.requests
        if request.messages[0].content == f"You are {name}."
    ]


class Speaker(Executor):
    """Takes a conversation and answers with what it counts."""

    @handler
    async def on_messages(self, messages: list[Message], ctx: WorkflowContext[AgentResponse]) -> None:
        """Answer with an AgentResponse."""
        await ctx.send_message(AgentResponse(text=f"{self.id} saw {len(messages)}"))


class Teller(Executor):
    """Takes a conversation and answers with a string."""

    @handler
    async def on_messages(self, messages: list[Message], ctx: WorkflowContext[str]) -> None:
        """Answer with text."""
        await ctx.send_message(f"{self.id}: {messages[-1].text}")


@asynccontextmanager
async def opened(model: ScriptedModel, store: Any = "memory:") -> AsyncIterator[Runtime]:
    """Open a Runtime with a scripted model."""
    async with Runtime(store, models=[model]) as runtime:
        yield runtime


async def run(builder: Any, task: Any, model: ScriptedModel | None = None) -> TeamResult:
    """Build and run a team to its end; return its one output, once the model's script is used up."""
    used = model or ScriptedModel()
    async with opened(used) as runtime:
        workflow: Workflow = builder.with_checkpointing(runtime).build()
        result = await workflow.run(task)
        assert result.state == "completed", result.error
        (output,) = result.get_outputs()
        assert isinstance(output, TeamResult)
        return output
