"""What all tests count on."""

from __future__ import annotations

import signal
import threading


def pytest_configure():
    # A shell starts what it puts in the background with interrupts ignored, and children inherit that: the
    # tests of interrupts would wait for ever.
    ours = threading.current_thread() is threading.main_thread()
    if ours and signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
