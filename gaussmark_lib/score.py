"""Detection: how far a text leans towards a key's noise (paper, Alg. 2).

    ψ(y, ξ | x) = ⟨ξ, G⟩ / (σ‖G‖),   G = ∇_θ log p_θ(y | x),   p-value = 1 − Φ(ψ)

For fixed G the inner product is N(0, σ²‖G‖²) over the draw of ξ, so ψ is N(0, 1) for *every* text
that does not depend on the key: the test is exact over keys, and nothing needs to be true of the
text or of the model. G is taken at the base θ.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import norm
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import binding, checks, perturb, tokens
from gaussmark_lib.errors import DegenerateScoreError, InvalidTextError, InvalidWatermarkError
from gaussmark_lib.gradients import TextGradient, gradients, of_pairs
from gaussmark_lib.keys import listed
from gaussmark_lib.tokens import Texts
from gaussmark_lib.watermark import placed

__all__ = ["COLUMNS", "TextGradient", "gradients", "score", "statistic", "table"]

COLUMNS = ["text", "key_id", "psi", "p_value", "log10_p", "grad_norm", "log_lik", "n_tokens"]
HELD = (
    1 << 30
)  # bytes of noises that are held at a time, and of gradients while more noises than that pass by
FEW_KEYS, FEW_TEXTS = 4, 8  # are held whatever their size


def score(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Texts,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    *,
    lengths: Sequence[int] | None = None,
    xis: Float[Tensor, "k d_out d_in"] | None = None,
    dtype: str | torch.dtype | None = None,
    batch_size: int = 8,
    on_error: str = "raise",
    paired: bool = False,
) -> pd.DataFrame:
    """Tests each response, given its prompt, against each key.

    Args:
        model: the base model p_θ; one under ``watermarked()`` is refused.
        prompts, responses: token ids, one prompt per response. All response tokens are scored. An
            empty prompt stands for the model's start token.
        wm: the watermark of the keys; ``wm.sigma`` cancels in ψ, but must be the keys' own where
            they are bound.
        keys: K keys; one backward pass serves them all. Where their noises take more than ``HELD``
            bytes, they are drawn in parts, and again for each ``HELD`` bytes of gradients: memory
            does not grow with K. ψ then differs by the rounding of its sum, as with ``batch_size``.
        lengths: where given, each response is tested on its first n tokens, for each of these n
            that it has: ``n_tokens`` tells which.
        xis: what ``perturb.noises(model, wm, keys)`` returned, where the caller holds it already;
            it is held as a whole.
        dtype: the lowest precision that will do, ``"bfloat16"``, ``"float32"`` or ``"float64"``; by
            default the model's own. The level is exact in any; a low precision costs power. Where
            the processor has no bfloat16 arithmetic, float32 takes its place.
        batch_size: texts per pass; changes speed and memory, and ψ by its rounding alone: by less
            than 1e-4 in float32 and 0.1 in bfloat16 (measured on the embedded model: 2e-6 to 1e-5,
            and 0.006 to 0.03; tests/oracle/test_batch_invariance.py).
        on_error: ``"record"`` keeps a text that cannot be scored as rows with NaN and its reason in
            a further column ``error``, and goes on.
        paired: text i is tested with ``keys[i]`` alone.

    Returns:
        One row per text (× length) × key, texts in the order given: ``text`` (index), ``key_id``,
        ``psi`` (higher means more watermarked), ``p_value``, ``log10_p`` (exact where p
        underflows), ``grad_norm`` (‖G‖, or ‖PG‖ where rank_dropped > 0), ``log_lik`` (nats, sum
        over tokens), ``n_tokens``.

    Raises:
        PerturbedModelError, InvalidTextError, DegenerateScoreError, KeyMismatchError,
        UnknownWeightError.
    """
    tokens.check_model(model)
    checks.chosen(on_error, "on_error", ("raise", "record"), InvalidTextError)
    keys = listed(keys)
    perturb.refuse_perturbed(model)
    wm = placed(model, wm)
    prompts, responses = tokens.as_many(prompts, responses)
    if paired:
        if len(keys) != len(responses):
            raise InvalidTextError(
                f"paired: expected one key per text, got {len(keys)} for {len(responses)} texts"
            )
        pairs = tokens.checked_pairs(model, prompts, responses)
        each = of_pairs(model, pairs, wm, lengths=lengths, dtype=dtype, batch_size=batch_size)
        tables = []
        for some in in_lists(each, fitting(wm, FEW_TEXTS)):
            its = [keys[found.text] for found in some]
            statistics = psi(some, wm, its, paired=True)
            tables += [
                rows([_facts(found)], statistics[i, None, None], [its[i].key_id])
                for i, found in enumerate(some)
            ]
        return pd.concat(tables).sort_values(["text", "n_tokens"], kind="stable", ignore_index=True)
    noises = Noises(wm, keys, xis)
    pairs, failed = tokens.usable_pairs(model, prompts, responses)
    if failed and on_error == "raise":
        raise next(iter(failed.values()))
    each = of_pairs(model, pairs, wm, lengths=lengths, dtype=dtype, batch_size=batch_size)
    most = noises.n_texts if lengths is not None else min(noises.n_texts, len(pairs))
    of_texts, values, units = [], [np.empty((0, len(keys)))], _Rows(max(1, most))
    for some in in_blocks(each, units.most, failed if on_error == "record" else None, units.put):
        of_texts += some
        values.append(
            np.hstack(
                [_inner(units.matrix[: len(some)], part, wm.sigma) for part in noises.parts()]
            )
        )
    tables = [
        rows(of_texts, np.concatenate(values), [key.key_id for key in keys]),
        *(failure(text, responses[text], keys) for text in failed),
    ]
    scores = pd.concat(tables).sort_values(["text", "n_tokens"], kind="stable", ignore_index=True)
    if on_error == "raise":
        return scores
    return scores.assign(
        error=scores["text"].map({text: str(error) for text, error in failed.items()})
    )


def psi(
    gradients: Iterable[TextGradient],
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    paired: bool = False,
) -> Float[np.ndarray, "texts *k"]:
    """ψ = ⟨ξ, G⟩ / (σ‖G‖) of each text's gradient and each key, float64, or with ``paired`` of text
    i and key i. ``wm`` is placed on its model (``Watermark.on``).
    """
    if not paired:
        noises = Noises(wm, keys)
        each = iter(gradients)
        return np.concatenate(
            [
                np.hstack(
                    [
                        _inner(torch.stack([g.unit() for g in some]), part, wm.sigma)
                        for part in noises.parts()
                    ]
                )
                for some in in_lists(each, noises.n_texts)
            ]
        )
    found, values = list(gradients), []
    for start in range(0, len(found), n := fitting(wm)):
        some = found[start : start + n]
        for part in perturb.in_parts(wm, keys[start : start + n], n):
            xis = part.to(wm.linear.parameter.device)
            values += [
                _inner(g.unit()[None], xi[None], wm.sigma)[0, 0]
                for g, xi in zip(some, xis, strict=True)
            ]
    return np.array(values)


def in_lists(items: Iterable, n: int) -> Iterator[list]:
    """The items in lists of n; the last may be shorter."""
    items = iter(items)
    return iter(lambda: list(islice(items, n)), [])


class Noises:
    """The noises of K keys on the model's device: held where they are few, or else drawn anew, in
    parts, by each pass over them.

    Args:
        n_texts: how many texts' gradients to hold for a pass: with few noises, no more memory than
            they take.
    """

    def __init__(
        self, wm: perturb.PlacedWatermark, keys: Sequence[perturb.Key], xis: Tensor | None = None
    ):
        self.wm, self.keys = wm, keys
        self.n_keys = fitting(wm)
        self.held = (
            checked_noises(wm, keys, xis) if xis is not None or len(keys) <= self.n_keys else None
        )
        self.n_texts = min(len(keys), 32) if self.held is not None else fitting(wm, FEW_TEXTS)
        if self.held is None:
            use = binding.Use(wm)
            for key in keys:  # before the work on the texts, and with its noise when that is drawn
                key.check(use)

    def parts(self) -> Iterator[Float[Tensor, "k d_out d_in"]]:
        """All noises in the order of the keys. A part is gone when the next one comes."""
        if self.held is not None:
            return iter([self.held])
        return (
            part.to(self.wm.linear.parameter.device)
            for part in perturb.in_parts(self.wm, self.keys, self.n_keys)
        )


def fitting(wm: perturb.PlacedWatermark, least: int = FEW_KEYS) -> int:
    """How many noises, or gradients, are within ``HELD`` bytes in float32, and at least so many."""
    return max(least, HELD // (4 * math.prod(wm.linear.shape)))


class _Rows:
    """Unit gradients of a block of texts, each block written over the one before."""

    def __init__(self, most: int):
        self.most, self.matrix = most, None

    def put(self, place: int, found: TextGradient) -> None:
        u = found.unit()
        self.matrix = u.new_empty(self.most, len(u)) if self.matrix is None else self.matrix
        self.matrix[place] = u


def in_blocks(
    each: Iterable[TextGradient],
    most: int,
    failed: dict[int, Exception] | None,
    put: Callable[[int, TextGradient], None],
) -> Iterator[list[dict[str, int | float]]]:
    """What a table says of the texts, ``most`` at a time. ``put`` keeps a text's direction, given
    its place among those of its block.

    A text without a direction goes to ``failed`` with its error; without ``failed``,
    DegenerateScoreError.
    """
    facts = []
    for seen, found in enumerate(each, 1):
        try:
            put(len(facts), found)
            facts.append(_facts(found))
        except DegenerateScoreError as error:
            if failed is None:
                raise
            failed[found.text] = error
        if facts and seen % most == 0:
            yield facts
            facts = []
    if facts:
        yield facts


def checked_noises(
    wm: perturb.PlacedWatermark, keys: Sequence[perturb.Key], xis: Tensor | None = None
) -> Float[Tensor, "k d_out d_in"]:
    """The noises of these keys on the model's device: those given, where they have the right shape,
    or else drawn.
    """
    if xis is None:
        xis = perturb.noises(wm.model, wm, keys)
    else:
        use = binding.Use(wm)
        for key in keys:
            key.check(use)
    expected = (len(keys), *wm.linear.shape)
    if not isinstance(xis, Tensor) or not xis.is_floating_point() or xis.shape != expected:
        got = (
            f"one of {xis.dtype} and shape {tuple(xis.shape)}"
            if isinstance(xis, Tensor)
            else checks.kind(xis)
        )
        raise InvalidWatermarkError(
            f"xis: expected the noises of these keys, a tensor of floats of shape {expected}, got"
            f" {got}"
        )
    return xis.to(wm.linear.parameter.device)


def statistic(
    found: TextGradient, xis: Float[Tensor, "k d_out d_in"], sigma: float
) -> Float[np.ndarray, " k"]:
    """ψ = ⟨ξ, G⟩ / (σ‖G‖) for each of K noises, float64. DegenerateScoreError if G is zero or not
    finite.
    """
    return _inner(found.unit()[None], xis, checks.positive(sigma, "sigma", InvalidWatermarkError))[
        0
    ]


def _inner(
    units: Float[Tensor, "texts d"], xis: Float[Tensor, "k d_out d_in"], sigma: float
) -> Float[np.ndarray, "texts k"]:
    return finite((units @ xis.flatten(1).to(units.dtype).T).double().cpu().numpy() / sigma)


def finite(psi: Float[np.ndarray, "texts k"]) -> Float[np.ndarray, "texts k"]:
    """ψ as it is; InvalidWatermarkError where it is not finite although the gradients are."""
    if not np.isfinite(psi).all():
        raise InvalidWatermarkError(
            f"xis: expected finite noises and σ > 0, got {(~np.isfinite(psi)).sum()} of {psi.size}"
            " ψ that are NaN or infinite"
        )
    return psi


def table(
    found: TextGradient, psi: Float[np.ndarray, " k"], key_ids: Sequence[str]
) -> pd.DataFrame:
    """The rows of one text: ψ with its p-value 1 − Φ(ψ), in float64 and on the log scale."""
    return rows([_facts(found)], psi[None], key_ids)


def _facts(found: TextGradient) -> dict[str, int | float]:
    return {
        "text": found.text,
        "grad_norm": found.norm,
        "log_lik": found.log_lik,
        "n_tokens": found.n_tokens,
    }


def rows(
    facts: Sequence[dict[str, int | float]],
    psi: Float[np.ndarray, "texts k"],
    key_ids: Sequence[str],
) -> pd.DataFrame:
    """The rows of several texts, as :func:`table`."""
    n, k = psi.shape
    flat = psi.ravel()
    kinds = {"text": int, "grad_norm": float, "log_lik": float, "n_tokens": int}
    by_text = (
        pd.DataFrame(facts, columns=list(kinds))
        .astype(kinds)  # also where there are none
        .loc[np.repeat(np.arange(n), k)]
        .reset_index(drop=True)
    )
    return by_text.assign(
        key_id=list(key_ids) * n,
        psi=flat,
        p_value=norm.sf(flat),
        log10_p=norm.logsf(flat) / np.log(10),
    )[COLUMNS]


def failure(text: int, response, keys: Sequence[perturb.Key]) -> pd.DataFrame:
    """The rows of a text that could not be scored: NaN but for its number and length."""
    n = len(response) if hasattr(response, "__len__") and not isinstance(response, str) else 0
    rows = pd.DataFrame(
        {"text": text, "key_id": [key.key_id for key in keys], "n_tokens": n}, columns=COLUMNS
    )
    return rows.astype(dict.fromkeys(("psi", "p_value", "log10_p", "grad_norm", "log_lik"), float))
