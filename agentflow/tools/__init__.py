"""Services and their functions: what agents may call."""

from agentflow.tools.invoke import invoke
from agentflow.tools.python import function, load_python_service
from agentflow.tools.registry import ToolRegistry
from agentflow.tools.tool import Service, SideEffect, Tool, ToolContext, ToolError, tool_name

__all__ = [
    "Service",
    "SideEffect",
    "Tool",
    "ToolContext",
    "ToolError",
    "ToolRegistry",
    "function",
    "invoke",
    "load_python_service",
    "tool_name",
]
