"""Files and texts as a whole: what cannot be read, how long it may be, which format it is."""

from __future__ import annotations

import json
import os
from pathlib import Path

import msgspec
import pytest

from agentflow.definition import check_file, check_text, load_file, load_text, load_value
from agentflow.errors import DefinitionError

AGENT = {"systemPrompt": "p", "input": "x", "resultSchema": True, "attachedFunctions": "none"}
STEP = {"type": "run", "id": "a", "agent": AGENT}
DOCUMENT = {"version": "1.0", "workflow": {"steps": [STEP]}}
TEXT = json.dumps(DOCUMENT)


def codes(diagnostics):
    return [(d.code, d.line, d.column) for d in diagnostics]


def test_a_file_is_named_in_its_diagnostics_and_gives_the_default_name(tmp_path: Path):
    path = tmp_path / "triage.json"
    path.write_text(json.dumps({**DOCUMENT, "oops": 1}))
    (found,) = check_file(path)
    assert found.file == str(path)
    assert found.render().startswith(f"{path}:1:")
    path.write_text(TEXT)
    definition = load_file(path)
    assert (definition.name, definition.file, definition.folder) == ("triage", str(path), tmp_path)
    assert (definition.media, definition.source) == ("json", TEXT)


@pytest.mark.parametrize("name", ["a.yaml", "a.yml", "a.YAML", "a.json"])
def test_suffixes_that_are_read(tmp_path: Path, name: str):
    (tmp_path / name).write_text(TEXT)
    assert check_file(tmp_path / name) == []


@pytest.mark.parametrize("name", ["a.txt", "a", "a.toml"])
def test_suffixes_that_are_not(tmp_path: Path, name: str):
    (tmp_path / name).write_text(TEXT)
    (found,) = check_file(tmp_path / name)
    assert (found.code, found.line, found.hint) == ("E_FILE", None, "name it .yaml, .yml or .json")


def test_what_cannot_be_opened(tmp_path: Path):
    assert codes(check_file(tmp_path / "nothing.yaml")) == [("E_FILE", None, None)]
    (tmp_path / "folder.yaml").mkdir()
    assert codes(check_file(tmp_path / "folder.yaml")) == [("E_FILE", None, None)]
    with pytest.raises(DefinitionError, match="E_FILE"):
        load_file(tmp_path / "nothing.yaml")


@pytest.mark.parametrize(
    ("data", "message", "line", "column"),
    [
        (b"a: 1\n\nb: \xc3\xa9 \xff", "byte 0xff at 3:6 is not UTF-8", 3, 6),
        (b"\xff\xfea\x00", "byte 0xff at 1:1 is not UTF-8", 1, 1),
        (b"a: \xed\xa0\x80", "byte 0xed at 1:4 is not UTF-8", 1, 4),
        (b"a: 1\nb: \x07", "control character U+0007 at 2:4", 2, 4),
        (b"a: \x00", "control character U+0000 at 1:4", 1, 4),
        (b"a: \xc2\x80", "control character U+0080 at 1:4", 1, 4),
    ],
)
def test_what_is_not_text(tmp_path: Path, data: bytes, message: str, line: int, column: int):
    (tmp_path / "a.yaml").write_bytes(data)
    (found,) = check_file(tmp_path / "a.yaml")
    assert (found.code, found.message, found.line, found.column) == ("E_FILE", message, line, column)
    assert [d.code for d in check_text(data)] == ["E_FILE"]


def test_json_may_hold_what_yaml_may_not():
    assert check_text(json.dumps({**DOCUMENT, "description": "\x7f\ufffe"}, ensure_ascii=False)) == []


def test_a_lone_surrogate_in_a_python_string():
    assert codes(check_text("a: \udc80")) == [("E_FILE", 1, 4)]


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_byte_order_mark_is_no_character(tmp_path: Path, suffix: str):
    path = tmp_path / f"a.{suffix}"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps({**DOCUMENT, "oops": 1}).encode())
    (found,) = check_file(path)
    assert found.column == json.dumps({**DOCUMENT, "oops": 1}).index('"oops"') + 1
    assert check_text("\ufeff" + TEXT) == []


def test_one_mebibyte_is_read_and_one_byte_more_is_not(tmp_path: Path):
    path = tmp_path / "a.json"
    path.write_text(TEXT + " " * ((1 << 20) - len(TEXT)))
    assert check_file(path) == []
    path.write_text(TEXT + " " * ((1 << 20) - len(TEXT) + 1))
    assert codes(check_file(path)) == [("E_LIMIT", 1, 1)]
    path.write_text(TEXT + " " * ((7 << 20) // 5))
    assert check_file(path)[0].message == "source is 1.4 MiB, the limit is 1 MiB"


def test_a_thousand_steps_are_read_and_one_more_is_not():
    steps = [{**STEP, "id": f"s{i}"} for i in range(1001)]
    (found,) = check_text(json.dumps({"version": "1.0", "workflow": {"steps": steps}}))
    assert (found.code, found.path) == ("E_LIMIT", "/workflow/steps/1000")
    load_text(json.dumps({"version": "1.0", "workflow": {"steps": steps[:1000]}}))


def test_at_most_two_hundred_diagnostics_the_last_of_them_says_so():
    many = {f"k{i}": i for i in range(300)}
    found = check_text(json.dumps({**DOCUMENT, **many}))
    assert [d.code for d in found] == ["E_UNKNOWN_KEY"] * 199 + ["E_LIMIT"]
    assert found[-1].message == "101 more problems are not shown"
    assert len(check_text(json.dumps({**DOCUMENT, **dict(list(many.items())[:200])}))) == 200


def test_many_warnings_alone_refuse_nothing():
    steps = [{"type": "run", "id": f"s{i}", "agent": {"systemPrompt": "p"}} for i in range(100)]
    definition = load_text(json.dumps({"version": "1.0", "workflow": {"steps": steps}}))
    assert len(definition.warnings) == 200
    assert {d.severity for d in definition.warnings} == {"warning"}
    with pytest.raises(DefinitionError):
        load_text(json.dumps({"version": "1.0", "workflow": {"steps": steps}}), strict=True)


def test_the_media_follows_from_the_first_character_unless_it_is_given():
    assert load_text("\n " + TEXT).media == "json"
    assert load_text(TEXT, media="yaml").media == "yaml"
    assert load_text(TEXT, media="application/yaml; charset=utf-8").media == "yaml"
    assert load_text('version: "1.0"\nworkflow: ' + json.dumps(DOCUMENT["workflow"])).media == "yaml"
    assert codes(check_text("{version: '1.0'}")) == [("E_SYNTAX", 1, 2)]
    assert codes(check_text(TEXT, media="text/html")) == [("E_FILE", None, None)]


def test_the_format_of_a_submission_must_agree():
    assert load_text(TEXT, format="agent-workflow/1.0").format == "agent-workflow/1.0"
    assert [d.code for d in check_text(TEXT, format="linear")] == ["E_FORMAT"]
    named = json.dumps({**DOCUMENT, "format": "agent-workflow/1.0"})
    (found,) = check_text(named, format="linear")
    assert (found.code, found.path) == ("E_FORMAT", "/format")


def test_the_hash_is_that_of_the_value_not_of_its_layout():
    one = load_text(TEXT)
    other = load_text("# note\nworkflow:\n  steps: [" + json.dumps(STEP) + "]\nversion: '1.0'\n")
    assert one.hash == other.hash
    assert one.ir_hash == other.ir_hash
    assert one.hash.startswith("sha256:")
    changed = load_text(TEXT.replace('"x"', '"y"'))
    assert one.hash != changed.hash
    assert one.ir_hash != changed.ir_hash


def test_a_python_value_loads_like_its_text():
    definition = load_value(DOCUMENT)
    assert definition.ir_hash == load_text(TEXT).ir_hash
    assert definition.hash == load_text(TEXT).hash
    assert json.loads(definition.source) == DOCUMENT
    assert load_value({"agents": ({"name": "a", "system_prompt": "p"},)}).format == "linear"


@pytest.mark.parametrize(
    ("value", "code", "path"),
    [
        ({**DOCUMENT, "oops": 1}, "E_UNKNOWN_KEY", "/oops"),
        ({**DOCUMENT, "name": 7}, "E_TYPE", "/name"),
        ({**DOCUMENT, "description": float("nan")}, "E_SYNTAX", "/description"),
        ({**DOCUMENT, "description": b"x"}, "E_TYPE", "/description"),
        ({**DOCUMENT, "description": "\ud800"}, "E_SYNTAX", "/description"),
        ({**DOCUMENT, 7: 1}, "E_TYPE", ""),
        ({**DOCUMENT, "x-n": 10**1000}, "E_LIMIT", "/x-n"),
    ],
)
def test_diagnostics_of_a_python_value_have_a_path_and_no_place(value, code, path):
    with pytest.raises(DefinitionError) as caught:
        load_value(value)
    (found,) = caught.value.diagnostics
    assert (found.code, found.path, found.line, found.column) == (code, path, None, None)
    assert found.render().startswith(f"error {code}: ")


def test_a_python_value_that_holds_itself_is_refused():
    value: dict[str, object] = dict(DOCUMENT)
    value["x-self"] = value
    with pytest.raises(DefinitionError, match="E_LIMIT"):
        load_value(value)


def test_positions_answer_for_pointers_of_the_document():
    definition = load_text('version: "1.0"\nworkflow:\n  steps:\n    - ' + json.dumps(STEP))
    assert definition.positions.at("/workflow/steps/0") == (4, 7)
    assert definition.positions.key_at("/workflow/steps") == (3, 3)
    assert definition.positions.at("/workflow/steps/0/agent/nothing/there") == definition.positions.at(
        "/workflow/steps/0/agent"
    )
    assert definition.positions.at("/") == (1, 1)
    assert load_value(DOCUMENT).positions.at("/workflow") == (None, None)


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        (b"\xff", "?"),
        (b"n" * 240, "n" * 127 + "…"),
        (b" ", "workflow"),
        (b"a\nb", "a b"),
        (b"caf\xc3\xa9", "café"),
    ],
)
def test_a_file_whose_name_is_no_name_of_a_workflow(tmp_path: Path, stem: bytes, name: str):
    path = os.fsencode(tmp_path) + b"/" + stem + b".json"
    with open(path, "wb") as stream:
        stream.write(TEXT.encode())
    definition = load_file(os.fsdecode(path))
    assert definition.name == name
    (found,) = check_file(os.fsdecode(path)[: -len(".json")] + ".gone.json")
    assert msgspec.json.encode(found)
    assert (found.file or "").endswith(".gone.json")


def test_numbers_that_take_long_to_decode_are_refused():
    numbers = ",".join(["1e300"] * 5_001)
    (found,) = check_text(f'{{"version": "1.0", "inputs": {{"x": {{"default": [{numbers}]}}}}}}')
    assert (found.code, found.hint) == ("E_LIMIT", "write them as strings")
