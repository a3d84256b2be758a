"""Windows of a long text: every token is scored once, everything fits, and ψ of their sum is N(0,
1) over keys.
"""

from itertools import chain

import numpy as np
import pytest
import tiny_lm
import tiny_models
from scipy.stats import kstest

from gaussmark_lib import tracing
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.tracing.windows import windows

CONTEXT = 64


@pytest.fixture(scope="module")
def model():
    return tiny_models.build()


@pytest.mark.parametrize("n_prompt", [0, 40, 63])
@pytest.mark.parametrize("n", [1, 24, 64, 200])
def test_each_token_once_and_everything_fits(model, n_prompt: int, n: int):
    prompt, response = list(range(3, 3 + n_prompt)), [3 + i % 90 for i in range(n)]
    prompts, responses = windows(model, prompt, response)
    assert list(chain(*responses)) == response
    assert all(prompts)
    assert all(responses)
    assert all(len(x) + len(y) <= CONTEXT for x, y in zip(prompts, responses, strict=True))
    assert (len(responses) == 1) == (max(n_prompt, 1) + n <= CONTEXT)
    everything, at = prompts[0] + response, len(prompts[0])
    for x, y in zip(prompts, responses, strict=True):
        assert everything[at - len(x) : at] == x, "what stands before it"
        at += len(y)
    assert all(len(x) == CONTEXT // 4 for x in prompts[1:])


@pytest.mark.parametrize(
    ("prompt", "response", "words"),
    [
        ([], [], "at least one token"),
        ([5] * 64, [5], "at most 64"),
        ([], [10**6], "token ids from"),
    ],
)
def test_refused(model, prompt: list, response: list, words: str):
    with pytest.raises(InvalidTextError, match=words):
        windows(model, prompt, response)


def test_the_level_is_exact_over_keys(model):
    """300 keys: the Kolmogorov distance of exact p-values is beyond 1.95/√300 once in a
    thousand.
    """
    prompts, responses = windows(model, [], [3 + (7 * i) % 90 for i in range(160)])
    table = tracing.author(
        model,
        prompts,
        responses,
        Watermark(tiny_lm.WEIGHT, 1.0),
        [Key.from_seed(i) for i in range(300)],
    )
    assert table["n_texts"].unique() == len(responses) == 4
    assert kstest(np.asarray(table["p_value"]), "uniform").pvalue > 1e-3
