"""The event types by family; import them from `agentflow.events.catalogue`."""
