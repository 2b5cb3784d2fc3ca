"""The page `expressions`: operators and functions, each with examples whose values are computed here."""

from __future__ import annotations

from typing import Any

from agentflow.definition.expressions import parse
from agentflow.definition.expressions.signatures import SIGNATURES, STATUS_FUNCTIONS
from agentflow.definition.expressions.values import encode
from tests.docs.references.tables import GENERATED, table

__all__ = ["make_expressions"]

_ROOTS: dict[str, Any] = {
    "inputs": {"name": "Ann", "tags": ["new", "vip"]},
    "steps": {
        "a": {"outputs": {"result": {"score": 7, "items": [{"n": 1}, {"n": 2}]}, "status": "succeeded"}}
    },
    "item": "x",
    "index": 0,
}
_OPERATORS = (
    ("steps.a.outputs.result.score >= 5", "numbers with numbers, texts with texts; else the step fails"),
    ("inputs.name == 'Ann'", "typed and case-sensitive; arrays and objects are compared deeply"),
    ("inputs.nick || 'friend'", "the first operand that is true, else the last: a default value"),
    ("inputs.name && inputs.tags[0]", "the first operand that is false, else the last"),
    ("!inputs.nick", "false are null, false, 0 and the empty text; all else is true"),
    ("inputs.tags[1]", "an element; null beyond the end"),
    ("inputs.missing.deeper", "a member that is not there is null, never an error"),
    ("steps.a.outputs.result.items.*.n", "the member of each element"),
)
_FUNCTIONS: dict[str, tuple[str, str]] = {
    "case": (
        "case(inputs.name == 'Bob', 1, true, 2, 3)",
        "the value after the first condition that is true, else the last",
    ),
    "contains": ("contains(inputs.tags, 'vip')", "whether an array has the element, or a text the text"),
    "endsWith": ("endsWith(inputs.name, 'n')", "whether a text ends with the other"),
    "format": (
        "format('{0} has {1}', inputs.name, length(inputs.tags))",
        "the text with `{0}`, `{1}` … replaced; `{{` is a brace",
    ),
    "fromJSON": ("fromJSON('[1, 2]')", "the value of a JSON text"),
    "join": ("join(inputs.tags, ' and ')", "the elements as one text; the separator is `,` if none is given"),
    "length": (
        "length(inputs.tags)",
        "characters of a text, elements of an array, keys of an object; 0 of null",
    ),
    "startsWith": ("startsWith(inputs.name, 'A')", "whether a text begins with the other"),
    "toJSON": ("toJSON(inputs.tags)", "the value as compact JSON"),
    "success": (
        "success()",
        "in `if`: all steps that this one depends on have succeeded; holds where no status function is written",
    ),
    "failure": ("failure()", "in `if`: one of them has failed"),
    "cancelled": ("cancelled()", "in `if`: the run is being cancelled"),
    "always": ("always()", "in `if`: the step runs in any case"),
}


def make_expressions() -> str:
    """Return the page."""
    operators = [(f"`{text}`", f"`{_value(text)}`", about) for text, about in _OPERATORS]
    functions = [
        (f"`{_FUNCTIONS[s.name][0]}`", _shown(s.name), s.arity, _FUNCTIONS[s.name][1])
        for s in SIGNATURES.values()
    ]
    return f"""# Expressions and functions

{GENERATED}

The values below are computed with these roots:

```json
{encode(_ROOTS).decode()}
```

A text that is one `${{{{ }}}}` gives the typed value: `input: ${{{{ inputs.tags }}}}` is an array. In any other text the value
becomes text: `"Dear ${{{{ inputs.name }}}}"`. A value is data: `${{{{` in it is not evaluated again. There is no arithmetic.

## Roots

| root | known in |
| --- | --- |
| `inputs.NAME` | every field that is evaluated |
| `steps.ID.outputs.result`, `.status`, `.error` | steps that this step depends on, directly or through others; `outputs` of the document may read every step |
| `item`, `index` | steps with `for_each`; `index` begins with 0 |

## Operators

{table(("expression", "value", "rule"), operators)}
`!=`, `<`, `<=`, `>` are the others. `===` is `==`.

## Functions

Names of functions are case-insensitive.

{table(("example", "value", "takes", "gives"), functions)}
## Try one

```sh
agentflow expr 'join(inputs.tags, "-")' --data '{{"inputs": {{"tags": ["a", "b"]}}}}'
```

```text output
"a-b"
```

`agentflow expr EXPRESSION --run ID` takes the roots of a run.

An expression that fails on the values of a run fails its step with the code `expression_error`. At most 100,000 operations
and 1 MiB of result are allowed.
"""


def _value(text: str) -> str:
    return encode(parse(text).evaluate(_ROOTS)).decode()


def _shown(name: str) -> str:
    example = _FUNCTIONS[name][0]
    return "" if name in STATUS_FUNCTIONS else f"`{_value(example)}`"
