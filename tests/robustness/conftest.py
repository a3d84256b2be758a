"""What the tests of bad input share."""

import jaxtyping
import pytest


@pytest.fixture(scope="module")
def no_types_checked():
    """Only the library itself checks types, as outside of the tests."""
    was_disabled = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", was_disabled)
