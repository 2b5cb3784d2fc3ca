"""What the codes of diagnostics and of failed steps mean, for the reference page and `agentflow help CODE`.

Data only. Tests hold that every code of the product stands here, and no other.
"""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["DIAGNOSTICS", "FAILURES", "PAUSES", "VERDICTS", "CodeInfo", "find_code"]


class CodeInfo(NamedTuple):
    """A code: when it is given, and what to do."""

    meaning: str
    remedy: str


DIAGNOSTICS: dict[str, CodeInfo] = {
    "E_AGENT_FIELD": CodeInfo("An agent of an agent list has no name or no system prompt.", "Add the key."),
    "E_ASYNC_PREDICATE": CodeInfo(
        "A condition or a selection of an edge is an async function; routing awaits nothing.",
        "Write it with `def`; do what must be awaited in the handler.",
    ),
    "E_BRANCH_ESCAPE": CodeInfo(
        "A branch of a parallel node, or the body of a map, reaches a node outside its group.",
        "Let it leave through `next` of the parallel or map node alone.",
    ),
    "E_CACHE_SIDE_EFFECT": CodeInfo(
        "A step has `cache`, and one of its functions may change something.",
        "Remove `cache`, or attach functions that only read.",
    ),
    "E_CAPABILITY_DENIED": CodeInfo(
        "A node reads, writes or calls what its capabilities, or those of its subgraph, do not allow.",
        "Add it to the capabilities, or remove the use.",
    ),
    "E_CONFLICTING_FIELDS": CodeInfo(
        "A key of a node or an edge has no effect on it, or beside another key.", "Follow the hint."
    ),
    "E_CYCLE": CodeInfo("Steps depend on each other in a circle.", "Remove one of the dependencies shown."),
    "E_CYCLE_NOT_ALLOWED": CodeInfo(
        "A graph that is declared acyclic has a cycle.", "Take one of the edges shown away."
    ),
    "E_DEAD_END": CodeInfo("A node of a graph leads nowhere.", "Add an edge, or make it an end."),
    "E_DUPLICATE_BRANCH": CodeInfo(
        "A parallel node names a branch twice, or a merge a source.", "Remove one."
    ),
    "E_DUPLICATE_EDGE": CodeInfo("A graph has the same edge twice.", "Remove one."),
    "E_DUPLICATE_EDGE_FROM": CodeInfo(
        "Two ways lead on from one node of node-graph YAML.", "Keep one, or use a switch."
    ),
    "E_DUPLICATE_HANDLER": CodeInfo(
        "Two handlers of an executor take one type.",
        "Take one of them away, or narrow its type.",
    ),
    "E_DUPLICATE_ID": CodeInfo("Two steps or agents have one id.", "Rename one of them."),
    "E_DUPLICATE_KEY": CodeInfo("A key stands in a mapping twice.", "Remove one of them."),
    "E_DUPLICATE_NODE_ID": CodeInfo("Two nodes of a graph have one id.", "Rename one of them."),
    "E_DUPLICATE_TOOL_NAME": CodeInfo("An llm_call lists two tools of one name.", "Remove one."),
    "E_EDGE_FROM_END": CodeInfo("An edge leads on from an end.", "Remove the edge."),
    "E_EDGE_FROM_SWITCH": CodeInfo(
        "An edge leads on from a node that has targets of its own, such as a switch.",
        "Remove the edge, or name the target in the node.",
    ),
    "E_EMPTY_FIELD": CodeInfo("A required field of a node is absent or blank.", "Fill it."),
    "E_EMPTY_METADATA": CodeInfo(
        "A trace does not say which run, workflow or version it is of.",
        "Export it again with `agentflow trace`.",
    ),
    "E_EMPTY_GLOBAL_KEY": CodeInfo("The name of a global is blank.", "Give it a name."),
    "E_EMPTY_NODE_ID": CodeInfo("A node of a graph has a blank id.", "Give it a name."),
    "E_EMPTY_TOOL_NAME": CodeInfo("A tool of an llm_call has no name.", "Give it a name."),
    "E_EMPTY_WORKFLOW": CodeInfo("A graph has no nodes.", "Add one."),
    "E_EMPTY_WORKFLOW_NAME": CodeInfo("A graph has no name.", "Add a name."),
    "E_END_IN_BRANCH": CodeInfo(
        "A branch of a parallel node, or the body of a map, reaches an end.",
        "Lead it to `next` of the parallel or map node, or let its last node have no `next`.",
    ),
    "E_EVENT_AFTER_TERMINAL": CodeInfo(
        "A trace goes on after its terminal event.",
        "Export it again with `agentflow trace`.",
    ),
    "E_EXECUTOR_NOT_COPYABLE": CodeInfo(
        "An executor cannot be copied, which each run does.",
        "Pass its class or a factory, or name the field in `Executor.shared`.",
    ),
    "E_EXPR_ARITY": CodeInfo(
        "A function of an expression gets too few or too many arguments.", "See help expressions."
    ),
    "E_EXPR_FUNCTION": CodeInfo(
        "An expression calls an unknown function.", "See help expressions for the functions."
    ),
    "E_EXPR_LIMIT": CodeInfo(
        "An expression is too long or nested too deeply.", "Split it over several steps."
    ),
    "E_EXPR_NAME": CodeInfo(
        "An expression begins with an unknown name.", "Begin with steps, inputs, item or index."
    ),
    "E_EXPR_NOT_ALLOWED": CodeInfo(
        "`${{ }}` stands in a key or a field that is not evaluated.", "Write the value itself."
    ),
    "E_EXPR_SCOPE": CodeInfo(
        "`item`, `index` or a status function is used where it is not known.",
        "Use `item` and `index` in a step with for_each, status functions in `if`.",
    ),
    "E_EXPR_SYNTAX": CodeInfo("An expression cannot be read.", "Follow the hint; see help expressions."),
    "E_EXPR_UNCLOSED": CodeInfo(
        "`${{` or a quote in it is not closed.", 'Quote the whole value: " #" begins a comment in YAML.'
    ),
    "E_EXPR_WHOLE": CodeInfo(
        "Text stands around the `${{ }}` of a condition or of for_each.", "Move all of it into `${{ }}`."
    ),
    "E_FAN_TOO_SMALL": CodeInfo(
        "A fan-out, a selection or a join has fewer than two edges.",
        "Add an edge, or write a single one.",
    ),
    "E_FILE": CodeInfo(
        "The file cannot be read, has an unknown suffix, or is not UTF-8.",
        "Use .yaml, .yml or .json, saved as UTF-8.",
    ),
    "E_FORMAT": CodeInfo(
        "The document is neither of steps nor of agents, or both.", "Keep either `workflow` or `agents`."
    ),
    "E_FOR_EACH_TYPE": CodeInfo(
        "for_each goes over a value that is not an array.", "Choose an array inside it."
    ),
    "E_ILLEGAL_TRANSITION": CodeInfo(
        "A trace enters a node although none that leads to it was entered before.",
        "Check it with the definition of its own run.",
    ),
    "E_INPUT_INVALID": CodeInfo(
        "An input or a default breaks the schema of the input.", "Give a value that fits."
    ),
    "E_INPUT_MISSING": CodeInfo("A required input is not given.", "Add `--input NAME=VALUE`."),
    "E_INPUT_SCHEMA": CodeInfo(
        "The schema of an input or of an HTTP function is not JSON Schema.", "Correct the schema."
    ),
    "E_INVALID_FORM_SCHEMA": CodeInfo(
        "The form_schema of a person's form is not JSON Schema.", "Correct the schema."
    ),
    "E_INVALID_NODE_ID": CodeInfo(
        "The id of a node has characters that are not allowed.", "Use letters, digits, _ and -."
    ),
    "E_INVALID_PATH": CodeInfo(
        "A `*_path` field is an expression, and no path.",
        "Write the name of each member: nodes.a.output.rows.",
    ),
    "E_INVALID_TOOLS_FORMAT": CodeInfo(
        "tools_format is neither openai nor simplified.", "Write one of the two."
    ),
    "E_INVALID_TOOL_CHOICE": CodeInfo(
        "tool_choice has none of its forms.", "Write auto, none or required, or name a function."
    ),
    "E_INVALID_TOOL_ROUNDTRIPS": CodeInfo("max_tool_roundtrips is no integer from 1 on.", "Write 1 or more."),
    "E_INVALID_TOOL_SCHEMA": CodeInfo(
        "The schema of a tool of an llm_call is not JSON Schema.", "Correct the schema."
    ),
    "E_LIMIT": CodeInfo(
        "The document is too large, or has more than 200 problems.", "Split it, or mend the first problems."
    ),
    "E_MISMATCHED_NODE_LIFECYCLE": CodeInfo(
        "A trace leaves a node that was not entered, or enters one twice.",
        "Export it again with `agentflow trace`.",
    ),
    "E_MISSING_CHOICE_OPTIONS": CodeInfo(
        "A person is asked to choose, and there are no options.", "Add options."
    ),
    "E_MISSING_DEFAULT": CodeInfo(
        "A switch has no edge without `when`.",
        "Add one: it is taken when no case is true.",
    ),
    "E_MISSING_END": CodeInfo("A graph has no end.", "Add one."),
    "E_MISSING_ENTRY": CodeInfo(
        "Node-graph YAML does not say at which node it begins, or names none that exists.",
        "Add entry_node with the id of a node.",
    ),
    "E_MISSING_FORM_SCHEMA": CodeInfo(
        "A person is asked to fill in a form, and there is no form_schema.", "Add form_schema."
    ),
    "E_MISSING_NEXT": CodeInfo("A node does not say what comes next.", "Name the next node."),
    "E_MISSING_NODE_TYPE": CodeInfo(
        "A node of node-graph YAML has no node_type.", "Add node_type with one kind."
    ),
    "E_MISSING_START": CodeInfo("A graph has no start.", "Add one."),
    "E_MISSING_TERMINAL_EVENT": CodeInfo(
        "A trace has no terminal event: its run goes on, or it was cut.",
        "Export it when the run has ended.",
    ),
    "E_MISSING_TOOL_SCHEMA": CodeInfo(
        "A tool of an llm_call has no schema of its arguments.",
        "Add parameters (openai) or input_schema (simplified).",
    ),
    "E_MISSING_UPDATE_FROM": CodeInfo("An update of a global has no operand.", "Add from with a path."),
    "E_MISSING_WORKER": CodeInfo(
        "No handler of a worker's name is registered, or beside a document that may run code.",
        "Register it, write it in `handlers.py` beside the document, or correct the name.",
    ),
    "E_MODEL_CAPABILITY": CodeInfo(
        "The model cannot do what the agent needs.", "Choose another model, or attach fewer functions."
    ),
    "E_MODULE": CodeInfo(
        "MODULE:WORKFLOW names no workflow: the module or the attribute is missing, or importing it failed.",
        "Run the command in the folder of the module, and name a Workflow, a builder or a function.",
    ),
    "E_MULTIPLE_DEFAULT": CodeInfo(
        "A switch has more than one edge without `when`.",
        "Keep one of them.",
    ),
    "E_MULTIPLE_NODE_TYPES": CodeInfo("A node of node-graph YAML has more than one kind.", "Keep one."),
    "E_MULTIPLE_START": CodeInfo("A graph has several starts.", "Keep one."),
    "E_MULTIPLE_TERMINAL_EVENTS": CodeInfo(
        "A trace has more than one terminal event.",
        "Export it again with `agentflow trace`.",
    ),
    "E_NON_MONOTONIC_SEQUENCE": CodeInfo(
        "The events of a trace are not numbered without gap from 0.",
        "Export it again with `agentflow trace`.",
    ),
    "E_NOT_ENCODABLE": CodeInfo(
        "A handler or a shared key names a type whose values have no JSON form.",
        "Use a dataclass or a Struct, or call `agentflow.register_type`.",
    ),
    "E_NO_AGENTS": CodeInfo("`agents` is empty.", "Add an agent."),
    "E_NO_HANDLER": CodeInfo(
        "An executor has no handler, or one that cannot be read.",
        "Mark an async method `(self, message: T, ctx)` with `@handler`.",
    ),
    "E_NO_PATH_TO_END": CodeInfo("No end of a graph can be reached.", "Add the missing edge."),
    "E_NO_STEPS": CodeInfo("`steps` is empty.", "Add a step."),
    "E_PLAN_ARTIFACT": CodeInfo(
        "An expected artifact of a plan has an unknown type, or a path outside the workspace.",
        "Use a type of the list, and a path relative to the workspace.",
    ),
    "E_PLAN_CHECK": CodeInfo(
        "A check of a plan has an unknown key or a bad value.", "Follow the hint; `equals` takes any value."
    ),
    "E_PLAN_CYCLE": CodeInfo(
        "Steps of a plan depend on each other in a circle.", "Remove one of the dependencies shown."
    ),
    "E_PLAN_DEPENDENCY": CodeInfo(
        "A step of a plan depends on a step that is not there.", "Follow the hint."
    ),
    "E_PLAN_DUPLICATE_ID": CodeInfo("Two steps of a plan have one id.", "Rename one of them."),
    "E_PLAN_EMPTY": CodeInfo("A plan that is ready has no steps.", "Add a step."),
    "E_PLAN_SCHEMA": CodeInfo(
        "A plan breaks its schema, or a rule between its fields.", "Follow the message; the place is given."
    ),
    "E_PLAN_STARTED": CodeInfo(
        "An edit changes a step that has started, or how steps are joined while the plan is executed.",
        "Change steps that have not started, or fork the run.",
    ),
    "E_PLAN_STEP_ID": CodeInfo(
        "The id of a step is empty, or no id.", "Begin with a letter or `_`, at most 128 characters."
    ),
    "E_PLAN_TOOLSET": CodeInfo("A step of a plan names a toolset that there is not.", "Follow the hint."),
    "E_PLAN_TOO_LARGE": CodeInfo("A plan has more than 100 steps.", "Split it."),
    "E_REF": CodeInfo(
        "A `$ref` leaves its schema. Schemas are never fetched.", "Copy the schema under `$defs`."
    ),
    "E_REF_NOT_DEPENDENCY": CodeInfo(
        "A step reads a step that it does not depend on.", "Add the step to `depends_on`."
    ),
    "E_REQUIRED": CodeInfo("A required key is missing.", "Add the key."),
    "E_RESULT_SCHEMA": CodeInfo("A `resultSchema` is not JSON Schema, Draft 2020-12.", "Correct the schema."),
    "E_RETRY_POLICY": CodeInfo(
        "A retry policy has an unknown key or a value out of range.",
        "See help keys; `retry: false` means never.",
    ),
    "E_SCHEMA": CodeInfo("The `output_schema` of an agent is not JSON Schema.", "Correct the schema."),
    "E_SERVICE_DENIED": CodeInfo(
        "The submission may not use the service: it runs code or reaches a private address.",
        "Submit as the owner, register the document, or see help isolation.",
    ),
    "E_SERVICE_UNAVAILABLE": CodeInfo(
        "A service cannot be imported, started or asked for its functions.",
        "Read the reason; start the server.",
    ),
    "E_SYNTAX": CodeInfo(
        "The text is not YAML or JSON.", 'Quote values with special characters: "${{ … }}".'
    ),
    "E_TEMPLATE_INPUT_MISSING": CodeInfo(
        "A template is started without an input that it requires.",
        "Give it as `NAME=value`.",
    ),
    "E_TEMPLATE_INPUT_TYPE": CodeInfo(
        "An input of a template, or the default of one, does not fit its schema.",
        "Give a value that fits; the message names the rule.",
    ),
    "E_TEMPLATE_INPUT_UNKNOWN": CodeInfo(
        "A template is started with an input that it does not declare.",
        "Follow the hint; `agentflow template show NAME` lists the inputs.",
    ),
    "E_TEMPLATE_SCHEMA": CodeInfo(
        "A template has no name, or one of its fields has another shape.",
        "Follow the hint.",
    ),
    "E_TEMPLATE_UNBOUND": CodeInfo(
        "An expression of a template reads something else than a declared input.",
        "Declare the input, or name one that is declared.",
    ),
    "E_TERMINAL_STATUS_MISMATCH": CodeInfo(
        "A trace says that its run completed, but a failure stood last on a path.",
        "Export it again with `agentflow trace`.",
    ),
    "E_TIMESTAMP_REGRESSION": CodeInfo(
        "The times of a trace step back.",
        "Export it again with `agentflow trace`.",
    ),
    "E_TOOL_DUPLICATE": CodeInfo(
        "Two functions would have one name for the model.", "Rename a service or a function."
    ),
    "E_TOOL_SCHEMA": CodeInfo(
        "The annotations of a function cannot be a JSON Schema.", "Annotate every parameter with a JSON type."
    ),
    "E_TOOL_UNKNOWN": CodeInfo(
        "An agent names a function that does not exist, or several.", "Write SERVICE.FUNCTION."
    ),
    "E_TYPE": CodeInfo("A value has the wrong JSON type.", "Follow the hint."),
    "E_TYPE_INCOMPATIBLE": CodeInfo(
        "Nothing that a node sends can be taken by the node that an edge leads to.",
        "Add a handler of that type, or a node between them that converts.",
    ),
    "E_TYPE_TAG_CLASH": CodeInfo(
        "Two classes of a workflow have one name, by which messages are known.",
        "Give one of them another name.",
    ),
    "E_UNCLOSED_NODE_LIFECYCLE": CodeInfo(
        "A trace ends although a node was not left.",
        "Export it when the run has ended.",
    ),
    "E_UNKNOWN_DEPENDENCY": CodeInfo("`depends_on` names an unknown step.", "Correct the name."),
    "E_UNKNOWN_EDGE_FROM": CodeInfo("An edge begins at an unknown node.", "Correct the name."),
    "E_UNKNOWN_EDGE_TO": CodeInfo("An edge leads to an unknown node.", "Correct the name."),
    "E_UNKNOWN_FUNCTION": CodeInfo(
        "The service has no such function.", "Correct the name; `agentflow tools` lists registered ones."
    ),
    "E_UNKNOWN_GLOBAL_OP": CodeInfo(
        "An update of a global has an unknown op.", "Write set, append, increment or merge."
    ),
    "E_UNKNOWN_INPUT": CodeInfo(
        "An expression reads an input that is not declared.", "Declare it under `inputs`."
    ),
    "E_UNKNOWN_KEY": CodeInfo("A key is not of the format.", "Correct it; see help keys."),
    "E_UNKNOWN_KIND": CodeInfo("A node of a graph has an unknown type.", "Correct it; see help keys."),
    "E_UNKNOWN_MODEL": CodeInfo(
        "No model is set up, or its alias or provider is unknown.",
        "Install the embedded model, set OPENAI_API_KEY, or set AGENTFLOW_MODEL.",
    ),
    "E_UNKNOWN_NODE": CodeInfo(
        "A trace names a node that the definition does not have.",
        "Check it with the definition of its own run.",
    ),
    "E_UNKNOWN_OUTPUT_NODE": CodeInfo(
        "`output_from` names a node that the graph does not have.",
        "Correct the id.",
    ),
    "E_UNKNOWN_PROPERTY": CodeInfo(
        "A step or its outputs have no such member.", "Read `steps.ID.outputs.result`."
    ),
    "E_UNKNOWN_REFERENCE": CodeInfo("An expression of a graph names an unknown node.", "Correct the name."),
    "E_UNKNOWN_SERVICE": CodeInfo(
        "A service is neither declared nor registered.", "Declare it under `services`."
    ),
    "E_UNKNOWN_STEP": CodeInfo("An expression names an unknown step.", "Correct the name."),
    "E_UNKNOWN_SUBGRAPH": CodeInfo(
        "A subgraph names a graph that neither the document has nor this Runtime. A trusted run finds no"
        " definition that an untrusted client registered.",
        "Add it to `graphs`, or register it under this name.",
    ),
    "E_UNKNOWN_TARGET": CodeInfo("An edge of a graph leads to an unknown node.", "Correct the name."),
    "E_UNKNOWN_TOOL_CHOICE": CodeInfo("tool_choice names a tool that is not listed.", "Correct the name."),
    "E_UNREACHABLE_NODE": CodeInfo(
        "A node cannot be reached from the start.", "Add an edge, or remove the node."
    ),
    "E_UNREGISTERED_CALLABLE": CodeInfo(
        "A graph names Python code that is not registered here.", "Register it, or leave the node out."
    ),
    "E_UNSUPPORTED_VERSION": CodeInfo(
        "The version of a graph document is not supported.", 'Write version: "v0", or remove it.'
    ),
    "E_VALUE": CodeInfo(
        "A value is blank, out of range, or none of those allowed.", "Write one of the values of the hint."
    ),
    "E_VERSION": CodeInfo("The version of the format is not supported.", 'Write version: "1.0".'),
    "E_WORKSPACE": CodeInfo(
        "The workspace of a request lies below no folder of `pipeline.workspace_roots`, or cannot be made.",
        "Name a folder below one of them.",
    ),
    "E_YAML_SUBSET": CodeInfo(
        "A tag, a merge key or another part of YAML is not allowed.", "Write the value out, or quote it."
    ),
    "W_ALL_FUNCTIONS": CodeInfo(
        "An agent may call every function.", "List the functions, or write `attachedFunctions: none`."
    ),
    "W_ANONYMOUS_CONDITION": CodeInfo(
        "A condition is a lambda without a name: any change of its code changes the graph signature.",
        "Name the edge or case, or write a function with `def`.",
    ),
    "W_BRANCH_OVERLAP": CodeInfo(
        "One node is on two branches of a parallel node; the last output wins.",
        "Give each branch nodes of its own.",
    ),
    "W_COMPARE_TYPE": CodeInfo(
        "A comparison is of types that are never equal or have no order.",
        'Compare with a value of the same type: `score > 3`, not `score > "3"`.',
    ),
    "W_COMPARE_VALUE": CodeInfo(
        "A value is compared with one outside the `enum` or `const` of its schema.",
        "Compare with one of the values that the schema allows.",
    ),
    "W_DUPLICATE": CodeInfo("A dependency or a function is listed twice.", "Remove one."),
    "W_FORM_SCHEMA_NOT_OBJECT": CodeInfo(
        "A form_schema does not describe an object, so the form has no fields.", "Write type: object."
    ),
    "W_GATE_WITHOUT_ALTERNATE": CodeInfo(
        "Every outcome of a node that chooses leads to the same node.",
        "Give its outcomes targets of their own, or use `next`.",
    ),
    "W_IF_CONSTANT": CodeInfo(
        "A condition is true, or false, in every run.",
        "Let it depend on an input or a result, or remove it.",
    ),
    "W_IF_STRING": CodeInfo(
        "A condition is a text; every text but the empty one is true.", 'Compare: … == "yes".'
    ),
    "W_IGNORED_FIELD": CodeInfo("A field has no effect on its node.", "Remove it."),
    "W_INPUT_EXTRA": CodeInfo(
        "A given input is neither declared nor used.", "Correct its name, or leave it out."
    ),
    "W_INPUT_MISSING": CodeInfo("An agent has no `input`.", "Add `input`; null is sent without it."),
    "W_LITERAL_SECRET": CodeInfo(
        "A secret stands in the document.",
        'Write {"$secret": "NAME"} and set AGENTFLOW_SECRET_NAME.',
    ),
    "W_LOOP_BODY_NO_RETURN": CodeInfo(
        "The body of a loop never leads back to the loop.",
        "Let its last node lead to the loop.",
    ),
    "W_MAYBE_UNSET": CodeInfo(
        "A node reads another that some way to it does not pass: the value is null then.",
        "Give it a default with `||`, or lead every way through the node.",
    ),
    "W_MERGE_SOURCE_OUTSIDE_BRANCHES": CodeInfo(
        "A source of a merge is on none of the branches that the merge joins.",
        "Name the last node of each branch.",
    ),
    "W_MODEL_UNDECLARED": CodeInfo(
        "A model without provider is no declared alias, and resembles one.",
        "Correct the name, or declare it below `models`.",
    ),
    "W_NOT_EXPRESSION": CodeInfo(
        "A reference stands outside `${{ }}` and stays text.",
        "Write ${{ inputs.x }}.",
    ),
    "W_NO_OUTPUT": CodeInfo(
        "No node of a graph gives an output of the run.",
        "Declare it in `WorkflowContext[Out, WOut]` and call `yield_output`.",
    ),
    "W_PLAN_SELF_APPROVED": CodeInfo(
        "A step of a plan says that it is approved or rejected; it was reset to pending.",
        "None: only a person can decide that.",
    ),
    "W_PLAN_TOOLSET_OFF": CodeInfo(
        "A step of a plan names a toolset that is not enabled: it will be skipped.", "Enable the toolset."
    ),
    "W_PLAN_UNVERIFIABLE": CodeInfo(
        "A step of a plan has side effects and nothing to check.", "Add expected artifacts or a check."
    ),
    "W_PROMPT_INJECTION": CodeInfo(
        "The result of a step or an item enters a system prompt.", "Pass it in `input`."
    ),
    "W_RESULT_SCHEMA_MISSING": CodeInfo(
        "An agent has no `resultSchema`.", "Add one, so that the result is checked."
    ),
    "W_SELF_LOOP": CodeInfo(
        "An edge leads from a node to itself.",
        "Give it a condition that ends the loop.",
    ),
    "W_SERVICE_UNDECLARED": CodeInfo(
        "A service is not declared in this document.", "Declare it, unless the daemon has it registered."
    ),
    "W_STREAM_HEAL_CONFLICT": CodeInfo(
        "An llm_call has stream and heal: healing needs the whole answer, so it is not streamed.",
        "Keep one of the two.",
    ),
    "W_TEMPLATE_SHADOWED": CodeInfo(
        "Two places have a template of one name; the first one is used.",
        "Rename one of them.",
    ),
    "W_TEXT_OPTIONS_IGNORED": CodeInfo(
        "A person is asked for text, and options are given.", "Remove them, or ask for a choice."
    ),
    "W_UNBOUNDED_CYCLE": CodeInfo(
        "A cycle of a graph has no limit, wait or approval on it.", "Bound the number of visits."
    ),
    "W_UNKNOWN_RESULT_PROPERTY": CodeInfo(
        "The `resultSchema` of a step has no such property.", "Correct the name."
    ),
    "W_UNTYPED_HANDLER": CodeInfo(
        "A handler takes every message, because it has no annotation.",
        "Annotate it with its type, or with Any.",
    ),
    "W_UNUSED_INPUT": CodeInfo(
        "No part of the document uses an input.",
        "Use it, or remove it.",
    ),
    "W_UNUSED_SERVICE": CodeInfo(
        "No agent may call the functions of a service.",
        "Attach them, or remove the service.",
    ),
    "W_VERSION_MISSING": CodeInfo("The document has no version.", 'Add version: "1.0".'),
    "W_VERSION_TYPE": CodeInfo("The version is a number.", 'Write version: "1.0", with quotes.'),
    "W_YAML_AMBIGUOUS": CodeInfo(
        "A word such as yes or no is read as text.", "Write true or false, or quote it."
    ),
}

FAILURES: dict[str, CodeInfo] = {
    "command_denied": CodeInfo(
        "A command is none of the programs that `[toolsets.terminal] allow` names.",
        "Add the program, or let the step use another.",
    ),
    "delegate_failed": CodeInfo(
        "A foreign delegate says that it could not do a step.",
        "Read the message; fork the run from its failure.",
    ),
    "delegate_interrupted": CodeInfo(
        "A foreign delegate was interrupted; the step is tried again if that is safe.",
        "See that the delegate is up.",
    ),
    "delegate_timeout": CodeInfo(
        "A foreign delegate had no result in time; the step is tried again if that is safe.",
        "Raise `retry.timeout` in the options of the request.",
    ),
    "delegate_unavailable": CodeInfo(
        "No delegate can execute a step: no model is configured, or the delegate is switched off.",
        "Configure a model, or set `delegate` in `[pipeline]`, and fork the run from its failure.",
    ),
    "dynamic_graph_invalid": CodeInfo(
        "The value that `graph_path` of a subgraph names is not a valid graph, or has more than 256 nodes.",
        "Read `diagnostics` in the details.",
    ),
    "event_timeout": CodeInfo(
        "No signal that an event trigger waits for came within its `timeout`.",
        "Send it, raise `timeout`, or add `on_timeout`.",
    ),
    "executor_failed": CodeInfo(
        "A handler of an executor raised an exception; `details.type` is its class.",
        "Correct the handler, or give the executor a `retry`.",
    ),
    "handler_ended": CodeInfo(
        "A handler ended while a call that it recorded was under way.",
        "Await the call before the handler returns.",
    ),
    "input_withdrawn": CodeInfo(
        "The question of a step that asks a person was withdrawn.",
        "None: a person or the parent run withdrew it; `reason` says why.",
    ),
    "invalid_event_value": CodeInfo("`event_path` of an event trigger gave no text.", "Correct the path."),
    "invalid_human_decision": CodeInfo(
        "`decision_path` gave neither a boolean nor a word such as approve or reject.",
        "Correct the value, or let it be null to ask a person.",
    ),
    "invalid_messages": CodeInfo(
        "`messages_path` of an LLM node gave no list of messages, or an empty one.",
        "Give a list of `{role, content}`.",
    ),
    "join_incomplete": CodeInfo(
        "A fan-in with `on_missing: fail` cannot get a message from one of its sources.",
        "See which source is missing in `details`.",
    ),
    "llm_retry_exhausted": CodeInfo(
        "The model calls of an LLM node failed as often as its policy allows.",
        "The cause names the last error.",
    ),
    "llm_timeout": CodeInfo(
        "A model call of an LLM node took longer than its time limit, in every attempt.",
        "Raise `retry.timeout` or `timeout`.",
    ),
    "max_iterations_exceeded": CodeInfo(
        "The run began more supersteps than its limit, and messages were left.",
        "Raise `max_iterations`.",
    ),
    "message_not_encodable": CodeInfo(
        "A handler sent or kept a value that has no JSON form.",
        "Use a dataclass or a Struct, or call `agentflow.register_type`.",
    ),
    "message_refused": CodeInfo(
        "The mail server did not accept a message.",
        "Check sender and recipient; the message has no id.",
    ),
    "message_type_undeclared": CodeInfo(
        "A handler sent a type that its WorkflowContext does not declare.",
        "Add the type to `WorkflowContext[Out, WOut]`.",
    ),
    "message_undelivered": CodeInfo(
        "No edge delivered a message, and `on_undelivered` is `fail`.",
        "Add an edge for it, or record such messages.",
    ),
    "no_response_handler": CodeInfo(
        "A handler asked for an answer that no response handler takes.",
        "Add an `@response_handler` for both types.",
    ),
    "plan_invalid": CodeInfo(
        "A plan has problems; all of them are listed. That of a planner was fed back to it.",
        "Correct them and send the plan again.",
    ),
    "reducer_failed": CodeInfo(
        "A reducer of the shared state does not fit a value written to its key.",
        "Correct the value or the reducer.",
    ),
    "retry_compensate_failed": CodeInfo(
        "A function failed, and so did the one that makes up for it.",
        "The details name both errors; what is left half done must be settled by hand.",
    ),
    "routing_failed": CodeInfo(
        "A condition or selection of an edge failed after its sender had run.",
        "Correct it; the sender is not tried again.",
    ),
    "missing_tool_executor": CodeInfo(
        "A node calls a function that is registered nowhere, and its WorkflowRuntime has no tool executor.",
        "Give `tool_executor`, `workers`, or a Runtime with the service.",
    ),
    "input_timeout": CodeInfo(
        "The question of a node got no answer within the node's time limit.",
        "Answer sooner, raise `timeout`, or give `on_timeout`.",
    ),
    "invalid_output": CodeInfo(
        "The answer of a model does not satisfy `output_schema`, or a delegate reported on another step,"
        " after two repairs.",
        "Say in the prompt what is wanted, set `heal`, or choose a stronger model.",
    ),
    "stage_failed": CodeInfo(
        "A stage of a request failed; `errors` of the final output say which and why.",
        "Fork the run from its failure once the cause is gone.",
    ),
    "subgraph_not_found": CodeInfo(
        "A subgraph names a graph that neither the document nor the Runtime has.",
        "Add it to `graphs`, or register it.",
    ),
    "tool_retry_exhausted": CodeInfo(
        "The call of a tool node failed as often as its policy allows.",
        "The cause names the last error.",
    ),
    "tool_roundtrips_exceeded": CodeInfo(
        "The model asked for functions in more turns than `max_tool_roundtrips`.",
        "Raise `max_tool_roundtrips`.",
    ),
    "toolset_unavailable": CodeInfo(
        "A toolset that a step needs is disabled, or not configured.",
        "Enable it in `[toolsets]`; `agentflow help toolsets` says what it needs.",
    ),
    "unknown_speaker": CodeInfo(
        "The manager of a team picked a speaker who takes no part in it.",
        "Pick one of the `participants` in `details`; name them in the prompt of the manager.",
    ),
    "unknown_target": CodeInfo(
        "A message names a target that no edge of its sender reaches.",
        "Add the edge, or name another target.",
    ),
    "batch_item_limit_exceeded": CodeInfo(
        "The array of a batch has more items than `max_batch_items`.", "Raise the limit, or batch less."
    ),
    "batch_items_not_array": CodeInfo(
        "`items_path` of a batch gave something else than an array.", "Correct the path."
    ),
    "branch_failed": CodeInfo(
        "A branch of a parallel node failed.",
        "The cause is named; `on_branch_error: collect` goes on without it.",
    ),
    "cache_key_not_string": CodeInfo(
        "The key of a cache, debounce or throttle is not a text.", "Correct `key_path`, or write a `key`."
    ),
    "file_denied": CodeInfo(
        "The user of the daemon may not open a file of the workspace.",
        "Change its mode, or write another file.",
    ),
    "file_exists": CodeInfo(
        "A file of the workspace is there already, where a new one was to be made.",
        "Write it, or name another file.",
    ),
    "file_failed": CodeInfo(
        "The system refused to read or write a file of the workspace.",
        "Read the message.",
    ),
    "file_missing": CodeInfo(
        "A file of the workspace does not exist.",
        "Write it first, or `file.list` what is there.",
    ),
    "file_not_regular": CodeInfo(
        "A path of the workspace is a directory, FIFO, socket or device.",
        "Name a regular file.",
    ),
    "file_not_text": CodeInfo(
        "A file of the workspace is not text in UTF-8.",
        "Read text files only.",
    ),
    "file_outside": CodeInfo(
        "A path, or a link in it, leads out of the workspace.",
        "Use a relative path inside the workspace.",
    ),
    "file_too_large": CodeInfo(
        "A file of the workspace would be larger than the limit.",
        "Write less, or several files.",
    ),
    "filter_item_limit_exceeded": CodeInfo(
        "The array of a filter has more items than `max_filter_items`.", "Raise the limit, or filter less."
    ),
    "filter_items_not_array": CodeInfo(
        "`items_path` of a filter gave something else than an array.", "Correct the path."
    ),
    "invalid_reduce_input": CodeInfo(
        "The input of a reduce does not fit its operation: `reason`, and `index` of the element, say how.",
        "Correct the source, or choose another operation.",
    ),
    "end_failed": CodeInfo(
        "The run reached an end with `status: failed` that states no code.",
        "See what leads there; `error` of the end can name a code and a message.",
    ),
    "depth_exceeded": CodeInfo(
        "Graphs are nested deeper than the run allows.", "Raise `max_depth`, or nest less."
    ),
    "invalid_global_value": CodeInfo(
        "An update of a global value does not fit the value that it has.",
        "Use an operation that fits its type.",
    ),
    "invalid_until": CodeInfo(
        "`until` of a wait gave no time such as 2026-01-31T12:00:00Z.", "Correct the expression."
    ),
    "item_failed": CodeInfo(
        "An item of a map failed.", "The cause is named; `on_item_error` can collect or skip failures."
    ),
    "loop_iteration_limit_exceeded": CodeInfo(
        "The condition of a loop was still true after `max_iterations`.",
        "Raise the limit, or set `on_limit`.",
    ),
    "map_item_limit_exceeded": CodeInfo(
        "The array of a map has more items than `max_map_items`.", "Raise the limit, or split the array."
    ),
    "map_items_not_array": CodeInfo(
        "`items_path` of a map gave something else than an array.", "Correct the path."
    ),
    "merge_quorum_not_met": CodeInfo(
        "So many sources of a merge failed that its rule cannot be met.",
        "See why the branches failed, or lower `quorum`.",
    ),
    "merge_timeout": CodeInfo(
        "The sources of a merge did not finish in its time.", "Raise `timeout`, or set `on_timeout`."
    ),
    "missing_merge_source": CodeInfo(
        "A merge on one path, or a reduce, names a node that has given nothing.",
        "Let the way pass the node first.",
    ),
    "parallel_branch_limit_exceeded": CodeInfo(
        "A parallel node has more branches than `max_parallel_branches`.", "Raise the limit."
    ),
    "state_conflict": CodeInfo(
        "Two child paths set one global value to different values.", "Use `append`, `increment` or `merge`."
    ),
    "subgraph_failed": CodeInfo("The graph or the child run of a subgraph failed.", "The cause is named."),
    "agent_error": CodeInfo(
        "The model adapter or the agent failed in a way that has no code.", "Read the message."
    ),
    "approval_denied": CodeInfo("A person denied the step or the call.", "None: this was a decision."),
    "authentication_failed": CodeInfo(
        "The provider refused the key or its rights.", "Set the key of the provider anew."
    ),
    "budget_exceeded": CodeInfo(
        "A budget with `on_exceeded: fail` is used up.", "Submit with a larger budget."
    ),
    "cancelled": CodeInfo("The run was cancelled.", "Fork the run to go on from a point."),
    "circuit_open": CodeInfo(
        "The provider failed 5 times in a row; calls wait.", "None: calls are tried again after 30 s."
    ),
    "content_filtered": CodeInfo(
        "The provider withheld the answer, or the model refused.", "Change the prompt or the model."
    ),
    "budget_unpriced": CodeInfo(
        "A cost limit is set, and the price of the model is not known.",
        'Add `[prices."PROVIDER:MODEL"]` to agentflow.toml.',
    ),
    "context_too_large": CodeInfo(
        "The `context` of a step is too large for the headers of a request.",
        "Send less, or set `send_context: false`.",
    ),
    "for_each_limit": CodeInfo("for_each goes over more items than are allowed.", "Split the list."),
    "for_each_type": CodeInfo("The value of for_each is not an array.", "Choose an array inside it."),
    "interrupted": CodeInfo(
        "The process ended while the call was open.", "None: a call that is safe is made again."
    ),
    "iteration_failed": CodeInfo("Items of a for_each failed.", "`agentflow show ID` names them."),
    "local_model_failed": CodeInfo(
        "The embedded model cannot be started.", "Read the message; install it again."
    ),
    "parameter_dropped": CodeInfo(
        "The provider refused a parameter, and the call was made without it.",
        "Remove the parameter from the model object.",
    ),
    "step_limit_exceeded": CodeInfo("The run started more steps than its limit.", "Raise `max_steps`."),
    "stopped": CodeInfo(
        "A pause or an orderly end of the process stopped the call.",
        "None: it is made again on resume if that is safe.",
    ),
    "torn_tail": CodeInfo(
        "The last write of the log was cut off by a crash and was removed.",
        "None: it had not been acknowledged.",
    ),
    "worker_lost": CodeInfo(
        "The actor that made the call is gone.", "None: a call that is safe is made again."
    ),
    "context_length_exceeded": CodeInfo(
        "The conversation is longer than the model allows.", "Send less, or choose another model."
    ),
    "empty_answer": CodeInfo("The model answered with nothing.", "Change the prompt."),
    "expression_scope_limit_exceeded": CodeInfo(
        "An expression reads values of more than `max_expression_scope_bytes` as JSON.",
        "Read a part of the value, or raise the limit in `options`.",
    ),
    "expression_error": CodeInfo(
        "An expression failed on the values of this run.", "`agentflow expr EXPR --run ID` repeats it."
    ),
    "insufficient_quota": CodeInfo(
        "The account has no quota left, or a rate limit outlasted the retries.",
        "Wait or raise the limit; the run is paused.",
    ),
    "internal_error": CodeInfo("A defect of agentflow.", "Report it with the message."),
    "invalid_request": CodeInfo(
        "The provider refused the request.", "Read the message; check the model's parameters."
    ),
    "invalid_response": CodeInfo("The provider's answer breaks its protocol.", "Check OPENAI_BASE_URL."),
    "invalid_tool_input": CodeInfo(
        "The model's arguments break the schema of the function.",
        "None: the model is told. Describe the parameters better.",
    ),
    "invalid_tool_output": CodeInfo(
        "A function returned what is not JSON, is too large, or breaks its schema.", "Correct the function."
    ),
    "max_tool_calls_exceeded": CodeInfo("The agent used its `max_tool_calls`.", "Raise `max_tool_calls`."),
    "max_turns_exceeded": CodeInfo(
        "The agent used its `max_turns` without an answer.", "Raise `max_turns`, or make the prompt clearer."
    ),
    "model_not_found": CodeInfo("The provider does not have the model.", "Correct the name of the model."),
    "network_error": CodeInfo("There was no connection, or it broke.", "Check the address and the network."),
    "not_recordable": CodeInfo(
        "A function recorded a call by `ctx.record_tool_call`, and is no delegate, or its step is over.",
        "Record calls inside `delegate_task` alone.",
    ),
    "outcome_unknown": CodeInfo(
        "A call may have taken effect, and was not recorded.",
        "Find out, then `agentflow answer ID REQUEST retry`, `done` or `fail`.",
    ),
    "output_truncated": CodeInfo("The answer was cut off by its length.", "Raise `max_tokens` of the model."),
    "rate_limited": CodeInfo(
        "The provider asks to wait.", "None: the call is repeated when the provider says."
    ),
    "response_timeout": CodeInfo("The provider sent nothing in time.", "None: the call is repeated."),
    "replay_divergence": CodeInfo(
        "A replay with the policy Always asks for something else than the recorded run did.",
        "See `diff` in the details; replay with Mixed to execute what differs.",
    ),
    "trace_invalid": CodeInfo(
        "With `replay_mode` the trace of a run that has just ended breaks a rule of structure.",
        "Report it with the log of the run: the engine made a trace that it must not make.",
    ),
    "replay_miss": CodeInfo(
        "A replay with the policy Always needs a result that the recorded run does not have.",
        "See `key` in the details; replay with Mixed to execute what is missing.",
    ),
    "run_deadline": CodeInfo(
        "The run took longer than `workflow.timeout` or `max_duration_s`.", "Raise the limit."
    ),
    "schema_mismatch": CodeInfo(
        "The answer breaks the schema, also after repairs.", "Make schema and prompt agree."
    ),
    "scope_access_denied": CodeInfo(
        "A handler read or wrote a key of the shared state, or asked a model, which the `capabilities` of its"
        " node do not have.",
        "Add the area in `details` to `capabilities.read` or `.write`, the model to `capabilities.models`.",
    ),
    "secret_not_set": CodeInfo(
        "The variable of a `$secret` is not set.",
        "Set AGENTFLOW_SECRET_NAME for the process that runs the run.",
    ),
    "server_error": CodeInfo(
        "The provider or service answered with 5xx or 408.", "None: the call is repeated."
    ),
    "service_denied": CodeInfo("The run may not use the service.", "See help isolation."),
    "step_deadline": CodeInfo("The step took longer than its `timeout`.", "Raise `timeout`."),
    "step_timeout": CodeInfo("An attempt took longer than `retry.timeout`.", "Raise `retry.timeout`."),
    "tool_execution_failed": CodeInfo(
        "A function raised an exception.", "Read the message; correct the function."
    ),
    "model_requests_forbidden": CodeInfo(
        "AGENTFLOW_ALLOW_MODEL_REQUESTS=0 forbids requests to models.",
        "Use a ScriptedModel or a cassette in the test, or unset the variable.",
    ),
    "cassette_miss": CodeInfo(
        "A cassette of a test knows no such request.",
        "Compare it with the nearest one in the message; record the cassette anew.",
    ),
    "script_exhausted": CodeInfo(
        "A ScriptedModel was asked more often than its script says.", "Add a step to the script of the test."
    ),
    "tool_loop": CodeInfo(
        "The model made the same calls with the same results again after it was told so.",
        "Let the function say what is new, or make the prompt clearer.",
    ),
    "tool_not_attached": CodeInfo(
        "The model asked for a function that is registered, but not attached to its agent.",
        "None: the model is told.",
    ),
    "tool_not_found": CodeInfo(
        "The model asked for a function that no service has.", "None: the model is told."
    ),
    "tool_timeout": CodeInfo(
        "A function took longer than its timeout (60 s).", "Raise `timeout` of the function."
    ),
    "workspace_denied": CodeInfo(
        "The workspace of a run lies below no folder of `pipeline.workspace_roots`.",
        "Add its folder.",
    ),
}
"""Codes of the errors that a failed step, call or run has, as events and `show` name them."""

VERDICTS: dict[str, CodeInfo] = {
    "artifact_blank": CodeInfo(
        "A Markdown file holds nothing but blanks.",
        "Let the step write it.",
    ),
    "artifact_empty": CodeInfo(
        "An expected file has 0 bytes.",
        "Let the step write it.",
    ),
    "artifact_invalid_json": CodeInfo(
        "A file is not strict JSON of at most 64 MiB: UTF-8, no NaN, no duplicate keys.",
        "Let the step write JSON.",
    ),
    "artifact_invalid_text": CodeInfo(
        "A Markdown file is not UTF-8.",
        "Let the step write UTF-8.",
    ),
    "artifact_missing": CodeInfo(
        "A required artifact is not there.",
        "Read what the step did: `agentflow context ID STEP`.",
    ),
    "artifact_not_regular": CodeInfo(
        "A path is a directory, FIFO, socket or device.",
        "Name a regular file.",
    ),
    "artifact_outside_workspace": CodeInfo(
        "A path, or a link in it, leads out of the workspace.",
        "Name a file inside it.",
    ),
    "artifact_pending": CodeInfo(
        "The step itself says that an artifact is pending or missing.",
        "Fork the run from its failure.",
    ),
    "artifact_stale": CodeInfo(
        "A file of a step is as it was before the step.",
        "Let the step write it.",
    ),
    "artifact_unverified": CodeInfo(
        "Nothing of a required artifact, or of a step of class external, could be checked.",
        "Give the step an artifact with evidence, or a check.",
    ),
    "evidence_mismatch": CodeInfo(
        "The recorded call of a mail went to another address.",
        "Compare the call with the plan.",
    ),
    "evidence_missing": CodeInfo(
        "No recorded call of the step sent the mail or the message.",
        "Let the step call the function; a foreign delegate reports it by `ctx.record_tool_call`.",
    ),
    "output_empty": CodeInfo(
        "A step is done and says nothing.",
        "Let it say what it did.",
    ),
    "url_host_denied": CodeInfo(
        "A URL leads to a private, loopback, link-local or multicast address.",
        "Name the host in `allowed_hosts` of `[pipeline]`.",
    ),
    "url_scheme": CodeInfo(
        "A URL is no http or https, or holds credentials.",
        "Use a plain http or https URL.",
    ),
    "url_status": CodeInfo(
        "A URL does not answer with a status 2xx.",
        "Open the URL; correct it in the plan.",
    ),
    "url_unreachable": CodeInfo(
        "A URL does not answer within 10 s.",
        "Check the network, or fork the run from its failure.",
    ),
    "check_failed:KEY": CodeInfo(
        "A key of a check of the plan does not hold.",
        "Read `checks` of verification.artifact_checked.",
    ),
}

PAUSES: dict[str, CodeInfo] = {
    "budget": CodeInfo("A budget is used up.", "`agentflow resume ID --budget NAME=LARGER`"),
    "definition_unavailable": CodeInfo(
        "A service, a model or the graph of the run is not available.", "Mend it, then `agentflow resume ID`."
    ),
    "drain": CodeInfo(
        "The process that worked on the run ended in order.",
        "None: the next daemon goes on; or `agentflow resume ID`.",
    ),
    "failure": CodeInfo(
        "A step failed, and `on_failure` is hold.",
        "`agentflow retry ID STEP`, with `--action` retry, skip, done or fail.",
    ),
    "operator": CodeInfo("A person paused the run.", "`agentflow resume ID`"),
    "quota": CodeInfo(
        "The provider takes no more requests.",
        "A daemon resumes the run at the time that the provider names; sooner: `agentflow resume ID`.",
    ),
    "recovery_limit": CodeInfo(
        "The run was started several times and each time brought its supervisor or process down.",
        "Find the cause, then `agentflow resume ID`.",
    ),
    "storage": CodeInfo("The store took nothing for a while.", "None: the run goes on when the store does."),
}
"""Reasons for which a run is paused, and what moves it on."""


def find_code(code: str) -> CodeInfo | None:
    """Return what a diagnostic, a failure or a verdict means; None for another word."""
    if code.startswith("check_failed:"):
        code = "check_failed:KEY"
    return DIAGNOSTICS.get(code) or FAILURES.get(code) or VERDICTS.get(code)
