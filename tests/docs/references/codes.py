"""The page `codes`: exit codes, diagnostics, failures, reasons to pause, problems of the API."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from typing import get_args

from agentflow.cli.errors import _BY_CODE, _EXITS, Exit  # pyright: ignore[reportPrivateUsage]
from agentflow.definition import check_text
from agentflow.definition.failure import Category
from agentflow.docs.codes import DIAGNOSTICS, FAILURES, PAUSES, VERDICTS, CodeInfo
from agentflow.server.problems import STATUS
from agentflow.tools.toolsets.workspace import Reason
from tests.conformance.cases import read_cases
from tests.conformance.test_documents import options
from tests.docs.blocks import ROOT
from tests.docs.references.tables import GENERATED, table

__all__ = ["make_codes", "used_diagnostics", "used_failures", "used_file_failures", "used_verdicts"]

_LONGEST_DOCUMENT = 4_000
"""Characters: those of the cases about limits say nothing to a reader."""

_EXIT_MEANINGS: dict[Exit, str] = {
    Exit.DONE: "The command did what was asked.",
    Exit.FAILED: "The run failed, or an expression failed on its values.",
    Exit.USAGE: "The command line is wrong.",
    Exit.DIAGNOSTICS: "The document, the expression or the exported file has errors.",
    Exit.NOT_FOUND: "There is no such run, request or step, or it was deleted.",
    Exit.CONFLICT: "The command does not fit the state of the run.",
    Exit.UNREACHABLE: "The daemon cannot be reached, is stopping, or has no place.",
    Exit.NOT_AUTHORISED: "The token is missing, wrong, or lacks the scope.",
    Exit.CANCELLED: "The run was cancelled.",
    Exit.WAITING: "The run waits for a person, or is paused.",
    Exit.PARTIAL: "The request is answered in part, or blocked.",
    Exit.STORAGE: "The store is damaged or takes nothing.",
    Exit.CONFIGURATION: "The configuration is wrong, or there is no model.",
    Exit.INTERRUPTED: "Ctrl-C: a run of this process is parked; `agentflow resume ID` goes on with it.",
}


def make_codes() -> str:
    """Return the page."""
    exits = [(f"{int(code)}", _EXIT_MEANINGS[code]) for code in Exit]
    by_code = {kind.code: exit for kind, exit in reversed(_EXITS)} | _BY_CODE
    errors = [(f"`{code}`", int(exit), STATUS.get(code, ("",))[0]) for code, exit in sorted(by_code.items())]
    problems = [(f"`{code}`", status, title) for code, (status, title) in STATUS.items()]
    return f"""# Codes

{GENERATED}

Codes are stable; messages may be reworded. `agentflow help CODE` prints the entry of one code.

## Exit codes of commands

{table(("exit code", "meaning"), exits)}
## Diagnostics

`check`, `run` and the API report them for a document, each with line, column and hint. `E_` is an error, `W_` a warning
(`check --strict` counts it as an error). A document with errors ends a command with exit code 3, with `E_UNKNOWN_MODEL`
alone 78.

The examples are what `check` says of documents of the conformance suite: message → hint.

{_diagnostics()}
## Failures of steps, calls and runs

They stand as `error.code` in events, and `agentflow show ID` prints them.

{_infos(FAILURES)}
## Verdicts on steps of requests

They stand in `codes` of `verification.step_verdict`; the first one is the reason of the verdict.

{_infos(VERDICTS)}
## Reasons to pause

{_infos(PAUSES)}
## Errors of commands

The exit code with which a command ends, and the HTTP status of the same code.

{table(("code", "exit code", "HTTP status"), errors)}
## Problems of the API

The daemon answers errors as `application/problem+json` with the member `code`.

{table(("code", "HTTP status", "title"), problems)}"""


def _diagnostics() -> str:
    examples = _examples()
    rows = [
        (f"`{code}`", i.meaning, i.remedy, examples.get(code, "")) for code, i in sorted(DIAGNOSTICS.items())
    ]
    return table(("code", "meaning", "what to do", "example"), rows)


def _examples() -> dict[str, str]:
    """Return for each code the shortest message, with its hint, of the conformance suite's documents."""
    found: dict[str, list[str]] = {}
    for case in read_cases("documents/diagnostics"):
        # What is wrong with YAML is said in the words of its reader, of which there are two.
        if case.code in (None, "E_SYNTAX") or len(case.document) > _LONGEST_DOCUMENT:
            continue
        for problem in check_text(case.document, **options(case)):
            if problem.code == case.code:
                hint = f" → {problem.hint}" if problem.hint else ""
                found.setdefault(problem.code, []).append(problem.message + hint)
    return {
        code: min(texts, key=lambda text: ("→" not in text, len(text), text)) for code, texts in found.items()
    }


def _infos(infos: dict[str, CodeInfo]) -> str:
    return table(
        ("code", "meaning", "what to do"),
        [(f"`{code}`", info.meaning, info.remedy) for code, info in sorted(infos.items())],
    )


@cache
def _sources() -> list[str]:
    """The texts of the product's modules."""
    paths = (path for path in (ROOT / "agentflow").rglob("*.py") if path.parent.name != "docs")
    return [path.read_text(encoding="utf-8") for path in paths]


def used_diagnostics() -> set[str]:
    """Return the codes of diagnostics that stand in the source."""
    return {code for text in _sources() for code in re.findall(r'"([EW]_[A-Z_]+)"', text)}


def used_failures() -> set[str]:
    """Return the codes that the source gives to an ErrorInfo, as `code=` or after its category."""
    category = re.compile('"(?:' + "|".join(_CATEGORIES) + ')"')
    trees = (ast.parse(text) for text in _sources() if category.search(text))
    return {code for tree in trees for code in _codes_in(tree)}


def used_verdicts() -> set[str]:
    """Return the codes of verdicts that the verification has."""
    paths = (ROOT / "agentflow/pipeline/verification").glob("*.py")
    found = "".join(path.read_text(encoding="utf-8") for path in paths)
    return set(re.findall(r'"((?:artifact|url|evidence|output)_[a-z_]+)"', found)) - {"artifact_checked"}


def used_file_failures() -> set[str]:
    """Return the codes of functions that read and write files."""
    return {f"file_{reason}" for reason in get_args(Reason)}


_CATEGORIES = get_args(Category)


def _codes_in(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Return) and isinstance(node.value, ast.Tuple):
            arguments = node.value.elts
        elif isinstance(node, ast.Call):
            arguments = node.args
        else:
            continue
        words = [a.value if isinstance(a, ast.Constant) else None for a in arguments]
        for category, code in pairwise(words):
            if category in _CATEGORIES and isinstance(code, str) and re.fullmatch(r"[a-z]+(_[a-z]+)+", code):
                yield code
        if isinstance(node, ast.Call) and any(k.arg == "category" for k in node.keywords):
            yield from (
                k.value.value for k in node.keywords if k.arg == "code" and isinstance(k.value, ast.Constant)
            )
