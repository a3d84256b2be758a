"""Computations with the same result on every device. Each takes a model and returns numbers or
texts. They are tested with a simulated second device, and with a GPU.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
import tiny_models
from transformers import PreTrainedModel

from gaussmark_experiments import low_rank
from gaussmark_experiments import one_key_in_production as production
from gaussmark_lib import (
    divergence,
    evidence,
    generate,
    gradients,
    likelihood,
    models,
    perturb,
    scheme,
    score,
)
from gaussmark_lib.beyond import joint, schemes, tracing
from gaussmark_lib.beyond.joint import directions
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.workbench import rewrite

WM = Watermark("model.layers.2.mlp.down_proj.weight", 0.05)
DROPPED = Watermark(WM.weight, 0.05, rank_dropped=3, side="both")
KEYS = [Key.from_seed(i) for i in range(6)]
_RNG = np.random.default_rng(0)
# prompts and responses; SynthID needs responses of at least five tokens
TEXTS = (tiny_models.random_ids(_RNG, 3, 1, 2), tiny_models.random_ids(_RNG, 6, 7, 5))
N = 4  # tokens to sample


def build() -> PreTrainedModel:
    """Attention by plain matrix operations, which all devices have."""
    model = tiny_models.build("llama")
    model.set_attn_implementation("eager")
    return model


def _lm(model: PreTrainedModel) -> models.LM:
    import tiny_lm

    return models.LM(model, tiny_lm.build().tokenizer, "tiny")


def _by_terms(model: PreTrainedModel) -> pd.DataFrame:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directions, "SMALL", 0)
        return joint.sequence(model, *TEXTS, DROPPED, KEYS[:2], batch_size=2)


def _marked(model: PreTrainedModel) -> list:
    with perturb.watermarked(model, WM, KEYS[0]):
        return [generate.sample(model, TEXTS[0], N), likelihood.cross_entropy(model, TEXTS[1])]


def _bound(model: PreTrainedModel) -> list:
    key = perturb.bind(model, WM, KEYS[0])
    digests = [key.binding.base_sha256, key.binding.model_sha256]
    return [*digests, score.score(model, *TEXTS, WM, [key])]


COMPUTATIONS: dict[str, Callable[[PreTrainedModel], object]] = {
    "score": lambda model: score.score(model, *TEXTS, WM, KEYS),
    "score, prefixes and dropped directions": lambda model: score.score(
        model, *TEXTS, DROPPED, KEYS, lengths=[3, 6], dtype="float64"
    ),
    "score, given noises": lambda model: score.score(
        model, *TEXTS, WM, KEYS, xis=perturb.noises(model, WM, KEYS)
    ),
    "norms": lambda model: gradients.norms(
        model, *TEXTS, [WM.weight, "model.layers.0.self_attn.k_proj.weight"]
    ),
    "sequence": lambda model: joint.sequence(
        model, *TEXTS, WM, KEYS[:2], given=(TEXTS[0][:1], TEXTS[1][1:2])
    ),
    "sequence by terms": _by_terms,
    "sample": lambda model: generate.sample(model, TEXTS[0], N, top_p=0.8, temperature=0.9),
    "a watermarked model": _marked,
    "a watermark per row": lambda model: generate.sample(
        model, TEXTS[0], N, marks=[None, (WM, KEYS[0]), (DROPPED, KEYS[1])]
    ),
    "a bound key": _bound,
    "resample": lambda model: rewrite.resample(model, *TEXTS, 0.5, span=2),
    "divergence": lambda model: divergence.per_text(model, *TEXTS, marks=[(WM, KEYS[0])] * 3),
    "entropies": lambda model: likelihood.entropies(model, *TEXTS),
    "evidence": lambda model: evidence.per_token(model, TEXTS[0][0], TEXTS[1][0], WM, KEYS[0]),
    "attribute": lambda model: tracing.attribute(
        model, *TEXTS, DROPPED, tracing.Codebook(KEYS[0], 50, 16)
    ),
    "author": lambda model: tracing.author(model, *TEXTS, WM, KEYS[:2]),
    "scan": lambda model: tracing.scan(model, *TEXTS, WM, KEYS[:2], block=3, n_draws=200),
    "gradient_norms": lambda model: [*low_rank.gradient_norms(model, *TEXTS, WM.weight).values()],
    "against keys": lambda model: production.against_keys(
        _lm(model), production.Human(*TEXTS, []), WM, KEYS[:2]
    ),
}


def _of_scheme(name: str, wm: Watermark, n: int = 2) -> Callable[[PreTrainedModel], list]:
    def call(model: PreTrainedModel) -> list:
        scheme_of_name = schemes.named(wm, KEYS[0], [name])[name]
        prompts, responses = (rows[:n] for rows in TEXTS)
        texts = scheme_of_name.generate(model, prompts, N)
        table = scheme_of_name.score(model, prompts, responses)
        return [texts, table, scheme_of_name.divergences(model, prompts, responses)]

    return call


_LIKE_ANOTHER = ("KGW-1", "KGW-2 z-test", "token keys, sum")  # of the schemes that are checked
COMPUTATIONS |= {
    f"the scheme {name}": _of_scheme(name, DROPPED)
    for name in scheme.named(DROPPED, KEYS[0])
    if name not in _LIKE_ANOTHER
}


def same(result: object, expected: object, rtol: float, atol: float) -> None:
    """Assert that two results are equal: texts exactly, numbers within these tolerances."""
    if isinstance(expected, pd.DataFrame):
        pd.testing.assert_frame_equal(result, expected, rtol=rtol, atol=atol)
    elif isinstance(expected, list | tuple):
        assert len(result) == len(expected)
        for item, expected_item in zip(result, expected, strict=True):
            same(item, expected_item, rtol, atol)
    elif isinstance(expected, float | np.ndarray):
        np.testing.assert_allclose(result, expected, rtol=rtol, atol=atol)
    else:
        assert result == expected
