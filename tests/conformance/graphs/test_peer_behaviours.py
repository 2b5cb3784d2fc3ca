"""What Microsoft Agent Framework's own tests of workflows ask for and page 002 keeps, and where it is tested.

Each line names a behaviour in our words, and the row of the conformance suite or the test that shows it here.
What that framework does otherwise on purpose (one run for each instance, pickled checkpoints, a superstep's
shared state that is written at once) is not listed.
"""

from __future__ import annotations

import ast
import importlib
import pkgutil
from functools import cache
from pathlib import Path

import pytest

import tests.conformance.graphs as here
from tests.conformance.graphs.rows import ROWS

ROOT = Path(__file__).parents[3]
HERE = "tests/conformance/graphs"
GRAPHS = "tests/integration/graphs"
EXECUTORS = "tests/integration/executors"
UNIT = "tests/unit"

BEHAVIOURS: dict[str, dict[str, str]] = {
    "routing": {
        "an edge delivers to its target": "§4 single: a message goes along an edge whose condition is true",
        "a message for another target is not delivered": (
            "§4 single: the target is tested first, then the type, then the condition"
        ),
        "a message of a type that the target does not handle is not delivered": (
            "§4 single: a type that the target does not take is told before a condition is asked"
        ),
        "a condition that is false keeps a message back": (
            "§4 single: the target is tested first, then the type, then the condition"
        ),
        "conditions see the message with its class": (
            "routing: conditions see the message as a value of its type"
        ),
        "a fan-out reaches every target": "§4 fan-out: every target that takes the type gets it",
        "a fan-out reaches the targets that handle the type alone": (
            "§4 fan-out: every target that takes the type gets it"
        ),
        "a fan-out with a target reaches that one": "§4 fan-out: with a target_id one target alone gets it",
        "a fan-out to a target that does not take the type reaches none": (
            "routing: a target_id that the edge group knows, of a type that it does not take, is undelivered"
        ),
        "a target that is no node of the graph's edges is an error of the sender": (
            "§3 context: a target that no edge of the node reaches is unknown_target"
        ),
        "a selection sends to the targets that it names": (
            "§4 selection: the chosen targets get it once, in whatever order and however often they are named"
        ),
        "a selection that names an unknown target is an error": (
            "§4 selection: an unknown id fails the sender"
        ),
        "a selection and a target together reach the target only if it is selected": (
            "§4 selection: with a target_id the function chooses from that target alone"
        ),
        "a selection that chooses nobody delivers nothing": (
            "§4 selection: an empty choice is not_selected everywhere"
        ),
        "a switch delivers to the first case that holds": "§4 switch: the first true case alone",
        "a switch delivers to its default if no case holds": (
            "§4 switch: the default is tried last wherever it is written"
        ),
        "a switch without a default is refused": f"{UNIT}/graphs/test_diagnostics.py::test_build_refuses",
        "a fan-out to one target is refused": f"{UNIT}/graphs/test_diagnostics.py::test_build_refuses",
        "a message that reaches nobody is recorded": (
            f"{GRAPHS}/test_good_errors.py::test_a_message_that_nobody_takes"
        ),
        "messages of one sender keep their order": (
            "§6 order: messages of one sender reach a target in the order in which they were sent"
        ),
        "targets of a fan-out work at the same time": "§4 fan-out: a slow target holds nobody back",
        "an executor that sends to itself goes on": "loops: a node may send to itself",
        "two executors that answer each other end when one stops": (
            "loops: two nodes that send to each other end when one of them gives out"
        ),
    },
    "handlers": {
        "a handler of a union takes each member": "routing: a union handler takes both",
        "the handler of the message's class is called": "§3 handler choice: exact type",
        "a handler of a base class takes a subclass": "§3 handler choice: nearest base class",
        "two handlers of one type are refused": f"{UNIT}/graphs/test_diagnostics.py::test_build_refuses",
        "an executor without a handler is refused": f"{UNIT}/graphs/test_diagnostics.py::test_build_refuses",
        "annotations may be text": (
            f"{UNIT}/executors/test_handlers.py::"
            "test_types_of_an_executor_are_public_and_read_under_postponed_annotations"
        ),
        "a function is an executor": (
            f"{UNIT}/executors/test_handlers.py::test_a_function_is_an_executor_and_still_a_function"
        ),
        "a plain function runs beside the loop": (
            "functions: a function without context sends what it returns, also a list as one message"
        ),
        "input, output and workflow output types are public": (
            f"{UNIT}/executors/test_handlers.py::"
            "test_types_of_an_executor_are_public_and_read_under_postponed_annotations"
        ),
        "a failing handler fails the run and names the node": (
            "executors: the failure of a later node keeps what earlier ones gave out"
        ),
    },
    "fan-in": {
        "a message of the first source is buffered": (
            "§4 fan-in: a message is accepted as an element of the list of the target"
        ),
        "the join gets one list once all sources have sent": (
            "fan-in: the results of two branches are added up"
        ),
        "the list is in the order of the sources": (
            "§5.2: one list: declared source order, then send order, whoever was first"
        ),
        "a list of a union gathers several types": "fan-in: a list of a union gathers messages of two types",
        "a join of one source is refused": f"{UNIT}/graphs/test_diagnostics.py::test_build_refuses",
        "a join whose handler takes no list is refused": (
            f"{UNIT}/graphs/test_diagnostics.py::test_build_refuses"
        ),
        "buffers of one run are not those of the next": (
            f"{HERE}/test_promises.py::"
            "test_an_untaken_branch_hangs_no_join_and_its_leftovers_leak_into_no_other_run"
        ),
    },
    "runs": {
        "a run converges when nothing is left to deliver": (
            "loops: a run that sends nothing completes after its first step"
        ),
        "a run that does not converge fails at the limit of supersteps": (
            "loops: a loop that does not converge fails the run, and what was sent stays in the log"
        ),
        "the limit of supersteps counts anew after an answer": (
            "§8 limits: max_iterations restarts at every answer"
        ),
        "two runs of one workflow at once keep apart": (
            f"{HERE}/test_promises.py::test_two_runs_of_one_workflow_object_at_once"
        ),
        "a failed run keeps what it gave out before": (
            f"{GRAPHS}/test_results.py::test_a_failed_run_has_its_partial_outputs"
        ),
        "outputs of nodes that are no output nodes are intermediate": (
            "§12: nodes outside output_from give intermediate outputs"
        ),
        "a reader that leaves its stream stops nothing": (
            f"{HERE}/test_promises.py::test_a_dropped_stream_stops_nothing"
        ),
        "shared state that one node writes another one reads": (
            "state: what one node wrote another one reads, and may replace"
        ),
        "state does not go from one run to the next": (
            f"{HERE}/test_promises.py::test_two_runs_of_one_workflow_object_at_once"
        ),
        "the input of a type that the start does not take begins no run": (
            f"{GRAPHS}/test_claims.py::test_a_message_that_no_start_takes_begins_no_run"
        ),
    },
    "checkpoints": {
        "a checkpoint follows the start and each superstep": (
            f"{GRAPHS}/test_checkpoint_storage.py::test_a_store_is_read_by_checkpoints"
        ),
        "the last checkpoint of a run is found": (
            f"{GRAPHS}/test_checkpoint_storage.py::test_a_store_is_read_by_checkpoints"
        ),
        "a run goes on from a checkpoint with what was queued": (
            f"{HERE}/test_checkpoints.py::test_a_fork_at_every_offset_comes_to_the_same_and_leaves_the_old_log"
        ),
        "an unknown checkpoint is an error": (
            f"{HERE}/test_checkpoints.py::test_an_unknown_checkpoint_is_not_found"
        ),
        "a graph of another structure is refused": (
            f"{HERE}/test_checkpoints.py::test_another_graph_does_not_go_on"
        ),
        "a graph of equal structure goes on": (
            f"{HERE}/test_checkpoints.py::test_a_graph_that_is_joined_alike_goes_on"
        ),
        "what an executor keeps comes back with a checkpoint": (
            "§3 executors: snapshot_state and restore_state carry the state over a restart"
        ),
        "what an executor changes later does not change a checkpoint": (
            f"{HERE}/test_checkpoints.py::test_the_state_of_a_checkpoint_is_the_fold_of_the_log_up_to_it"
        ),
        "values come back with their classes": (
            f"{UNIT}/executors/test_payloads.py::test_a_value_comes_back_as_a_new_object_of_its_type"
        ),
        "a value that has no JSON form is refused when it is sent": (
            f"{UNIT}/executors/test_payloads.py::test_what_has_no_json_form_is_refused_at_the_call"
        ),
    },
    "requests": {
        "a request leaves the run waiting": (
            "§10: the handler that asked has ended and never runs again;"
            " the answer goes to the response handler"
        ),
        "the answer reaches the response handler of both types": (
            "§10: the response handler is chosen by both types"
        ),
        "several requests of one handler are answered by their ids": (
            "§10: two approvals in one node do not collide, and are answered in any order"
        ),
        "a request may be answered with no": "requests: an answer that denies leads another way",
        "a handler that asks nothing lets the run complete": (
            "requests: a handler that finds nothing to ask completes without a request"
        ),
        "an answer of a wrong type is refused": (
            f"{HERE}/test_checkpoints.py::test_one_bad_answer_consumes_none"
        ),
        "an answer may ask again": "requests: an answer may lead to the next question",
        "requests of a checkpoint are asked again by the run that goes on from it": (
            f"{HERE}/test_checkpoints.py::test_a_fork_asks_open_questions_again_under_new_ids"
        ),
        "a request without a response handler is an error": (
            "§10: a request without a response handler for both types fails its step"
        ),
        "a node that only asks": (
            "§10: RequestInfoExecutor: each message becomes a request, each answer a message on its edges"
        ),
    },
    "sub-workflows": {
        "the output of a nested workflow is a message of its node": (
            "sub-workflows: each message is a run of its own, and its output goes on as a message"
        ),
        "the parent answers a request of the child": (
            f"{GRAPHS}/test_subworkflow_requests.py::"
            "test_a_node_answers_the_request_of_a_nested_run_and_nobody_else_is_asked"
        ),
        "a request that the parent does not answer is asked of the caller": (
            f"{GRAPHS}/test_subworkflow_requests.py::"
            "test_a_forwarded_request_is_asked_of_the_caller_under_the_same_id"
        ),
        "the parent asks a person before it answers the child": (
            f"{GRAPHS}/test_subworkflow_requests.py::test_a_node_may_ask_a_person_before_it_answers"
        ),
        "overlapping messages to one nested workflow keep apart": (
            f"{GRAPHS}/test_subworkflows.py::test_overlapping_messages_are_independent_runs"
        ),
        "a restored child repeats no request": (
            f"{GRAPHS}/test_subworkflow_requests.py::test_answers_and_forwards_survive_a_crash_at_every_event"
        ),
        "a nested workflow fails its step": "sub-workflows: the failure of a child fails its step",
        "a workflow is an agent": f"{GRAPHS}/test_as_agent.py::test_each_call_is_a_run_of_its_own",
    },
    "drawing and tracing": {
        "a workflow draws itself": f"{GRAPHS}/test_claims.py::test_a_workflow_draws_itself",
        "a build has a span": (f"{GRAPHS}/test_spans.py::test_a_build_has_a_span_below_that_of_its_caller"),
        "a message links to the span of its sender": (
            f"{GRAPHS}/test_spans.py::test_each_message_links_to_the_activation_that_sent_it"
        ),
        "a fan-in links to each sender": (
            f"{GRAPHS}/test_spans.py::test_a_fan_in_has_one_link_for_each_message"
        ),
    },
}

_ALL = [
    pytest.param(place, id=f"{topic}: {behaviour}")
    for topic, found in BEHAVIOURS.items()
    for behaviour, place in found.items()
]


@cache
def find_rows() -> set[str]:
    for module in pkgutil.iter_modules(here.__path__):
        if module.name.startswith("rows_"):
            importlib.import_module(f"{here.__name__}.{module.name}")
    return {f"{row.rule}: {row.title}" for row in ROWS}


@cache
def find_tests(file: str) -> set[str]:
    body = ast.parse((ROOT / file).read_text()).body
    found = {node.name for node in body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    return {name for name in found if name.startswith("test_")}


def test_there_are_at_least_fifty_behaviours():
    assert len(_ALL) >= 50
    assert all(len(found) >= 4 for found in BEHAVIOURS.values())


@pytest.mark.parametrize("place", _ALL)
def test_a_behaviour_has_a_test_of_ours(place: str):
    file, found, name = place.partition("::")
    if found:
        assert name in find_tests(file)
    else:
        assert place in find_rows()
