"""The provider `local`: the OpenAI adapter over a child process, with what a small model needs around it.

It must never choose another model than was named, never call a function more than once for an input, and
never fetch anything.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from agentflow.definition.conversation import Message, ToolCall, ToolSchema
from agentflow.definition.failure import ErrorInfo
from agentflow.errors import ConfigurationError
from agentflow.models.base import DeltaSink, ModelError, ModelProfile, ModelReply, ModelRequest
from agentflow.models.local.calibration import Choice, biases, choices_of, empty_inputs
from agentflow.models.local.grammar import answer_grammar, argument_grammar, source_of
from agentflow.models.local.process import Endpoint, LocalServer
from agentflow.models.local.prompts import (
    Example,
    answer_turns,
    argument_turns,
    copied_properties,
    has_result,
    said,
    split_examples,
    system_text,
    user_texts,
)
from agentflow.models.local.scoring import Scorer
from agentflow.models.local.weights import require
from agentflow.models.openai import OpenAIProvider
from agentflow.models.openai_parameters import COMPATIBLE
from agentflow.models.table import known_profile
from agentflow.models.tool_choice import tool_choice

__all__ = ["LocalProvider"]

_CONTEXT: Final = 8_192
_OUTPUT_LIMIT: Final = 1_024
_SEED: Final = 0
_MOST_CALIBRATIONS: Final = 256


class _Connection(NamedTuple):
    """The two clients of one start of a child."""

    number: int
    adapter: OpenAIProvider
    scorer: Scorer

    async def aclose(self) -> None:
        await self.adapter.aclose()
        await self.scorer.aclose()


class LocalProvider:
    """Models on this machine: `smollm2-135m`, other files of the models folder, or a path to a .gguf file.

    One process per file, started at the first call and shared by all. Temperature 0 and a fixed seed unless
    the request says otherwise. A request with one function is first answered by a call of it, with arguments
    copied from the user's text, and by an answer once its result is there. AGENTFLOW_LOCAL_THREADS sets the
    threads of the engine (1: a second one costs more under load than it brings).
    """

    name = "local"
    max_concurrency = 1
    limiter_key = "local"

    def __init__(self, *, env: Mapping[str, str] | None = None) -> None:
        self._env: Mapping[str, str] = os.environ if env is None else env
        self._threads = _threads(self._env)
        self._servers: dict[Path, LocalServer] = {}
        self._connections: dict[Path, _Connection] = {}
        self._calibrated: OrderedDict[bytes, dict[int, float]] = OrderedDict()

    def profile(self, model: str) -> ModelProfile:
        """Return what the table says: one function a request, JSON by schema, no cost. A long prompt takes
        its time, so that there is no limit to the first byte."""
        known = known_profile(self.name, model)
        return msgspec.structs.replace(known, first_byte_timeout=None, parameters=COMPATIBLE)

    async def complete(
        self,
        request: ModelRequest,
        *,
        new_call_id: Callable[[], str],
        on_delta: DeltaSink | None = None,
    ) -> ModelReply:
        """Make one attempt. Raises ModelError, and ModelResolutionError when the model was removed meanwhile.

        When the process dies meanwhile the error is transient, and the next call starts another.
        """
        tools = list(request.tools)
        if len(tools) > 1:
            raise _unfit(f"{self.name}:{request.model} takes one function, {len(tools)} are attached")
        path = require(request.model, self._env)
        server = self._server(path, request.model)
        connection = await self._connect(path, await server.ensure())
        try:
            if tools and not has_result(request.messages) and tool_choice(request) != "none":
                return await self._call(connection.adapter, request, tools[0], new_call_id)
            return await self._answer(connection, path, request, new_call_id, on_delta)
        except ModelError as failure:
            if failure.info.code != "network_error" or (ending := await server.died()) is None:
                raise
            raise _ended(f"{self.name}:{request.model}", ending, failure.partial) from failure

    async def aclose(self) -> None:
        """End the processes and wait for them; idempotent."""
        connections, self._connections = self._connections, {}
        servers, self._servers = self._servers, {}
        for connection in connections.values():
            await connection.aclose()
        for server in servers.values():
            await server.aclose()

    async def _call(
        self,
        adapter: OpenAIProvider,
        request: ModelRequest,
        tool: ToolSchema,
        new_call_id: Callable[[], str],
    ) -> ModelReply:
        """Return the call of the one function. The model writes nothing but its arguments."""
        source = source_of(user_texts(request.messages))
        grammar = argument_grammar(tool.input_schema, source)
        turns = argument_turns(request.messages, tool)
        reply = await adapter.complete(_plain(request, turns, grammar=grammar), new_call_id=new_call_id)
        call = ToolCall(id=new_call_id(), name=tool.name, arguments=reply.message.content)
        message = Message(role="assistant", tool_calls=(call,))
        reason = "tool_calls" if reply.end == "complete" else reply.finish_reason
        return msgspec.structs.replace(reply, message=message, finish_reason=reason)

    async def _answer(
        self,
        connection: _Connection,
        path: Path,
        request: ModelRequest,
        new_call_id: Callable[[], str],
        on_delta: DeltaSink | None,
    ) -> ModelReply:
        turns = answer_turns(request.messages)
        settings: dict[str, Any] = {}
        if request.output_schema is not None:
            _, examples = split_examples(system_text(request.messages))
            source = source_of(said(request.messages))
            grammar = answer_grammar(request.output_schema, source, copied_properties(examples))
            settings["grammar"] = grammar
            if choices := choices_of(request.output_schema, examples):
                found = await self._biases(connection.scorer, path, request, examples, choices, grammar)
                settings["logit_bias"] = [[token, bias] for token, bias in found.items()]
        plain = _plain(request, turns, **settings)
        return await connection.adapter.complete(plain, new_call_id=new_call_id, on_delta=on_delta)

    async def _biases(
        self,
        scorer: Scorer,
        path: Path,
        request: ModelRequest,
        examples: list[Example],
        choices: list[Choice],
        grammar: str,
    ) -> dict[int, float]:
        """Return the calibration of a prompt with examples for a schema of labels; measured at first use."""
        system = tuple(message for message in request.messages if message.role == "system")
        parts = (str(path), grammar, *(message.content for message in system))
        key = hashlib.sha256("\0".join(parts).encode()).digest()
        if key not in self._calibrated:
            turns = answer_turns(system)
            answers = [
                await scorer.score([*turns, Message(role="user", content=text)], grammar)
                for text in empty_inputs(examples)
            ]
            self._calibrated[key] = biases(choices, answers)
            if len(self._calibrated) > _MOST_CALIBRATIONS:
                self._calibrated.popitem(last=False)
        return self._calibrated[key]

    def _server(self, path: Path, model: str) -> LocalServer:
        if path not in self._servers:
            alias = Path(model).stem if model.endswith(".gguf") else model
            self._servers[path] = LocalServer(path, alias, threads=self._threads, context=_CONTEXT)
        return self._servers[path]

    async def _connect(self, path: Path, endpoint: Endpoint) -> _Connection:
        known = self._connections.get(path)
        if known is not None and known.number == endpoint.number:
            return known
        adapter = OpenAIProvider(base_url=endpoint.url, api_key=endpoint.key, name=self.name, loopback=True)
        made = _Connection(endpoint.number, adapter, Scorer(endpoint))
        self._connections[path] = made
        if known is not None:
            await known.aclose()
        return made


def _plain(request: ModelRequest, turns: list[Message], **settings: Any) -> ModelRequest:
    """Return the request as the child gets it: no functions and no schema, which the grammar replaces."""
    defaults = {"temperature": 0, "seed": _SEED, "max_tokens": _OUTPUT_LIMIT}
    return ModelRequest(
        model=request.model,
        messages=tuple(turns),
        parameters={**defaults, **request.parameters, **settings},
        extra=request.extra,
    )


def _threads(env: Mapping[str, str]) -> int:
    text = env.get("AGENTFLOW_LOCAL_THREADS") or "1"
    if not text.isdecimal() or not 1 <= int(text) <= 256:
        raise ConfigurationError("AGENTFLOW_LOCAL_THREADS must be a number of threads, 1 to 256")
    return int(text)


def _unfit(message: str) -> ModelError:
    return ModelError(
        ErrorInfo(category="invalid_input", code="invalid_request", message=message, provider="local")
    )


def _ended(model: str, ending: str, partial: str | None) -> ModelError:
    message = f"the process of {model} ended during the call: {ending}"
    info = ErrorInfo(
        category="transient", code="server_error", message=message, retryable=True, provider="local"
    )
    return ModelError(info, partial=partial)
