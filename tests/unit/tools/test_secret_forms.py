"""Every form in which a known secret may be quoted is hidden, and nothing else (daemon D9)."""

from __future__ import annotations

import base64
import html
import json
import random
import re
import string
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, quote_plus

import pytest

from agentflow.definition.failure import ErrorInfo
from agentflow.definition.redaction import masker
from agentflow.known_secrets import KnownSecrets, hide_error, url_secrets
from agentflow.tools.secrets import Values

SECRETS = {
    "key": "sk-proj-4f9aQ2x7LmZt",
    "token68": "ab+/cd-_EF.~gh==",
    "passphrase": "correct horse battery",
    "quotes": 'it\'s "quoted" & <tagged>',
    "backslashes": "C:\\dir\\\\share",
    "unicode": "schlüssel-✓-😀",
    "lines": "-----BEGIN KEY-----\nMIIE+/abc\nZZ9=\n-----END KEY-----",
    "query": "a=1&b=2%20c",
    "short": "q7Xz",
    "user and password": "user:p@ss/w0rd",
}

ESCAPES: dict[str, Callable[[str], str]] = {
    "plain": str,
    "quote": quote,
    "quote all": lambda s: quote(s, safe=""),
    "quote_plus": quote_plus,
    "lower hex": lambda s: "".join(
        c if c.isalnum() and c.isascii() else quote(c, safe="").lower() for c in s
    ),
    "quoted twice": lambda s: quote(quote(s, safe=""), safe=""),
    "json": lambda s: json.dumps(s)[1:-1],
    "json in json": lambda s: json.dumps(json.dumps(s))[3:-3],
    "json unescaped": lambda s: json.dumps(s, ensure_ascii=False)[1:-1],
    "json slashes": lambda s: json.dumps(s)[1:-1].replace("/", "\\/"),
    "repr": lambda s: repr(s)[1:-1],
    "repr of bytes": lambda s: repr(s.encode())[2:-1],
    "html": html.escape,
    "one line": lambda s: " ".join(s.split()),
    "hex": lambda s: s.encode().hex(),
    "HEX": lambda s: s.encode().hex().upper(),
}

BASE64: dict[str, Callable[[bytes], str]] = {
    "standard": lambda b: base64.b64encode(b).decode(),
    "without padding": lambda b: base64.b64encode(b).decode().rstrip("="),
    "url-safe": lambda b: base64.urlsafe_b64encode(b).decode(),
    "url-safe without padding": lambda b: base64.urlsafe_b64encode(b).decode().rstrip("="),
    "quoted": lambda b: quote(base64.b64encode(b).decode(), safe=""),
    "json slashes": lambda b: base64.b64encode(b).decode().replace("/", "\\/"),
}

WRAPPED: dict[str, Callable[[bytes], str]] = {
    "mime": lambda b: base64.encodebytes(b).decode(),
    "crlf": lambda b: base64.encodebytes(b).decode().replace("\n", "\r\n"),
    "one line": lambda b: base64.encodebytes(b).decode().replace("\n", " "),
    "json": lambda b: json.dumps(base64.encodebytes(b).decode()),
    "pem": lambda b: "\n".join(re.findall(".{1,64}", base64.b64encode(b).decode())),
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
def test_base64_in_several_lines(wrap: Callable[[bytes], str]) -> None:
    random_ = random.Random(4)
    for length in (20, 60, 164, 400):
        secret = "sk-" + "".join(random_.choices(string.ascii_letters + string.digits + "-_", k=length))
        hide = masker([secret])
        for before in range(0, 80, 3):
            found = hide(wrap(b"u" * before + secret.encode() + b"z" * 50))
            head, tail = (len(re.findall("[A-Za-z0-9]", half)) for half in found.split("***"))
            # What is left belongs to the neighbours; of an escaped line break one letter each 76 characters.
            assert head <= 4 * (before // 3 + 1) + before // 50 + 1
            assert tail <= 4 * 18 + 3


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize("escape", ESCAPES.values(), ids=ESCAPES)
def test_escapes(escape: Callable[[str], str], secret: str) -> None:
    hide = masker([secret])
    for before, after in (("", ""), ("key=", "&x=1"), ("{", "}"), ("said: ", " is wrong")):
        assert hide(before + escape(secret) + after) == f"{before}***{after}"


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
@pytest.mark.parametrize("encode", BASE64.values(), ids=BASE64)
def test_base64_at_any_place_of_a_longer_text(encode: Callable[[bytes], str], secret: str) -> None:
    """`Basic base64(user:secret)` and its like: of the secret no 3 characters are left to decode."""
    hide = masker([secret])
    data = secret.encode()
    for before in range(7):
        for after in range(4):
            text = encode(b"u" * before + data + b"z" * after)
            found = hide(f"Basic {text} refused")
            assert "***" in found, (before, after, text)
            left = found.removeprefix("Basic ").removesuffix(" refused").split("***")
            assert len(left) == 2
            head, tail = left
            # What is left of the text belongs to its neighbours, but at most for bits of one character.
            assert len(head) <= len(encode(b"u" * before).replace("%3D", "").rstrip("="))
            assert len(tail.replace("%3D", "").rstrip("=")) <= -(-8 * after // 6) + 1


@pytest.mark.parametrize("secret", SECRETS.values(), ids=SECRETS)
def test_base64_of_what_holds_the_secret(secret: str) -> None:
    """The payload of a web token is base64 of JSON, a session cookie often base64 of a form."""
    hide = masker([secret])
    for text in (json.dumps({"token": secret, "n": 1}), f"x=0&token={quote(secret, safe='')}&b=2"):
        for before in range(3):
            found = hide(base64.urlsafe_b64encode(b"x" * before + text.encode()).decode())
            assert len(found.split("***")) == 2
            left = base64.urlsafe_b64decode(found.split("***")[0].ljust(400, "A"))
            assert secret[:4].encode() not in left


def test_forms_of_random_secrets() -> None:
    random_ = random.Random(9)
    for _ in range(100):
        secret = "".join(random_.choices(string.printable.strip(), k=random_.randint(4, 60)))
        hide = masker([secret])
        for name, escape in ESCAPES.items():
            text = f"<{escape(secret)}>"
            assert secret not in hide(text), (name, secret)
            assert "***" in hide(text), (name, secret)
        for name, encode in BASE64.items():
            before = random_.randbytes(random_.randint(0, 9))
            assert "***" in hide(encode(before + secret.encode())), (name, secret)


def test_other_texts_stay_as_they_are() -> None:
    hide = masker(SECRETS.values())
    random_ = random.Random(1)
    for _ in range(200):
        text = "".join(random_.choices(string.printable, k=200))
        assert hide(text) is text


@pytest.mark.parametrize("secret", ["", "a", "abc", "    ", "\n\n\n\n", " ab ", "Bearer"[:3]])
def test_less_than_four_characters_are_no_secret(secret: str) -> None:
    text = "an abc of a text    with blanks\n\n\n\n and Bearer"
    assert masker([secret])(text) is text


def test_parts_of_a_basic_credential() -> None:
    """The header of a service may be written whole: then user and password are secrets in the clear too."""
    hide = masker(["Basic " + base64.b64encode(b"joe:hunter22").decode()])
    assert hide("joe:hunter22 or hunter22, " + base64.b64encode(b"hunter22").decode()) == "*** or ***, ***"


HOSTILE = {
    "backslashes": "\\",
    "percent": "%",
    "percent twice": "%25",
    "pluses": "+",
    "blanks": " ",
    "line breaks": "\\n ",
    "pluses and blanks": "+ ",
    "entities": "&#0000",
    "escapes": "a\\",
    "slashes": "/\\",
    "escaped slashes": "\\/",
    "quotes": '\\"',
    "form": "%0A+",
    "quoted slashes": "%2F/",
    "dashes": "-",
    "letters": "A",
    "padding": "=%3D",
}


@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE)
def test_hostile_texts_and_secrets_cost_linear_time(unit: str) -> None:
    """A server chooses the text. 20,000 characters take some milliseconds, 70 with a secret that is made for
    it; the limit leaves room for a slow machine, and is far below what backtracking would take."""
    text = unit * (20_000 // len(unit))
    for other in (*HOSTILE.values(), "\\ ", "% ", "\\\\ %"):
        hide = masker([other * 20 + "!"])
        began = time.process_time()
        hide(text)
        assert time.process_time() - began < 1, other


def test_a_header_of_the_document_costs_linear_time() -> None:
    """An untrusted client writes the header and runs the server that answers."""
    values = Values({"Authorization": "A" * 4_000 + "!", "X-Token": "+ " * 2_000})
    began = time.process_time()
    values.mask(["A" * (1 << 20), "+" * (1 << 20)])
    assert time.process_time() - began < 1


def test_a_long_secret_is_recognised_in_time() -> None:
    secret = base64.b64encode(random.Random(2).randbytes(3_000)).decode()
    began = time.process_time()
    hide = masker([secret, secret * 4])
    assert hide(f"x {secret} y {base64.b64encode(secret.encode()).decode()}") == "x *** y ***"
    assert hide(secret * 4) == "***"
    assert time.process_time() - began < 2


def test_hiding_never_raises() -> None:
    """It stands in the path of errors: whatever is in the environment, and whatever is to be told."""
    random_ = random.Random(6)
    alphabet = "a%\\+ =/@:&?#[](){}*^$|.-_'\"\n\t\0\x7f\udcff\ud800\u2028😀é"
    for _ in range(80):
        value = "".join(random_.choices(alphabet, k=random_.randint(1, 30)))
        environ = {
            "AGENTFLOW_SECRET_A": value,
            "A_BASE_URL": f"http://{value}@h",
            "B_BASE_URL": value,
            "OTEL_EXPORTER_OTLP_HEADERS": value,
        }
        hide = KnownSecrets(environ).hide
        assert value not in hide({1: (value,), "k": [value, None, 1.5, {value}], value: b""})["k"] or (
            len(value.strip()) < 4
        )


class TestKnownSecrets:
    def test_the_environment(self) -> None:
        environ = {
            "AGENTFLOW_SECRET_CRM": "crm-value\n",
            "AGENTFLOW_SECRET_PIN": "7391",
            "OPENAI_API_KEY": "sk-openai-value",
            "ANTHROPIC_API_KEY": "sk-ant-value",
            "SOME_ACCESS_TOKEN": "token-value",
            "USE_TOKEN": "true",
            "LOCAL_API_KEY": "EMPTY",
            "GEMINI_API_KEY": "sk-six",
            "OPENAI_BASE_URL": "http://joe:p%40ssw0rd@127.0.0.1/v1",
            "OTHER_BASE_URL": "http://onlyuser@h/?api_key=in-the-query&page=number-one",
            "https_proxy": "http://joe:proxypass@proxy:3128",
            "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20otlp-value,x-tenant=acme-tenant",
            "PATH": "/usr/bin:/bin",
        }
        hide = KnownSecrets(environ).hide
        for secret in (
            "crm-value",
            "7391",
            "sk-openai-value",
            "sk-ant-value",
            "sk-six",
            "token-value",
            "p@ssw0rd",
            "p%40ssw0rd",
            "joe:p@ssw0rd",
            base64.b64encode(b"joe:p@ssw0rd").decode(),
            "onlyuser",
            "in-the-query",
            "proxypass",
            "otlp-value",
        ):
            assert hide(f"a {secret} b") == "a *** b", secret
        kept = "true EMPTY /usr/bin:/bin 127.0.0.1 number-one"
        assert hide(kept) is kept

    def test_changes_count_at_once(self) -> None:
        environ: dict[str, str] = {}
        known = KnownSecrets(environ)
        assert known.hide("hunter22") == "hunter22"
        environ["AGENTFLOW_SECRET_A"] = "hunter22"
        assert known.hide({"a": ["hunter22"]}) == {"a": ["***"]}
        del environ["AGENTFLOW_SECRET_A"]
        assert known.hide("hunter22") == "hunter22"

    def test_what_is_added_stays(self) -> None:
        known = KnownSecrets({})
        known.add("hunter22", None, "", "short")
        assert known.hide("short hunter22") == "short ***"
        known.add(*(f"another-{number}" for number in range(256)))
        assert known.hide("hunter22 another-0") == "hunter22 ***"

    def test_urls(self) -> None:
        assert url_secrets("http://h/v1") == []
        assert url_secrets("http://[broken") == []
        assert "a:b" in url_secrets("http://a:b@h")

    def test_errors(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("AGENTFLOW_SECRET_A", "hunter22")
        inner = ErrorInfo(category="tool", code="hunter22", message="in hunter22")
        details: dict[str, Any] = {
            "n": 1,
            "quote": "hunter22",
            "token": "unknown",
            "list": [{"password": "x"}],
            "tuple": ({1: "hunter22"},),
            "object": inner,
        }
        error = ErrorInfo(
            category="tool", code="c", message="hunter22", details=details, path="/hunter22", cause=inner
        )
        found = hide_error(error)
        assert (found.message, found.path) == ("***", "/***")
        assert found.details == {
            "n": 1,
            "quote": "***",
            "token": "***",
            "list": [{"password": "***"}],
            "tuple": [{"1": "***"}],
            "object": {"category": "tool", "code": "***", "message": "in ***"},
        }
        assert found.cause is not None
        assert (found.cause.code, found.cause.message) == ("hunter22", "in ***")
