"""What users test their workflows with. Nothing else in the package imports it."""

from agentflow.testing.scripted import Call, ScriptedModel, call, cut, withheld

__all__ = ["Call", "ScriptedModel", "call", "cut", "withheld"]
