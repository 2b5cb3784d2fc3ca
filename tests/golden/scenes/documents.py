"""Step documents: dependencies, guards, iterations, outcomes."""

from __future__ import annotations

from typing import Any

from agentflow import Runtime
from tests.golden.scenes.support import call, document, play, rest, step
from tests.golden.stage import RUN, After, Stage, failure, scene

NO_RETRY = {"retry": False}


@scene("chain of steps")
def chain(stage: Stage) -> None:
    play(
        stage,
        document(
            step("a", input="${{ inputs.text }}"),
            step("b", depends_on=["a"], input="${{ steps.a.outputs.result.said }}"),
            step("c", depends_on=["b"], input={"from": "${{ steps.b.outputs.result }}"}),
        ),
        {"text": "Hello"},
    )


@scene("fan-out and join")
def fan_out_and_join(stage: Stage) -> None:
    for name, seconds in {"left": 2, "middle": 1, "right": 3}.items():
        stage.says(name, After(seconds, {"from": name}))
    play(
        stage,
        document(
            step("first"),
            step("left", depends_on=["first"]),
            step("middle", depends_on=["first"]),
            step("right", depends_on=["first"]),
            step("join", depends_on=["left", "middle", "right"], input="${{ steps.middle.outputs }}"),
            max_parallel=2,
        ),
    )


@scene("skipped dependencies: each reason")
def skipped_dependencies(stage: Stage) -> None:
    stage.says("fails", failure("auth"))
    play(
        stage,
        document(
            step("fails", **NO_RETRY, required=False),
            step("after_failed", depends_on=["fails"]),
            step("unwanted", **{"if": "inputs.n > 3"}),
            step("after_skipped", depends_on=["unwanted"]),
            step("after_both", depends_on=["unwanted", "fails", "good"]),
            step("good"),
            step("last", depends_on=["after_failed", "good"]),
        ),
        {"n": 1},
    )


@scene("a required step fails, an unrelated branch goes on")
def failed_step(stage: Stage) -> None:
    stage.says("bad", failure("auth"))
    play(
        stage,
        document(step("bad"), step("good"), step("after", depends_on=["bad", "good"])),
        ends="failed",
    )


@scene("fail_fast: nothing is dispatched after a failure")
def fail_fast(stage: Stage) -> None:
    stage.says("bad", After(1, failure("auth")))
    stage.says("slow", After(5, {"ok": True}))
    stage.says("each 0", After(2, {"ok": 0}))
    items = step("each", for_each="${{ inputs.items }}", prompt="each ${{ index }}", max_parallel=1)
    play(
        stage,
        document(
            step("bad"),
            step("slow"),
            items,
            step("never", depends_on=["slow"]),
            step("at_the_end", depends_on=["bad"], **{"if": "always()"}),
            fail_fast=True,
        ),
        {"items": [1, 2]},
        ends="failed",
    )


@scene("guards with status functions")
def status_functions(stage: Stage) -> None:
    stage.says("fails", failure("auth"))
    play(
        stage,
        document(
            step("fails", **NO_RETRY, required=False),
            step("good"),
            step("middle", depends_on=["fails"]),
            step("on_failure", depends_on=["middle"], **{"if": "failure()"}),
            step("no_failure", depends_on=["good"], **{"if": "failure()"}),
            step("always", depends_on=["middle", "good"], **{"if": "always() && inputs.go"}),
            step("success", depends_on=["good"], **{"if": "success() && inputs.go"}),
            step("no_success", depends_on=["middle"], **{"if": "success()"}),
            step("cancelled", depends_on=["middle"], **{"if": "cancelled()"}),
            step("either", depends_on=["middle"], **{"if": "cancelled() || !success()"}),
        ),
        {"go": True},
    )


@scene("an error in a guard, a template and the outputs")
def expression_errors(stage: Stage) -> None:
    play(
        stage,
        document(
            step("guard", required=False, **{"if": "inputs.text > 3"}),
            step("template", required=False, input="${{ fromJSON(inputs.text) }}"),
            step("tags", required=False, for_each="${{ fromJSON(inputs.text) }}"),
            step("good"),
        )
        | {"outputs": {"value": "${{ fromJSON(inputs.text) }}"}},
        {"text": "x"},
        ends="failed",
    )


@scene("outputs of the run")
def outputs(stage: Stage) -> None:
    play(
        stage,
        document(step("a"), step("b", **{"if": "false"}), step("c", depends_on=["a"]))
        | {"outputs": {"a": "${{ steps.a.outputs.result.said }}", "b": "${{ steps.b.status }}"}},
    )


def _each(**more: Any) -> dict[str, Any]:
    more.setdefault("prompt", "each ${{ index }}")
    return step("each", for_each="${{ inputs.items }}", input="${{ item }}", **more)


@scene("for_each with max_parallel")
def for_each(stage: Stage) -> None:
    for i, seconds in enumerate((3, 1, 1, 2, 1)):
        stage.says(f"each {i}", After(seconds, {"slot": i}))
    play(
        stage,
        document(
            _each(max_parallel=2),
            step("beside"),
            step("after", depends_on=["each"], input="${{ steps.each.outputs.result.*.slot }}"),
            max_parallel=3,
        ),
        {"items": ["a", "b", "c", "d", "e"]},
    )


@scene("for_each: one iteration fails, the others still run")
def for_each_failing(stage: Stage) -> None:
    stage.says("each 1", failure("auth"))
    play(
        stage,
        document(
            _each(max_parallel=1, required=False),
            step("after", depends_on=["each"]),
            step("reads", depends_on=["each"], input="${{ steps.each.outputs.items }}", **{"if": "always()"}),
        ),
        {"items": [1, 2, 3]},
    )


@scene("for_each: guard and templates by item")
def for_each_guard(stage: Stage) -> None:
    play(
        stage,
        document(
            _each(**{"if": "item != 2 && index < 4"}, required=False),
            step(
                "typed",
                for_each="${{ inputs.items }}",
                input="${{ item > 1 }}",
                required=False,
                depends_on=["each"],
            ),
            step("once", for_each="${{ inputs.items }}", **{"if": "inputs.items[0] == 2"}),
        ),
        {"items": [1, 2, 3, "x", 5]},
    )


@scene("for_each over nothing, null, an object and too much")
def for_each_empty(stage: Stage) -> None:
    play(
        stage,
        document(
            step("none", for_each="${{ inputs.none }}"),
            step("after", depends_on=["none"]),
            step("null", for_each="${{ inputs.missing }}", required=False),
            step("object", for_each="${{ inputs.object }}", required=False),
        ),
        {"none": [], "object": {"a": 1}, "missing": None},
    )


@scene("for_each: held after a failure, retried")
def for_each_held(stage: Stage) -> None:
    stage.says("each 1", failure("auth"), {"ok": 2})

    async def retry(runtime: Runtime) -> None:
        await runtime.retry(RUN, "each", by="ann")
        await runtime.resume(RUN, by="ann")

    play(
        stage,
        document(_each(max_parallel=2, **NO_RETRY), step("after", depends_on=["each"])),
        {"items": [1, 2, 3]},
        options={"on_failure": "hold"},
        then=retry,
    )


def _held(action: Any, **more: Any) -> Any:
    def play_it(stage: Stage) -> None:
        stage.says("a", failure("auth"), {"ok": True})

        async def settle(runtime: Runtime) -> None:
            await runtime.retry(RUN, "a", action, by="ann", **more)
            if (await rest(runtime)).state == "paused":
                await runtime.resume(RUN, by="ann")

        play(
            stage,
            document(step("a", **NO_RETRY), step("b", depends_on=["a"]), step("beside")),
            options={"on_failure": "hold"},
            then=settle,
            ends="failed" if action == "fail" else "completed",
        )

    play_it.__name__ = f"held_{action}"
    return play_it


for _action, _more in {"retry": {}, "skip": {}, "done": {"output": {"by": "hand"}}, "fail": {}}.items():
    scene(f"a held step: {_action}")(_held(_action, **_more))


@scene("guard, for_each, tool, repair, retry, skip and outputs together")
def triage(stage: Stage) -> None:
    schema = {"type": "object", "properties": {"urgency": {"enum": ["low", "high"]}}, "required": ["urgency"]}
    stage.says("classify", failure("transient"), '{"urgency": 1}', '{"urgency": "low"}')
    for i in range(3):
        stage.says(f"see {i}", call("look", x=i), {"seen": i})
    play(
        stage,
        document(
            step("classify", input="${{ inputs.text }}", schema=schema),
            step(
                "see",
                prompt="see ${{ index }}",
                depends_on=["classify"],
                for_each="${{ inputs.items }}",
                input="${{ item }}",
                functions=["look"],
                max_parallel=2,
            ),
            step(
                "escalate",
                depends_on=["classify"],
                **{"if": 'steps.classify.outputs.result.urgency == "high"'},
            ),
            step("last", depends_on=["escalate"]),
        )
        | {
            "outputs": {
                "seen": "${{ steps.see.outputs.result.*.seen }}",
                "escalated": "${{ steps.escalate.status }}",
            }
        },
        {"text": "Hello", "items": ["a", "b", "c"]},
    )


@scene("what counts as true in a guard")
def truth_of_guards(stage: Stage) -> None:
    values = ("blank", "zero", "float", "none", "list", "object", "text", "one")
    play(
        stage,
        document(
            *(step(name, **{"if": f"inputs.{name}"}) for name in values),
            step("items", for_each="${{ inputs.items }}", **{"if": "item"}),
            step("two", depends_on=["one", "blank"], **{"if": "success()"}),
        ),
        {
            "blank": "", "zero": 0, "float": 0.0, "none": None, "list": [], "object": {}, "text": "false",
            "one": 1, "items": ["", 0, None, False, [], {}, "x", -1],
        },
    )  # fmt: skip


@scene("fail_fast: iterations of two steps share one slot")
def fail_fast_iterations(stage: Stage) -> None:
    stage.says("bad", After(1, failure("auth")))
    each = [
        step(name, for_each="${{ inputs.items }}", prompt=f"{name} ${{{{ index }}}}") for name in ("x", "y")
    ]
    for i, name in enumerate(("x 0", "x 1", "y 0", "y 1")):
        stage.says(name, After(2 + i, {"ok": True}))
    play(
        stage,
        document(step("bad"), *each, step("never"), max_parallel=1, fail_fast=True),
        {"items": [1, 2]},
        ends="failed",
    )
