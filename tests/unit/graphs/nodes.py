"""Executors for tests of the builder: they declare types, and none of them is ever run."""

from __future__ import annotations

from typing import Any, Never

import msgspec

from agentflow import Executor, WorkflowContext, handler, response_handler

__all__ = ["Animal", "Answer", "Asker", "Dog", "Gather", "Pass", "Sink", "Source", "sends", "takes"]


class Animal(msgspec.Struct, frozen=True):
    name: str


class Dog(Animal, frozen=True):
    pass


class Answer(msgspec.Struct, frozen=True):
    text: str


class Source(Executor):
    """str to int."""

    @handler
    async def go(self, message: str, ctx: WorkflowContext[int]) -> None: ...


class Pass(Executor):
    """int to int."""

    @handler
    async def go(self, message: int, ctx: WorkflowContext[int]) -> None: ...


class Sink(Executor):
    """int to an output."""

    @handler
    async def go(self, message: int, ctx: WorkflowContext[Never, int]) -> None: ...


class Gather(Executor):
    """A list of int to an output."""

    @handler
    async def go(self, message: list[int], ctx: WorkflowContext[int, int]) -> None: ...


class Asker(Executor):
    """Asks a person about an int, and sends int."""

    @handler
    async def go(self, message: int, ctx: WorkflowContext) -> None: ...

    @response_handler
    async def back(self, request: int, answer: Answer, ctx: WorkflowContext[int, int]) -> None: ...


def sends(id: str, kind: Any) -> Executor:
    """An executor that takes str and sends a type."""
    return _made("Sends", str, WorkflowContext[kind])(id)


def takes(id: str, kind: Any) -> Executor:
    """An executor that takes a type and gives an output."""
    return _made("Takes", kind, WorkflowContext[Never, int])(id)


def _made(name: str, message: Any, context: Any) -> type[Executor]:
    async def go(self: Any, message: Any, ctx: Any) -> None: ...

    go.__annotations__ = {"message": message, "ctx": context, "return": None}
    return type(name, (Executor,), {"go": handler(go)})
