from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentflow.cli.excerpt import caret, render_diagnostic, render_diagnostics
from agentflow.cli.output import columns, error_line, is_terminal, printable, styled
from agentflow.definition.diagnostics import Diagnostic


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def diagnostic(line: int | None = 1, column: int | None = 1, **more: str) -> Diagnostic:
    members = {"code": "E_X", "message": "wrong", "file": "flow.yaml", **more}
    return Diagnostic(severity="error", line=line, column=column, **members)  # type: ignore[arg-type]


def test_the_first_lines_are_those_of_the_page():
    problem = diagnostic(48, 20, hint='did you mean "x"?')
    assert render_diagnostic(problem, ()) == 'flow.yaml:48:20: error E_X: wrong\n  hint: did you mean "x"?'
    assert render_diagnostic(problem, ()) == problem.render()
    assert render_diagnostic(diagnostic(None, None), ()) == "flow.yaml: error E_X: wrong"


@pytest.mark.parametrize(
    ("line", "column", "shown", "under"),
    [
        ("abc", 2, "abc", 1),
        ("abc", 4, "abc", 3),
        ("\t\tabc", 3, "  abc", 2),
        ("日本: x", 5, "日本: x", 6),
        ("e\u0301x", 3, "e\u0301x", 1),
        ("a\x1b[31mb", 2, "a?[31mb", 1),
        ("", 1, "", 0),
    ],
)
def test_the_caret_stands_under_its_character(line: str, column: int, shown: str, under: int):
    source, mark = caret(line, column, "    7 | ")
    assert source == f"    7 | {shown}"
    assert mark == "      | " + " " * under + "^"


def test_a_long_line_is_cut_around_the_caret():
    line = "x" * 300 + "HERE" + "y" * 300
    source, mark = caret(line, 301, "  1 | ")
    assert len(source) <= 110
    assert source[mark.index("^") :].startswith("HERE")


def test_lines_are_counted_like_the_loader_counts(tmp_path: Path):
    path = tmp_path / "flow.yaml"
    path.write_bytes(b"\xef\xbb\xbfa: 1\r\nb: 2\rc: 3\nd: \xff\n")
    problems = [diagnostic(line, 1, file=str(path)) for line in (1, 2, 3, 4)]
    text = render_diagnostics(problems)
    for shown in ("    1 | a: 1\n", "    2 | b: 2\n", "    3 | c: 3\n", "    4 | d: "):
        assert shown in text


@pytest.mark.parametrize("name", ["gone.yaml", "."])
def test_a_file_that_cannot_be_shown_is_no_further_problem(tmp_path: Path, name: str):
    problem = diagnostic(3, 1, file=str(tmp_path / name))
    assert render_diagnostics([problem]) == problem.render()


def test_terminal_sequences_are_shown_not_obeyed():
    assert printable("a\x1b[2Jb\x07\x9b\u202e") == "a\\x1b[2Jb\\x07\\x9b\\u202e"
    assert printable("line\n\ttab é 日") == "line\n\ttab é 日"
    assert "\x1b" not in error_line("E\x1b"[:1], "bad \x1b]0;title\x07")


@pytest.mark.parametrize(
    ("env", "coloured"),
    [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True), ({"TERM": "dumb"}, False)],
)
def test_colour_is_for_terminals_that_want_it(
    monkeypatch: pytest.MonkeyPatch, env: dict[str, str], coloured: bool
):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    assert (styled("error", "red", Terminal()) != "error") is coloured
    assert styled("error", "red", io.StringIO()) == "error"


def test_a_dumb_terminal_is_none(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "dumb")
    assert not is_terminal(Terminal())


@pytest.mark.parametrize(
    ("rows", "text"),
    [
        ([], "ID  NAME"),
        ([("wf_1", "a"), ("w", "b")], "ID    NAME\nwf_1  a\nw     b"),
        ([("wf_1", "")], "ID    NAME\nwf_1"),
    ],
)
def test_columns(rows: Sequence[Sequence[str]], text: str):
    assert columns(("ID", "NAME"), rows) == text
