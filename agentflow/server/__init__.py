"""The daemon: runs over HTTP, on a Unix socket and on TCP (page 000 §8).

`serve` is the whole daemon; `Application` is its API over a Runtime that is open already.
"""

from agentflow.server.access import Actor as Caller
from agentflow.server.app import Application
from agentflow.server.daemon import serve
from agentflow.server.tokens import Tokens, load_tokens

__all__ = ["Application", "Caller", "Tokens", "load_tokens", "serve"]
