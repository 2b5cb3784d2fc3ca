"""The one place through which requests of model adapters leave, so that tests can forbid or record them."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from agentflow.definition.failure import ErrorInfo
from agentflow.models.base import ModelError
from agentflow.models.http import HttpClient

__all__ = ["Exchanges", "ModelResponse", "intercept", "send"]

SWITCH = "AGENTFLOW_ALLOW_MODEL_REQUESTS"


class ModelResponse(Protocol):
    """An answer whose body has not been read yet, as HttpResponse is one."""

    status: int
    headers: Mapping[str, str]

    def chunks(self, limit: int | None = None) -> AsyncGenerator[bytes]:
        """Yield the body as it comes. Raises HttpFailure."""
        ...

    def wind_up(self, grace: float) -> None:
        """Give the rest of the body `grace` seconds."""
        ...

    async def error_body(self) -> bytes:
        """Return the body of a refusal."""
        ...


class Exchanges(Protocol):
    """What stands between the adapters and their servers."""

    def exchange(
        self, http: HttpClient, url: str, headers: Mapping[str, str], body: bytes, wait: float | None
    ) -> AbstractAsyncContextManager[ModelResponse]:
        """Answer a request; `http.post` would send it."""
        ...


_between: list[Exchanges] = []


def intercept(exchanges: Exchanges | None) -> None:
    """Put `exchanges` between all adapters of this process and their servers; None removes the last one."""
    if exchanges is None:
        _between.pop()
    else:
        _between.append(exchanges)


def send(
    http: HttpClient,
    url: str,
    *,
    provider: str,
    headers: Mapping[str, str],
    body: bytes,
    wait: float | None,
    loopback: bool,
) -> AbstractAsyncContextManager[ModelResponse]:
    """Send a request. Raises ModelError if AGENTFLOW_ALLOW_MODEL_REQUESTS=0 forbids it, which an engine of
    this process (`loopback`) is free of."""
    if loopback:
        return http.post(url, headers=headers, body=body, first_byte_timeout=wait)
    if _between:
        return _between[-1].exchange(http, url, headers, body, wait)
    if os.environ.get(SWITCH) == "0":
        message = f"requests to models are forbidden here ({SWITCH}=0)"
        info = ErrorInfo(
            category="auth",
            code="model_requests_forbidden",
            message=f"{message}; use a ScriptedModel, or a cassette",
            provider=provider,
        )
        error = ModelError(info)
        error.uncharged = True
        raise error
    return http.post(url, headers=headers, body=body, first_byte_timeout=wait)
