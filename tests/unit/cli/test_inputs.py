from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import click
import pytest

from agentflow.cli.inputs import parse_inputs, parse_labels, parse_value, read_json
from agentflow.errors import DefinitionError


@pytest.mark.parametrize(
    ("given", "value"),
    [
        ([], None),
        (["name=Ann"], {"name": "Ann"}),
        (["n=3", "on=true", "x=null"], {"n": 3, "on": True, "x": None}),
        (["list=[1, 2]", 'o={"a": 1}'], {"list": [1, 2], "o": {"a": 1}}),
        (['text="3"'], {"text": "3"}),
        (["empty="], {"empty": ""}),
        (["url=http://h/?a=b"], {"url": "http://h/?a=b"}),
        (["big=123456789012345678901234567890"], {"big": 123456789012345678901234567890}),
        (["zip=010"], {"zip": "010"}),
        (["not_a_number=NaN"], {"not_a_number": "NaN"}),
        (["broken={"], {"broken": "{"}),
        (['{"a": 1}'], {"a": 1}),
        (['{"a": 1, "b": 1}', "b=2"], {"a": 1, "b": 2}),
        (["b=2", '{"b": 1}'], {"b": 1}),
        (['"a=b"'], "a=b"),
        (["[1, 2]"], [1, 2]),
        (["7"], 7),
        (["null"], None),
    ],
)
def test_forms_of_input(given: list[str], value: Any):
    assert parse_inputs(given) == value


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["hello"], "not JSON at column 1"),
        (["{'a': 1}"], "not JSON at column 2"),
        (['{"a": 1, "a": 2}'], "repeated"),
        (["[1]", "a=2"], "only objects"),
        (["NaN"], "not JSON"),
        (["1e999"], "not JSON"),
        (["=x"], "not JSON"),
        ([""], "not JSON"),
        (["name=\udcff"], "not UTF-8"),
    ],
)
def test_bad_input_is_a_usage_error(given: list[str], says: str):
    with pytest.raises(click.BadParameter, match=says):
        parse_inputs(given)


def test_files_are_json_or_yaml_by_their_suffix(tmp_path: Path):
    (tmp_path / "a.json").write_text('{"a": [1]}')
    (tmp_path / "b.yaml").write_text("b: yes\nc: 1.0\n")
    assert parse_inputs([f"@{tmp_path / 'a.json'}", f"@{tmp_path / 'b.yaml'}", "d=4"]) == {
        "a": [1],
        "b": "yes",
        "c": 1.0,
        "d": 4,
    }


def test_a_file_larger_than_a_document_is_read(tmp_path: Path):
    (tmp_path / "large.json").write_text(json.dumps({"text": "x" * 2_000_000}))
    assert len(read_json(f"@{tmp_path / 'large.json'}", "--input")["text"]) == 2_000_000
    (tmp_path / "broken.json").write_text(json.dumps({"text": "x" * 2_000_000})[:-1])
    with pytest.raises(DefinitionError) as caught:
        read_json(f"@{tmp_path / 'broken.json'}", "--input")
    assert caught.value.diagnostics[0].code == "E_SYNTAX"


@pytest.mark.parametrize(
    ("name", "content", "code", "line"),
    [
        ("gone.json", None, "E_FILE", None),
        ("notes.txt", b"{}", "E_FILE", None),
        ("bytes.json", b'{"a": "\xff"}', "E_FILE", 1),
        ("broken.json", b'{"a": 1,\n "b" 2}', "E_SYNTAX", 2),
        ("broken.yaml", b"a: [1\nb: 2", "E_SYNTAX", 1),
        ("twice.json", b'{"a": 1, "a": 2}', "E_DUPLICATE_KEY", 1),
    ],
)
def test_a_bad_file_is_a_diagnostic_with_its_place(
    tmp_path: Path, name: str, content: bytes | None, code: str, line: int | None
):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DefinitionError) as caught:
        parse_inputs([f"@{path}"])
    problem = caught.value.diagnostics[0]
    assert (problem.code, problem.line, problem.file) == (code, line, str(path))


def test_stdin_is_json(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b'{"a": 1}')))
    assert parse_inputs(["@-"]) == {"a": 1}


def test_labels_are_strings():
    assert parse_labels(["team=a", "n=1", "empty=", "eq=a=b"]) == {
        "team": "a",
        "n": "1",
        "empty": "",
        "eq": "a=b",
    }
    for bad in ("team", "=x", " =x"):
        with pytest.raises(click.BadParameter, match="not written as k=v"):
            parse_labels([bad])


def test_a_value_is_json_if_it_parses():
    assert parse_value('{"choice": "retry"}') == {"choice": "retry"}
    assert parse_value("retry") == "retry"
    assert parse_value("") == ""
