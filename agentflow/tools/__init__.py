"""Services and their functions: what agents may call."""

from agentflow.tools.invoke import invoke
from agentflow.tools.loading import ServiceLoader
from agentflow.tools.python import function
from agentflow.tools.python_service import load_python_service
from agentflow.tools.registry import ToolRegistry
from agentflow.tools.service import Service
from agentflow.tools.tool import PythonTool, SideEffect, Tool, ToolContext, ToolError, tool_name

__all__ = [
    "PythonTool",
    "Service",
    "ServiceLoader",
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
