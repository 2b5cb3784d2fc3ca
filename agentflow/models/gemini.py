"""The Gemini API of Google, and every server that speaks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Unpack
from urllib.parse import quote

import msgspec

from agentflow.models.base import AnswerEnd, DeltaSink, ModelProfile, ModelRequest, SchemaMode
from agentflow.models.function_names import FunctionNames
from agentflow.models.gemini_wire import FORMAT, PARAMETERS, Event, Part, encode_request, usage_of
from agentflow.models.output_schemas import schema_mode
from agentflow.models.streamed import ProviderOptions, StreamedProvider
from agentflow.models.wire_answer import WireAnswer, WireCallBlock

__all__ = ["OFFICIAL_URL", "GeminiProvider"]

OFFICIAL_URL: Final = "https://generativelanguage.googleapis.com/v1beta"
_WITHHELD: Final = frozenset(
    {"LANGUAGE", "MODEL_ARMOR", "IMAGE_SAFETY", "IMAGE_PROHIBITED_CONTENT", "IMAGE_RECITATION"}
)
_arrays: Final = msgspec.json.Decoder(list[msgspec.Raw])
_events: Final = msgspec.json.Decoder(Event)


class GeminiProvider(StreamedProvider):
    """`streamGenerateContent` below one base URL (`…/v1beta`); arguments are those of StreamedProvider."""

    kind = FORMAT
    official_url = OFFICIAL_URL
    parameters = PARAMETERS

    def __init__(
        self,
        *,
        base_url: str = OFFICIAL_URL,
        api_key: str | None = None,
        name: str = "gemini",
        **more: Unpack[ProviderOptions],
    ) -> None:
        super().__init__(base_url=base_url, api_key=api_key, name=name, **more)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> GeminiProvider:
        """Return the provider that GEMINI_API_KEY and GEMINI_BASE_URL describe."""
        return cls(
            base_url=env.get("GEMINI_BASE_URL") or OFFICIAL_URL,
            api_key=(env.get("GEMINI_API_KEY") or "").strip() or None,
            settings=("GEMINI_BASE_URL", "GEMINI_API_KEY"),
        )

    def _url(self, model: str) -> str:
        path = model if "/" in model else f"models/{model}"
        return f"{self._base_url}/{quote(path)}:streamGenerateContent?alt=sse"

    def _authorization(self) -> dict[str, str]:
        return {"x-goog-api-key": self._key} if self._key else {}

    def _schema_mode(self, request: ModelRequest, profile: ModelProfile) -> SchemaMode | None:
        """The provider itself takes schemas of any value."""
        mode = schema_mode(request, profile)
        beside = profile.schema_mode_with_functions if request.tools else None
        is_native = isinstance(request.output_schema, dict) and (beside or profile.schema_mode) == "native"
        return "native" if is_native else mode

    def _encode(self, request: ModelRequest, profile: ModelProfile, names: FunctionNames) -> bytes:
        return encode_request(request, names, provider=self.name)

    def _new_answer(
        self, request: ModelRequest, names: FunctionNames, on_delta: DeltaSink | None
    ) -> GeminiAnswer:
        return self._wire_answer(GeminiAnswer, request, names, on_delta)


class GeminiAnswer(WireAnswer):
    """The candidates of an answer as the events of its stream arrive."""

    what = "an answer of the Gemini API"
    format = FORMAT

    _is_blocked = False

    def take(self, data: bytes) -> None:
        """Add the data of one event. Raises ModelError and AnswerTooLong."""
        if data.strip() == b"[DONE]":  # of gateways; the API itself ends its stream without a word
            self.done = True
            return
        if data.lstrip().startswith(b"["):  # of a proxy that drops `alt=sse`
            for raw in self.decode(data, _arrays):
                self.take(bytes(raw))
            return
        event = self.decode(data, _events)
        if event.error is not None:
            raise self.failure(event.error)
        self.model = event.model_version or self.model
        self.response_id = event.response_id or self.response_id
        if event.usage_metadata is not None:
            self.counted = usage_of(event.usage_metadata)
        if event.prompt_feedback is not None and event.prompt_feedback.block_reason:
            self.finish_reason, self.is_over = event.prompt_feedback.block_reason, True
            self._is_blocked = True
        for candidate in event.candidates or ():
            if candidate.index:
                continue
            self.has_content = True
            parts = (candidate.content.parts if candidate.content else None) or []
            if parts:
                self.is_over = False
            for part in parts:
                self._take_part(part)
            if candidate.finish_reason:
                self.finish_reason, self.is_over = candidate.finish_reason, True

    def end(self) -> AnswerEnd:
        """Return the end that the finish reason means; an answer to a blocked prompt is withheld."""
        return "withheld" if self._is_blocked or self.finish_reason in _WITHHELD else super().end()

    def _take_part(self, part: Part) -> None:
        place: dict[str, Any] = {}
        call = part.function_call
        if call is not None:
            self.mark()
            block = WireCallBlock(call.id, call.name)
            arguments = msgspec.json.encode(call.args or {}).decode()
            self.count(call.name + arguments)
            block.arguments.add(arguments)
            place = {"call": len(self.calls)}
            self.calls.append(block)
        elif part.thought:
            self.add_thinking(part.text or "")
        else:
            self.add_text(part.text or "")
        if part.thought_signature:
            self.count(part.thought_signature)
            self.reasoning.append({**place, "thoughtSignature": part.thought_signature})
