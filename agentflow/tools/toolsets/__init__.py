"""Toolsets that come with the product: files, web, messaging, terminal and code (page 004 §5, §15).

`agentflow.tools.toolsets.registry` has the registry; it is not imported here, because the runtime needs the
workspace alone.
"""
