"""Endpoint of a provider, and the settings that a failed call is about.

A setting is named, never its value: an error holds neither a key nor the user part of a URL.
"""

from __future__ import annotations

from typing import Final, NamedTuple
from urllib.parse import urlsplit

import msgspec

from agentflow.definition.failure import ErrorInfo

__all__ = ["Endpoint"]

_DEFAULT_PORTS: Final = {"http": 80, "https": 443}
_ADVICE: Final = {
    "network_error": "check {url}",
    "response_timeout": "check {url}",
    "invalid_response": "check that {url} is {server}",
    "authentication_failed": "check {key}",
    "model_not_found": "check the model's name and {url}",
    "rate_limited": "the limits are those of {key}",
    "insufficient_quota": "the quota is that of {key}",
}
"""What to look at, by the code of the error."""
_SERVERS: Final = {
    "openai": "an OpenAI-compatible server",
    "openai-responses": "a server of the Responses API of OpenAI",
    "anthropic": "a server of the Messages API of Anthropic",
    "gemini": "a server of the Gemini API",
}
"""What a base URL must lead to, by the wire format."""


class Endpoint(NamedTuple):
    """A server of models, and what it is configured by."""

    provider: str
    base_url: str
    url_setting: str
    key_setting: str
    has_key: bool
    kind: str = "openai"

    @property
    def address(self) -> str:
        """Host and port."""
        parts = urlsplit(self.base_url)
        host = parts.hostname or ""
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def describe(self, model: str, error: ErrorInfo) -> ErrorInfo:
        """Return the error of a call to `model` with model, host and port, and the setting to look at."""
        place = "" if self.address in error.message else f" at {self.address}"
        status = ""
        if error.http_status is not None and str(error.http_status) not in error.message:
            status = f" (HTTP {error.http_status})"
        advice = self._advice(error.code)
        message = f"{self.provider}:{model}{place}: {error.message}{status}{advice}"
        return msgspec.structs.replace(error, message=message)

    def _advice(self, code: str) -> str:
        if code not in _ADVICE or not self.url_setting:
            return ""
        if code == "authentication_failed" and not self.has_key:
            return f"; {self.key_setting} is not set"
        server = _SERVERS[self.kind]
        return f"; {_ADVICE[code].format(url=self.url_setting, key=self.key_setting, server=server)}"
