"""agentflow: an actor-model runtime for AI-agent workflows that must not lose work."""

__version__ = "0.1.0"
