"""The child process of a local model: `python -m agentflow.models.local.server`.

Serves one model file on a free port of 127.0.0.1 by the OpenAI protocol. The key comes as the first line of
standard input and never stands in the arguments; the port goes out as the first line of standard output.
It must never outlive its parent: it ends when standard input does, and on Linux when the parent dies.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import signal
import sys
from typing import Any

__all__ = ["main"]

_PR_SET_PDEATHSIG = 1
_PING_SECONDS = 10
_PROMPT_CACHE_MIB = 256


def main(arguments: list[str] | None = None) -> None:
    """Serve until standard input ends."""
    options = _parse(arguments)
    _die_with(options.parent)
    key = sys.stdin.buffer.readline().decode().strip()
    # The engine logs to standard output too: it gets standard error, and the parent keeps the original.
    ready = os.dup(1)
    os.dup2(2, 1)
    server = _serve(options, key)
    port = str(server.listening_address).rpartition(":")[2]
    os.write(ready, f"{port}\n".encode())
    os.close(ready)
    while os.read(0, 4096):
        pass
    # The engine's threads need not be joined: nothing of theirs has to survive.
    os._exit(0)


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="agentflow.models.local.server")
    parser.add_argument("--model", required=True, help="path of the GGUF file")
    parser.add_argument("--alias", required=True, help="name of the model in answers")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--context", type=int, default=0, help="tokens; 0 is the model's own limit")
    parser.add_argument("--parent", type=int, required=True, help="process id to die with")
    return parser.parse_args(arguments)


def _die_with(parent: int) -> None:
    """Ask the kernel for a signal at the parent's death; leave if that has happened already."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)


def _serve(options: argparse.Namespace, key: str) -> Any:
    import xllamacpp  # pyright: ignore[reportMissingTypeStubs]

    engine: Any = xllamacpp
    params: Any = engine.CommonParams()
    params.model.path = options.model
    params.model_alias = {options.alias}
    params.api_keys = [key]
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = options.context
    params.n_parallel = 1
    params.n_gpu_layers = 0
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
    params.cache_ram_mib = _PROMPT_CACHE_MIB
    # A long prompt takes longer than a client waits for the first byte: comments keep the stream alive.
    params.sse_ping_interval = _PING_SECONDS
    params.ui = params.endpoint_slots = params.endpoint_props = False
    params.verbosity = 1
    return engine.Server(params)


if __name__ == "__main__":
    main()
