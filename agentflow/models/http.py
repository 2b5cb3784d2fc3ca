"""The HTTP client of the providers: the one that the whole product shares."""

from __future__ import annotations

from agentflow.http import AnswerTooLarge, HttpClient, HttpFailure, HttpResponse

__all__ = ["AnswerTooLarge", "HttpClient", "HttpFailure", "HttpResponse"]
