"""Warnings about a document as a whole: what is declared and not used, and secrets that stand in it.

    W_UNUSED_INPUT     an input that no expression reads
    W_UNUSED_SERVICE   a service that no agent may call
    W_LITERAL_SECRET   a token, key or password written into the document

A message never shows the secret. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator

from agentflow.definition.redaction import is_sensitive
from agentflow.definition.report import Report, shown
from agentflow.definition.source_tree import Array, Node, Object, Scalar, child_pointer
from agentflow.definition.structure import Found

__all__ = ["warn_of_secrets", "warn_of_unused_inputs", "warn_of_unused_services"]

_SECRET = re.compile(
    r"""(?<![A-Za-z0-9])(?:
        sk-[A-Za-z0-9_-]{16,}                              # OpenAI, Anthropic
      | (?:ghp|gho|ghu|ghs|ghr)_[A-Za-z0-9]{20,} | github_pat_[A-Za-z0-9_]{20,} | glpat-[A-Za-z0-9_-]{16,}
      | xox[abeoprs]-[A-Za-z0-9-]{10,}                     # Slack
      | (?:AKIA|ASIA)[0-9A-Z]{16}(?![0-9A-Z]) | AIza[0-9A-Za-z_-]{30,}
      | hf_[A-Za-z0-9]{20,} | (?:sk|rk)_(?:live|test)_[A-Za-z0-9]{16,}
      | eyJ[A-Za-z0-9_-]{8,2000}+\.[A-Za-z0-9_-]{8,4000}+\.[A-Za-z0-9_-]{8}
      | (?:[Bb]earer|[Bb]asic|[Tt]oken)\s+(?=[A-Za-z0-9._~+/-]*[0-9])[A-Za-z0-9._~+/-]{16,}=*
    )
    | -----BEGIN[ ][A-Z ]*PRIVATE[ ]KEY-----
    | ://[^\s/@:]*:[^\s/@:${]+@                            # the password of a URL
    """,
    re.VERBOSE,
)
# One of these is in every text with a secret. An escape may hide the rest.
_MARKS = (
    "\\",
    "headers",
    "env",
    "sk-",
    "ghp_",
    "gho_",
    "ghu_",
    "ghs_",
    "ghr_",
    "github_pat_",
    "glpat-",
    "xox",
    "AKIA",
    "ASIA",
    "AIza",
    "hf_",
    "sk_",
    "rk_",
    "eyJ",
    "earer",
    "asic",
    "oken",
    "PRIVATE KEY",
    "://",
)
_SCHEME = re.compile(r"(?:bearer|basic|token)[ ]+", re.IGNORECASE)
_PLACEHOLDER = re.compile(r"\$|<|\{|x{3,}\b|\*{3}|…|\.\.\.", re.IGNORECASE)
_SHORTEST = 8
_HINTS = {
    "headers": "write {$secret: NAME}, and set the secret in the environment",
    "env": "write {$secret: NAME}, and set the secret in the environment",
}
_HINT = "take it out, and let the service that needs it read it from {$secret: NAME}"


def warn_of_secrets(root: Object, text: str, report: Report) -> None:
    """Report W_LITERAL_SECRET for every string that has the form of a secret, or stands where one belongs.

    `text` is the source: where nothing in it can be a secret, its strings are not looked at one by one.
    """
    if not any(mark in text for mark in _MARKS):
        return
    for scalar, pointer, key, within in _strings(root, "", "", ""):
        text = str(scalar.value)
        found = _SECRET.search(text) is not None
        if not found and within in _HINTS and is_sensitive(key):
            # A scheme alone, or what stands for a value, is no secret.
            bare = _SCHEME.sub("", text, count=1).strip()
            found = len(bare) >= _SHORTEST and _PLACEHOLDER.match(bare) is None
        if found:
            report.warning(
                "W_LITERAL_SECRET",
                f'"{shown(key)}" has a secret in it, which everyone who reads the document can use',
                (scalar.line, scalar.column),
                pointer,
                _HINTS.get(within, _HINT),
            )


def _strings(node: Node, pointer: str, key: str, within: str) -> Iterator[tuple[Scalar, str, str, str]]:
    """Yield every string with its pointer, the key that it stands at, and the key of its object."""
    if isinstance(node, Scalar):
        if isinstance(node.value, str) and len(node.value) >= _SHORTEST:
            yield node, pointer, key, within
    elif isinstance(node, Array):
        for i, item in enumerate(node.items):
            yield from _strings(item, f"{pointer}/{i}", key, within)
    else:
        for name, member in node.members.items():
            yield from _strings(member.node, child_pointer(pointer, name), name, key)


def warn_of_unused_inputs(document: Found, used: Collection[str], report: Report) -> None:
    """Report W_UNUSED_INPUT for each declared input that is not in `used`."""
    declared = document.get("inputs")
    for name, found in declared.items() if declared else ():
        if name not in used:
            hint = f"read it as ${{{{ inputs.{name} }}}}, or take it away"
            report.warning("W_UNUSED_INPUT", f'input "{name}" is not used', found.key, found.pointer, hint)


def warn_of_unused_services(document: Found, used: Collection[str], report: Report) -> None:
    """Report W_UNUSED_SERVICE for each declared service that is not in `used`."""
    declared = document.get("services")
    for name, found in declared.items() if declared else ():
        if name not in used:
            message = f'service "{name}" is not used: no agent may call its functions'
            report.warning(
                "W_UNUSED_SERVICE",
                message,
                found.key,
                found.pointer,
                "attach a function of it, or take it away",
            )
