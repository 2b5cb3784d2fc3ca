"""The daemon under load: requests, runs, streams, memory; beside the embedded Runtime and a bare server.

    python -m tests.benchmarks.server [--case NAME] [--seconds 2]

JSON lines {suite, case, subject, value, unit} on stdout, a table on stderr. The load comes from this process,
the daemon is another one. A line with the unit `x` is a ratio.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from tests.benchmarks.harness import emit, sync_time
from tests.benchmarks.server.subject import DOCUMENT, SLOW, STREAM, WAITING
from tests.faults.strace import strace_works

ROOT = Path(__file__).parents[3]
SUITE = "server"


def report(case: str, subject: str, value: float, unit: str) -> None:
    emit(SUITE, case, subject, value, unit)
    print(f"{case:<28} {subject:<26} {value:>14,.2f} {unit}", file=sys.stderr, flush=True)


# -- a client that costs little, so that it is the daemon that is measured


class Connection:
    """HTTP/1.1 with prepared requests; answers have a length."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        self.writer.write(request)
        head = await self.reader.readuntil(b"\r\n\r\n")
        start = head.index(b"content-length: ") + 16
        length = int(head[start : head.index(b"\r", start)])
        return int(head[9:12]), await self.reader.readexactly(length)

    def close(self) -> None:
        self.writer.close()


class Target:
    """A subject process, reached over its socket or its port."""

    def __init__(self, process: subprocess.Popen[str], folder: Path, port: int) -> None:
        self.process = process
        self.folder = folder
        self.port = port

    async def connect(self, tcp: bool = False) -> Connection:
        if tcp:
            return Connection(*await asyncio.open_connection("127.0.0.1", self.port))
        return Connection(*await asyncio.open_unix_connection(str(self.folder / "s"), limit=1 << 20))

    async def command(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(line, file=self.process.stdin, flush=True)
        return json.loads(await asyncio.to_thread(self.process.stdout.readline))


@asynccontextmanager
async def subject(kind: str, **env: str) -> AsyncGenerator[Target]:
    with tempfile.TemporaryDirectory(prefix="bench-") as name:
        folder = Path(name)
        process = await asyncio.to_thread(
            subprocess.Popen,
            [sys.executable, "-m", "tests.benchmarks.server.subject", kind, name],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OTEL_SDK_DISABLED": "true", **env},
        )
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            port = int(await asyncio.to_thread(process.stdout.readline))
            yield Target(process, folder, port)
        finally:
            process.stdin.close()
            await asyncio.to_thread(process.wait, 60)
            process.stdout.close()


def get(path: str) -> bytes:
    return f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()


def post(path: str, body: Any) -> bytes:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(data) + data


SUBMIT = post("/workflows", {"definition": DOCUMENT, "input": "x"})
SUBMIT_SLOW = post("/workflows", {"definition": SLOW, "input": "x"})
SUBMIT_AND_WAIT = post("/workflows?wait=30", {"definition": DOCUMENT, "input": "x"})


async def hammer(
    target: Target, request: bytes, connections: int, seconds: float, *, tcp: bool = False
) -> tuple[float, float, float]:
    """Answers a second, the 99th percentile of their time in ms, and the daemon's CPU time of each in µs,
    which a busy machine disturbs least."""
    times: list[float] = []
    opened = [await target.connect(tcp) for _ in range(connections)]
    status, body = await opened[0].ask(request)
    assert status < 300, body
    end = time.perf_counter() + seconds

    async def one(connection: Connection) -> None:
        while (began := time.perf_counter()) < end:
            status, _ = await connection.ask(request)
            assert status < 300
            times.append(time.perf_counter() - began)

    began, busy = time.perf_counter(), cpu(target.process.pid)
    await asyncio.gather(*(one(connection) for connection in opened))
    passed, busy = time.perf_counter() - began, cpu(target.process.pid) - busy
    for connection in opened:
        connection.close()
    return len(times) / passed, statistics.quantiles(times, n=100)[98] * 1e3, busy / len(times) * 1e6


async def settled(target: Target) -> None:
    """Until the runs that were submitted are done: they must not be measured with what comes next."""
    connection = await target.connect()
    done = b'agentflow_runs{state="pending"} 0', b'agentflow_runs{state="running"} 0'
    while True:
        _, text = await connection.ask(get("/metrics"))
        if all(line in text for line in done):
            break
        await asyncio.sleep(0.1)
    connection.close()


# -- cases


async def requests(seconds: float) -> None:
    async with subject("daemon") as target, subject("plain") as bare:
        connection = await target.connect()
        status, body = await connection.ask(SUBMIT_AND_WAIT)
        assert status == 201
        run = json.loads(body)["workflow_id"]
        connection.close()
        cases = {
            "version": get("/version"),
            "get": get(f"/workflows/{run}"),
            "list50": get("/workflows"),
            "submit": SUBMIT,
        }
        for tcp in (False, True):
            where = "tcp" if tcp else "unix"
            for count in (1, 16):
                case = f"requests_{where}_{count}"
                floor, _, least = await hammer(bare, get("/version"), count, seconds, tcp=tcp)
                report(case, "starlette, bare", floor, "req/s")
                report(case, "starlette, bare, CPU", least, "µs")
                for name, request in cases.items():
                    rate, p99, used = await hammer(target, request, count, seconds, tcp=tcp)
                    report(case, name, rate, "req/s")
                    report(case, f"{name}, p99", p99, "ms")
                    report(case, f"{name}, CPU", used, "µs")
                    report(case, f"{name} / bare, CPU", used / least, "x")
                await settled(target)


async def runs(seconds: float) -> None:
    """Whole runs of three agents: submitted and awaited over HTTP, beside the same Runtime embedded."""
    async with subject("daemon") as target:
        await target.command("runs 100")
        count = 300
        report("runs_sqlite", "fdatasync of 4 KiB", sync_time(), "ms")
        embedded = count / (await target.command(f"runs {count}"))["seconds"]
        report("runs_sqlite", "embedded", embedded, "runs/s")
        rate, p99, _ = await hammer(target, SUBMIT_AND_WAIT, 16, 2 * seconds)
        report("runs_sqlite", "daemon", rate, "runs/s")
        report("runs_sqlite", "daemon, p99", p99, "ms")
        report("runs_sqlite", "daemon / embedded", rate / embedded, "x")


_NAME = b'"custom.bench"'


class Reader:
    """One stream of the run, read as bytes; `delays` of single events in ms."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.events = 0
        self.delays: list[float] = []

    async def read(self, count: int, *, delays: bool = False) -> None:
        reader = self.connection.reader
        rest = b""  # the name of an event may lie across two pieces
        while self.events < count:
            chunk = await reader.read(1 << 20)
            assert chunk
            rest += chunk
            self.events += rest.count(_NAME)
            rest = rest[1 - len(_NAME) :]
            if delays:
                now = time.perf_counter_ns()
                for part in chunk.split(b'"at":')[1:]:
                    written, comma, _ = part.partition(b",")
                    if comma:
                        self.delays.append((now - int(written)) / 1e6)


@asynccontextmanager
async def readers(target: Target, count: int) -> AsyncGenerator[list[Reader]]:
    await target.command("write 1 0")
    found: list[Reader] = []
    for _ in range(count):
        connection = await target.connect()
        connection.writer.write(get(f"/workflows/{STREAM}/events?offset=latest&heartbeat=off"))
        await connection.reader.readuntil(b"\r\n\r\n")
        found.append(Reader(connection))
    try:
        yield found
    finally:
        for reader in found:
            reader.connection.close()


async def fan_out(seconds: float) -> None:
    """As fast as the store takes events, on both durable ones."""
    for store, count in itertools.product(("sqlite", "file"), (0, 1, 10, 100)):
        case = f"fan_out_{store}"
        async with subject("daemon", AGENTFLOW_BENCH_STORE=store) as target, readers(target, count) as found:
            total = 60_000 if count < 100 else 20_000
            began = time.perf_counter()
            reading = [asyncio.ensure_future(reader.read(total)) for reader in found]
            written = (await target.command(f"write {total} 0"))["seconds"]
            await asyncio.gather(*reading)
            passed = time.perf_counter() - began
            report(case, f"{count} readers, written", total / written, "ev/s")
            if count:
                report(case, f"{count} readers, delivered", total * count / passed, "ev/s")
            else:
                report(case, "fdatasync of 4 KiB", sync_time(), "ms")


async def delays(seconds: float) -> None:
    """From before the append to the client, at a low rate."""
    for count, rate in ((1, 200), (10, 200), (100, 100)):
        async with subject("daemon") as target, readers(target, count) as found:
            total = int(rate * 2 * seconds)
            reading = [asyncio.ensure_future(reader.read(total, delays=True)) for reader in found]
            await target.command(f"write {total} {rate}")
            await asyncio.gather(*reading)
            times = [delay for reader in found for delay in reader.delays]
            report("delay_sqlite", f"{count} readers, median", statistics.median(times), "ms")
            report("delay_sqlite", f"{count} readers, p99", statistics.quantiles(times, n=100)[98], "ms")


async def first_event(seconds: float) -> None:
    """From the submission to the first event at a client that asks for the stream as soon as it can."""
    async with subject("daemon") as target:
        submitting, streaming = await target.connect(), await target.connect()
        times: list[float] = []
        for _ in range(int(60 * seconds)):
            began = time.perf_counter()
            _, body = await submitting.ask(SUBMIT_SLOW)
            run = json.loads(body)["workflow_id"]
            streaming.writer.write(get(f"/workflows/{run}/events"))
            head = await streaming.reader.readuntil(b"\r\n\r\n")
            assert b" 200 " in head
            chunk = await streaming.reader.read(1 << 16)
            assert b"workflow.started" in chunk
            times.append(time.perf_counter() - began)
            while b"0\r\n\r\n" not in chunk[-7:]:
                chunk = await streaming.reader.read(1 << 16)
            await asyncio.sleep(0.005)
        report("first_event_sqlite", "submit to first event", statistics.median(times[5:]) * 1e3, "ms")
        p99 = statistics.quantiles(times[5:], n=100)[98]
        report("first_event_sqlite", "the same, p99", p99 * 1e3, "ms")


async def all_events(seconds: float) -> None:
    """From before the append to a client of `/events`, beside the sync that each append waits for."""
    async with subject("daemon") as target, AsyncExitStack() as stack:
        await target.command("write 1 0")
        found: list[Reader] = []
        for _ in range(10):
            connection = await target.connect()
            stack.callback(connection.close)
            connection.writer.write(get("/events?cursor=latest&heartbeat=off"))
            await connection.reader.readuntil(b"\r\n\r\n")
            found.append(Reader(connection))
        total, times = int(50 * seconds), list[float]()
        reading = [asyncio.ensure_future(reader.read(total, delays=True)) for reader in found]
        for _ in range(total // 10):  # the probes are of the same time as the appends
            await target.command("write 10 100")
            times.append(sync_time())
        await asyncio.gather(*reading)
        delays = statistics.median([delay for reader in found for delay in reader.delays])
        sync = statistics.median(times)
        report("all_events_sqlite", "append to /events", delays, "ms")
        report("all_events_sqlite", "fdatasync of 4 KiB", sync, "ms")
        report("all_events_sqlite", "beside the sync", delays - sync, "ms")
        submitting, streaming = await target.connect(), await target.connect()
        streaming.writer.write(get("/events?cursor=latest&heartbeat=off"))
        await streaming.reader.readuntil(b"\r\n\r\n")
        waited, times = list[float](), list[float]()
        for _ in range(total):
            began = time.perf_counter()
            answer = asyncio.ensure_future(submitting.ask(SUBMIT_SLOW))
            await streaming.reader.readuntil(b'"workflow.started"')
            waited.append((time.perf_counter() - began) * 1e3)
            await answer
            await streaming.reader.readuntil(b'"workflow.completed"')
            times.append(sync_time(1))
        submitted, sync = statistics.median(waited[5:]), statistics.median(times[5:])
        report("all_events_sqlite", "submit to /events", submitted, "ms")
        report("all_events_sqlite", "fdatasync, probed between", sync, "ms")
        report("all_events_sqlite", "beside the sync", submitted - sync, "ms")


async def syncs(seconds: float) -> None:
    """How often the daemon syncs from a submission to its first event in `/events`, as strace sees it."""
    if not strace_works():
        print("syncs is passed over: strace does not work here", file=sys.stderr)
        return
    async with subject("daemon") as target:
        submitting, streaming = await target.connect(), await target.connect()
        streaming.writer.write(get("/events?cursor=latest&heartbeat=off"))
        await streaming.reader.readuntil(b"\r\n\r\n")
        trace = target.folder / "trace"
        command = ["strace", "-f", "-e", "trace=fsync,fdatasync", "-o", str(trace)]
        tracer = await asyncio.to_thread(
            subprocess.Popen, [*command, "-p", str(target.process.pid)], stderr=subprocess.PIPE, text=True
        )
        assert tracer.stderr is not None
        await asyncio.to_thread(tracer.stderr.readline)  # it says that it is attached
        counts = list[int]()
        for _ in range(int(20 * seconds)):
            before = count_syncs(trace)
            answer = asyncio.ensure_future(submitting.ask(SUBMIT_SLOW))
            await streaming.reader.readuntil(b'"workflow.started"')
            counts.append(count_syncs(trace) - before)
            await answer
            await streaming.reader.readuntil(b'"workflow.completed"')
            await settled(target)
        tracer.terminate()
        await asyncio.to_thread(tracer.wait)
        tracer.stderr.close()
        report("all_events_sqlite", "syncs from submit to event, median", statistics.median(counts), "1")
        report("all_events_sqlite", "syncs from submit to event, most", max(counts), "1")


def count_syncs(trace: Path) -> int:
    """Return how many syncs are done; one that another thread interrupts ends on a line of its own."""
    return sum(line.endswith(" = 0") for line in trace.read_text().splitlines()) if trace.exists() else 0


async def replay(seconds: float) -> None:
    """An ended run of 20,000 events to 100 streams at once, beside a bare server that sends as many bytes."""
    count, events = 100, 20_000

    async def drain(target: Target, request: bytes) -> int:
        connection = await target.connect()
        connection.writer.write(request)
        head = await connection.reader.readuntil(b"\r\n\r\n")
        assert b" 200 " in head, head
        size, end = 0, b""
        while not end.endswith(b"0\r\n\r\n"):
            chunk = await connection.reader.read(1 << 20)
            assert chunk
            size += len(chunk)
            end = (end + chunk)[-5:]
        connection.close()
        return size

    async def measure(target: Target, request: bytes) -> tuple[int, float, float]:
        """Return the bytes of a stream, MB a second to all, and milliseconds of the server's CPU a MB."""
        await drain(target, request)
        began, busy = time.perf_counter(), cpu(target.process.pid)
        sizes = await asyncio.gather(*(drain(target, request) for _ in range(count)))
        passed, busy = time.perf_counter() - began, cpu(target.process.pid) - busy
        total = sum(sizes) / 1e6
        return sizes[0], total / passed, busy / total * 1e3

    async with subject("daemon") as target, subject("plain") as bare:
        await target.command(f"write {events} 0")
        await target.command("end")
        request = get(f"/workflows/{STREAM}/events?offset=0")
        rates, floors, used, least = list[float](), list[float](), list[float](), list[float]()
        for _ in range(3):
            size, rate, busy = await measure(target, request)
            assert size > events * 150, size  # the padding alone has as much
            _, floor, floor_busy = await measure(bare, get(f"/stream?total={size}&size={1 << 16}"))
            rates.append(rate)
            floors.append(floor)
            used.append(busy)
            least.append(floor_busy)
        report("replay", "100 streams", statistics.median(rates), "MB/s")
        report("replay", "starlette, bare", statistics.median(floors), "MB/s")
        report("replay", "100 streams / bare", statistics.median(rates) / statistics.median(floors), "x")
        report("replay", "100 streams, CPU", statistics.median(used), "ms/MB")
        report("replay", "starlette, bare, CPU", statistics.median(least), "ms/MB")
        report("replay", "bare / 100 streams, CPU", statistics.median(least) / statistics.median(used), "x")


async def memory(seconds: float) -> None:
    async with subject("daemon") as target, AsyncExitStack() as stack:
        await target.command("runs 50")
        before = (await target.command("memory"))["bytes"]
        count = 1_000
        await stack.enter_async_context(readers(target, count))
        after = (await target.command("memory"))["bytes"]
        report("memory", "idle stream", (after - before) / count / 1024, "KiB")
    async with subject("daemon") as target:
        connection = await target.connect()
        submit = post("/workflows?wait=30", {"definition": WAITING})
        for _ in range(200):
            await connection.ask(submit)
        before = (await target.command("memory"))["bytes"]
        count = 2_000
        for _ in range(count):
            status, _ = await connection.ask(submit)
            assert status == 201
        after = (await target.command("memory"))["bytes"]
        connection.close()
        report("memory", "waiting run", max(0, after - before) / count / 1024, "KiB")


async def idle(seconds: float) -> None:
    """What a thousand streams of runs that do nothing cost: the share of one processor."""

    async def share(target: Target) -> float:
        busy = cpu(target.process.pid)
        await asyncio.sleep(10)
        return (cpu(target.process.pid) - busy) / 10 * 100

    async with subject("daemon") as target:
        report("idle", "no stream", await share(target), "% of a CPU")
        async with readers(target, 1_000):
            report("idle", "1000 streams of one run", await share(target), "% of a CPU")
    async with subject("daemon") as target, AsyncExitStack() as stack:
        for _ in range(300):
            stream = await target.connect()
            stack.callback(stream.close)
            stream.writer.write(get("/events?cursor=latest"))
            await stream.reader.readuntil(b"\r\n\r\n")
        report("idle", "300 streams of all runs", await share(target), "% of a CPU")
    async with subject("daemon") as target, AsyncExitStack() as stack:
        connection = await target.connect()
        submit = post("/workflows?wait=30", {"definition": WAITING})
        for _ in range(1_000):
            _, body = await connection.ask(submit)
            stream = await target.connect()
            stack.callback(stream.close)
            stream.writer.write(get(f"/workflows/{json.loads(body)['workflow_id']}/events?offset=latest"))
            await stream.reader.readuntil(b"\r\n\r\n")
        connection.close()
        report("idle", "1000 streams of 1000 runs", await share(target), "% of a CPU")


def cpu(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


CASES: dict[str, Callable[[float], Awaitable[None]]] = {
    "requests": requests,
    "runs": runs,
    "fan_out": fan_out,
    "delays": delays,
    "first_event": first_event,
    "all_events": all_events,
    "syncs": syncs,
    "replay": replay,
    "memory": memory,
    "idle": idle,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.server")
    parser.add_argument("--case", dest="cases", action="append", choices=list(CASES), help="only this one")
    parser.add_argument("--seconds", type=float, default=2.0, help="length of a measurement (2)")
    parser.add_argument("--peers-python", help="not used: there are no peers")
    options = parser.parse_args()
    for name in options.cases or list(CASES):
        asyncio.run(CASES[name](options.seconds))


if __name__ == "__main__":
    main()
