"""The files of the dashboard, `/ui/`: read once, sent compressed, and under a strict Content-Security-Policy.

They hold nothing of any run and need no token: what a run holds, the page asks the API for.
"""

from __future__ import annotations

import gzip
import hashlib
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from starlette.responses import RedirectResponse, Response
from starlette.types import Receive, Scope, Send

from agentflow.server.problems import Refusal, problem_response

__all__ = ["CONTENT_SECURITY_POLICY", "page_files", "serve_page"]

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self';"
    " base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
)
_MEDIA = {
    "html": "text/html; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "svg": "image/svg+xml",
}
_HEADERS = {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    # A new version of the package is seen at once: every file is asked for, and most are answered by 304.
    "Cache-Control": "no-cache",
    "Vary": "Accept-Encoding",
}


class PageFile(NamedTuple):
    """A file of the page: its bytes as they are and compressed, its type and its tag."""

    data: bytes
    packed: bytes
    media: str
    etag: str


@cache
def page_files() -> dict[str, PageFile]:
    """Return the files by their path below `/ui/`."""
    found: dict[str, PageFile] = {}
    root = files("agentflow.ui")
    folders = [("", root)]
    for prefix, folder in folders:
        for entry in folder.iterdir():
            kind = entry.name.rpartition(".")[2]
            if entry.is_dir() and not entry.name.startswith("_"):
                folders.append((f"{prefix}{entry.name}/", entry))
            elif kind in _MEDIA:
                data = entry.read_bytes()
                tag = hashlib.sha256(data).hexdigest()[:20]
                found[prefix + entry.name] = PageFile(
                    data, gzip.compress(data, 9, mtime=0), _MEDIA[kind], tag
                )
    return found


async def serve_page(path: str, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a request for a file of the page; `path` is below the place where the API is mounted."""
    if path == "/ui":
        # Relative, so that it holds behind a proxy which takes a prefix away and does not say so.
        await RedirectResponse("ui/", 308)(scope, receive, send)
        return
    file = page_files().get(path.removeprefix("/ui/") or "index.html")
    if file is None:
        refusal = Refusal("not_found", "the page has no such file")
        await problem_response(refusal, scope["path"])(scope, receive, send)
        return
    headers = dict(scope["headers"])
    packs = b"gzip" in headers.get(b"accept-encoding", b"")
    etag = f'"{file.etag}{"-gz" if packs else ""}"'
    if headers.get(b"if-none-match", b"").decode("latin-1") == etag:
        await Response(status_code=304, headers=_HEADERS | {"ETag": etag})(scope, receive, send)
        return
    more = {"ETag": etag} | ({"Content-Encoding": "gzip"} if packs else {})
    data = file.packed if packs else file.data
    await Response(data, headers=_HEADERS | more, media_type=file.media)(scope, receive, send)
