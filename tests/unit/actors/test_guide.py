"""Every block of the guide in the package's docstring runs as it stands."""

import re

import pytest

import actors

BLOCKS = re.findall(r"```python\n(.*?)```", actors.__doc__, re.DOTALL)


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_a_block_of_the_guide_runs(number):
    exec(compile(BLOCKS[number], f"guide, block {number}", "exec"), {"__name__": f"guide_{number}"})


def test_there_is_a_guide():
    assert len(BLOCKS) == 4
