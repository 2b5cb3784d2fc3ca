"""An owner is one incarnation of one process: ids that are used again deceive nobody."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from agentflow.errors import Fenced
from agentflow.events.owner import Owner, next_epoch, this_process

DEAD = Owner(2**22 + 1, "never", "t")


def test_this_process_is_alive_and_always_the_same():
    assert this_process() is this_process()
    assert this_process().pid == os.getpid()
    assert this_process().alive()


def test_another_start_of_the_pid_is_another_owner():
    assert not Owner(os.getpid(), "elsewhen", "t").alive()
    assert not DEAD.alive()


def test_a_process_that_ended_is_not_alive_even_before_it_was_waited_for():
    code = (
        "import msgspec, sys; from agentflow.events.owner import this_process;"
        "sys.stdout.buffer.write(msgspec.json.encode(this_process())); sys.stdout.flush(); sys.stdin.read()"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=os.getcwd()
    )
    with process:
        text = b""
        while not text.endswith(b"}"):
            text += process.stdout.read(1)
        import msgspec

        owner = msgspec.json.decode(text, type=Owner)
        assert owner.pid == process.pid
        assert owner.alive()
        with pytest.raises(Fenced, match=str(process.pid)):
            next_epoch("wf_a", 4, owner, this_process())
        process.stdin.close()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and still a zombie
        assert not owner.alive()
        assert next_epoch("wf_a", 4, owner, this_process()) == 5
    assert not owner.alive()


def test_a_child_made_by_fork_is_another_owner():
    ours = this_process()
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        theirs = this_process()
        os.write(write, b"1" if theirs != ours and theirs.pid == os.getpid() else b"0")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 1) == b"1"
    os.close(read)
    os.close(write)


def test_epochs_rise_only_when_the_owner_changes():
    assert next_epoch("wf_a", 3, this_process(), this_process()) == 3
    assert next_epoch("wf_a", 3, None, this_process()) == 4
    assert next_epoch("wf_a", 3, DEAD, this_process()) == 4
