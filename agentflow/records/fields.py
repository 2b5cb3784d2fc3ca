"""The types of single members and parameters of requests, with their bounds."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

__all__ = ["Count", "Name", "Offset", "Position", "RunId", "Seconds", "StepId", "Text"]

RunId = Annotated[str, Meta(pattern=r"^wf_[A-Za-z0-9_-]{1,64}$")]
StepId = Annotated[str, Meta(max_length=1024)]
Offset = Annotated[int, Meta(ge=0, le=2**53)]
Count = Annotated[int, Meta(ge=1, le=500)]
Seconds = Annotated[float, Meta(ge=0, le=3600)]
Text = Annotated[str, Meta(max_length=10_000)]
Position = Annotated[str, Meta(max_length=64)]
Name = Annotated[str, Meta(min_length=1, max_length=256)]
