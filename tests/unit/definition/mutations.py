"""Documents that are nearly right: changed by characters, lines and pieces of YAML, from a seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.conformance.cases import FOLDER, read_cases

__all__ = ["mutated_documents"]

_LONGEST = 6_000
_PIECES = [
    *"\t \n:?-,[]{}#&*!|>'\"%@`\\~=<$é😀\u0085\u2028\r",
    *(
        ": ",
        "? ",
        "- ",
        "\n\n",
        " #",
        "---\n",
        "...\n",
        "&a ",
        "*a ",
        "!!str ",
        "! ",
        "<<: ",
        "{a: b}",
        "[a]",
    ),
    *(
        '"x"',
        "'y'",
        "|\n",
        "|2\n",
        ">-\n",
        "\r\n",
        "x" * 1030,
        "\\u0041",
        "\\/",
        "\\U0010FFFF",
        "\\UFFFFFFFF",
    ),
    *(
        "key:",
        "    ",
        "?x",
        "x?y",
        "c? d",
        ":x",
        "-x",
        "::",
        "a:b",
        "[a: b, c]",
        "{a, b}",
        "{? a}",
        "!x ",
        "!<a> ",
    ),
    *(
        "!a!b ",
        "%20",
        "%YAML 1.1\n",
        "yes",
        "${{ ",
        " }}",
        ":\tx",
        "\t# c",
        ": # c\n",
        "{a: }",
        "[,]",
        "a: \n}",
    ),
]
_OWN = [
    "? a\n: b\n? [x, y]\n: {q: 1, ? z : 2}\n",
    'a: &x [1, *x ]\nb: !!str "q\\n\\t\\x41 \\\n  z"\nc: >2-\n   a\n   b\n\n  c\nd: |+\n a\n\n',
    "'a b': 'it''s'\nb: {c: , d}\n",
    "%YAML 1.1\n--- !!map\na: !<tag:yaml.org,2002:str> b\n...\n",
    "a:\n- b\n-\n  - c\n  -\n- ? x\n  : y\n",
]


def _documents() -> list[str]:
    found = [
        case.document
        for case in read_cases("documents/diagnostics")
        if case.raw.get("media", "yaml") == "yaml"
    ]
    texts = [text for text in found if isinstance(text, str) and len(text) <= _LONGEST]
    texts += [path.read_text(encoding="utf-8") for path in sorted((FOLDER / "documents").glob("*.yaml"))]
    texts += [
        (FOLDER / "mistakes" / name).read_text(encoding="utf-8") for name in ("refunds.yaml", "essay.yaml")
    ]
    return texts + _OWN


def mutated_documents(seed: int, count: int) -> Iterator[str]:
    """Yield `count` documents with one to four changes each; a long one is cut to some of its lines first."""
    chance = random.Random(seed)
    documents = _documents()
    for _ in range(count):
        text = chance.choice(documents)
        if len(text) > 1500:
            lines = text.split("\n")
            start = chance.randrange(len(lines))
            text = "\n".join(lines[start : start + chance.randrange(3, 40)])
        for _ in range(chance.randrange(1, 5)):
            text = _changed(text, chance)
        yield text


def _changed(text: str, chance: random.Random) -> str:
    kind, at = chance.random(), chance.randrange(len(text) + 1)
    if kind < 0.5:
        return text[:at] + chance.choice(_PIECES) + text[at:]
    if kind < 0.7:
        return text[:at] + text[at + chance.randrange(1, 4) :]
    if kind < 0.8:
        other = chance.randrange(len(text) + 1)
        return text[:at] + text[other : other + 30] + text[at:]
    lines = text.split("\n")
    first, second = chance.randrange(len(lines)), chance.randrange(len(lines))
    if kind < 0.9:
        lines[first] = " " * chance.randrange(5) + lines[first].lstrip()
    else:
        lines[first], lines[second] = lines[second], lines[first]
    return "\n".join(lines)
