"""Steps per second of chains, fan-outs and many runs at once, beside other workflow engines.

    python -m tests.benchmarks.workflows [--peers-python PATH]

JSON lines {suite, case, subject, value, unit} on stdout, a table on stderr.
"""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.harness import main

HERE = Path(__file__).parent

CASES = {
    "chain100_memory": False,
    "fanout100_memory": False,
    "chain100_agents_memory": False,
    "chain100_sqlite": True,
    "fanout100_sqlite": True,
    "chain100_agents_sqlite": True,
    "concurrent100x10_sqlite": True,
}

if __name__ == "__main__":
    main(
        "workflows",
        CASES,
        product=[HERE / "product.py", HERE / "plain_asyncio.py"],
        peers=[HERE / f"{name}_peer.py" for name in ("langgraph", "burr", "pydantic_graph")],
        unit="steps/s",
    )
