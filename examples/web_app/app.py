"""A web app whose requests survive the death of its process.

    uvicorn --factory examples.web_app.app:create_app

PUT begins a run under an id that is made of the ticket's name, so a repeated PUT begins nothing twice. GET
waits for the run's result. `recover=True` takes up what the last process left when the app starts, and the
log has what is done already, so a client that asks again after a crash gets the same answer.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException, Request
from fastapi import Path as PathParameter
from pydantic import BaseModel

from agentflow import Runtime, Service, ToolContext, WorkflowFailed, function
from agentflow.errors import RunExists, RunNotFound
from agentflow.models import ModelRequest
from agentflow.testing import ScriptedModel
from agentflow.testing.scripted import call

HERE = Path(__file__).parent
WAIT_S = 30.0


@dataclass
class Sorted:
    """The `outputs` of ticket.yaml."""

    urgency: str
    booking: str


class Ticket(BaseModel):
    text: str


def create_app() -> FastAPI:
    """Make the app; AGENTFLOW_STORE and BOOKINGS say where runs and bookings are."""
    os.environ.setdefault("AGENTFLOW_MODEL", "offline:scripted")
    store = os.environ.get("AGENTFLOW_STORE", "sqlite:tickets.db")
    bookings = Path(os.environ.get("BOOKINGS", "bookings"))
    bookings.mkdir(parents=True, exist_ok=True)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncGenerator[None]:
        services = [Service.of("desk", booking_in(bookings))]
        async with Runtime(store, models=[offline()], services=services, recover=True) as runtime:
            app.state.runtime = runtime
            yield

    app = FastAPI(lifespan=lifespan)
    app.put("/tickets/{name}", status_code=202)(put_ticket)
    app.get("/tickets/{name}")(get_ticket)
    return app


def runtime_of(request: Request) -> Runtime:
    return request.app.state.runtime


Opened = Annotated[Runtime, Depends(runtime_of)]
Name = Annotated[str, PathParameter(pattern="^[A-Za-z0-9_-]{1,64}$")]


async def put_ticket(name: Name, ticket: Ticket, runtime: Opened) -> dict[str, str]:
    """Begin to work on a ticket; once this is answered, it is durable."""
    try:
        inputs = {"name": name, "text": ticket.text}
        handle = await runtime.submit(HERE / "ticket.yaml", inputs, workflow_id=f"wf_{name}")
    except RunExists as error:
        raise HTTPException(409, f"ticket {name} has another text") from error
    return {"ticket": name, "run": handle.workflow_id}


async def get_ticket(name: Name, runtime: Opened) -> dict[str, Any]:
    """Answer with the sorted ticket as soon as it is there; 202 if that takes more than 30 s."""
    try:
        async with asyncio.timeout(WAIT_S):
            result = await runtime.result(f"wf_{name}", output_type=Sorted)
    except RunNotFound as error:
        raise HTTPException(404, f"there is no ticket {name}") from error
    except TimeoutError as error:
        raise HTTPException(503, "the ticket is still being worked on", {"Retry-After": "5"}) from error
    except WorkflowFailed as error:
        raise HTTPException(502, str(error)) from error
    if result.state != "completed":
        return {"ticket": name, "state": result.state}
    return {"ticket": name, "urgency": result.output.urgency, "booking": result.output.booking}


def booking_in(folder: Path) -> Any:
    """Return the function `book`. A call that is made again has the same key, and books nothing again."""

    @function(side_effect="write", idempotent=True)
    def book(ctx: ToolContext, ticket: str) -> str:
        """Book a ticket; gives the number of the booking."""
        number = f"B-{ticket}"
        with (folder / f"{ctx.idempotency_key.replace('/', '.')}.txt").open("w", encoding="utf-8") as file:
            file.write(number)
        return number

    return book


def offline() -> ScriptedModel:
    """A model that needs no key: it looks for a word, and books what it is told to."""
    model = ScriptedModel(name="offline")
    model.add(lambda r: {"urgency": "high" if "down" in said(r) else "low"}, when="how urgent")
    model.add(book_or_tell, when="Book the ticket")
    return model


def book_or_tell(request: ModelRequest) -> Any:
    if request.messages[-1].role == "tool":
        return said(request)
    return call("desk__book", ticket=said(request).partition(":")[0])


def said(request: ModelRequest) -> str:
    return request.messages[-1].content
