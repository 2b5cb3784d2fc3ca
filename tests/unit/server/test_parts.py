"""Tokens, sockets, definitions, metrics, frames, access: the parts of the daemon one by one."""

from __future__ import annotations

import ast
import asyncio
import errno
import json
import os
import socket
import stat
import time
from pathlib import Path

import httpx
import msgspec
import pytest
from prometheus_client import REGISTRY
from prometheus_client.openmetrics.parser import text_string_to_metric_families as openmetrics_families
from prometheus_client.parser import text_string_to_metric_families

import agentflow.server
from agentflow import Runtime
from agentflow.config import ServerConfig, default_socket, load_config
from agentflow.definition.loader import load_value
from agentflow.errors import ConfigurationError, StorageUnavailable
from agentflow.events.envelope import StoredEvent
from agentflow.events.memory import MemoryLog
from agentflow.events.pages import SharedPage
from agentflow.records.commands import COMMANDS
from agentflow.server.access import check_safe
from agentflow.server.app import Application
from agentflow.server.connection import refusal_bytes
from agentflow.server.definitions import Definitions, definitions_beside
from agentflow.server.event_streams import encoded, parse_place, parts
from agentflow.server.frames import Ndjson, Sse, pieces
from agentflow.server.lock import lock_store
from agentflow.server.metrics import OPENMETRICS, PLAIN, Metrics, _Measured
from agentflow.server.notify import sd_notify, unit_file
from agentflow.server.operations import _PATH, Operation
from agentflow.server.problems import STATUS, Refusal, problem_response, refusal_of
from agentflow.server.routing import Tree
from agentflow.server.sockets import Listeners, bind_all, split_address
from agentflow.server.tokens import ALL_SCOPES, load_tokens
from agentflow.telemetry.instruments import Instrument, Tally
from tests.unit.server.kit import ECHO, agents, echo, tokens

SECRET = "a-secret-of-0123456789-and-more-characters"


class TestTokens:
    def file(self, tmp_path, text, mode=0o600):
        path = tmp_path / "tokens"
        path.write_text(text)
        path.chmod(mode)
        return str(path)

    def test_names_and_scopes(self, tmp_path):
        path = self.file(
            tmp_path, f"# people\n\nci run {SECRET}\n  ops\tadmin   {SECRET}x\nme read,approve {SECRET}y\n"
        )
        found = load_tokens(path, {})
        assert found.find(SECRET).name == "ci"
        assert found.find(SECRET).scopes == {"run", "read"}
        assert found.find(SECRET + "x").scopes == ALL_SCOPES
        assert found.find(SECRET + "y").scopes == {"read", "approve"}
        assert found.find(SECRET + "z") is None
        assert found.find("") is None
        assert found.find("\udcff") is None

    def test_of_the_environment(self):
        found = load_tokens(None, {"AGENTFLOW_TOKEN": SECRET})
        assert found.find(SECRET).scopes == ALL_SCOPES
        assert not load_tokens(None, {})
        assert not load_tokens(None, {"AGENTFLOW_TOKEN": ""})

    def test_the_secret_is_not_kept(self):
        found = load_tokens(None, {"AGENTFLOW_TOKEN": SECRET})
        assert SECRET not in repr(vars(found))
        assert SECRET not in repr(found.find(SECRET))

    @pytest.mark.parametrize(
        "line",
        [
            "x",
            f"a read {SECRET} more",
            f"a! read {SECRET}",
            f"a write {SECRET}",
            "a read short",
            f"a , {SECRET}",
        ],
    )
    def test_lines_that_are_none(self, tmp_path, line):
        with pytest.raises(ConfigurationError, match="tokens:2") as refused:
            load_tokens(self.file(tmp_path, f"# first\n{line}\n"), {})
        assert SECRET not in str(refused.value)

    def test_files_that_are_not_read(self, tmp_path):
        with pytest.raises(ConfigurationError, match="cannot be read"):
            load_tokens(str(tmp_path / "none"), {})
        with pytest.raises(ConfigurationError, match="others may read"):
            load_tokens(self.file(tmp_path, f"a read {SECRET}", 0o640), {})
        (tmp_path / "bytes").write_bytes(b"\xff")
        with pytest.raises(ConfigurationError, match="not UTF-8"):
            load_tokens(str(tmp_path / "bytes"), {})


class TestSockets:
    @pytest.fixture
    def listeners(self):
        found = Listeners()
        yield found
        found.close()

    def test_a_unix_socket_and_its_folder(self, listeners, tmp_path):
        path = tmp_path / "a" / "b" / "s"
        before = os.umask(0o022)
        os.umask(before)
        listeners.add_unix(path)
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.parent.parent.stat().st_mode) == 0o700
        assert os.umask(before) == before
        listeners.close()
        assert not path.exists()

    def test_an_open_folder_of_our_own_is_closed(self, listeners, tmp_path):
        folder = tmp_path / "agentflow"
        folder.mkdir(mode=0o755)
        listeners.add_unix(folder / "s", private=True)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700

    def test_a_folder_of_the_user_keeps_its_mode(self, listeners, tmp_path):
        folder = tmp_path / "mine"
        folder.mkdir(mode=0o755)
        listeners.add_unix(folder / "s")
        assert stat.S_IMODE(folder.stat().st_mode) == 0o755

    def test_a_stale_one_is_replaced_and_a_live_one_is_not(self, listeners, tmp_path):
        path = tmp_path / "s"
        with socket.socket(socket.AF_UNIX) as dead:
            dead.bind(str(path))
        listeners.add_unix(path)
        other = Listeners()
        with pytest.raises(ConfigurationError, match="a daemon listens"):
            other.add_unix(path)
        assert path.exists()
        with socket.socket(socket.AF_UNIX) as foreign:
            foreign.bind(str(tmp_path / "foreign"))
            foreign.listen()
            with pytest.raises(ConfigurationError, match="a daemon listens"):
                other.add_unix(tmp_path / "foreign")
        other.close()

    def test_a_file_that_was_replaced_meanwhile_is_left(self, listeners, tmp_path):
        path = tmp_path / "s"
        listeners.add_unix(path)
        path.unlink()
        path.write_text("somebody else's")
        listeners.close()
        assert path.read_text() == "somebody else's"

    def test_a_link_is_not_followed(self, listeners, tmp_path):
        (tmp_path / "target").write_text("precious")
        (tmp_path / "s").symlink_to(tmp_path / "target")
        with pytest.raises(ConfigurationError):
            listeners.add_unix(tmp_path / "s")
        (tmp_path / "t.lock").symlink_to(tmp_path / "target")
        with pytest.raises(ConfigurationError):
            listeners.add_unix(tmp_path / "t")
        assert (tmp_path / "target").read_text() == "precious"

    def test_kinds(self, listeners):
        listeners.add_tcp("127.0.0.1:0")
        listeners.add_tcp("0.0.0.0:0")
        assert [listener.kind for listener in listeners] == ["loopback", "remote"]
        assert listeners.kinds == {"loopback", "remote"}

    def test_localhost_is_one_port_on_every_address(self, listeners):
        listeners.add_tcp("localhost:0")
        assert listeners.kinds == {"loopback"}
        assert len({listener.sock.getsockname()[1] for listener in listeners}) == 1

    def test_nagle_is_off(self, listeners):
        listeners.add_tcp("127.0.0.1:0")
        assert listeners.listeners[0].sock.proto == socket.IPPROTO_TCP

    @pytest.mark.parametrize(
        ("text", "address"),
        [
            ("127.0.0.1:80", ("127.0.0.1", 80)),
            ("[::1]:0", ("::1", 0)),
            ("localhost:65535", ("localhost", 65535)),
        ],
    )
    def test_addresses(self, text, address):
        assert split_address(text) == address

    @pytest.mark.parametrize(
        "text", ["", "80", ":80", "host", "host:", "host:x", "host:65536", "::1:80", "h:-1", "h:٣"]
    )
    def test_addresses_that_are_none(self, text):
        with pytest.raises(ConfigurationError, match="is not an address"):
            split_address(text)

    def test_nothing_is_left_open_when_one_cannot_be_bound(self, tmp_path):
        config = ServerConfig(socket=str(tmp_path / "s"), listen=("127.0.0.1:0", "nonsense"))
        with pytest.raises(ConfigurationError):
            bind_all(config, {})
        assert not (tmp_path / "s").exists()

    def test_the_default(self, tmp_path):
        env = {"XDG_RUNTIME_DIR": str(tmp_path)}
        assert default_socket(env) == tmp_path / "agentflow" / "agentflow.sock"
        assert default_socket({"XDG_RUNTIME_DIR": "relative"}).is_absolute()


class TestSafety:
    def test_what_needs_a_token(self):
        some, none = load_tokens(None, {"AGENTFLOW_TOKEN": SECRET}), load_tokens(None, {})
        check_safe(ServerConfig(), {"unix", "loopback"}, none)
        check_safe(ServerConfig(insecure=True), {"remote"}, some)
        check_safe(ServerConfig(tls_cert="x", tls_key="y"), {"remote"}, some)
        for config, kinds, given in (
            (ServerConfig(insecure=True), {"remote"}, none),
            (ServerConfig(), {"remote"}, some),
            (ServerConfig(require_token=True), {"unix"}, none),
        ):
            with pytest.raises(ConfigurationError):
                check_safe(config, kinds, given)


class TestSystemd:
    def test_told(self, tmp_path):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(str(tmp_path / "n"))
            manager.settimeout(5)
            sd_notify("READY=1", {"NOTIFY_SOCKET": str(tmp_path / "n")})
            assert manager.recv(100) == b"READY=1"
            manager2 = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
            manager2.bind("\0agentflow-test")
            manager2.settimeout(5)
            sd_notify("STOPPING=1", {"NOTIFY_SOCKET": "@agentflow-test"})
            assert manager2.recv(100) == b"STOPPING=1"
            manager2.close()

    @pytest.mark.parametrize("env", [{}, {"NOTIFY_SOCKET": "relative"}, {"NOTIFY_SOCKET": "/no/such"}])
    def test_nobody_to_tell(self, env):
        sd_notify("READY=1", env)

    def test_sockets_for_another_process(self):
        listeners = Listeners()
        assert not listeners.add_activated({"LISTEN_PID": "1", "LISTEN_FDS": "1"})
        assert not listeners.add_activated({"LISTEN_FDS": "1"})
        assert not listeners.add_activated({})

    def test_a_unit_escapes_what_systemd_would_read(self):
        assert "100%%" in unit_file(["--store", "100%"])


class TestLock:
    def test_one_at_a_time(self, tmp_path):
        url = f"sqlite:{tmp_path / 'deep' / 'runs.db'}"
        with lock_store(url):
            with pytest.raises(ConfigurationError, match=f"pid {os.getpid()}"), lock_store(url):
                pass
            with pytest.raises(ConfigurationError), lock_store(f"sqlite://{tmp_path / 'deep' / 'runs.db'}"):
                pass
        with lock_store(url):
            pass
        with lock_store("memory:"), lock_store("memory:"):
            pass

    def test_a_place_where_it_cannot_be(self):
        with (
            pytest.raises(ConfigurationError, match="cannot be made"),
            lock_store("sqlite:/proc/none/runs.db"),
        ):
            pass


class TestDefinitions:
    async def test_kept_over_a_restart(self, tmp_path):
        store = f"sqlite:{tmp_path / 'runs.db'}"
        first = definitions_beside(store, None)
        made = await first.add(load_value(ECHO), name="echo", version=None, by="me")
        await first.add(load_value(agents("two")), name="echo", version="2", by="me")
        again = definitions_beside(store, None)
        assert await again.find("echo", "1") == made
        assert (await again.find("echo")).version == "2"
        assert [(d.name, d.version) for d in await again.list()] == [("echo", "2")]
        assert msgspec.json.decode(msgspec.json.encode(await again.list()))[0].keys() >= {"hash", "by"}

    async def test_the_same_again_and_another(self, tmp_path):
        found = Definitions(tmp_path / "d")
        made = await found.add(load_value(ECHO), name="echo", version="1", by="me")
        assert await found.add(load_value(ECHO), name="echo", version="1", by="you") is made
        with pytest.raises(Refusal) as refused:
            await found.add(load_value(agents("two")), name="echo", version="1", by="me")
        assert refused.value.code == "version_exists"

    async def test_at_the_same_time_one_wins(self, tmp_path):
        found = Definitions(tmp_path / "d")
        results = await asyncio.gather(
            *(found.add(load_value(agents(str(i))), name="x", version="1", by="me") for i in range(5)),
            return_exceptions=True,
        )
        assert sum(isinstance(result, Refusal) for result in results) == 4

    async def test_a_folder_that_cannot_be_written(self):
        with pytest.raises(StorageUnavailable):
            await Definitions(Path("/proc/none")).add(load_value(ECHO), name="x", version="1", by="me")

    async def test_a_damaged_file_is_told(self, tmp_path):
        folder = tmp_path / "d" / "x"
        folder.mkdir(parents=True)
        (folder / "1.json").write_text("{")
        with pytest.raises(ConfigurationError, match=r"1\.json"):
            await Definitions(tmp_path / "d").list()

    def test_where_they_are(self, tmp_path):
        assert vars(definitions_beside("memory:", None))["_folder"] is None
        assert str(vars(definitions_beside("file:d", None))["_folder"]) == "d/definitions"
        assert str(vars(definitions_beside("memory:", "/x"))["_folder"]) == "/x"


def event(offset: int, body: bytes = b"{}", type: str = "tool.x") -> StoredEvent:
    return StoredEvent(offset, 0, type, body)


class TestFrames:
    def test_lines(self):
        assert Ndjson().events([event(0, b"a"), event(1, b"b")]) == b"a\nb\n"
        assert Ndjson().heartbeat(None) == b"\n"
        assert Ndjson().heartbeat(b"{}") == b"{}\n"

    def test_sse(self):
        assert Sse().events([event(3, b"{}")]) == b"id: 3\nevent: tool.x\ndata: {}\n\n"
        assert Sse(named=False).events([event(3, b"{}")]) == b"id: 3\ndata: {}\n\n"
        assert Sse().marked("t", b"{}", "c.1") == b"id: c.1\nevent: t\ndata: {}\n\n"
        assert Sse().heartbeat(None) == b"event: heartbeat\ndata: {}\n\n"

    def test_pieces_and_parts_hold_everything(self):
        data = os.urandom(500_000)
        assert b"".join(pieces(data)) == data
        assert max(map(len, pieces(data))) <= 128 * 1024
        events = [event(i, b"x" * size) for i, size in enumerate((1, 200_000, 5, 70_000, 70_000, 3))]
        found = list(parts(events))
        assert [e for part in found for e in part] == events
        assert [len(part) for part in found] == [2, 3, 1]
        assert list(parts([])) == []

    @pytest.mark.parametrize("frames", [Ndjson, Sse, lambda: Sse(False)], ids=["ndjson", "sse", "unnamed"])
    def test_the_frames_of_a_page_that_streams_share_are_made_once(self, frames):
        page = SharedPage([StoredEvent(n, 1, "custom.x", b"%d" % n * 30_000) for n in range(8)])
        first, second = encoded(page, frames()), encoded(page, frames())
        assert first is second
        assert [(list(part), data) for part, data in first] == [
            (list(part), frames().events(part)) for part in parts(page)
        ]
        other = [form for form in (Ndjson(), Sse(), Sse(False)) if form.form != frames().form]
        assert all(encoded(page, form) is not first for form in other)

    def test_the_frames_of_a_large_page_are_not_kept(self):
        page = SharedPage([StoredEvent(0, 1, "custom.x", b"x" * (2 << 20))])
        assert [len(data) for _, data in encoded(page, Ndjson())] == [(2 << 20) + 1]
        assert not page.made

    def test_places(self):
        assert parse_place(None) == (None, 0)
        assert parse_place(".3") == (None, 3)
        assert parse_place("abc.0") == ("abc", 0)
        assert parse_place("a.b.7") == ("a.b", 7)
        for text in ("abc", "abc.", "abc.x", "abc.-1", "abc.257"):
            with pytest.raises(Refusal):
                parse_place(text)


def operation() -> Operation:
    async def handler(call):
        raise NotImplementedError

    return Operation(method="GET", path="/x/{id}", handler=handler, summary="", tag="", scope=None)


async def until_shown(metrics, name):
    """What was committed is on the page a moment later."""
    for _ in range(1_000):
        if name in (await metrics.render({}))[0]:
            return
        await asyncio.sleep(0.01)
    raise AssertionError(name)


class TestMetrics:
    async def test_they_are_what_prometheus_reads(self):
        metrics = Metrics()
        for seconds in (0.0005, 0.003, 100.0):
            metrics.answered(operation(), 200, seconds)
        metrics.answered(operation(), 404, 0.0)
        metrics.streams_open, metrics.stream_events = 2, 7
        page, kind = await metrics.render({"running": 2, "paused": 0})
        assert kind == "text/plain; version=0.0.4; charset=utf-8"
        families = list(text_string_to_metric_families(page.decode()))
        found = {(s.name, *s.labels.values()): s.value for family in families for s in family.samples}
        total = "agentflow_http_requests_total"
        assert (found[total, "GET", "/x/{id}", "200"], found[total, "GET", "/x/{id}", "404"]) == (3, 1)
        (family,) = [f for f in families if f.name == "agentflow_http_request_seconds"]
        edges = {s.labels["le"]: s.value for s in family.samples if "le" in s.labels}
        assert (edges["0.001"], edges["0.005"], edges["10.0"], edges["+Inf"]) == (2, 3, 3, 4)
        assert found["agentflow_http_request_seconds_count", "GET", "/x/{id}"] == 4
        assert (found["agentflow_runs", "running"], found["agentflow_runs", "paused"]) == (2, 0)
        assert found[("agentflow_streams_open",)] == 2
        assert found[("agentflow_stream_events_total",)] == 7
        assert abs(found[("agentflow_start_time_seconds",)] - time.time()) < 60
        for name in ("stream_bytes", "streams_stalled", "runs_accepted", "runs_recovered"):
            assert found[(f"agentflow_{name}_total",)] == 0
        assert b"_created" not in page

    async def test_the_same_page_as_openmetrics(self):
        metrics = Metrics()
        metrics.answered(operation(), 200, 0.1)
        page, kind = await metrics.render({}, OPENMETRICS)
        assert kind.startswith("application/openmetrics-text; version=1.0.0")
        names = {family.name for family in openmetrics_families(page.decode())}
        assert names >= {"agentflow_http_requests", "agentflow_http_request_seconds", "agentflow_runs"}

    @pytest.mark.parametrize("media", [PLAIN, OPENMETRICS])
    async def test_names_that_documents_chose_do_not_break_the_page(self, media):
        names = ['a"b', "a\nb", "a\\nb", '{x="y"} 1', "é😀", "\u2028", "\r", "\0", "# EOF"]
        metrics, tally = Metrics(), Tally()
        metrics._registry.register(_Measured(tally))
        counter = tally.counter(Instrument("agentflow.odd", "", "Odd.", grows=True))
        for name in names:
            counter.add(1, {"gen_ai.tool.name": name})
        page, _ = await metrics.render({}, media)
        read = openmetrics_families if media == OPENMETRICS else text_string_to_metric_families
        (family,) = [family for family in read(page.decode()) if family.name == "agentflow_odd"]
        assert [s.labels for s in family.samples] == [{"gen_ai_tool_name": name} for name in names]

    async def test_two_daemons_of_one_process_count_apart(self):
        first, second = Metrics(), Metrics()
        first.answered(operation(), 200, 0.1)
        assert b"/x/{id}" not in (await second.render({}))[0]
        assert not [m for m in REGISTRY.collect() if m.name.startswith("agentflow")]

    async def test_pages_that_are_made_at_once_are_all_whole(self):
        metrics = Metrics()
        telemetry = metrics.telemetry()
        telemetry.observer("wf_1", 1, [], 0.001)
        await telemetry.start(MemoryLog())
        try:
            await until_shown(metrics, b"commit_duration")
            pages = await asyncio.gather(*[metrics.render({}) for _ in range(20)])
            assert {page.count(b"# TYPE agentflow_log_commit_duration_seconds ") for page, _ in pages} == {1}
        finally:
            await telemetry.aclose()


def emitted_codes() -> set[str]:
    """Return the codes that the source of the server gives to its problems."""
    emitters = ("Refusal", "problem_bytes", "refusal_bytes")
    found: set[str] = set()
    for path in Path(agentflow.server.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call):
                continue
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            values = node.args[:1] if name in emitters else []
            values += [keyword.value for keyword in node.keywords if keyword.arg == "problems"]
            for value in values:
                constants = (c.value for c in ast.walk(value) if isinstance(c, ast.Constant))
                found.update(c for c in constants if isinstance(c, str))  # not the bounds of a slice
    found.update(code for command in COMMANDS.values() for code in command.problems)
    return found | {code for _, code, _ in _PATH.values()}


class TestProblems:
    @pytest.mark.parametrize("code", sorted(STATUS))
    def test_every_code(self, code):
        response = problem_response(Refusal(code, "why", hint="so"), "/x")
        body = json.loads(response.body)
        assert response.status_code == body["status"] == STATUS[code][0]
        assert body["type"] == f"urn:agentflow:problem:{code}"
        assert body["title"]
        assert body["instance"] == "/x"
        assert ("retry-after" in response.headers) == (STATUS[code][0] in (429, 503))

    def test_every_code_that_the_server_emits_is_in_the_table(self):
        emitted = emitted_codes()
        assert {"malformed_request", "too_many_connections", "internal_error", "not_found"} <= emitted
        assert emitted <= set(STATUS)

    @pytest.mark.parametrize("code", ["malformed_request", "too_many_connections"])
    def test_an_answer_before_the_application_has_status_and_title_of_its_code(self, code):
        head, _, body = refusal_bytes(code, "why", b"date: now\r\n").partition(b"\r\n\r\n")
        status, title = STATUS[code]
        problem = json.loads(body)
        assert head.startswith(b"HTTP/1.1 %d " % status)
        assert (problem["status"], problem["title"], problem["code"]) == (status, title, code)
        assert f"content-length: {len(body)}".encode() in head
        assert (b"retry-after: 5" in head) == (status == 503)

    @pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
    def test_a_lack_of_descriptors_is_temporary(self, number):
        refusal = refusal_of(OSError(number, os.strerror(number)))
        assert (refusal.code, refusal.status) == ("too_many_connections", 503)

    def test_what_nobody_foresaw(self, caplog):
        refusal = refusal_of(RuntimeError("secret"))
        assert refusal.code == "internal_error"
        assert "secret" not in refusal.detail


def test_the_section_of_the_configuration(tmp_path):
    (tmp_path / "agentflow.toml").write_text(
        '[server]\nsocket = "run/s"\nlisten = ["127.0.0.1:1"]\ntokens = "t"\nmax_streams = 5\n'
    )
    found = load_config(env={"XDG_CONFIG_HOME": str(tmp_path)}, folder=tmp_path).server
    assert found.socket == str(tmp_path / "run" / "s")
    assert found.tokens == str(tmp_path / "t")
    assert (found.listen, found.max_streams) == (("127.0.0.1:1",), 5)
    (tmp_path / "agentflow.toml").write_text("[server]\nlisten = 5\n")
    with pytest.raises(ConfigurationError, match="listen"):
        load_config(env={"XDG_CONFIG_HOME": str(tmp_path)}, folder=tmp_path)
    (tmp_path / "agentflow.toml").write_text('server = "x"\n')
    with pytest.raises(ConfigurationError, match="server"):
        load_config(env={"XDG_CONFIG_HOME": str(tmp_path)}, folder=tmp_path)


TREE = Tree([("/", "root"), ("/a", "a"), ("/a/{id}", "one"), ("/a/{id}/b/{step}", "deep"), ("/a/c", "c")])


class TestRouting:
    @pytest.mark.parametrize(
        ("path", "found"),
        [
            ("/", ("root", {})),
            ("/a", ("a", {})),
            ("/a/c", ("c", {})),
            ("/a/x%2Fy", ("one", {"id": "x%2Fy"})),
            ("/a/x/b/y", ("deep", {"id": "x", "step": "y"})),
        ],
    )
    def test_found(self, path, found):
        assert TREE.find(path) == found

    @pytest.mark.parametrize(
        "path", ["/a/", "//", "/a//b/y", "/a/x/b", "/a/x/b/", "/a/x/b/y/z", "/b", "/{id}", "/a/c/b/y"]
    )
    def test_not_found(self, path):
        assert TREE.find(path) is None


async def test_mounted_in_an_application_of_the_user(tmp_path):
    """Behind a server that is not ours nothing is known of the peer: every request needs a token."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    given, secrets = tokens(boss=("admin",))
    async with Runtime(models=[echo()]) as runtime:
        app = Starlette(routes=[Mount("/flow", app=Application(runtime, tokens=given))])
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://x") as http:
            assert (await http.get("/flow/version")).status_code == 401
            http.headers["Authorization"] = f"Bearer {secrets['boss']}"
            assert (await http.get("/flow/version")).status_code == 200
            answer = await http.post("/flow/workflows?wait=10", json={"definition": ECHO, "input": "a"})
            assert answer.json()["output"] == "a!"
            assert (await http.get("/flow/nope")).json()["code"] == "not_found"
            run = answer.json()["workflow_id"]
            events = await http.get(f"/flow/workflows/{run}/events")
            assert len(events.text.splitlines()) == answer.json()["last_offset"] + 1
