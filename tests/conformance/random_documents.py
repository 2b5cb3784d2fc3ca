"""Random step documents with the world that they run in, each from a seed."""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

from tests.conformance.reference_interpreter import Answer, Decision, Fail, Script, Turn

__all__ = ["Case", "random_case"]

INPUTS: dict[str, Any] = {
    "yes": True,
    "no": False,
    "n": 3,
    "zero": 0,
    "text": "x",
    "blank": "",
    "nothing": None,
    "numbers": [1, 2, 3, 4],
    "mixed": [1, "x", None, {"x": 2}],
    "one": ["a"],
    "empty": [],
    "object": {"a": 1},
}
PLAIN_GUARDS = (
    "inputs.yes",
    "!inputs.no",
    "inputs.n > 2",
    "inputs.blank",
    "inputs.zero",
    "inputs.empty",
    "false",
)
STATUS_GUARDS = (
    "always()",
    "failure()",
    "success()",
    "cancelled()",
    "success() && inputs.yes",
    "failure() || inputs.no",
    "always() && inputs.yes",
    "!success()",
    "!failure() && !cancelled()",
)
ITEM_GUARDS = (
    "item > 1",
    "index < 2",
    "item != 2",
    "index > 0 || inputs.no",
    "item == 'x'",
    "always() && index != 1",
)
LISTS = ("inputs.numbers", "inputs.numbers", "inputs.mixed", "inputs.one", "inputs.empty")
SAFE_LISTS = ("inputs.numbers", "inputs.one")
NO_LISTS = ("inputs.nothing", "inputs.object", "inputs.text", "inputs.object.x")
RETRIED = (["transient", "invalid_output"], ["invalid_output"], ["auth"], ["timeout_error"], ["timeout"])
FAILURES = ("transient", "transient", "transient", "timeout", "auth", "agent", "invalid_input")


class Case(NamedTuple):
    """A document, its inputs, and what models and people do."""

    document: dict[str, Any]
    inputs: dict[str, Any]
    script: Script


def random_case(seed: int) -> Case:
    """Return the case of this seed."""
    return _Generator(seed).case()


class _Generator:
    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.script = Script()
        self.fail_fast = self.chance(0.2)
        self.deps: dict[str, set[str]] = {}  # near and far
        self.kinds: dict[str, bool] = {}  # by step: has for_each

    def chance(self, p: float) -> bool:
        return self.rng.random() < p

    def seconds(self, least: float, most: float) -> float:
        """Return a time that no other one is likely to meet."""
        return round(self.rng.uniform(least, most), 6)

    def case(self) -> Case:
        rng = self.rng
        steps = [self.step(i) for i in range(rng.randint(1, 9))]
        if self.chance(0.3):
            rng.shuffle(steps)
        workflow: dict[str, Any] = {"steps": steps}
        if self.chance(0.4):
            workflow["max_parallel"] = rng.choice((1, 2, 3))
        if self.fail_fast:
            workflow["fail_fast"] = True
        document: dict[str, Any] = {
            "version": "1.0",
            "models": {"default": "scripted:m"},
            "defaults": {
                "retry": {"jitter": 0} | self.rng.choice(({}, {}, {"max_attempts": 2}, {"backoff": "700ms"}))
            },
            "workflow": workflow,
        }
        if self.chance(0.5):
            document["outputs"] = self.outputs([s["id"] for s in steps])
        return Case(document, INPUTS, self.script)

    # -- steps ----------------------------------------------------------------------------------

    def step(self, i: int) -> dict[str, Any]:
        name = f"s{i}"
        near = [f"s{j}" for j in range(i) if self.chance(0.4)]
        self.deps[name] = set(near).union(*(self.deps[d] for d in near))
        self.kinds[name] = self.chance(0.35)
        step: dict[str, Any] = {"type": "run", "id": name}
        if near:
            step["depends_on"] = near
        if self.chance(0.45):
            step["required"] = False
        if self.kinds[name]:
            self.items(step, name)
        elif self.chance(0.25):
            step["timeout"] = f"{self.seconds(1, 9)}s"
        if self.chance(0.4):
            step["if"] = self.guard(name)
        if self.chance(0.6):
            step["retry"] = self.retry()
        if self.chance(0.2):
            self.approval(step, name)
        step["agent"] = self.agent(name)
        return step

    def items(self, step: dict[str, Any], name: str) -> None:
        values = list(LISTS)
        values += [f"steps.{d}.outputs.result.list" for d in self.deps[name] if not self.kinds[d]]
        values += [f"steps.{d}.outputs.items" for d in self.deps[name] if self.kinds[d]]
        if self.fail_fast:
            values = list(SAFE_LISTS)
        elif self.chance(0.1):
            values = list(NO_LISTS)
        value = self.rng.choice(values)
        step["for_each"] = f"${{{{ {value} }}}}"
        if self.chance(0.5):
            step["max_parallel"] = self.rng.randint(1, 3)
        for index in range(4):
            self.turns(name, index)

    def guard(self, name: str) -> str | bool:
        choices: list[str | bool] = [*PLAIN_GUARDS, *STATUS_GUARDS, True, False]
        for dep in sorted(self.deps[name]):
            seen = f"steps.{dep}"
            choices += [
                f"{seen}.outputs.result.v == 1",
                f"always() && {seen}.status == 'failed'",
                f"{seen}.status != 'skipped' || failure()",
                f"failure() && {seen}.error.category == 'transient'",
                f"length({seen}.outputs.result.list) > 1",
            ]
            if self.kinds[dep]:
                choices.append(f"always() && {seen}.outputs.items[0].status == 'failed'")
        if self.kinds[name]:
            choices += [*ITEM_GUARDS, *ITEM_GUARDS]
        elif not self.fail_fast and self.chance(0.06):
            choices = ["inputs.text > 3", "always() && inputs.object > 1"]
        chosen = self.rng.choice(choices)
        return f"${{{{ {chosen} }}}}" if isinstance(chosen, str) and self.chance(0.3) else chosen

    def retry(self) -> Any:
        rng = self.rng
        if self.chance(0.15):
            return False
        retry: dict[str, Any] = {"max_attempts": rng.randint(1, 3)}
        if self.chance(0.6):
            retry["backoff"] = f"{self.seconds(0.1, 3)}s"
        elif self.chance(0.5):
            retry["backoff"] = {"initial": f"{self.seconds(0.1, 1)}s", "multiplier": 3, "max": "2s"}
        if self.chance(0.3):
            retry["timeout"] = f"{self.seconds(1, 4)}s"
        if self.chance(0.2):
            retry["max_elapsed"] = f"{self.seconds(0.5, 4)}s"
        if self.chance(0.4):
            retry["retry_on"] = rng.choice(RETRIED)
        return retry

    def approval(self, step: dict[str, Any], name: str) -> None:
        if step.get("for_each") and "empty" in step["for_each"]:
            return  # the page does not say whether a person is asked about nothing
        approval: dict[str, Any] = {}
        if self.chance(0.4):
            approval["on_denied"] = "skip"
        if self.chance(0.3):
            approval["timeout"] = f"{self.seconds(1, 6)}s"
        if self.chance(0.3):
            approval["message"] = "Run with ${{ inputs.n }}?"
        elif self.chance(0.05) and not self.fail_fast:
            approval["message"] = "${{ inputs.text > 3 }}"
        step["approval"] = approval or True
        self.script.decisions[name] = Decision(self.seconds(0.5, 8), self.chance(0.6))

    def agent(self, name: str) -> dict[str, Any]:
        each = self.kinds[name]
        values: list[Any] = ["x", None, {"n": "${{ inputs.n }}"}, "${{ inputs.text }}!"]
        values += [f"${{{{ steps.{d}.outputs.result.v }}}}" for d in sorted(self.deps[name])]
        if each:
            values += ["${{ item }}", "${{ index }}", "${{ item > 2 }}", {"of": "${{ item.x }}"}]
        elif not self.fail_fast and self.chance(0.05):
            values = ["${{ inputs.text > 3 }}"]
        if not each:
            self.turns(name, None)
        schema: Any = {"type": "object", "required": ["ok"]} if self.chance(0.5) else {}
        return {
            "systemPrompt": f"{name} ${{{{ index }}}}" if each else name,
            "input": self.rng.choice(values),
            "resultSchema": schema,
            "attachedFunctions": "none",
        }

    # -- the world ------------------------------------------------------------------------------

    def turns(self, name: str, index: int | None) -> None:
        """What a unit is answered: mostly well, or with a mind to fail in one way."""
        fails, breaches = self.rng.choice(((0.1, 0.05), (0.1, 0.05), (0.35, 0.25), (0.8, 0), (0.1, 0.9)))
        turns: list[Turn] = []
        for _ in range(self.rng.randint(0, 7)):
            result: Answer | Fail
            if self.chance(fails):
                result = Fail(self.rng.choice(FAILURES))
            elif self.chance(breaches):
                result = Answer({"v": 2})
            else:
                result = Answer({"ok": True, "v": self.rng.randint(0, 2), "list": self.list()})
            turns.append(Turn(self.seconds(0.05, 3), result))
        # More than is asked, so that no two calls take the same time.
        good = Answer({"ok": True, "v": 1, "list": [1]})
        turns += [Turn(self.seconds(0.05, 3), good) for _ in range(12)]
        self.script.turns[name, index] = turns

    def list(self) -> Any:
        return self.rng.choice(([], [1, 2], [{"x": 1}], [3, 2, 1]))

    def outputs(self, names: list[str]) -> dict[str, Any]:
        made: dict[str, Any] = {}
        for i in range(self.rng.randint(1, 3)):
            seen = f"steps.{self.rng.choice(names)}"
            made[f"o{i}"] = self.rng.choice(
                (
                    f"${{{{ {seen}.outputs.result }}}}",
                    f"${{{{ {seen}.status }}}}",
                    f"is ${{{{ {seen}.outputs.result.v }}}}",
                    {"nested": [f"${{{{ {seen}.error.category }}}}", 1]},
                    f"${{{{ {seen}.outputs.result.v > 0 }}}}",
                )
            )
        return made
