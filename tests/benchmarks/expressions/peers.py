"""The same condition in other expression languages; runs in the peers' interpreter, prints JSON lines.

Knows nothing of agentflow: it is started as a script by `__main__` with any Python that has the peers.
"""

from __future__ import annotations

import importlib.metadata
import json
import sys
import timeit
from collections.abc import Callable
from typing import Any

SCOPE: dict[str, Any] = {
    "steps": {"evaluate": {"outputs": {"status": "success", "result": {"urgency": "high", "score": 7}}}},
    "inputs": {"amount": 250, "region": "us"},
}


def best(run: Callable[[], object], repeat: int = 9, seconds: float = 0.05) -> float:
    """Microseconds of one call: the best of some rounds, which disturbs least."""
    timer = timeit.Timer(run)
    number = 1
    while (took := timer.timeit(number)) < seconds and number < 1_000_000:
        number = max(number * 2, int(number * seconds / max(took, 1e-9)))
    return min(timer.repeat(repeat, number)) / number * 1e6


def report(case: str, subject: str, value: float) -> None:
    print(
        json.dumps({"suite": "expressions", "case": case, "subject": subject, "value": value, "unit": "us"})
    )


def celpy() -> None:
    import celpy as cel

    text = 'steps.evaluate.outputs.result.urgency == "high" && inputs.amount >= 100 && inputs.region != "eu"'
    environment = cel.Environment()
    program = environment.program(environment.compile(text))
    activation = {name: cel.json_to_cel(value) for name, value in SCOPE.items()}
    assert program.evaluate(activation)
    subject = f"cel-python {importlib.metadata.version('cel-python')}"
    report("parse", subject, best(lambda: environment.program(environment.compile(text))))
    report("evaluate", subject, best(lambda: program.evaluate(activation)))


def simpleeval() -> None:
    import simpleeval as se

    text = (
        "steps.evaluate.outputs.result.urgency == 'high' and inputs.amount >= 100 and inputs.region != 'eu'"
    )
    evaluator = se.EvalWithCompoundTypes(names=SCOPE)
    tree = evaluator.parse(text)
    assert evaluator.eval(text, tree)
    subject = f"simpleeval {importlib.metadata.version('simpleeval')}"
    report("parse", subject, best(lambda: evaluator.parse(text)))
    report("evaluate", subject, best(lambda: evaluator.eval(text, tree)))


def jmespath() -> None:
    import jmespath as jp
    from jmespath.parser import Parser

    text = (
        "steps.evaluate.outputs.result.urgency == 'high' && inputs.amount >= `100` && inputs.region != 'eu'"
    )
    expression = jp.compile(text)
    assert expression.search(SCOPE)

    def parse() -> object:
        Parser.purge()  # it keeps what it has parsed
        return Parser().parse(text)

    subject = f"jmespath {importlib.metadata.version('jmespath')}"
    report("parse", subject, best(parse))
    report("evaluate", subject, best(lambda: expression.search(SCOPE)))


if __name__ == "__main__":
    for peer in (celpy, simpleeval, jmespath):
        try:
            peer()
        except ImportError as error:
            print(f"skipped {peer.__name__}: {error}", file=sys.stderr)
