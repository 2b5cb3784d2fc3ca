"""OpenAI-compatible chat completions: the official service and every server that speaks its protocol."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Unpack

import msgspec

from agentflow.definition.conversation import Usage
from agentflow.definition.type_errors import undecodable
from agentflow.models import faults
from agentflow.models.accumulator import end_of
from agentflow.models.base import DeltaSink, ModelProfile, ModelReply, ModelRequest
from agentflow.models.function_names import FunctionNames
from agentflow.models.http import HttpFailure
from agentflow.models.openai_answer import Answer
from agentflow.models.openai_parameters import COMPATIBLE, OFFICIAL
from agentflow.models.openai_wire import FORMAT, Chunk, decode_chunk, encode_request, usage_of
from agentflow.models.streamed import ProviderOptions, StreamedProvider
from agentflow.models.tool_choice import answer_function
from agentflow.models.wire_answer import split_answer

__all__ = ["OFFICIAL_URL", "OpenAIProvider"]

OFFICIAL_URL: Final = "https://api.openai.com/v1"


class OpenAIProvider(StreamedProvider):
    """Chat completions below one base URL (`…/v1`); the arguments are those of StreamedProvider."""

    kind = "openai"
    official_url = OFFICIAL_URL

    def __init__(
        self,
        *,
        base_url: str = OFFICIAL_URL,
        api_key: str | None = None,
        name: str = "openai",
        **more: Unpack[ProviderOptions],
    ) -> None:
        super().__init__(base_url=base_url, api_key=api_key, name=name, **more)
        self._is_official = self._base_url == OFFICIAL_URL

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> OpenAIProvider:
        """Return the provider that OPENAI_API_KEY and OPENAI_BASE_URL describe."""
        return cls(
            base_url=env.get("OPENAI_BASE_URL") or OFFICIAL_URL,
            api_key=(env.get("OPENAI_API_KEY") or "").strip() or None,
            settings=("OPENAI_BASE_URL", "OPENAI_API_KEY"),
        )

    def profile(self, model: str) -> ModelProfile:
        """Return the table's entry; any other model is taken to call functions and answer by schema,
        unpriced. The parameters are those of the official service, or of the servers that speak like it."""
        profile = super().profile(model)
        if profile.output_limit_name is None and self._is_official:
            profile = msgspec.structs.replace(profile, output_limit_name="max_completion_tokens")
        if profile.parameters is not None:
            return profile
        return msgspec.structs.replace(profile, parameters=OFFICIAL if self._is_official else COMPATIBLE)

    def _url(self, model: str) -> str:
        return f"{self._base_url}/chat/completions"

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def _encode(self, request: ModelRequest, profile: ModelProfile, names: FunctionNames) -> bytes:
        return encode_request(
            request,
            names,
            provider=self.name,
            output_limit_name=profile.output_limit_name,
            stream_options=profile.stream_options,
        )

    def _new_answer(
        self, request: ModelRequest, names: FunctionNames, on_delta: DeltaSink | None
    ) -> _ChatAnswer:
        fields = self.profile(request.model).reasoning_fields
        kept = Answer(on_delta, self._max_answer_bytes, reasoning_fields=fields)
        answer = answer_function(request)
        return _ChatAnswer(kept, request.model, names, self.name, self._key, answer and names.write(answer))


class _ChatAnswer:
    """A chat completion as the events of its stream arrive."""

    def __init__(
        self,
        kept: Answer,
        model: str,
        names: FunctionNames,
        provider: str,
        key: str | None,
        answer_function: str | None,
    ) -> None:
        self._kept = kept
        self._model = model
        self._names = names
        self._provider = provider
        self._key = key
        self._answer_function = answer_function

    @property
    def text(self) -> str:
        return self._kept.text

    @property
    def done(self) -> bool:
        return self._kept.done

    @property
    def is_over(self) -> bool:
        return self._kept.is_over

    @property
    def counted(self) -> Usage | None:
        return None if self._kept.usage is None else usage_of(self._kept.usage)

    def take(self, data: bytes) -> None:
        if data.strip() == b"[DONE]":
            self._kept.done = True
            return
        try:
            chunk = decode_chunk(data)
        except (msgspec.DecodeError, ValueError) as failure:
            is_json = isinstance(failure, msgspec.DecodeError)
            found = undecodable(failure, Chunk) if is_json else str(failure)
            problem = faults.redact(f"the answer is not a chat completion: {found}", self._key)
            raise faults.broken_answer(self._provider, problem, partial=self.text) from None
        # Mistral and SGLang send what went wrong as the event itself.
        bare = msgspec.json.decode(data) if chunk.object == "error" else None
        errors = (chunk.error or bare, *(choice.error for choice in chunk.choices or ()))
        for error in errors:
            if error is not None:
                raise faults.from_stream(self._provider, error, secret=self._key, partial=self.text)
        self._kept.take(chunk)

    def reply(self, new_call_id: Callable[[], str]) -> ModelReply:
        kept = self._kept
        if not kept.is_over:
            cut = HttpFailure("broken", "the stream ended before the answer did")
            raise faults.from_http_failure(self._provider, cut, partial=kept.text)
        reason = kept.finish_reason
        end = end_of(reason)
        if end == "withheld":
            what = "the provider withheld the answer"
            raise faults.content_filtered(self._provider, what, partial=kept.text, finish_reason=reason)
        if kept.refusal:
            what = "the model refused to answer"
            raise faults.content_filtered(self._provider, what, partial=kept.refusal, finish_reason=reason)
        if end == "failed":
            raise faults.failed_answer(self._provider, reason, kept.has_choice, partial=kept.text)
        whole = end == "complete"
        said = split_answer(
            [(c.name, c.id, c.arguments) for c in kept.calls], kept.reasoning, self._answer_function
        )
        message = said.message(
            kept.text, self._names, new_call_id, provider=self._provider, format=FORMAT, is_whole=whole
        )
        ended = "tool_calls" if message.tool_calls else (reason or "stop") if said.answer is None else "stop"
        return ModelReply(
            message=message,
            finish_reason=ended if whole else "length",
            response_model=kept.model or self._model,
            end=end,
            provider_finish_reason=reason,
            response_id=kept.response_id,
            usage=usage_of(kept.usage),
            first_token_ms=kept.first_token_ms,
        )
