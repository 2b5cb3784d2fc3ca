"""Flips bits of a closed store and says of each what came of it.

    python -m tests.faults.flipped URL WORK

Each line of input is `FILE BYTE BIT`, the file by its place below the directory of the store. For each, a
copy with this bit flipped is opened with the real store and asked everything that can be asked; one line says
`harmless`: every answer as before; `noticed`: opening or some answer was refused, all others as before;
`silent WHAT`: an answer was another one than before, or an error was no error of the product.
A process of its own, since a damaged file may be able to crash one.
"""

from __future__ import annotations

import asyncio
import shutil
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from agentflow.errors import AgentflowError
from agentflow.events.log import EventLog
from agentflow.events.open import open_log
from agentflow.events.owner import this_process
from agentflow.events.rows import RunRow
from tests.faults.promises import read_all
from tests.faults.workload import GRAPH, T0, all_blobs, blob_name, small_files

Answers = dict[str, Any]
REFUSED = "refused"
CONSUMER = "reader"


async def ask(log: EventLog, runs: list[str]) -> Answers:
    """Every question and its answer, REFUSED if that was the answer."""
    answers: Answers = {}

    async def note(question: str, ask: Callable[[], Awaitable[Any]]) -> None:
        try:
            answers[question] = await ask()
        except AgentflowError:
            answers[question] = REFUSED

    for run in runs:
        await note(f"row {run}", lambda run=run: row(log, run))
        await note(f"last {run}", lambda run=run: log.last(run))
        await note(f"events {run}", lambda run=run: events_of(log, run))
    await note("runs", lambda: rows(log))
    await note("running", lambda: rows(log, state="running"))
    await note("named", lambda: rows(log, name="short"))
    await note("labelled", lambda: rows(log, label=("run", "wf_b")))
    await note("all", lambda: stream(log))
    await note("ends", lambda: stream(log, types=["workflow.*"]))
    await note("some", lambda: stream(log, types=["agent.processing"]))
    await note("since", lambda: stream(log, since=T0 + 20, until=T0 + 40))
    for data in sorted(all_blobs()):
        await note(f"blob {data[:20]!r}", lambda data=data: log.get_blob(blob_name(data)))
    await note("graph", lambda: log.get_definition(GRAPH))
    await note("position", lambda: log.load_cursor(CONSUMER))
    await note("positions", lambda: log.cursors(""))
    for run in runs:  # what a scan has found is known only now
        await note(f"events {run} again", lambda run=run: events_of(log, run))
    return answers


async def events_of(log: EventLog, run: str) -> Any:
    return await read_all(log, run, (await log.run(run)).earliest_offset)


def told(row: RunRow) -> tuple[Any, ...]:
    """What a row says of its run; who owns it now may differ."""
    times = (row.created_at, row.updated_at)
    return row.name, row.definition_hash, row.state, row.labels, *times, row.last_offset, row.epoch


async def row(log: EventLog, run: str) -> tuple[Any, ...]:
    return told(await log.run(run))


async def rows(log: EventLog, **query: Any) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    cursor = None
    while True:
        page = await log.runs(limit=3, cursor=cursor, **query)
        found.update((one.workflow_id, told(one)) for one in page.items)
        cursor = page.next_cursor
        if cursor is None:
            return found


async def stream(log: EventLog, **query: Any) -> list[Any]:
    found: list[Any] = []
    cursor = None
    while page := (await log.query(cursor=cursor, limit=30, **query)):
        found += page.items
        cursor = page.next_cursor
        if not page.items:
            return found
        if len(found) > 10_000:
            raise AssertionError("the stream does not end")
    return found


def differing(before: Answers, after: Answers) -> str | None:
    """The first answer that is another one; None if each is the same or refused. What concerns all runs may
    leave out those that refuse to be read by themselves."""
    by_run = [(q.split()[1], a) for q, a in after.items() if q.startswith(("row", "last", "events"))]
    refused = {run for run, answer in by_run if answer == REFUSED}
    for question, answer in after.items():
        known = before[question]
        if answer in (known, REFUSED):
            continue
        if question in ("runs", "running", "named", "labelled") and all(
            answer.get(run) == known.get(run) for run in answer.keys() | known.keys() if run not in refused
        ):
            continue
        if question in ("all", "ends", "some", "since") and answer == [
            found for found in known if found[0] not in refused or found in answer
        ]:
            continue
        return f"{question}: {first_difference(answer, known)}"
    return None


def first_difference(answer: Any, known: Any) -> str:
    if isinstance(answer, dict) and isinstance(known, dict):
        keys = sorted(answer.keys() | known.keys())
        answer, known = [(k, answer.get(k)) for k in keys], [(k, known.get(k)) for k in keys]
    if isinstance(answer, list) and isinstance(known, list):
        k = next((k for k, (a, b) in enumerate(zip(answer, known, strict=False)) if a != b), -1)
        lengths = f"{len(answer)} answers where {len(known)} were"
        return lengths if k < 0 else f"{lengths}; {k}: {str(answer[k])[:120]} was {str(known[k])[:120]}"
    return f"{str(answer)[:120]} was {str(known)[:120]}"


async def go_on(log: EventLog, runs: list[str]) -> str | None:
    """Claim the runs, as whoever resumes them would; None if that is as before or refused."""
    for run in runs:
        try:
            epoch = await log.claim(run, this_process())
            if epoch > 100:
                return f"the epoch of {run} is {epoch}"
        except AgentflowError:
            continue
    return None


async def verdict(url: str, before: Answers, runs: list[str]) -> str:
    try:
        log = open_log(url)
    except AgentflowError:
        return "noticed"
    except Exception as error:
        return f"silent {type(error).__name__}: {error}"
    try:
        after = await ask(log, runs)
        wrong = differing(before, after) or await go_on(log, runs)
    except Exception as error:
        wrong = f"{type(error).__name__}: {error}"
    finally:
        try:
            await log.close()
        except AgentflowError:
            after = {"close": REFUSED}
    if wrong is not None:
        return f"silent {wrong}"
    return "noticed" if any(answer is REFUSED for answer in after.values()) else "harmless"


async def known(url: str) -> tuple[Answers, list[str]]:
    log = open_log(url)
    assert await log.load_cursor(CONSUMER)
    runs = [found.workflow_id for found in (await log.runs(limit=1_000, order="asc")).items]
    answers = await ask(log, runs)
    await log.close()
    assert REFUSED not in [str(a) for a in answers.values()], [q for q, a in answers.items() if a == REFUSED]
    return answers, runs


def main() -> None:
    url, work = sys.argv[1:]
    kind, _, path = url.partition(":")
    small_files()
    source, copy = Path(path), Path(work, "copy")
    shutil.copytree(source.parent, Path(work, "first"))
    before, runs = asyncio.run(known(f"{kind}:{work}/first/{source.name}"))
    for line in sys.stdin:
        file, byte, bit = line.split()
        shutil.copytree(source.parent, copy)
        with (copy / file).open("r+b") as target:
            target.seek(int(byte))
            value = target.read(1)[0]
            target.seek(int(byte))
            target.write(bytes([value ^ 1 << int(bit)]))
        said = asyncio.run(verdict(f"{kind}:{copy}/{source.name}", before, runs))
        print(said.replace("\n", " "), flush=True)
        shutil.rmtree(copy)


if __name__ == "__main__":
    main()
