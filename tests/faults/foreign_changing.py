"""A server made with FastMCP whose session gets another list of functions in the middle of it."""

import sys

from fastmcp import Context, FastMCP
from mcp_types import ToolListChangedNotification

mcp = FastMCP("changing")


@mcp.tool
def echo(message: str) -> str:
    """Return the message."""
    return f"Echo: {message}"


@mcp.tool
def late(message: str) -> str:
    """Return the message, once it is offered."""
    return f"Late: {message}"


@mcp.tool
async def change(ctx: Context) -> str:
    """Offer `late` instead of `echo`."""
    mcp.enable(names={"late"})
    mcp.disable(names={"echo"})
    await ctx.send_notification(ToolListChangedNotification())
    return "changed"


mcp.disable(names={"late"})
if len(sys.argv) > 1:
    mcp.run(transport="http", host="127.0.0.1", port=int(sys.argv[1]), show_banner=False)
else:
    mcp.run(show_banner=False)
