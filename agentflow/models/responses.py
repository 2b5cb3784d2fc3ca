"""The Responses API of OpenAI, and every server that speaks it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Unpack

import msgspec

from agentflow.models.base import AnswerEnd, DeltaSink, ModelProfile, ModelRequest
from agentflow.models.function_names import FunctionNames
from agentflow.models.openai import OFFICIAL_URL
from agentflow.models.parameters import take_output_limit
from agentflow.models.responses_wire import (
    FORMAT,
    OUTPUT_LIMITS,
    PARAMETERS,
    Event,
    Item,
    WireResponse,
    encode_request,
    usage_of,
)
from agentflow.models.streamed import ProviderOptions, StreamedProvider
from agentflow.models.wire_answer import WireAnswer, WireCallBlock

__all__ = ["OFFICIAL_URL", "ResponsesProvider"]

_events: Final = msgspec.json.Decoder(Event)
_responses: Final = msgspec.json.Decoder(WireResponse)
_items: Final = msgspec.json.Decoder(Item)


class ResponsesProvider(StreamedProvider):
    """Responses below one base URL (`…/v1`); the arguments are those of StreamedProvider."""

    kind = FORMAT
    official_url = OFFICIAL_URL
    parameters = PARAMETERS

    def __init__(
        self,
        *,
        base_url: str = OFFICIAL_URL,
        api_key: str | None = None,
        name: str = "openai-responses",
        **more: Unpack[ProviderOptions],
    ) -> None:
        super().__init__(base_url=base_url, api_key=api_key, name=name, **more)

    @classmethod
    def from_env(cls, env: Mapping[str, str]) -> ResponsesProvider:
        """Return the provider that OPENAI_API_KEY and OPENAI_BASE_URL describe."""
        return cls(
            base_url=env.get("OPENAI_BASE_URL") or OFFICIAL_URL,
            api_key=(env.get("OPENAI_API_KEY") or "").strip() or None,
            settings=("OPENAI_BASE_URL", "OPENAI_API_KEY"),
        )

    def _url(self, model: str) -> str:
        return f"{self._base_url}/responses"

    def _authorization(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._key}"} if self._key else {}

    def _encode(self, request: ModelRequest, profile: ModelProfile, names: FunctionNames) -> bytes:
        return encode_request(request, names, provider=self.name)

    def _new_answer(
        self, request: ModelRequest, names: FunctionNames, on_delta: DeltaSink | None
    ) -> ResponsesAnswer:
        limit = take_output_limit(dict(request.parameters), OUTPUT_LIMITS)
        return self._wire_answer(ResponsesAnswer, request, names, on_delta, output_limit=limit)


class ResponsesAnswer(WireAnswer):
    """A response as the events of its stream arrive.

    Text is taken as it comes; calls and reasoning when their item is whole. A server that sends only the
    last event sends everything in it.
    """

    what = "a response of the Responses API"
    format = FORMAT

    _status: str | None = None

    def __init__(self, *args: Any, output_limit: Any = None, **more: Any) -> None:
        super().__init__(*args, **more)
        self._output_limit = output_limit
        self._has_cut_item = False

    def take(self, data: bytes) -> None:
        """Add the data of one event. Raises ModelError and AnswerTooLong."""
        if data.strip() == b"[DONE]":  # of gateways
            self.done = True
            return
        event = self.decode(data, _events)
        if event.type == "error" or event.error is not None:
            error = event.error or {"code": event.code, "message": event.message, "param": event.param}
            raise self.failure(error)
        if event.object == "response":
            self._take_response(self.decode(data, _responses))
            return
        match event.type:
            case "response.output_text.delta":
                self.is_over, self.has_content = False, True
                self.add_text(str(event.delta or ""))
            case "response.refusal.delta":
                self.is_over, self.has_content = False, True
                self.count(str(event.delta or ""))
                self.refusal.add(str(event.delta or ""))
            case "response.reasoning_summary_text.delta" | "response.reasoning_text.delta":
                self.add_thinking(str(event.delta or ""))
            case "response.function_call_arguments.delta":
                self.mark()
            case "response.output_item.done":
                self.is_over = False
                self._take_item(event.item)
            case _ if event.response is not None:
                self._take_response(event.response)
            case _:
                pass  # events that say what others say too

    def _take_response(self, response: WireResponse) -> None:
        self.model = response.model or self.model
        self.response_id = response.id or self.response_id
        if response.usage is not None:
            self.counted = usage_of(response.usage)
        if response.error is not None:
            raise self.failure(response.error)
        if response.status not in ("completed", "incomplete", "failed", "cancelled"):
            return
        if not (self.has_content or self.calls or self.reasoning):
            for raw in response.output or ():
                self._take_item(raw)
        self._status = response.status
        details = response.incomplete_details
        self.finish_reason = (details.reason if details else None) or response.status
        self.done = self.is_over = True

    def _take_item(self, raw: msgspec.Raw) -> None:
        item = self.decode(bytes(raw), _items)
        self._has_cut_item |= item.status == "incomplete"
        match item.type:
            case "function_call":
                self.mark()
                block = WireCallBlock(item.call_id or item.id, item.name or "")
                self.count(block.name + (item.arguments or ""))
                block.arguments.add(item.arguments or "")
                self.calls.append(block)
            case "reasoning":
                kept: dict[str, Any] = msgspec.json.decode(bytes(raw))
                kept.pop("status", None)
                self.count(bytes(raw).decode("utf-8", "replace"))
                self.reasoning.append(kept)
            case "message" if not self.has_content:  # a server that sends no deltas
                for part in item.content or ():
                    self.has_content = True
                    self.add_text(part.text or "")
                    self.refusal.add(part.refusal or "")
            case _:
                pass  # items of functions that the provider runs itself

    def end(self) -> AnswerEnd:
        """Return the end that status and reason mean; a response cut by a limit is never whole, nor is one
        with an item that is not.

        llama.cpp's server calls every response completed, so that one as long as its limit is taken as cut; a
        longer one is of a server that does not heed the limit, or not for thoughts.
        """
        if self._status == "incomplete" and self.finish_reason == "incomplete":
            return "cut"
        end, limit = super().end(), self._output_limit
        if end == "complete" and self._has_cut_item:
            return "cut"
        if end == "complete" and isinstance(limit, int) and self.counted is not None:
            return "cut" if self.counted.output_tokens == limit else end
        return end
