"""What is kept out of everything that is written down: by key, and by value."""

from __future__ import annotations

from typing import Any

import pytest

from agentflow.definition.redaction import is_sensitive, masker, redact
from agentflow.tools.secrets import MissingSecret, Values, secret_variable


@pytest.mark.parametrize(
    "key",
    [
        "authorization",
        "Proxy-Authorization",
        "cookie",
        "Set-Cookie",
        "cookies",
        "password",
        "dbPassword",
        "PASSWORD",
        "api_key",
        "X-Api-Key",
        "apiKey",
        "APIKEY",
        "token",
        "access_token",
        "accessToken",
        "CSRFToken",
        "secret",
        "client_secret",
        "passwd",
        "secrets",
        "OPENAI_API_KEY",
        "x.auth.token",
    ],
)
def test_keys_of_secrets(key: str) -> None:
    assert is_sensitive(key)


@pytest.mark.parametrize(
    "key",
    [
        "",
        "tokens",
        "max_tokens",
        "token_count",
        "tokenizer",
        "secretary",
        "cookie_policy",
        "keyboard",
        "key",
        "author",
        "api",
        "passport",
        "authorization_url",
        "§",
    ],
)
def test_other_keys(key: str) -> None:
    assert not is_sensitive(key)


def test_redact() -> None:
    value = {
        "token": "abc",
        "n": [{"password": {"deep": 1}, "ok": 1.5}, "token"],
        "secret": None,
        "max_tokens": 5,
        "api_key": "",
        "cookie": False,
    }
    assert redact(value) == {
        "token": "***",
        "n": [{"password": "***", "ok": 1.5}, "token"],
        "secret": None,
        "max_tokens": 5,
        "api_key": "***",
        "cookie": "***",
    }
    assert value["token"] == "abc"


@pytest.mark.parametrize("value", [None, 1, "token: abc", [], {}, {"a": [1, {"b": "c"}]}])
def test_what_needs_no_change_is_the_same_object(value: Any) -> None:
    assert redact(value) is value
    assert masker(["zzz"])(value) is value
    assert masker([])(value) is value


def test_values_nested_without_end_are_hidden() -> None:
    value: Any = "abc"
    for _ in range(1000):
        value = [value]
    hidden = redact(value)
    depth = 0
    while isinstance(hidden, list):
        hidden, depth = hidden[0], depth + 1
    assert hidden == "***"
    assert depth < 300


def test_masks() -> None:
    mask = masker(["hunter2", "hunter2-and-more", "Bearer abcdefgh-1", "", "xyz", "a.bc"])
    assert mask("x hunter2-and-more y hunter2") == "x *** y ***"
    assert mask("the key abcdefgh-1 is wrong") == "the key *** is wrong"
    assert mask("Bearer abcdefgh-1") == "***"
    assert mask("a.bc axbc Bearer xyz") == "*** axbc Bearer xyz"
    assert mask({"hunter2": ["hunter2", {"n": 1}]}) == {"***": ["***", {"n": 1}]}


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("CRM", "AGENTFLOW_SECRET_CRM"),
        ("crm-token", "AGENTFLOW_SECRET_CRM_TOKEN"),
        ("a.b/c d", "AGENTFLOW_SECRET_A_B_C_D"),
        ("schlüssel", "AGENTFLOW_SECRET_SCHL_SSEL"),
    ],
)
def test_the_variable_of_a_secret(name: str, variable: str) -> None:
    assert secret_variable(name) == variable


def test_values() -> None:
    environ = {"AGENTFLOW_SECRET_A": "hunter2\r\n", "AGENTFLOW_SECRET_B": ""}
    given = {"X": "plain", "A": {"$secret": "a"}, "B": {"$secret": "b"}, "C": {"$secret": "c"}}
    values = Values(given, environ)
    assert [(m.key, m.name, str(m)) for m in values.missing()] == [
        ("B", "b", 'secret "b" is not set'),
        ("C", "c", 'secret "c" is not set'),
    ]
    with pytest.raises(MissingSecret) as caught:
        values.resolve()
    assert "hunter2" not in f"{caught.value!r} {caught.value.__dict__}"
    environ |= {"AGENTFLOW_SECRET_B": "b-secret", "AGENTFLOW_SECRET_C": "c-secret"}
    assert values.resolve() == {"X": "plain", "A": "hunter2", "B": "b-secret", "C": "c-secret"}
    assert values.mask("plain hunter2 b-secret") == "plain *** ***"
    environ["AGENTFLOW_SECRET_A"] = "newer"
    assert values.resolve()["A"] == "newer"
    assert values.mask("hunter2 newer") == "*** ***"  # an old answer may still quote the old one
    assert "hunter2" not in repr(values)


def test_secrets_that_stand_in_the_document_are_masked_too() -> None:
    values = Values({"Authorization": "Bearer in-the-document", "Accept": "text/plain"}, {})
    assert values.mask("no in-the-document, text/plain") == "no ***, text/plain"
