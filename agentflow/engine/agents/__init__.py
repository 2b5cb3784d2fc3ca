"""Agents: their conversation with a model, turn by turn, and the calls of functions that it asks for."""
