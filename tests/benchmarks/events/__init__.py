"""Benchmarks of the event log: `python -m tests.benchmarks.events`."""
