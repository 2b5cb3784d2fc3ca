"""The graphs of this folder, one after the other.

    python examples/graphs/demo.py

Offline; the model of the teams is written down in teams.py.
"""

import asyncio

import claims
import draft_loop
import readings
import teams


async def main() -> None:
    for example in (claims, draft_loop, readings, teams):
        await example.main()


if __name__ == "__main__":
    asyncio.run(main())
