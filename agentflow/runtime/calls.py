"""An open call of the engine, as the message that carries it out."""

from __future__ import annotations

from agentflow.engine.agents.progress import model_of
from agentflow.engine.decisions import idempotency_key
from agentflow.engine.state import OpenCall, RunState
from agentflow.models import ModelRequest
from agentflow.runtime.model_calls import CallModel
from agentflow.runtime.tool_actor import CallTool

__all__ = ["model_call", "tool_call"]


def model_call(state: RunState, call: OpenCall) -> CallModel:
    """The request of a model turn: the agent's conversation and its functions' schemas, nothing else."""
    activation = call.activation
    progress, spec = activation.agent, activation.node.agent
    assert progress is not None
    assert spec is not None
    ref = model_of(progress)
    tools = state.bindings.of(activation.node.id).schemas
    request = ModelRequest(
        model=ref.model,
        messages=tuple(progress.messages),
        tools=tools,
        output_schema=spec.output_schema,
        parameters=call.parameters,
        parallel_tool_calls=spec.parallel_tool_calls,
    )
    return CallModel(
        call_id=call.call_id,
        workflow_id=state.workflow_id,
        step_id=activation.node.id,
        offset=call.offset,
        ref=ref,
        request=request,
        id_seed=call.call_id,
        timeout=activation.node.retry.timeout,
    )


def tool_call(state: RunState, call: OpenCall) -> CallTool:
    """The call of a function, with the agent's context, which no model sees and no event holds."""
    activation = call.activation
    record = activation.tool if activation.tool is not None else activation.agent.tools[call.call_id]  # type: ignore[union-attr]
    info = record.info
    assert info is not None
    return CallTool(
        call_id=call.call_id,
        service=info.service,
        function=info.function,
        parameters=record.parameters,
        context=activation.node.kind.context(state, activation),
        workflow_id=state.workflow_id,
        step_id=activation.node.id,
        iteration=activation.iteration,
        attempt=record.tries,
        idempotency_key=idempotency_key(state, activation, call.call_id),
        timeout=info.timeout,
    )
