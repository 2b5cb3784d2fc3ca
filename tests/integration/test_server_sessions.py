"""Browser sessions under attack: codes, cookies, and what they are worth afterwards."""

from __future__ import annotations

import asyncio
import base64
import json

import pytest

from agentflow.config import ServerConfig
from agentflow.server import sessions
from agentflow.server.access import Actor
from agentflow.server.sessions import Sessions, cookie_name
from tests.unit.server.kit import ECHO, serving, tokens

READ = frozenset({"read"})


@pytest.fixture
async def guarded(tmp_path):
    given, secrets = tokens(boss=("admin",), reader=("read",))
    async with serving(tmp_path, given=given, config=ServerConfig(require_token=True)) as served:
        yield served, secrets


async def code_of(served, secret):
    async with served.http(tcp=True, headers={"Authorization": f"Bearer {secret}"}) as http:
        return (await http.post("/session/codes")).json()["code"]


async def cookie_of(served, secret):
    """The name and value of a cookie, as the browser of that caller has it."""
    async with served.http(tcp=True) as http:
        answer = await http.post("/session", json={"token": secret})
        assert answer.status_code == 200
        [(name, value)] = answer.cookies.items()
        return name, value


def cookies(served, *pairs):
    header = "; ".join(f"{name}={value}" for name, value in pairs)
    return served.http(tcp=True, headers={"Cookie": header})


class TestCodes:
    async def test_of_many_who_send_a_code_one_gets_in(self, guarded):
        served, secrets = guarded
        code = await code_of(served, secrets["boss"])
        async with served.http(tcp=True) as http:
            answers = await asyncio.gather(*(http.post("/session", json={"code": code}) for _ in range(8)))
        assert sorted(answer.status_code for answer in answers) == [200] + [401] * 7
        assert sum("set-cookie" in answer.headers for answer in answers) == 1

    @pytest.mark.parametrize("scheme", ["https", "http"])
    async def test_the_cookie_of_a_page_behind_a_proxy_with_tls_is_never_sent_without_tls(
        self, guarded, scheme
    ):
        served, secrets = guarded
        async with served.http(tcp=True) as http:
            origin = f"{scheme}://{http.base_url.netloc.decode()}"
            answer = await http.post("/session", json={"token": secrets["boss"]}, headers={"Origin": origin})
        assert answer.status_code == 200
        assert ("Secure" in answer.headers["set-cookie"].split("; ")) == (scheme == "https")

    @pytest.mark.parametrize("code", ["", "x", "A" * 32, "é", "\x00", "../", "a" * 100_000])
    async def test_guesses_are_refused(self, guarded, code):
        served, secrets = guarded
        await code_of(served, secrets["boss"])
        async with served.http(tcp=True) as http:
            answer = await http.post("/session", json={"code": code})
            assert answer.status_code == (400 if len(code) > 1_000 else 401)
            assert "set-cookie" not in answer.headers

    @pytest.mark.parametrize("body", [{}, {"code": None}, {"code": ["x"]}, {"code": "x", "token": "y"}, []])
    async def test_bodies_that_are_none(self, guarded, body):
        served, _ = guarded
        async with served.http(tcp=True) as http:
            assert (await http.post("/session", json=body)).status_code == 400

    def test_a_code_is_worth_nothing_after_five_minutes(self, monkeypatch):
        given, _ = tokens()
        kept = Sessions(given)
        late, early = kept.issue_code(Actor("a", READ)), kept.issue_code(Actor("a", READ))
        now = sessions.time.monotonic()
        monkeypatch.setattr(sessions.time, "monotonic", lambda: now + 299)
        assert kept.redeem(early).name == "a"
        monkeypatch.setattr(sessions.time, "monotonic", lambda: now + 301)
        with pytest.raises(Exception, match="too old"):
            kept.redeem(late)

    async def test_a_session_has_no_more_scopes_than_who_made_its_code(self, guarded):
        served, secrets = guarded
        async with served.http(tcp=True) as http:
            origin = {"Origin": served.tcp_url}
            code = await code_of(served, secrets["reader"])
            assert (await http.post("/session", json={"code": code})).json()["scopes"] == ["read"]
            # Nor has a session that was begun by a code of that session.
            again = (await http.post("/session/codes", headers=origin)).json()["code"]
            assert (await http.post("/session", json={"code": again})).json()["scopes"] == ["read"]
            refused = await http.post("/workflows", json={"definition": ECHO}, headers=origin)
            assert refused.status_code == 403


class TestCookies:
    async def test_one_that_was_changed_or_made_up_is_none(self, guarded):
        served, secrets = guarded
        name, value = await cookie_of(served, secrets["reader"])
        body, _, signature = value.rpartition(".")
        claims = json.loads(base64.urlsafe_b64decode(body + "=" * (-len(body) % 4)))

        def signed(changed, key=signature):
            text = base64.urlsafe_b64encode(json.dumps(changed).encode()).rstrip(b"=").decode()
            return f"{text}.{key}"

        forged = [
            signed([*claims[:2], ["admin", "approve", "read", "run"], *claims[3:]]),
            signed([*claims[:5], None]),  # of no token
            signed([*claims[:5], "boss"]),
            signed([*claims[:4], claims[4] * 2, claims[5]]),
            f"{body}.",
            body,
            f".{signature}",
            f"{body}.{signature[:-1]}",
            "é",
            "",
        ]
        for one in forged:
            async with served.http(tcp=True, headers=[(b"Cookie", f"{name}={one}".encode())]) as http:
                assert (await http.get("/workflows")).status_code == 401, one
        async with cookies(served, (name, value)) as http:
            assert (await http.get("/workflows")).status_code == 200

    async def test_the_cookie_of_another_port_is_none(self, guarded, tmp_path):
        """Browsers send the cookies of a host to all its ports."""
        served, secrets = guarded
        name, value = await cookie_of(served, secrets["boss"])
        assert name == cookie_name(served.port)
        (tmp_path / "other").mkdir()
        given, _ = tokens(boss=("admin",))
        config = ServerConfig(require_token=True)
        async with (
            serving(tmp_path / "other", given=given, config=config) as other,
            cookies(other, (name, value)) as http,
        ):
            assert (await http.get("/workflows")).status_code == 401
        async with cookies(served, ("agentflow_session_1", "x"), (name, value), ("z", "")) as http:
            assert (await http.get("/workflows")).status_code == 200
            assert (await http.get("/workflows", headers={"Host": "evil.example"})).status_code == 403

    async def test_one_that_a_page_on_another_port_has_set_for_a_longer_path_counts_for_nothing(
        self, guarded
    ):
        """Browsers send the cookie of the longest path first."""
        served, secrets = guarded
        name, boss = await cookie_of(served, secrets["boss"])
        _, reader = await cookie_of(served, secrets["reader"])
        planted = [(name, "garbage")] * 5
        async with cookies(served, *planted, (name, boss)) as http:
            assert (await http.get("/workflows")).status_code == 200
        async with cookies(served, (name, reader), *planted, (name, boss)) as http:
            assert (await http.get("/session")).json()["actor"] == "boss"
        async with cookies(served, *planted) as http:
            assert (await http.get("/workflows")).status_code == 401

    async def test_commands_say_from_which_page_they_come(self, guarded):
        served, secrets = guarded
        name, value = await cookie_of(served, secrets["boss"])
        async with cookies(served, (name, value)) as http:
            for fields, status in (
                ({}, 403),
                ({"Origin": "null"}, 403),
                ({"Origin": "http://127.0.0.1:1"}, 403),
                ({"Origin": f"http://localhost:{served.port}"}, 403),
                ({"Origin": served.tcp_url, "Sec-Fetch-Site": "same-site"}, 403),
                ({"Origin": served.tcp_url, "Sec-Fetch-Site": "same-origin"}, 201),
            ):
                answer = await http.post(
                    "/workflows", json={"definition": ECHO, "input": "x"}, headers=fields
                )
                assert answer.status_code == status, fields
            # Reading is refused to pages of other origins too, whatever they load it as.
            for mode, dest in (
                ("no-cors", "script"),
                ("no-cors", "image"),
                ("cors", "empty"),
                ("navigate", "iframe"),
            ):
                fields = {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": mode, "Sec-Fetch-Dest": dest}
                for path in ("/workflows", "/events?follow=false", "/blobs/" + "0" * 64, "/ui/"):
                    assert (await http.get(path, headers=fields)).status_code == 403, (path, fields)

    async def test_it_ends_with_the_session_its_time_and_its_token(self, monkeypatch):
        given, _ = tokens(boss=("admin",))
        kept = Sessions(given, trust_all=True)
        actor = Actor("boss", given.named("boss").scopes, True, "boss")
        value = kept.make_cookie(actor)
        assert kept.read_cookie(value) == actor
        assert Sessions(given, trust_all=True).read_cookie(value) == actor  # it outlives the process
        # Started again with less trust, fewer scopes, another secret, or without the token:
        assert Sessions(given).read_cookie(value).trusted is False
        assert Sessions(tokens(boss=("run",))[0]).read_cookie(value).scopes == {"read", "run"}
        other = tokens(boss=("admin",), other=("admin",))[0]
        other._tokens = tuple(type(t)("boss", t.scopes, t.digest) for t in other._tokens if t.name == "other")
        assert Sessions(other).read_cookie(value) is None
        assert Sessions(tokens()[0]).read_cookie(value) is None
        local = kept.make_cookie(Actor("local", READ))
        assert kept.read_cookie(local).name == "local"
        assert Sessions(given).read_cookie(local) is None  # of no token: it ends with the process
        kept.end(value)
        assert kept.read_cookie(value) is None
        now = sessions.time.time()
        monkeypatch.setattr(sessions.time, "time", lambda: now + sessions.SESSION_S + 1)
        assert kept.read_cookie(local) is None
