"""The σ of a question: one number, which suits ‖G‖ in units of the first weight's σ."""

from types import SimpleNamespace

import pytest

from gaussmark_lib.perturb import Watermark
from gaussmark_lib.workbench.cli.question import Question


@pytest.mark.parametrize(
    ("sigma", "carried", "expected"),
    [
        (0.3, None, 0.3),  # an older key file
        (0.3, 0.29, 0.29),
        ((0.3, 0.4), None, 0.3),
        ((0.3, 0.4), (0.29, 0.39), 0.29),
    ],
)
def test_sigma_is_that_of_the_first_weight(sigma, carried, expected):
    names = ["a", "b"] if isinstance(sigma, tuple) else "a"
    key = SimpleNamespace(binding=SimpleNamespace(sigma_carried=carried))
    question = Question([key], Watermark(names, sigma), None, 0.05, 0.1, None)
    assert question.sigma == expected
