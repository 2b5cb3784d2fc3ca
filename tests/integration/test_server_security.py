"""Who may do what, and what no request may do (page 000 §8.3): over real sockets, with raw bytes where a
client library would be too polite."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os

import httpx
import pytest

from agentflow.config import ServerConfig
from agentflow.events.envelope import decode
from agentflow.server.limits import Limits
from tests.unit.server.kit import APPROVAL, ECHO, serving, tokens


@pytest.fixture
async def served(tmp_path):
    async with serving(tmp_path) as found:
        yield found


async def raw(served, data: bytes, *, tcp: bool = True) -> tuple[int, bytes]:
    """Send bytes, read to the end of the connection: the first status and everything."""
    if tcp:
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    else:
        reader, writer = await asyncio.open_unix_connection(str(served.socket))
    writer.write(data)
    answer = b""
    try:
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionResetError):
                while chunk := await reader.read(65_536):
                    answer += chunk
    finally:
        writer.close()
        with contextlib.suppress(ConnectionResetError):
            await writer.wait_closed()
    return (int(answer.split(b" ", 2)[1]) if answer else 0), answer


def get(path="/version", *headers: str, version="1.1") -> bytes:
    lines = [f"GET {path} HTTP/{version}", *headers, "Connection: close", "", ""]
    return "\r\n".join(lines).encode("latin-1")


class TestHost:
    @pytest.mark.parametrize(
        "host", ["127.0.0.1", "localhost", "LOCALHOST", "localhost.", "127.0.0.1:8700", "[::1]", "[::1]:80"]
    )
    async def test_names_of_loopback(self, served, host):
        assert (await raw(served, get("/version", f"Host: {host}")))[0] == 200

    @pytest.mark.parametrize(
        "host",
        [
            "evil.example",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "127.0.0.1:x",
            "localhost:80:80",
            "[::1",
            "[::1]x",
            "[::2]",
            "127.0.0.2",
            "0.0.0.0",
            "",
            "user@localhost",
            "localhost/..",
        ],
    )
    async def test_other_names_are_refused(self, served, host):
        status, answer = await raw(served, get("/version", f"Host: {host}"))
        assert status in (400, 403), answer
        assert b"host_not_allowed" in answer or b"malformed_request" in answer

    async def test_a_listed_name(self, tmp_path):
        async with serving(tmp_path, config=ServerConfig(hosts=("flow.example",))) as served:
            assert (await raw(served, get("/version", "Host: Flow.Example:80")))[0] == 200
            assert (await raw(served, get("/version", "Host: evil.example")))[0] == 403

    async def test_a_socket_goes_by_any_name(self, served):
        assert (await raw(served, get("/version", "Host: anything"), tcp=False))[0] == 200

    async def test_none_and_two(self, served):
        assert (await raw(served, get("/version")))[0] == 400
        assert (await raw(served, get("/version", "Host: localhost", "Host: evil.example")))[0] == 400


class TestOrigin:
    @pytest.mark.parametrize(
        "origin",
        [
            "http://evil.example",
            "https://evil.example",
            "null",
            "http://localhost:3000",
            "file://",
            "http://localhost.evil.example",
            "http://127.0.0.1@evil.example",
            "chrome-extension://abc",
            "",
        ],
    )
    @pytest.mark.parametrize("tcp", [True, False])
    async def test_pages_of_others_are_refused(self, served, origin, tcp):
        for method in ("GET", "POST", "DELETE", "OPTIONS"):
            data = get("/workflows", "Host: localhost:80", f"Origin: {origin}").replace(
                b"GET", method.encode(), 1
            )
            status, answer = await raw(served, data, tcp=tcp)
            assert status == 403, answer
            assert b"access-control" not in answer.lower()

    async def test_the_own_page_is_not(self, served):
        host = f"127.0.0.1:{served.port}"
        assert (await raw(served, get("/version", f"Host: {host}", f"Origin: http://{host}")))[0] == 200
        assert (await raw(served, get("/version", "Host: localhost", "Origin: http://localhost:80")))[
            0
        ] == 200

    async def test_a_form_of_a_page_cannot_submit(self, served):
        async with served.http(tcp=True) as http:
            answer = await http.post("/workflows", data={"definition": json.dumps(ECHO)})
            assert answer.status_code == 415


class TestFetchMetadata:
    """What a browser says of the page that made a request (daemon D10)."""

    @pytest.mark.parametrize("tcp", [True, False], ids=["tcp", "unix"])
    @pytest.mark.parametrize(
        "fields",
        [
            ("Sec-Fetch-Site: cross-site",),
            ("Sec-Fetch-Site: CROSS-SITE",),
            ("Sec-Fetch-Site: same-site",),
            ("Sec-Fetch-Site: something-new",),
            ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors", "Sec-Fetch-Dest: image"),
            ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: iframe"),
        ],
        ids=lambda fields: ", ".join(fields),
    )
    async def test_pages_of_others_are_refused(self, served, fields, tcp):
        for path in ("/version", "/healthz"):
            status, answer = await raw(served, get(path, "Host: localhost", *fields), tcp=tcp)
            assert (status, b'"forbidden"' in answer) == (403, True), answer

    @pytest.mark.parametrize(
        "fields",
        [
            ("Sec-Fetch-Site: same-origin",),
            ("Sec-Fetch-Site: none",),
            ("Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: navigate", "Sec-Fetch-Dest: document"),
        ],
        ids=lambda fields: ", ".join(fields),
    )
    async def test_the_own_page_and_links_are_not(self, served, fields):
        assert (await raw(served, get("/version", "Host: localhost", *fields)))[0] == 200

    async def test_a_form_that_navigates_is_refused(self, served):
        fields = b"Sec-Fetch-Site: cross-site\r\nSec-Fetch-Mode: navigate\r\nSec-Fetch-Dest: document\r\n"
        data = b"POST /admin/drain HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + fields + b"\r\n"
        assert (await raw(served, data))[0] == 403

    @pytest.mark.parametrize(
        "data",
        [
            get("/version", "Host: localhost"),
            get("/none", "Host: localhost"),
            get("/version", "Host: evil.example"),
            get("/version"),
            b"rubbish\r\n\r\n",
        ],
        ids=["200", "404", "403", "400", "no HTTP"],
    )
    async def test_no_page_of_others_may_embed_an_answer(self, served, data):
        _, answer = await raw(served, data)
        assert b"\r\ncross-origin-resource-policy: same-origin\r\n" in answer
        assert b"\r\nx-content-type-options: nosniff\r\n" in answer


class TestEncodings:
    """A compressed body is refused before it is read (daemon D10)."""

    @pytest.mark.parametrize("encoding", ["gzip", "GZIP", "deflate", "br", "identity, gzip", "zstd"])
    @pytest.mark.parametrize(
        "path", ["/workflows", "/validate", "/definitions", "/workflows/wf_none/cancel", "/admin/gc"]
    )
    async def test_compressed_bodies(self, served, path, encoding):
        async with served.http() as http:
            headers = {"content-type": "application/json", "content-encoding": encoding}
            answer = await http.post(path, content=b"{}", headers=headers)
            assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
            assert answer.headers["accept-encoding"] == "identity"

    async def test_identity(self, served):
        async with served.http() as http:
            answer = await http.post(
                "/workflows", json={"definition": ECHO}, headers={"content-encoding": "Identity"}
            )
            assert answer.status_code == 201


class TestTokens:
    @pytest.fixture
    async def guarded(self, tmp_path):
        given, secrets = tokens(reader=("read",), runner=("run",), approver=("approve",), boss=("admin",))
        async with serving(tmp_path, given=given, config=ServerConfig(require_token=True)) as served:
            yield served, secrets

    async def test_without_a_token(self, guarded):
        served, _ = guarded
        async with served.http(tcp=True) as http:
            for path in ("/", "/workflows", "/openapi.json", "/metrics", "/readyz", "/nope"):
                answer = await http.get(path)
                assert (answer.status_code, answer.json()["code"]) == (401, "unauthorized")
                assert answer.headers["www-authenticate"] == "Bearer"
            assert (await http.get("/healthz")).status_code == 200

    @pytest.mark.parametrize(
        "value",
        [
            "Bearer wrong-0123456789abcdefghijklmnopqrstuvwxyz",
            "Bearer",
            "Bearer ",
            "Basic cmVhZGVyOng=",
            "reader-0123456789abcdefghijklmnopqrstuvwxyz",
            "Bearer READER-0123456789abcdefghijklmnopqrstuvwxyz",
            "Bearer reader-0123456789abcdefghijklmnopqrstuvwxy",
            "Bearer \xff\xfe",
        ],
    )
    async def test_wrong_ones(self, guarded, value):
        served, _ = guarded
        head = ["Host: localhost", f"Authorization: {value}"]
        assert (await raw(served, get("/version", *head)))[0] == 401
        assert (await raw(served, get("/version", *head), tcp=False))[0] == 401

    async def test_two_are_none(self, guarded):
        served, secrets = guarded
        head = [f"Authorization: Bearer {secrets['boss']}"] * 2
        assert (await raw(served, get("/version", "Host: localhost", *head)))[0] == 400

    async def test_a_token_in_the_query_is_nothing(self, guarded):
        served, secrets = guarded
        async with served.http(tcp=True) as http:
            for name in ("token", "access_token"):
                assert (await http.get("/version", params={name: secrets["boss"]})).status_code == 401

    async def test_scopes(self, guarded):
        served, secrets = guarded

        def http(name):
            return served.http(tcp=True, headers={"Authorization": f"Bearer {secrets[name]}"})

        async with http("runner") as runner, http("reader") as reader, http("approver") as approver:
            record = (await runner.post("/workflows?wait=5", json={"definition": APPROVAL})).json()
            path = f"/workflows/{record['workflow_id']}"
            for client in (runner, reader, approver):
                assert (await client.get(path)).status_code == 200
            for client in (reader, approver):
                for command in ("cancel", "pause", "resume"):
                    answer = await client.post(f"{path}/{command}")
                    assert (answer.status_code, answer.json()["code"]) == (403, "forbidden")
                assert (await client.post("/workflows", json={"definition": ECHO})).status_code == 403
                assert (await client.post("/validate", json={"definition": ECHO})).status_code == 403
            decision = {"step_id": "ask", "decision": "grant"}
            for client in (reader, runner):
                assert (await client.post(f"{path}/approvals", json=decision)).status_code == 403
            assert (await approver.post(f"{path}/approvals", json=decision)).status_code == 200
            async with served.client(tcp=True, token=secrets["reader"]) as client:
                await client.rest(record["workflow_id"])
            for client in (reader, runner, approver):
                assert (await client.delete(path)).status_code == 403
                assert (await client.post("/admin/drain")).status_code == 403
        async with http("boss") as boss:
            rows = await served.runtime.log.read(record["workflow_id"])
            found = {event.type: event.data for event in (decode(row.body) for row in rows)}
            assert found["workflow.started"].by == "runner"
            assert found["approval.granted"].by == "approver"
            assert (await boss.delete(path)).status_code == 204

    async def test_another_address_always_wants_one(self, tmp_path):
        given, secrets = tokens(boss=("admin",))
        async with serving(tmp_path, given=given, kind="remote") as served:
            assert (await raw(served, get("/version", "Host: anything")))[0] == 401
            head = ["Host: anything", f"Authorization: Bearer {secrets['boss']}"]
            assert (await raw(served, get("/version", *head)))[0] == 200
            assert (await raw(served, get("/version", "Host: x"), tcp=False))[0] == 200

    async def test_no_secret_reaches_an_answer_or_a_log(self, guarded, caplog):
        served, secrets = guarded
        caplog.set_level("DEBUG")
        head = {"Authorization": f"Bearer {secrets['boss']}x"}
        async with served.http(tcp=True, headers=head) as http:
            answer = await http.get("/version")
        assert secrets["boss"] not in answer.text
        ours = [r for r in caplog.records if not r.name.startswith(("httpx", "httpcore"))]
        assert all(secrets["boss"] not in str(record.__dict__) for record in ours)


SNEAKY = {
    "agents": [{"name": "a", "system_prompt": "x", "model": "scripted:m", "tools": ["sneaky.go"]}],
    "services": {"sneaky": {"type": "python", "module": "sneaky_module"}},
}


class TestTrust:
    @pytest.fixture
    def module(self, tmp_path):
        folder = tmp_path / "code"
        folder.mkdir()
        (folder / "sneaky_module.py").write_text(
            "from pathlib import Path\n"
            "from agentflow import function\n"
            "Path(__file__).with_name('imported').touch()\n"
            "@function(side_effect='read')\n"
            "def go() -> dict:\n"
            "    '''Goes.'''\n"
            "    return {}\n"
        )
        return folder

    @pytest.mark.parametrize("path", ["/workflows", "/validate"])
    async def test_code_of_this_machine_is_not_for_everybody(self, served, module, path):
        async with served.http(tcp=True) as http:
            answer = await http.post(path, json={"definition": SNEAKY, "folder": str(module)})
        codes = {d["code"] for d in answer.json()["diagnostics"]}
        assert "E_SERVICE_DENIED" in codes
        assert not (module / "imported").exists()

    async def test_the_owner_of_the_socket_may(self, served, module):
        async with served.http() as http:
            answer = await http.post("/validate", json={"definition": SNEAKY, "folder": str(module)})
        assert answer.json()["valid"], answer.text
        assert (module / "imported").exists()

    async def test_so_may_everybody_where_the_daemon_says_so(self, tmp_path, module):
        config = ServerConfig(trust_submitted_services=True)
        async with serving(tmp_path, config=config) as served, served.http(tcp=True) as http:
            answer = await http.post("/validate", json={"definition": SNEAKY, "folder": str(module)})
            assert answer.json()["valid"], answer.text

    async def test_addresses_of_this_network_are_not_for_everybody(self, served):
        document = {
            "agents": [{"name": "a", "system_prompt": "x", "model": "scripted:m", "tools": ["web.look"]}],
            "services": {
                "web": {
                    "type": "http",
                    "base_url": "http://169.254.169.254",
                    "functions": {"look": {"method": "GET", "path": "/"}},
                }
            },
        }
        async with served.http(tcp=True) as http:
            answer = (await http.post("/validate", json={"definition": document})).json()
        assert "E_SERVICE_DENIED" in {d["code"] for d in answer["diagnostics"]}, answer


class TestBytes:
    """What is no HTTP, or HTTP that two readers may read differently."""

    @pytest.mark.parametrize(
        "data",
        [
            b"\x00\x01\x02\r\n\r\n",
            b"GET\r\n\r\n",
            b"GET /version\r\nHost: localhost\r\n\r\n",
            b"GET /version HTTP/9.9\r\nHost: localhost\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 64,
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET /version HTTP/1.1\r\nHost: localhost\r\nno colon\r\n\r\n",
            b"GET /version HTTP/1.1\r\nHost: localhost\r\n folded: x\r\n\r\n",
            b"GET /version HTTP/1.1\r\nHost : localhost\r\n\r\n",
            b"GET /version HTTP/1.1\r\nHost: localhost\r\nX: a\x00b\r\n\r\n",
            b"GET /version HTTP/1.1\nHost: localhost\rX: y\n\n",
        ],
    )
    async def test_what_is_not_http(self, served, data):
        status, answer = await raw(served, data)
        assert status in (0, 400), answer
        if status:
            assert b"application/problem+json" in answer

    SMUGGLED = b"GET /admin HTTP/1.1\r\nHost: localhost\r\n\r\n"

    @pytest.mark.parametrize(
        "framing",
        [
            b"Content-Length: 5\r\nTransfer-Encoding: chunked",
            b"Transfer-Encoding: chunked\r\nContent-Length: 5",
            b"Content-Length: 5\r\nContent-Length: 6",
            b"Content-Length: -1",
            b"Content-Length: +5",
            b"Content-Length: 0x5",
            b"Content-Length: 5 5",
            b"Content-Length: 99999999999999999999999",
            b"Transfer-Encoding: xchunked",
            b"Transfer-Encoding: chunked, identity",
            b"Transfer-Encoding: \x0bchunked",
            b"Transfer-Encoding : chunked",
            b"Transfer-Encoding: chunked\r\nTransfer-Encoding: identity",
        ],
    )
    async def test_two_requests_in_one(self, served, framing):
        head = b"POST /workflows HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        _, answer = await raw(served, head + framing + b"\r\n\r\n0\r\n\r\n" + self.SMUGGLED)
        assert answer.count(b"HTTP/1.1 ") == 1, answer
        assert answer.startswith((b"HTTP/1.1 400", b"HTTP/1.1 413")), answer

    @pytest.mark.parametrize("chunk", [b"zz\r\n", b"-1\r\n", b"ffffffffffffffffff\r\n", b"5\r\nhello5\r\n"])
    async def test_chunks_that_are_none(self, served, chunk):
        head = b"POST /workflows HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        _, answer = await raw(
            served, head + b"Transfer-Encoding: chunked\r\n\r\n" + chunk + b"0\r\n\r\n" + self.SMUGGLED
        )
        assert answer.count(b"HTTP/1.1 ") <= 1, answer

    async def test_a_head_without_end(self, served):
        many = b"".join(b"X-%d: y\r\n" % i for i in range(20_000))
        for data in (
            b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 200_000,
            b"GET /" + b"a" * 200_000,
            b"GET / HTTP/1.1\r\nHost: localhost\r\n" + many + b"\r\n",
        ):
            status, _ = await raw(served, data)
            assert status in (0, 400)  # cut off; the answer is lost when the rest was still on its way

    async def test_a_large_body_is_answered_before_the_connection_ends(self, served):
        async with served.http(tcp=True) as http:
            for size in (9 << 20, 40 << 20):
                headers = {"content-type": "application/json"}
                answer = await http.post("/workflows", content=b"x" * size, headers=headers)
                assert answer.status_code == 413
            assert (await http.get("/version")).status_code == 200

    async def test_a_body_without_end_is_cut_off(self, served):
        served.server.limits = Limits(linger_s=0.3)

        async def endless():
            while True:
                yield b" " * 65_536
                await asyncio.sleep(0)

        async with served.http(tcp=True) as http:
            with contextlib.suppress(httpx.HTTPError):
                await http.post("/workflows", content=endless(), headers={"content-type": "application/json"})
            assert (await http.get("/version")).status_code == 200

    async def test_a_head_that_never_ends_is_given_up(self, served):
        served.server.limits = Limits(head_s=0.2, body_silence_s=0.2)
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(b"GET /version HTTP/1.1\r\n")
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        await writer.wait_closed()

    async def test_a_body_that_never_comes_is_given_up(self, served):
        served.server.limits = Limits(head_s=0.2, body_silence_s=0.2)
        reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            b"POST /workflows HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        try:
            with contextlib.suppress(ConnectionResetError):
                assert await asyncio.wait_for(reader.read(), 5) == b""
        finally:
            writer.close()

    async def test_a_client_that_leaves_in_its_body(self, served, caplog):
        _, writer = await asyncio.open_connection("127.0.0.1", served.port)
        writer.write(
            b"POST /workflows HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 9\r\n\r\n{"
        )
        await writer.drain()
        writer.close()
        await writer.wait_closed()
        async with served.http(tcp=True) as http:
            assert (await http.get("/version")).status_code == 200
        assert not [r for r in caplog.records if r.levelname == "ERROR"]

    async def test_requests_in_a_row_on_one_connection(self, served):
        one = b"GET /version HTTP/1.1\r\nHost: localhost\r\n\r\n"
        _, answer = await raw(served, one * 4 + get("/version", "Host: localhost"))
        assert answer.count(b"HTTP/1.1 200") == 5


class TestPaths:
    @pytest.mark.parametrize(
        "path",
        [
            "/workflows/../healthz",
            "/workflows/%2e%2e/healthz",
            "/workflows/..%2f..%2fetc%2fpasswd",
            "/blobs/..%2f..%2fetc%2fpasswd",
            "/schemas/..%2fir.py",
            "/schemas/%2fetc%2fpasswd",
            "/definitions/..",
            "/definitions/%00",
            "/workflows/wf_a%0d%0aX:y",
            "/%",
            "/%zz",
            "/\\..\\",
            "//evil.example/",
            "/workflows/wf_é",
        ],
    )
    async def test_names_that_want_to_lead_elsewhere(self, served, path):
        status, answer = await raw(served, get(path, "Host: localhost"))
        assert status in (400, 404), answer
        assert b"root:" not in answer

    async def test_a_whole_url_and_a_star(self, served):
        status, _ = await raw(served, get("http://evil.example/version", "Host: localhost"))
        assert status in (200, 400, 404)
        status, _ = await raw(served, b"OPTIONS * HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert status in (400, 404, 405)

    async def test_definitions_stay_in_their_folder(self, tmp_path):
        async with serving(tmp_path, store=f"sqlite:{tmp_path / 'runs.db'}") as served, served.http() as http:
            for name in ("../x", "..", ".", "a/b", "/etc/x", "", "a\u0000", "x" * 200, "-x", ".hidden"):
                body = {"definition": ECHO, "name": name, "version": "1"}
                assert (await http.post("/definitions", json=body)).status_code == 400
                body = {"definition": ECHO, "name": "x", "version": name}
                assert (await http.post("/definitions", json=body)).status_code == 400
            assert not list(tmp_path.glob("runs.db.definitions/**/*.json"))


class TestSockets:
    async def test_modes(self, served):
        assert served.socket.stat().st_mode & 0o777 == 0o600
        assert os.umask(os.umask(0o22)) is not None
