"""Executors: nodes of a graph whose work is Python code with typed handlers (page 002 §3).

What users write, and what follows from it without any run: types and their tags, which handler takes a
message, what a handler may send. It knows neither engine nor runtime, which calls it.
"""

from __future__ import annotations

from typing import Never

from agentflow.executors.callables import Callables
from agentflow.executors.context import WorkflowContext
from agentflow.executors.executor import Executor, FunctionExecutor, executor
from agentflow.executors.handlers import handler, response_handler
from agentflow.executors.model_answers import ModelAnswer
from agentflow.executors.payloads import register_type

__all__ = [
    "Callables",
    "Executor",
    "FunctionExecutor",
    "ModelAnswer",
    "Never",
    "WorkflowContext",
    "executor",
    "handler",
    "register_type",
    "response_handler",
]
