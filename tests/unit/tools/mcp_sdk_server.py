"""A server made with the official SDK; as a program it speaks on stdio."""

import os
from typing import Any

from mcp.server.mcpserver import Context, MCPServer
from mcp.types import SamplingMessage, TextContent, ToolAnnotations
from pydantic import BaseModel

app = MCPServer("reference")


@app.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@app.tool(annotations=ToolAnnotations(destructive_hint=True, idempotent_hint=True))
def drop(name: str) -> dict[str, Any]:
    return {"dropped": name}


@app.tool(annotations=ToolAnnotations(read_only_hint=False, destructive_hint=False))
def note(text: str) -> str:
    return f"noted: {text}"


@app.tool()
async def meta(ctx: Context) -> dict[str, Any]:
    return {"meta": dict(ctx.request_context.meta or {}), "home": os.environ.get("HOME")}


@app.tool()
def broken() -> str:
    raise ValueError("no way")


class Size(BaseModel):
    """What a person is asked for."""

    size: int


@app.tool()
async def asks_a_person(ctx: Context) -> str:
    """Elicits a value."""
    return str(await ctx.elicit("Which size?", Size))


@app.tool()
async def asks_a_model(ctx: Context) -> str:
    """Samples a model of the client."""
    said = SamplingMessage(role="user", content=TextContent(type="text", text="hi"))
    return str(await ctx.session.create_message([said], max_tokens=16))


if __name__ == "__main__":
    app.run()
