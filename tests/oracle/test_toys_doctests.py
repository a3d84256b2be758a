"""The examples in the docstrings of the toys are true."""

import doctest

import pytest

from gaussmark_lib.toys import bounds, coins, gaussian, projection, regime


@pytest.mark.parametrize("module", [bounds, coins, gaussian, projection, regime], ids=lambda m: m.__name__)
def test_examples(module):
    found = doctest.testmod(module)
    assert found.attempted > 0
    assert found.failed == 0
