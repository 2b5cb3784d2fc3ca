"""Ends a child of `os.fork` that returns into code of its parent.

Such a child has a copy of the parent's event loop, with the same epoll instance and the same wake-up pipe:
if it runs or closes that loop, it takes events from the parent and removes the parent's registrations, so
that both hang. It has none of the parent's threads. All it may still do is what `multiprocessing` does: flush
the standard streams and leave by `os._exit`.
"""

from __future__ import annotations

import asyncio
import os
import sys
import traceback
from contextlib import suppress
from typing import NoReturn

__all__ = ["end_forked_child", "is_on_inherited_loop"]


def is_on_inherited_loop() -> bool:
    """Return whether the coroutine that calls this is run by the event loop of a parent process.

    asyncio says of such a loop that it is not running. For code that runs in a coroutine only.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return True
    return False


def end_forked_child(error: BaseException | None) -> NoReturn:
    """End this process with the exit code that `error` means; an error that is no SystemExit is printed."""
    code = 0
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            code = error.code or 0
        else:
            code = 1
            sys.stderr.write(f"{error.code}\n")
    elif error is not None:
        code = 1
        traceback.print_exception(error)
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):
            stream.flush()
    os._exit(code & 0xFF)
