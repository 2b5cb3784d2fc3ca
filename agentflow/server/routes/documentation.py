"""Routes of the documentation: the pages of `agentflow help`."""

from __future__ import annotations

from starlette.responses import Response

from agentflow.docs import GROUPS, TOPICS, read_page
from agentflow.server.answers import DocumentationList, DocumentationPage, DocumentationTopic
from agentflow.server.operations import Call, Operation, json_response
from agentflow.server.problems import Refusal

__all__ = ["OPERATIONS"]


async def list_pages(call: Call) -> Response:
    """List the pages of the documentation."""
    items = [
        DocumentationTopic(topic=topic, title=read_page(topic).title, group=group)
        for group, topics in GROUPS.items()
        for topic in topics
    ]
    return json_response(DocumentationList(items=items))


async def show_page(call: Call) -> Response:
    """Return a page of the documentation."""
    topic = call.path("name")
    if topic not in TOPICS:
        raise Refusal("not_found", f"the documentation has no page {topic}", hint="see /documentation")
    page = read_page(topic)
    return json_response(DocumentationPage(topic=page.topic, title=page.title, text=page.text))


OPERATIONS = (
    Operation(
        method="GET",
        path="/documentation",
        handler=list_pages,
        name="list_documentation",
        summary="The pages of the documentation of this version",
        tag="documentation",
        scope="read",
        answers={200: DocumentationList},
    ),
    Operation(
        method="GET",
        path="/documentation/{name}",
        handler=show_page,
        name="show_documentation",
        summary="A page of the documentation, as Markdown",
        tag="documentation",
        scope="read",
        answers={200: DocumentationPage},
        problems=("not_found",),
    ),
)
