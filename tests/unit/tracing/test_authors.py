"""What the joint test of several texts refuses."""

import pytest
import torch

from gaussmark_lib import tracing
from gaussmark_lib.errors import DegenerateScoreError, InvalidTextError
from gaussmark_lib.gradients import TextGradient


def test_no_keys_and_no_texts_are_refused(model, wm, key):
    with pytest.raises(InvalidTextError, match="at least one key"):
        tracing.author(model, [[5]], [[6]], wm, [])
    with pytest.raises(InvalidTextError, match="at least one prompt"):
        tracing.author(model, [], [], wm, [key])
    with pytest.raises(InvalidTextError, match="at least one text"):
        tracing.summed([])


def test_a_text_without_a_gradient_is_named():
    texts = [
        TextGradient(0, torch.ones(2, 2), -1.0, 3),
        TextGradient(1, torch.zeros(2, 2), -1.0, 3),
    ]
    with pytest.raises(DegenerateScoreError, match="text 1"):
        tracing.summed(texts)


def test_the_gradients_are_left_as_they_are():
    texts = [TextGradient(i, torch.full((2, 2), 1.0 + i), -1.0, 3) for i in range(2)]
    total = tracing.summed(texts)
    assert (total.G.flatten().tolist(), total.log_lik, total.n_tokens) == ([3.0] * 4, -2.0, 6)
    assert texts[0].G.flatten().tolist() == [1.0] * 4
