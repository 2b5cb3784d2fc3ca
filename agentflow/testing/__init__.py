"""What users test their workflows with. Nothing else in the package imports it."""

from agentflow.testing.assertions import RunAssertions, assert_run
from agentflow.testing.capture import Captured, capture
from agentflow.testing.cassettes import Cassette, cassette
from agentflow.testing.scripted import Call, ScriptedModel, call, cut, withheld
from agentflow.testing.valid import ValidModel, valid_value

__all__ = [
    "Call",
    "Captured",
    "Cassette",
    "RunAssertions",
    "ScriptedModel",
    "ValidModel",
    "assert_run",
    "call",
    "capture",
    "cassette",
    "cut",
    "valid_value",
    "withheld",
]
