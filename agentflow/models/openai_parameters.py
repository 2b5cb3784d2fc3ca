"""The parameters of chat completions that a model object may set by name (page 000 §3).

A name that stands in neither list is refused before anything is sent; `extra` takes any.
"""

from __future__ import annotations

from typing import Final

__all__ = ["COMPATIBLE", "OFFICIAL"]

OFFICIAL: Final = (
    "frequency_penalty",
    "logit_bias",
    "logprobs",
    "max_completion_tokens",
    "max_tokens",
    "metadata",
    "modalities",
    "parallel_tool_calls",
    "prediction",
    "presence_penalty",
    "prompt_cache_key",
    "reasoning_effort",
    "response_format",
    "safety_identifier",
    "seed",
    "service_tier",
    "stop",
    "store",
    "stream_options",
    "temperature",
    "tool_choice",
    "top_logprobs",
    "top_p",
    "user",
    "verbosity",
    "web_search_options",
)
"""Those of the official service."""

COMPATIBLE: Final = (
    *OFFICIAL,
    "chat_template_kwargs",
    "grammar",
    "guided_json",
    "guided_regex",
    "keep_alive",
    "min_p",
    "options",
    "prompt_cache_retention",
    "provider",
    "reasoning",
    "repeat_penalty",
    "repetition_penalty",
    "stop_token_ids",
    "thinking",
    "top_k",
    "typical_p",
)
"""Those of the official service and of the servers that speak like it."""
