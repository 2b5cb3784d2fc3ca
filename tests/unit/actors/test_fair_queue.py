"""FairQueue: groups take turns, items of one group keep their order."""

from __future__ import annotations

import pytest

from actors.fair_queue import FairQueue


def taken(queue: FairQueue[str]) -> list[str]:
    return [queue.pop() for _ in range(len(queue))]


def test_groups_take_turns_and_keep_their_order() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "a3", "b1", "c1", "c2"):
        queue.add(item, item[0])
    assert taken(queue) == ["a1", "b1", "c1", "a2", "c2", "a3"]


def test_without_groups_it_is_first_in_first_out() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in "cab":
        queue.add(item)
    assert taken(queue) == ["c", "a", "b"]


def test_a_group_that_comes_back_queues_behind_the_others() -> None:
    queue: FairQueue[str] = FairQueue()
    queue.add("a1", "a")
    queue.add("b1", "b")
    assert queue.pop() == "a1"
    queue.add("a2", "a")
    assert taken(queue) == ["b1", "a2"]


def test_a_removed_item_is_not_taken() -> None:
    queue: FairQueue[str] = FairQueue()
    for item in ("a1", "a2", "b1"):
        queue.add(item, item[0])
    queue.remove("a1")
    queue.remove("a1")
    queue.remove("never")
    assert (len(queue), queue.peek()) == (2, "a2")
    queue.remove("b1")
    assert taken(queue) == ["a2"]
    with pytest.raises(StopIteration):
        queue.peek()
