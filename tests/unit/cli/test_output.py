from __future__ import annotations

import io
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from agentflow.cli.excerpt import excerpt, render_diagnostic, render_diagnostics
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
    ("line", "column", "shown", "marks"),
    [
        ("abc", 1, "abc", "^~~"),
        ("abc", 2, "abc", " ^~"),
        ("abc", 4, "abc", "   ^"),
        ("\t\tabc: 1", 3, "        abc: 1", "        ^~~"),
        ("日本: x", 5, "日本: x", "      ^"),
        ("日本: 語", 1, "日本: 語", "^~~~"),
        ("e\u0301x", 3, "e\u0301x", " ^"),
        ("❤\ufe0f x", 4, "❤\ufe0f x", "  ^"),
        ("🦊 x", 3, "🦊 x", "   ^"),
        ("a\x1b[31mb", 2, "a?[31mb", " ^"),
        ("k: 'a b' c", 4, "k: 'a b' c", "   ^~~~~"),
        ('k: "a \\" b", c', 4, 'k: "a \\" b", c', "   ^~~~~~~~"),
        ("k: 'open", 4, "k: 'open", "   ^"),
        ("steps.a.outputs == 1", 1, "steps.a.outputs == 1", "^~~~~~~~~~~~~~~"),
        ("a === 1", 3, "a === 1", "  ^~~"),
        ("k: [a]", 4, "k: [a]", "   ^"),
        ("", 1, "", "^"),
        ("", 9, "", "^"),
    ],
)
def test_what_is_meant_is_underlined(line: str, column: int, shown: str, marks: str):
    source, below = excerpt(line, [column], "    7 | ")
    assert source == f"    7 | {shown}"
    assert below == f"      | {marks}"


def test_several_problems_of_a_line_share_its_excerpt(tmp_path: Path):
    path = tmp_path / "flow.yaml"
    path.write_text("a: [one, two]\nb: three\n", encoding="utf-8")
    file = str(path)
    problems = [
        diagnostic(1, 5, file=file, hint="try uno"),
        diagnostic(1, 10, file=file),
        diagnostic(1, 10, file=file, message="twice"),
        diagnostic(2, 4, file=file),
    ]
    assert render_diagnostics(problems).splitlines() == [
        f"{file}:1:5: error E_X: wrong",
        "  hint: try uno",
        f"{file}:1:10: error E_X: wrong",
        f"{file}:1:10: error E_X: twice",
        "    1 | a: [one, two]",
        "      |     ^~~  ^~~",
        f"{file}:2:4: error E_X: wrong",
        "    2 | b: three",
        "      |    ^~~~~",
    ]


@pytest.mark.parametrize("filler", ["x", "語", "\t"])
def test_a_long_line_is_cut_around_what_is_meant(filler: str):
    line = filler * 300 + " HERE " + filler * 300
    source, marks = excerpt(line, [302], "  1 | ")
    cells = [c for c in source for _ in range(2 if c == "語" else 1)]
    assert len(cells) <= 6 + 100 + 6
    assert source.startswith("  1 | …")
    assert source.endswith("…")
    assert "".join(cells[marks.index("^") :]).startswith("HERE")
    assert marks.count("^") == 1
    assert marks.count("~") == 3


def test_a_long_line_is_not_cut_where_it_ends():
    line = "a" * 200
    assert excerpt(line, [1], "1 | ")[0] == "1 | " + "a" * 100 + "…"
    assert excerpt(line, [200], "1 | ")[0].endswith("…" + "a" * 34)


def test_problems_far_apart_in_a_long_line_get_an_excerpt_each(tmp_path: Path):
    path = tmp_path / "flow.json"
    path.write_text("a " + "x" * 400 + " b", encoding="utf-8")
    text = render_diagnostics([diagnostic(1, 1, file=str(path)), diagnostic(1, 404, file=str(path))])
    rows = text.splitlines()
    assert [row[:8] for row in rows[2:]] == ["    1 | ", "      | ", "    1 | ", "      | "]
    assert rows[2][rows[3].index("^")] == "a"
    assert rows[4][rows[5].index("^")] == "b"


def test_many_problems_of_a_long_line_cost_little(tmp_path: Path):
    path = tmp_path / "flow.json"
    path.write_text("'é" * 300_000, encoding="utf-8")
    problems = [diagnostic(1, 3_000 * i + 1, file=str(path)) for i in range(200)]
    started = time.perf_counter()
    assert render_diagnostics(problems).count("^") == 200
    assert time.perf_counter() - started < 5


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
