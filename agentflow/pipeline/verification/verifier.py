"""Stage 4: holds the results of the steps against evidence (page 004 §9). Asks no model.

Deterministic for what it is given: plan, results, recorded calls, the state of the expected files before each
step, the workspace and what URLs answer. Files are read in a thread, URLs asked at the same time; results
stand in the order of the plan whatever came first.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple, cast

import msgspec

from agentflow.definition.stage_schemas import Artifact, Check, Expected, Plan, Step, StepResult, read
from agentflow.definition.toolsets import CLASSES
from agentflow.engine.pipeline import CLEARABLE
from agentflow.pipeline.verification.checks import apply_check, set_keys
from agentflow.pipeline.verification.files import FILE_TYPES, FileReader, check_file
from agentflow.pipeline.verification.findings import Content, Finding, failed, unchecked
from agentflow.pipeline.verification.messages import check_message, find_unreported, normal_message_uri
from agentflow.pipeline.verification.network import Probed, UrlProber, normal_url, scheme_problem
from agentflow.threads import in_thread
from agentflow.tools.toolsets.workspace import relative_path

__all__ = ["NOTHING_TO_CHECK", "verify"]

NOTHING_TO_CHECK: Final = "nothing to check"
_ALL_HOLD: Final = "all checks hold"
_MAX_ARTIFACTS: Final = 1_000
"""Artifacts of one run that are looked at; those beyond are failed as `artifact_unverified`."""
_TIMEOUT_S: Final = 300.0
"""Seconds for the files of one verification; hostile ones must not hold it for hours."""
_FOLLOWS: Final = frozenset({"dependency_failed", "dependency_skipped", "dependency_cancelled"})
_EXTERNAL: Final = CLASSES.index("external")


class _Item(NamedTuple):
    """An artifact to look at: what was expected, what the step says that it produced, or both."""

    expected: Expected | None
    produced: Artifact | None

    @property
    def type(self) -> str:
        return self.expected.type if self.expected is not None else cast("Artifact", self.produced).type

    @property
    def uri(self) -> str:
        # That of the result: it may hold what the plan could not know, such as the id of a message.
        return self.produced.uri if self.produced is not None else cast("Expected", self.expected).uri

    @property
    def is_required(self) -> bool:
        return self.expected is not None and self.expected.required


class _Looked(NamedTuple):
    """What was found of an artifact. `content` None: a Check cannot look into it."""

    findings: list[Finding]
    evidence: dict[str, Any] | None
    content: Content | None


class _StepInput(NamedTuple):
    step: Step
    result: StepResult
    items: list[_Item]
    calls: list[Mapping[str, Any]]
    before: Mapping[str, Any]
    side_effect: str


class _Report(NamedTuple):
    verdict: str
    reason: str
    codes: list[str]
    entries: list[dict[str, Any]]
    unchecked: list[dict[str, Any]]


async def verify(
    plan: Mapping[str, Any],
    executor_output: Mapping[str, Any],
    *,
    workspace: str | None = None,
    before: Mapping[str, Any] | None = None,
    calls: Iterable[Mapping[str, Any]] = (),
    classes: Mapping[str, str] | None = None,
    network: bool = True,
    allowed_hosts: Iterable[str] = (),
) -> dict[str, Any]:
    """Return {verifier_output, checks, codes, unchecked}.

    `before` has by step id what `snapshot_files` returned when the step began. `calls` are the completed
    calls of all steps: {step_id, tool_call_id, tool, side_effect, parameters, output, offset}. `classes` has
    the class of each step's toolsets. `checks` are the entries of `verification.artifact_checked`, each with
    its step_id; `codes` has every failing code by step id; `unchecked` is that of the report.
    """
    steps = _inputs(read(Plan, plan), executor_output, workspace, before or {}, list(calls), classes or {})
    urls = _urls_of(steps) if network else {}
    prober = UrlProber(allowed_hosts)
    probed: dict[str, Probed] = {}
    try:
        if urls:
            found = await asyncio.gather(*(prober.probe(url, body=body) for url, body in urls.items()))
            probed = dict(zip(urls, found, strict=True))
    finally:
        await prober.aclose()
    reports = await in_thread(lambda: _judge_all(steps, workspace, probed, network), "agentflow verifier")
    return _assembled(steps, reports)


# -- what is looked at --------------------------------------------------------------------------


def _inputs(
    plan: Plan,
    executor_output: Mapping[str, Any],
    workspace: str | None,
    before: Mapping[str, Any],
    calls: Sequence[Mapping[str, Any]],
    classes: Mapping[str, str],
) -> list[_StepInput]:
    results = {one["step_id"]: read(StepResult, one) for one in executor_output["step_results"]}
    by_step: dict[str, list[Mapping[str, Any]]] = {}
    for call in calls:
        by_step.setdefault(str(call.get("step_id", "")).removeprefix("execute/"), []).append(call)
    found: list[_StepInput] = []
    for step in plan.steps:
        result = results.get(step.id)
        if result is None:
            result = StepResult(step_id=step.id, status="skipped", output="", error="it has no result")
        items = _matched(step, result, workspace) if result.status == "done" else []
        own = by_step.get(step.id, [])
        side_effect = classes.get(step.id, "none")
        known: Mapping[str, Any] = before.get(step.id) or before.get(f"execute/{step.id}") or {}
        found.append(_StepInput(step, result, items, own, known, side_effect))
    return found


def _key(type: str, uri: str, workspace: str | None) -> tuple[str, str]:
    if type in FILE_TYPES:
        return type, relative_path(uri, workspace) or uri
    if type == "url":
        return type, normal_url(uri)
    return type, normal_message_uri(uri) if type in ("email", "message") else uri.strip()


def _matched(step: Step, result: StepResult, workspace: str | None) -> list[_Item]:
    """Match expected and produced artifacts by type and normalised uri, each at most once."""
    left: dict[tuple[str, str], list[Artifact]] = {}
    for one in result.artifacts:
        left.setdefault(_key(one.type, one.uri, workspace), []).append(one)
    items: list[_Item] = []
    for expected in step.expected:
        same = left.get(_key(expected.type, expected.uri, workspace))
        items.append(_Item(expected, same.pop(0) if same else None))
    items.extend(_Item(None, one) for ones in left.values() for one in ones)
    return items


def _urls_of(steps: Iterable[_StepInput]) -> dict[str, bool]:
    """Return the URLs to ask, by their normal form, and whether their content is wanted by a Check."""
    found: dict[str, bool] = {}
    for one in steps:
        urls = [item.uri for item in one.items if item.type == "url"]
        for url in urls:
            found.setdefault(normal_url(url), False)
        if one.result.status != "done":
            continue
        for check in one.step.checks:
            target = _target_of(check, one.items)
            if target is not None and target.lower().startswith(("http:", "https:")):
                found[normal_url(target)] = True
    return dict(list(found.items())[:_MAX_ARTIFACTS])


def _target_of(check: Check, items: Sequence[_Item]) -> str | None:
    """Return the uri that a check is about, None for the output of the step."""
    if check.target is not msgspec.UNSET:
        return None if check.target == "output" else check.target
    uris = list(dict.fromkeys(item.uri for item in items))
    return uris[0] if len(uris) == 1 else None


# -- judging, in a thread -----------------------------------------------------------------------


def _judge_all(
    steps: Sequence[_StepInput], workspace: str | None, probed: Mapping[str, Probed], network: bool
) -> list[_Report]:
    reader = FileReader(workspace)
    judge = _Judge(reader, probed, network)
    return [judge.step(one) for one in steps]


class _Judge:
    def __init__(self, reader: FileReader, probed: Mapping[str, Probed], network: bool) -> None:
        self._reader = reader
        self._probed = probed
        self._network = network
        self._left = _MAX_ARTIFACTS
        self._end = time.monotonic() + _TIMEOUT_S

    def step(self, given: _StepInput) -> _Report:
        """Return verdict, codes and entries of one step."""
        result = given.result
        said = result.error or result.status
        own = [] if result.code is msgspec.UNSET else [result.code]
        if result.status == "failed":
            return _Report("fail", said, own, [], [])
        if result.status == "skipped":
            return _Report("skipped", said, own, [], [])
        return self._done(given)

    def _done(self, given: _StepInput) -> _Report:
        step, result = given.step, given.result
        codes = [] if result.output.strip() else ["output_empty"]
        entries: list[dict[str, Any]] = []
        open_points = [
            _unchecked(step.id, "verification", text, "no program can check it") for text in step.free_text
        ]
        looked = [(item, self._look(item, given)) for item in given.items]
        extra = self._extra(given, looked)
        count = 0
        for index, (item, found) in enumerate(looked):
            findings = [*found.findings, *extra.get(index, ())]
            real = [one for one in findings if one.result != "unchecked"]
            has_check = index in extra
            if item.is_required and not real and (item.type != "other" or has_check):
                findings.append(failed("evidence", "artifact_unverified", "nothing of it could be checked"))
            open_points += _open_points(step.id, "artifact", item.uri, findings)
            count += len(real)
            codes += [one.code for one in findings if one.code is not None]
            if findings:
                entries.append(_entry(step.id, _shown(item), item.expected, findings, found.evidence))
        for target, check, findings in self._loose(given, looked):
            codes += [one.code for one in findings if one.code is not None]
            count += sum(one.result != "unchecked" for one in findings)
            open_points += _open_points(step.id, "check", target, findings)
            entries.append(_entry(step.id, {"target": target}, check, findings, None))
        if not count and not codes:
            if given.side_effect in CLASSES and CLASSES.index(given.side_effect) >= _EXTERNAL:
                codes.append("artifact_unverified")
            else:
                open_points.append(_unchecked(step.id, "step", step.id, NOTHING_TO_CHECK))
                return _Report("pass", NOTHING_TO_CHECK, [], entries, open_points)
        codes = list(dict.fromkeys(codes))
        if codes:
            return _Report("fail", codes[0], codes, entries, open_points)
        return _Report("pass", _ALL_HOLD, [], entries, open_points)

    # -- artifacts ------------------------------------------------------------------------------

    def _look(self, item: _Item, given: _StepInput) -> _Looked:
        """Return what is found of an artifact; without findings it is optional and absent."""
        self._left -= 1
        if self._left < 0 or time.monotonic() > self._end:
            detail = f"beyond {_MAX_ARTIFACTS:,} artifacts or {_TIMEOUT_S:g} s of one verification"
            return _Looked([failed("evidence", "artifact_unverified", detail)], None, None)
        if item.produced is None:
            return self._unreported(item, given)
        found = self._kind(item, given)
        if item.produced.status in ("pending", "missing"):
            claim = failed("claim", "artifact_pending", f"the step says that it is {item.produced.status}")
            found = found._replace(findings=[claim, *found.findings])
        return found

    def _unreported(self, item: _Item, given: _StepInput) -> _Looked:
        """Look up an expected artifact that the step did not report."""
        expected = cast("Expected", item.expected)
        absent = [failed("produced", "artifact_missing", "the step did not produce it")]
        if expected.type in ("email", "message"):
            sent = find_unreported(expected.type, expected.uri, given.calls)
            if sent is not None:
                return _Looked(sent[0], sent[1], Content(exists=True, why="a message has no content here"))
            return _Looked(absent if expected.required else [], None, Content(exists=False))
        if expected.type == "other":
            return _Looked(absent if expected.required else [], None, self._reader.content(expected.uri))
        found = self._kind(item, given)
        is_absent = any(one.code in ("artifact_missing", "url_unreachable") for one in found.findings)
        return found if expected.required or not is_absent else found._replace(findings=[])

    def _kind(self, item: _Item, given: _StepInput) -> _Looked:
        type, uri = item.type, item.uri
        if type in FILE_TYPES:
            path = relative_path(uri, self._reader.root)
            before = given.before.get(path) if path is not None else None
            if before is None and item.expected is not None:
                before = given.before.get(item.expected.uri)
            began = given.before.get(".", {}).get("time")
            findings, evidence = check_file(type, uri, self._reader, before, began)
            return _Looked(findings, evidence, self._reader.content(uri))
        if type == "url":
            return self._url(uri)
        if type in ("email", "message"):
            message_id = (
                None if item.produced is None or item.produced.id is msgspec.UNSET else item.produced.id
            )
            findings, evidence = check_message(type, uri, message_id, given.calls)
            exists = all(one.result == "pass" for one in findings)
            return _Looked(findings, evidence, Content(exists=exists, why="a message has no content here"))
        detail = "artifacts of type other have no check of their own"
        return _Looked([unchecked("kind", detail)], None, self._reader.content(uri))

    def _url(self, uri: str) -> _Looked:
        problem = scheme_problem(uri)
        if problem is not None:
            return _Looked([failed("url", "url_scheme", problem)], None, Content(exists=False, why=problem))
        if not self._network:
            return _Looked([unchecked("url", "network checks are switched off")], None, None)
        found = self._probed.get(normal_url(uri))
        if found is None:
            return _Looked([unchecked("url", "too many URLs")], None, None)
        return _Looked(found.checks, found.evidence, found.content)

    # -- checks ---------------------------------------------------------------------------------

    def _extra(self, given: _StepInput, looked: Sequence[tuple[_Item, _Looked]]) -> dict[int, list[Finding]]:
        """Return the findings of the checks that are about an artifact, by its place."""
        found: dict[int, list[Finding]] = {}
        for check in given.step.checks:
            place = self._place(check, given)
            if place is not None:
                found.setdefault(place, []).extend(_applied(check, looked[place][1].content))
        return found

    def _loose(
        self, given: _StepInput, looked: Sequence[tuple[_Item, _Looked]]
    ) -> Iterable[tuple[str, Check, list[Finding]]]:
        """Yield the checks of the output, and of what is no artifact of the step."""
        for check in given.step.checks:
            if self._place(check, given) is not None:
                continue
            target = _target_of(check, given.items)
            if time.monotonic() > self._end:
                late = failed("time", "artifact_unverified", f"beyond {_TIMEOUT_S:g} s of one verification")
                yield target or "output", check, [late]
            elif target is None:
                yield "output", check, apply_check(check, _output(given.result))
            elif target.lower().startswith(("http:", "https:")):
                yield target, check, _applied(check, self._url(target).content)
            else:
                yield target, check, apply_check(check, self._reader.content(target))

    def _place(self, check: Check, given: _StepInput) -> int | None:
        target = _target_of(check, given.items)
        if target is None:
            return None
        root = self._reader.root
        for index, item in enumerate(given.items):
            uris = [item.uri] if item.expected is None else [item.uri, item.expected.uri]
            for uri in uris:
                if uri == target or _key(item.type, uri, root) == _key(item.type, target, root):
                    return index
        return None


def _applied(check: Check, content: Content | None) -> list[Finding]:
    if content is None:
        return [unchecked(key, "network checks are switched off") for key in set_keys(check)]
    return apply_check(check, content)


def _output(result: StepResult) -> Content:
    import hashlib

    body = result.output.encode("utf-8", "replace")
    digest = hashlib.sha256(body).hexdigest()
    return Content(exists=bool(result.output.strip()), size=len(body), sha256=digest, body=body)


def _shown(item: _Item) -> dict[str, Any]:
    if item.produced is not None:
        return cast("dict[str, Any]", msgspec.to_builtins(item.produced))
    return {"type": item.type, "uri": item.uri}


def _entry(
    step_id: str,
    artifact: dict[str, Any],
    expected: Expected | Check | None,
    findings: Iterable[Finding],
    evidence: dict[str, Any] | None,
) -> dict[str, Any]:
    return {
        "step_id": step_id,
        "artifact": artifact,
        "expected": None if expected is None else msgspec.to_builtins(expected),
        "checks": [msgspec.to_builtins(one) for one in findings],
        "evidence": evidence,
    }


def _open_points(step_id: str, kind: str, subject: str, findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [
        _unchecked(step_id, kind, subject, one.detail or one.name)
        for one in findings
        if one.result == "unchecked"
    ]


def _unchecked(step_id: str, kind: str, subject: str, reason: str) -> dict[str, Any]:
    return {"step_id": step_id, "kind": kind, "subject": subject, "reason": reason}


# -- the output ---------------------------------------------------------------------------------


def _assembled(steps: Sequence[_StepInput], reports: Sequence[_Report]) -> dict[str, Any]:
    verdicts = [
        {"step_id": one.step.id, "verdict": report.verdict, "reason": report.reason}
        for one, report in zip(steps, reports, strict=True)
    ]
    words = [report.verdict for report in reports]
    blockers = dict.fromkeys(f"{v['step_id']}: {v['reason']}" for v in verdicts if v["verdict"] != "pass")
    status = "partial"
    if not verdicts:
        status, blockers = "blocked", {"no steps": None}
    elif all(word == "pass" for word in words):
        status = "ready"
    elif "pass" not in words and _can_be_cleared(steps):
        status = "blocked"
    passes, fails = words.count("pass"), words.count("fail")
    return {
        "verifier_output": {
            "status": status,
            "verdicts": verdicts,
            "summary": f"{passes} passed, {fails} failed, {words.count('skipped')} skipped",
            "blockers": list(blockers),
        },
        "checks": [entry for report in reports for entry in report.entries],
        "codes": {
            one.step.id: report.codes for one, report in zip(steps, reports, strict=True) if report.codes
        },
        "unchecked": [point for report in reports for point in report.unchecked],
    }


def _can_be_cleared(steps: Iterable[_StepInput]) -> bool:
    """Return whether somebody outside can clear every cause: none of the steps was carried out."""
    causes: set[str] = set()
    for one in steps:
        if one.result.status == "done":
            return False
        causes.add("" if one.result.code is msgspec.UNSET else one.result.code)
    return causes - _FOLLOWS <= CLEARABLE and bool(causes - _FOLLOWS)
