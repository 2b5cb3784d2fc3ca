"""The keys of the step document and of the agent list (page 001 §1, page 000 §2, §3), as data."""

from __future__ import annotations

from agentflow.definition.shapes import (
    ArrayOf,
    Duration,
    Enum,
    Field,
    Id,
    Json,
    Kind,
    Map,
    OneOf,
    Schema,
    Shape,
    Text,
)
from agentflow.definition.vocabulary_values import (
    APPROVAL,
    BUDGET,
    CACHE,
    COUNT,
    DEFAULTS,
    EXAMPLE,
    FLAG,
    INPUT,
    MODEL,
    RETRY,
    SERVICE,
)

__all__ = ["AGENT_LIST", "MAX_STEPS", "STEP_DOCUMENT"]

MAX_STEPS = 1_000

_MODEL_ABOUT = "The language model: an alias, provider:model, or an object with parameters."

_FUNCTION = Shape(
    "function",
    {
        "service": Field(Id(), "The service that has the function.", required=True),
        "function": Field(Text(max=128), "The function; * for all that the service has.", required=True),
    },
)

_SCALAR: Kind = Json(template=True, types=("string", "number", "boolean", "null"))

_STEP_AGENT = Shape(
    "agent",
    {
        "systemPrompt": Field(
            Text(template=True),
            "The instructions for the agent. A template; results of other steps belong into input.",
            required=True,
        ),
        "input": Field(
            Json(template=True),
            "What the agent is given: any JSON, each string a template. A string goes to the model as it is.",
        ),
        "resultSchema": Field(
            Schema(), "The JSON Schema (Draft 2020-12) that the result must satisfy. Without it, any result."
        ),
        "attachedFunctions": Field(
            OneOf({"array": ArrayOf(_FUNCTION), "string": Enum(("none",))}),
            "The functions that the agent may call. Absent or empty: all of them; none: none.",
        ),
        "tags": Field(
            Map(_SCALAR, any_key=True),
            "Names and values that go with the events of the step. They never influence it.",
        ),
        "context": Field(
            Json(template=True, types=("object",)),
            "Data that every function call of the agent receives, and the model never sees.",
        ),
        "name": Field(Text(max=128), "The agent's name; without it, the id of the step."),
        "model": Field(MODEL, _MODEL_ABOUT),
        "fallback": Field(ArrayOf(MODEL), "The models that are tried when the one before fails."),
        "max_turns": Field(COUNT, "How often the model is called at most.", 10),
        "max_tool_calls": Field(COUNT, "How many functions are called at most.", 50),
        "examples": Field(
            ArrayOf(EXAMPLE), "Inputs with their answers, shown to the model before the input of the step."
        ),
        "accept_truncated": Field(
            FLAG, "Whether the text of an answer that is cut off by its length is the answer.", False
        ),
    },
    synonyms={
        "prompt": "systemPrompt",
        "instructions": "systemPrompt",
        "tools": "attachedFunctions",
        "functions": "attachedFunctions",
        "schema": "resultSchema",
        "output_schema": "resultSchema",
        "inputs": "input",
    },
)

_STEP = Shape(
    "step",
    {
        "type": Field(Enum(("run",)), "The kind of step: run.", required=True),
        "id": Field(Id(), "The name of the step, unique in the workflow.", required=True),
        "agent": Field(_STEP_AGENT, "Who does the work.", required=True),
        "depends_on": Field(
            ArrayOf(Text()), "The steps that must have succeeded before this one begins.", ()
        ),
        "if": Field(
            OneOf({"string": Text(blank=True, template=True), "boolean": FLAG}),
            "A condition: the step is skipped when it is false. ${{ }} may be left out.",
            True,
        ),
        "for_each": Field(
            Text(blank=True, template=True),
            "An expression in ${{ }} that gives an array: the step is done once for each item.",
        ),
        "required": Field(FLAG, "Whether the run fails when this step does.", True),
        "max_parallel": Field(
            COUNT, "With for_each: how many iterations work at once; without it, as many as in the workflow."
        ),
        "timeout": Field(
            Duration(), "How long the step may take, all attempts and iterations; not waiting for a person."
        ),
        "retry": Field(RETRY, "When and how often failed work is tried again; false: never."),
        "approval": Field(APPROVAL, "What a person must allow first; true: the step."),
        "cache": Field(CACHE, "Results of equal steps that may be used again."),
        "budget": Field(BUDGET, "What the step may use."),
    },
    synonyms={
        "needs": "depends_on",
        "retries": "retry",
        "after": "depends_on",
        "when": "if",
        "condition": "if",
        "loop": "for_each",
        "with_items": "for_each",
        "name": "id",
    },
)

_WORKFLOW = Shape(
    "workflow",
    {
        "steps": Field(
            ArrayOf(_STEP, max=MAX_STEPS, min=1),
            "The steps. Their order carries no meaning: depends_on does.",
            required=True,
        ),
        "max_parallel": Field(COUNT, "How many agents of a run work at once, iterations included.", 8),
        "fail_fast": Field(FLAG, "Whether nothing new begins after the first failure.", False),
        "timeout": Field(Duration(), "How long a run may take."),
        "budget": Field(BUDGET, "What a run may use."),
    },
)

_COMMON: dict[str, Field] = {
    "name": Field(Text(max=128), "The name of the workflow; without it, that of the file."),
    "description": Field(Text(blank=True), "What the workflow is for."),
    "$schema": Field(Text(blank=True), "The schema for editors. It has no meaning for a run."),
    "services": Field(Map(SERVICE), "Where functions come from, by the name of the service."),
    "models": Field(Map(MODEL), "Names for language models; `default` serves every agent that names none."),
    "defaults": Field(DEFAULTS, "What holds for steps that leave a key out."),
}

STEP_DOCUMENT = Shape(
    "document",
    {
        "version": Field(Json(), 'The version of the format: "1.0".', required=False, values=("1.0", 1.0)),
        "format": Field(Enum(("agent-workflow/1.0",)), "The format, as the keys say it too."),
        **_COMMON,
        "inputs": Field(Map(INPUT), "The inputs of a run. Once declared, no other input may be referenced."),
        "workflow": Field(_WORKFLOW, "The steps, and the limits of a run.", required=True),
        "outputs": Field(
            Map(Json(template=True)),
            "The output of a run, each string a template. Without it, the results of the last steps.",
        ),
    },
)

_LIST_AGENT = Shape(
    "agent",
    {
        "name": Field(Text(max=128), "The name of the agent.", required=True, code="E_AGENT_FIELD"),
        "system_prompt": Field(
            Text(), "The instructions for the agent, as they are.", required=True, code="E_AGENT_FIELD"
        ),
        "tools": Field(
            ArrayOf(Text(max=129)), "The functions that it may call: names, or service.function.", ()
        ),
        "model": Field(MODEL, _MODEL_ABOUT),
        "id": Field(Id(max=128), "The name of its step; without it, made from the name of the agent."),
        "output_schema": Field(Schema(), "The JSON Schema (Draft 2020-12) that the result must satisfy."),
        "max_turns": Field(COUNT, "How often the model is called at most.", 10),
        "max_tool_calls": Field(COUNT, "How many functions are called at most.", 50),
        "parallel_tool_calls": Field(FLAG, "Whether functions asked for together are called together.", True),
        "examples": Field(
            ArrayOf(EXAMPLE), "Inputs with their answers, shown to the model before the input of the step."
        ),
        "accept_truncated": Field(
            FLAG, "Whether the text of an answer that is cut off by its length is the answer.", False
        ),
        "timeout": Field(Duration(), "How long the agent may take, all attempts together."),
        "retry": Field(RETRY, "When and how often failed work is tried again; false: never."),
        "budget": Field(BUDGET, "What the agent may use."),
        "fallback": Field(ArrayOf(MODEL), "The models that are tried when the one before fails."),
    },
)

AGENT_LIST = Shape(
    "document",
    {
        "version": Field(Text(max=128), "The author's own version of the definition."),
        "format": Field(Enum(("linear",)), "The format, as the keys say it too."),
        **_COMMON,
        "agents": Field(
            ArrayOf(_LIST_AGENT, max=MAX_STEPS, min=1),
            "The agents, in their order: each gets the result of the one before.",
            required=True,
        ),
        "retry": Field(RETRY, "The retry of agents; an agent's own keys win."),
        "budget": Field(BUDGET, "What a run may use."),
        "timeout": Field(Duration(), "How long a run may take."),
        "on_failure": Field(
            Enum(("halt", "continue", "hold")),
            "After a failure: nothing more begins, or the rest goes on, or the run waits for a retry.",
            "halt",
        ),
    },
)
