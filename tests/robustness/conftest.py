"""What the tests of bad input share."""

import jaxtyping
import pytest


@pytest.fixture(scope="module")
def no_types_checked():
    """Nobody checks types but the library itself, as outside of the tests."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", before)
