"""Turns per second of an agent that calls a tool and goes on, with a model that is scripted.

    python -m tests.benchmarks.agents [--peers-python PATH]

A turn is one answer of the model; every turn but the last asks for one tool call. `loop1` has one tool
call and then the answer, `loop50` has fifty in one conversation. JSON lines
{suite, case, subject, value, unit} on stdout, a table on stderr.
"""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.harness import main

HERE = Path(__file__).parent

CASES = {"loop1_memory": False, "loop50_memory": False, "loop1_sqlite": True, "loop50_sqlite": True}

if __name__ == "__main__":
    peers = [HERE / "pydantic_ai_peer.py", HERE / "openai_agents_peer.py"]
    main("agents", CASES, product=[HERE / "product.py"], peers=peers, unit="turns/s")
