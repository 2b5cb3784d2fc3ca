"""Reads requests by their OpenAPI document with openapi-core, in the environment of that package.

Lines on stdin: first `{document: PATH}`, then a request on each: `{method, path, query, headers, body}` with
the body as base64, the `template` of its path and the values that were put `in_path`. A line on stdout for
each: `{parameters: {query, header, cookie}, body, expanded}`, with the path as RFC 6570 makes it, or
`{error}`.
"""

from __future__ import annotations

import base64
import json
import sys
from typing import Any
from urllib.parse import parse_qsl, unquote

import uritemplate
from openapi_core import Config, OpenAPI
from openapi_core.datatypes import RequestParameters
from werkzeug.datastructures import Headers, ImmutableMultiDict

HOST = "http://127.0.0.1:1"
DROPPED = ("servers", "security")
JSON_TYPES = ("application/merge-patch+json", "application/json-patch+json", "application/vnd.api+json")


class Request:
    def __init__(self, line: dict[str, Any]) -> None:
        headers = Headers(list(line["headers"].items()))
        cookies = [
            pair.partition("=")
            for pair in line["headers"].get("cookie", "").replace("&", "; ").split("; ")
            if pair
        ]
        self.method = line["method"].lower()
        self.path = unquote(line["path"])
        self.host_url = HOST
        self.path_pattern = None
        self.body = base64.b64decode(line["body"]) or None
        self.content_type = headers.get("content-type", "")
        self.parameters = RequestParameters(
            query=ImmutableMultiDict(parse_qsl(line["query"], keep_blank_values=True)),
            header=headers,
            cookie=ImmutableMultiDict([(name, unquote(value)) for name, _, value in cookies]),
        )


def without_formats(value: Any) -> Any:
    """The document without what changes the values that are read (dates, defaults), servers, credentials."""
    if isinstance(value, list):
        return [without_formats(one) for one in value]
    if not isinstance(value, dict):
        return value
    made = {key: without_formats(one) for key, one in value.items()}
    for key, kinds in (("format", str), ("readOnly", bool), ("default", (str, int, float, bool))):
        if isinstance(made.get(key), kinds):
            del made[key]
    return {key: one for key, one in made.items() if key not in DROPPED}


def expanded(document: dict[str, Any], line: dict[str, Any]) -> str:
    """The path of a request by RFC 6570, to which OpenAPI refers for its styles."""
    item = document["paths"][line["template"]]
    described = [*item.get("parameters", ()), *item.get(line["method"].lower(), {}).get("parameters", ())]
    signs = {"label": ".", "matrix": ";"}
    template = line["template"]
    for p in described:
        while "$ref" in p:
            p = document["components"]["parameters"][p["$ref"].rpartition("/")[2]]
        if p["in"] == "path":
            sign = signs.get(p.get("style", "simple"), "")
            wanted = sign + p["name"] + ("*" if p.get("explode") else "")
            template = template.replace("{" + p["name"] + "}", "{" + wanted + "}")
    return uritemplate.expand(template, line["in_path"])


def main() -> None:
    with open(json.loads(sys.stdin.readline())["document"], encoding="utf-8") as file:
        document = without_formats(json.load(file))
    document["servers"] = [{"url": HOST}]
    more: dict[str, Any] = dict.fromkeys(("*/*", "application/*", *JSON_TYPES), json.loads)
    more |= {"image/png": bytes.decode, "application/octet-stream": bytes.decode}
    config = Config(spec_validator_cls=None, extra_media_type_deserializers=more)
    openapi = OpenAPI.from_dict(document, config=config)
    for text in sys.stdin:
        line = json.loads(text)
        try:
            result = openapi.unmarshal_request(Request(line))
            path = expanded(document, line)
        except Exception as error:  # an answer like any other
            said: dict[str, Any] = {"error": f"{type(error).__name__}: {error}: {error.__cause__}"}
        else:
            places = ("query", "header", "cookie")
            parameters = {place: dict(getattr(result.parameters, place)) for place in places}
            said = {
                "parameters": parameters,
                "body": result.body,
                "expanded": path,
                "errors": [f"{e!r} {e.__cause__!r}"[:500] for e in result.errors],
            }
        print(json.dumps(said, default=str), flush=True)


if __name__ == "__main__":
    main()
