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
    "graph_chain100_memory": False,
    "graph_chain100_52kb_memory": False,
    "graph_fan100_memory": False,
    "graph_fan100_10ms_memory": False,
    "graph_fan1000_memory": False,
    "graph_concurrent200x10_memory": False,
    "graph_chain100_durable": True,
    "graph_chain100_1kib_durable": True,
    "graph_chain200_durable": True,
    "graph_fan100_durable": True,
    "graph_resume100_durable": True,
}
_PEERS = (
    *(f"{name}_peer" for name in ("langgraph", "burr", "pydantic_graph")),
    "postgres_peers",
    *(f"graphs_{name}" for name in ("langgraph", "maf", "llamaindex", "pydantic", "burr")),
)

if __name__ == "__main__":
    main(
        "workflows",
        CASES,
        product=[HERE / "product.py", HERE / "graphs.py", HERE / "plain_asyncio.py"],
        peers=[HERE / f"{name}.py" for name in _PEERS],
        unit="steps/s",
    )
