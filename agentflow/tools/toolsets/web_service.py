"""The toolset `web`: fetch a page. Public addresses only, each connection and redirect checked, unless a host
is allowed by `[toolsets.web] allowed_hosts`: a model chooses the address."""

from __future__ import annotations

import re
from html import unescape
from typing import Any, Final
from urllib.parse import urljoin, urlsplit

from agentflow import __version__
from agentflow.aside import compute_aside
from agentflow.config import WebConfig
from agentflow.http import HttpClient, HttpFailure, HttpResponse
from agentflow.tools.python import function
from agentflow.tools.service import Service
from agentflow.tools.tool import ToolError
from agentflow.tools.toolsets.parts import private_service
from agentflow.tools.web import classify

__all__ = ["page_text", "web_service"]

_MAX_REDIRECTS: Final = 5
_MAX_TEXT: Final = 200_000
_MAX_URL: Final = 8_192
_REDIRECTS: Final = frozenset({301, 302, 303, 307, 308})
_HEADERS: Final = {
    "accept": "text/html, text/*;q=0.9, application/json;q=0.9, */*;q=0.1",
    "user-agent": f"agentflow/{__version__}",
}


def web_service(config: WebConfig) -> Service:
    """Return the service."""
    client = HttpClient(
        first_byte_timeout=config.timeout_s,
        byte_timeout=config.timeout_s,
        public_only=True,
        allowed=config.allowed_hosts,
    )

    @function(side_effect="read")
    async def fetch(url: str) -> dict[str, Any]:
        """Fetch a web page by http or https; of HTML its title, text and links are given."""
        try:
            return await _fetch(client, url, config.max_bytes)
        except HttpFailure as failure:
            if failure.kind == "denied":
                raise ToolError.of(
                    "policy", "service_denied", "web__fetch: the address is not public", executed=False
                ) from None
            raise ToolError.of("transient", "network_error", f"web__fetch: {failure}") from None

    service = private_service("web", fetch, timeout_s=config.timeout_s + 30)
    service.closer = client.aclose
    return service


async def _fetch(client: HttpClient, url: str, limit: int) -> dict[str, Any]:
    for _ in range(_MAX_REDIRECTS + 1):
        _check(url)
        async with client.request("GET", url, headers=_HEADERS) as response:
            target = response.headers.get("location")
            if response.status in _REDIRECTS and target:
                url = urljoin(url, target)
                continue
            if not 200 <= response.status < 300:
                category, code = classify(response.status)
                message = f"web__fetch: HTTP {response.status} from {url[:200]}"
                raise ToolError.of(category, code, message, http_status=response.status)
            return await _page(response, url, limit)
    raise ToolError.of("tool", "tool_execution_failed", f"web__fetch: more than {_MAX_REDIRECTS} redirects")


def _check(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_fit = (
            parts.scheme.lower() in ("http", "https") and bool(parts.hostname) and "@" not in parts.netloc
        )
        _ = parts.port
    except ValueError:
        is_fit = False
    if not is_fit or len(url) > _MAX_URL:
        message = "web__fetch: the address is no http or https URL without credentials"
        raise ToolError.of("invalid_input", "invalid_tool_input", message, executed=False)


async def _page(response: HttpResponse, url: str, limit: int) -> dict[str, Any]:
    body = bytearray()
    truncated = False
    async for chunk in response.chunks():
        body += chunk
        if len(body) > limit:
            truncated = True
            break
    kind, _, parameters = response.headers.get("content-type", "").partition(";")
    kind = kind.strip().lower()
    charset = re.search(r'charset\s*=\s*"?([\w.:-]+)', parameters, re.IGNORECASE)
    try:
        text = bytes(body[:limit]).decode(charset[1] if charset else "utf-8-sig", "replace")
    except LookupError:
        text = bytes(body[:limit]).decode("utf-8", "replace")
    found: dict[str, Any] = {"url": url, "status": response.status, "content_type": kind}
    if kind in ("text/html", "application/xhtml+xml"):
        page = await compute_aside(page_text, text, url)
        found |= {"title": page["title"], "links": page["links"]}
        text = page["text"]
    elif not (kind.startswith("text/") or kind.endswith(("json", "xml")) or not kind):
        message = f"web__fetch: the answer is {kind}, which is no text"
        raise ToolError.of("tool", "invalid_tool_output", message)
    truncated = truncated or len(text) > _MAX_TEXT
    return {**found, "text": text[:_MAX_TEXT], "truncated": truncated}


def page_text(html: str, url: str) -> dict[str, Any]:
    """Return {title, text, links} of an HTML page; links are absolute, at most 200.

    Linear in the size of the page, whatever stands in it: `html.parser` of Python takes minutes for 200,000
    comments that are not closed.
    """
    page = _Page(html, url)
    page.read()
    lines = (" ".join(line.split()) for line in unescape("".join(page.parts)).split("\n"))
    return {
        "title": " ".join(unescape(page.title).split())[:500],
        "text": "\n".join(line for line in lines if line),
        "links": list(page.links),
    }


_MAX_LINKS: Final = 200
_MAX_ANCHORS: Final = 5_000
_MAX_TAG: Final = 4_096
_TAG: Final = re.compile(r"<(/?)([a-z][a-z0-9]{0,20})(?=[\s/>])")
_HREF: Final = re.compile(r"""\bhref\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s>"']+))""", re.IGNORECASE)
_HIDDEN: Final = frozenset({"script", "style", "noscript", "template", "svg", "head"})
_BLOCKS: Final = frozenset(
    (
        *("address", "article", "aside", "blockquote", "br", "dd", "div", "dl", "dt", "figure", "footer"),
        *("form", "h1", "h2", "h3", "h4", "h5", "h6", "header", "hr", "li", "main", "nav", "ol", "p", "pre"),
        *("section", "table", "td", "th", "tr", "ul"),
    )
)


class _Page:
    """One pass over a page. Each search begins behind the last one, or is made once."""

    def __init__(self, html: str, url: str) -> None:
        self._html = html
        self._lower = html.encode("utf-8", "surrogatepass").lower().decode("utf-8", "surrogatepass")
        self._url = url
        self._unclosed: set[str] = set()
        self._anchors = 0
        self.parts: list[str] = []
        self.links: dict[str, None] = {}
        self.title = ""

    def read(self) -> None:
        """Collect text, title and links."""
        at, end = 0, len(self._html)
        while at < end:
            tag = self._html.find("<", at)
            if tag < 0:
                tag = end
            self.parts.append(self._html[at:tag])
            if tag == end:
                return
            at = self._markup(tag)

    def _markup(self, at: int) -> int:
        """Return where the text goes on behind the markup that begins at `at`."""
        if self._html.startswith("<!--", at):
            return self._behind("-->", at + 4)
        found = _TAG.match(self._lower, at)
        if found is None:
            if self._html.startswith(("<!", "<?", "</"), at):
                return self._behind(">", at)
            self.parts.append("<")
            return at + 1
        closing, name = bool(found[1]), found[2]
        behind = self._behind(">", found.end())
        if name in _BLOCKS:
            self.parts.append("\n")
        if closing:
            return behind
        if name == "a" and len(self.links) < _MAX_LINKS and self._anchors < _MAX_ANCHORS:
            self._anchors += 1
            self._link(self._html[at : min(behind, at + _MAX_TAG)])
        if name == "title" and not self.title:
            self.title = self._html[behind : self._end_of(name, behind)][:_MAX_TAG]
            return self._end_of(name, behind)
        if name == "head":  # it may hold the title
            stop = self._end_of(name, behind)
            if stop > behind and not self.title:
                first = self._lower.find("<title", behind, stop)
                if first >= 0:
                    begin = self._behind(">", first)
                    self.title = self._html[begin : self._end_of("title", begin)][:_MAX_TAG]
            return stop
        return self._end_of(name, behind) if name in _HIDDEN else behind

    def _end_of(self, name: str, at: int) -> int:
        """Return where the end tag of an element begins; `at` if there is none."""
        if name in self._unclosed:
            return at
        found = self._lower.find(f"</{name}", at)
        if found < 0:
            self._unclosed.add(name)
            return at
        return found

    def _behind(self, mark: str, at: int) -> int:
        """Return the place behind the next `mark`, the end of the page if there is none."""
        found = self._html.find(mark, at)
        return len(self._html) if found < 0 else found + len(mark)

    def _link(self, tag: str) -> None:
        found = _HREF.search(tag)
        if found is None:
            return
        try:
            link = urljoin(self._url, unescape(found[1] or found[2] or found[3] or "")).partition("#")[0]
        except ValueError:
            return
        if link.startswith(("http://", "https://")) and link != self._url:
            self.links[link] = None
