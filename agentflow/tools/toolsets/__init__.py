"""Toolsets that come with the product: files, web, messaging, terminal and code (page 004 §5, §15)."""
