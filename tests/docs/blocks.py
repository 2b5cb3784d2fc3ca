"""The fenced blocks of a page of documentation, and what the tests do with each.

A block begins with three backticks, its language, and one of these tags:

    file=NAME   the block is written to the file NAME beside the page's other files
    not-run     the block is shown only, because it needs another machine, a network or a terminal
    output      the block is what the shell block before it prints; `…` stands for any text
    (none)      the block is executed: sh, python, yaml, toml, json
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from agentflow.docs import TOPICS

ROOT = Path(__file__).parents[2]
README = "README"
TAGS = ("", "not-run", "output")
_FENCE = re.compile(r"^```(?P<info>[^\n`]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)


class Block(NamedTuple):
    """One block; `line` is that of its fence."""

    language: str
    tag: str
    file: str | None
    body: str
    line: int


def read_source(page: str) -> str:
    """Read a topic's page, or README.md."""
    path = ROOT / "README.md" if page == README else ROOT / "agentflow/docs" / f"{page}.md"
    return path.read_text(encoding="utf-8")


def read_blocks(page: str) -> list[Block]:
    """Return the blocks of a page in their order."""
    text = read_source(page)
    found: list[Block] = []
    for match in _FENCE.finditer(text):
        language, _, tag = match["info"].strip().partition(" ")
        file = tag.removeprefix("file=") if tag.startswith("file=") else None
        line = text.count("\n", 0, match.start()) + 1
        found.append(Block(language, "" if file else tag, file, match["body"], line))
    return found


PAGES = (README, *TOPICS)
