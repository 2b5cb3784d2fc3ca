"""What the tests of actors share: actors that do as they are told."""

import asyncio
import itertools
from typing import Any

from actors import Actor, Failed, OneForOne, Reject, Restarted, Terminated, on
from actors.testing import virtual

__all__ = ["Boom", "Boss", "Call", "Do", "Puppet", "crash", "reject", "virtual"]


class Boom(Exception):
    pass


class Do:
    """Run this function of the actor in its handler: `await ref.ask(Do(lambda actor: ...))`."""

    def __init__(self, function):
        self.function = function


class Call(Do):
    """The same in a plain handler."""


class Puppet(Actor):
    """Does as it is told, and keeps a diary."""

    serial = itertools.count()

    def __init__(self, diary=None):
        self.diary = [] if diary is None else diary
        self.serial = next(Puppet.serial)
        self.state: Any = None

    @on(Do)
    async def do(self, message):
        result = message.function(self)
        return await result if asyncio.iscoroutine(result) else result

    @on(Call)
    def call(self, message):
        return message.function(self)

    @on(int)
    def number(self, n):
        self.diary.append(n)
        return n

    @on(float)
    async def sleep(self, seconds):
        await asyncio.sleep(seconds)
        self.diary.append(seconds)
        return seconds

    @on(asyncio.Event)
    async def wait(self, event):
        await event.wait()
        return "waited"

    @on(BaseException)
    def fail(self, exc):
        raise exc

    @on(Failed, Restarted, Terminated)
    def signal(self, signal):
        self.diary.append(signal)


class Boss(Puppet):
    supervise = OneForOne(max_restarts=1000, within=60)


def crash(_):
    raise Boom("crash")


def reject(_):
    raise Reject("no")
