"""Documents at the limits, made to be slow or large: each is answered in bounded time and memory.

Work is bounded by counts in the product; the seconds here only catch what is out of all proportion, on a busy
machine too.
"""

from __future__ import annotations

import time
import tracemalloc

import pytest

from agentflow.definition import check_text

AGENT = "agent: {systemPrompt: p, input: x, resultSchema: true, attachedFunctions: none}"
MIB = 1 << 20


def document(*steps: str, top: str = "") -> str:
    return f'version: "1.0"\n{top}workflow:\n  steps:\n' + "".join(f"    - {step}\n" for step in steps)


def step(number: int, more: str = "") -> str:
    return f"{{type: run, id: s{number}, {AGENT}{more}}}"


def schema(text: str) -> str:
    agent = f"{{systemPrompt: p, input: x, attachedFunctions: none, resultSchema: {text}}}"
    return document(f"{{type: run, id: a, agent: {agent}}}")


def outputs(text: str, *steps: str) -> str:
    return document(*(steps or (step(0),)), top=f"outputs: {{o: '{text}'}}\n")


def joined(form: str, count: int) -> str:
    return "".join(form.replace("#", str(i)) for i in range(count))


DOCUMENTS = {
    "brackets": "[" * MIB,
    "braces": '{"a":' * (MIB // 5),
    "many anchors": "a0: &a0 [1]\n" + joined("b#: &b# [*a0, *a0]\n", 12_000),
    "billion laughs": "a0: &a0 [x,x]\n"
    + "".join(f"a{i}: &a{i} [*a{i - 1},*a{i - 1}]\n" for i in range(1, 60)),
    "a key of one megabyte": document(step(0)) + "k" * (MIB - 500) + ": 1\n",
    "a key of ten megabytes": document(step(0)) + "k" * (10 * MIB) + ": 1\n",
    "a scalar of one megabyte": document(step(0)) + "x-a: " + "k" * (MIB - 500) + "\n",
    "digits with underscores": document(step(0)) + "x-a: " + "1_" * 500_000 + "\n",
    "base 60": document(step(0)) + "x-a: " + "1:" * 500_000 + "\n",
    "words of YAML 1.1": document(step(0)) + "x-a: [" + "yes, " * 20_000 + "]\n",
    "the same key": document(step(0)) + "a: 1\n" * 20_000,
    "unknown keys": document(step(0)) + joined("verson#: 1\n", 15_000),
    "unknown steps": outputs(joined("${{ steps.zs# }}", 8_000), *(step(i) for i in range(900))),
    "broken expressions": outputs("${{=}}" * 50_000),
    "many expressions": outputs("${{1}}" * 40_000),
    "deep expressions": outputs(("${{" + "(" * 49 + "1" + ")" * 49 + "}}") * 2_000),
    "errors in a block": document(step(0), top="outputs:\n  o: |\n" + "    ${{ nope }}\n" * 15_000),
    "all steps read all steps": document(
        *(
            step(i, ", depends_on: [" + ",".join(f"s{j}" for j in range(max(0, i - 80), i)) + "]")
            for i in range(1_000)
        )
    ),
    "one circle of all steps": document(
        *(step(i, f", depends_on: [s{(i + 1) % 1_000}]") for i in range(1_000))
    ),
    "models in a circle": f"models: {{{', '.join(f'm{i}: m{(i + 1) % 20_000}' for i in range(20_000))}}}\n"
    + document(step(0)),
    "functions": "agents: [{name: a, system_prompt: p, tools: [" + joined("t#.f, ", 60_000) + "]}]",
    "patterns": schema("{anyOf: [" + joined("{pattern: '(a#+)+b{1,300}'}, ", 2_000) + "]}"),
    "a chain of references": schema(
        "{$defs: {" + joined("d#: {$ref: '@/$defs/e'}, ", 5_000).replace("@", "#") + "e: {}}}"
    ),
    "remote references": schema("{$defs: {" + joined("d#: {$ref: '#/e'}, ", 5_000) + "e: {}}}"),
    "many parts of a schema": schema("{anyOf: [" + "{type: string}, " * 8_000 + "]}"),
    "names that a schema lacks": document(
        "{type: run, id: a, agent: {systemPrompt: p, input: x, attachedFunctions: none, resultSchema:"
        " {type: object, properties: {" + joined("p#: {}, ", 5_000) + "}}}}",
        top="outputs: {o: '" + joined("${{ steps.a.outputs.result.zz# }}", 4_000) + "'}\n",
    ),
}


@pytest.mark.parametrize("name", DOCUMENTS)
def test_an_answer_comes_in_bounded_time(name: str):
    text = DOCUMENTS[name]
    started = time.process_time()
    found = check_text(text)
    assert time.process_time() - started < 10
    assert len(found) <= 200
    assert all(len(d.message) <= 400 for d in found)


@pytest.mark.parametrize(
    "name", ["brackets", "braces", "billion laughs", "many anchors", "a key of ten megabytes"]
)
def test_what_is_refused_costs_little_memory(name: str):
    text = DOCUMENTS[name]
    tracemalloc.start()
    try:
        assert [d.code for d in check_text(text)][-1] in ("E_LIMIT", "E_SYNTAX", "E_FORMAT")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 64 * MIB
