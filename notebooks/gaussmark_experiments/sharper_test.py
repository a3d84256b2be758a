"""17: the test may use any direction. What does each direction detect, which direction is best
after edits, and does the likelihood ratio itself detect more than all of them?

For a direction u(y) that does not depend on the key, ψ_u = ⟨ξ, u⟩/(σ‖u‖) is N(0, 1) over keys. If a
marked text is unedited, ξ leans towards G = ∇log p_θ(y) alone: to first order in σ, its mean given
the text is σ²G, so

    E ψ_u = cos(u, G)·σ‖G‖

and no direction is better than G. All tables are over pairs. The wrong key of a text is the key of
the next pair.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle, islice

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import norm
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_experiments.layer_sigma_sweep import matrix_kind
from gaussmark_experiments.robustness import (
    UNEDITED,
    along_noise,
    held_noises,
    unedited,
)
from gaussmark_lib import (
    divergence,
    generate,
    gradients,
    likelihood,
    models,
    perturb,
    score,
    stats,
)
from gaussmark_lib.beyond import channel, largest
from gaussmark_lib.beyond.attacks import learning
from gaussmark_lib.beyond.schemes import GaussMark, OutputBiases, biases
from gaussmark_lib.corrupt import Change
from gaussmark_lib.engine.blocks import in_lists
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.tokens import Ids, Texts
from gaussmark_lib.workbench.pairs import OWN, WRONG, Pairs

# Each returns a p-value that is exact over keys.
TESTS = PAPERS, SHARPER, BOTH = (
    "the paper's ψ",
    "the sharper ψ",
    "the larger of both",
)
# Names of tests, marks and directions, as tables and figures show them.
BIASES = "the output biases"
CLEANED = "the sharper ψ, cleaned first"
Direction = Callable[[Tensor], Tensor]  # from a text's G to the direction of its test
PAPER = "G, the paper's"
RANDOM = "a random direction"
SIGN = "the sign of G"
TOP = "G's two largest singular directions"
WHITENED = "G divided by the Fisher diagonal"


def directions(
    lm: models.LM, wm: Watermark, prompts: Texts, plain: Texts, seed: int
) -> dict[str, Direction]:
    """Return the directions to test along, made from G and from plain texts. None of them depends
    on a key.
    """
    of_plain = gradients.gradients(lm.model, prompts, plain, wm)
    # the diagonal of the Fisher information, in double precision: it is a sum of many small squares
    fisher = sum(gradient.G.double() ** 2 for gradient in of_plain)
    fisher = (fisher / len(plain)).float()
    random = torch.Generator().manual_seed(seed)  # of no key: numbers of this seed

    def largest(G: Tensor, k: int = 2) -> Tensor:
        # a few vectors and iterations more than asked for make the randomised SVD accurate
        U, s, V = torch.svd_lowrank(G, q=k + 4, niter=4)
        return (U[:, :k] * s[:k]) @ V[:, :k].T

    def whitened(G: Tensor) -> Tensor:
        return G / (fisher + fisher.mean())  # the mean keeps entries without information finite

    def drawn(G: Tensor) -> Tensor:
        return torch.randn(G.shape, generator=random).to(G)

    return {
        PAPER: lambda G: G,
        SIGN: torch.sign,
        TOP: largest,
        WHITENED: whitened,
        RANDOM: drawn,
    }


def along(
    lm: models.LM,
    pairs: Pairs,
    texts: Texts,
    wm: Watermark,
    named: Mapping[str, Direction],
    dtype: str | None = None,
) -> pd.DataFrame:
    """Return ψ of each text in each direction, under its own key and the next pair's: ``direction,
    pair, kind, psi, cosine`` (with G) and ``forecast``, the mean that the text predicts.
    """
    rows = []
    noise_of = held_noises(wm.on(lm.model), pairs.keys)  # each key's noise is needed for two texts
    for gradient in gradients.gradients(lm.model, pairs.prompts, texts, wm, dtype=dtype):
        # in the order of their names
        directions = [replace(gradient, parts=[make(gradient.G)]) for make in named.values()]
        cosines = [direction.cosine(gradient) for direction in directions]
        psis = _psi(noise_of, pairs.n, directions)  # (own and wrong key, directions)
        for kind, psi in zip((OWN, WRONG), psis, strict=True):
            largest_mean = wm.sigma * gradient.norm if kind == OWN else 0.0
            for name, value, cosine in zip(named, psi, cosines, strict=True):
                forecast = largest_mean * cosine
                rows.append((name, gradient.text, kind, value, cosine, forecast))
    columns = ["direction", "pair", "kind", "psi", "cosine", "forecast"]
    return pd.DataFrame(rows, columns=columns)


def _psi(
    noise_of: Callable[[int], Tensor],
    n: int,
    of_text: Sequence[gradients.TextGradient],
) -> Float[np.ndarray, "two directions"]:
    """ψ in each direction of a text, under its own key and under the next of n pairs' key."""
    pair = of_text[0].text
    keys = (pair, (pair + 1) % n)
    return np.array(
        [[along_noise(direction, noise_of(key)) for direction in of_text] for key in keys]
    )


def after_edits(
    lm: models.LM,
    pairs: Pairs,
    texts: Texts,
    wm: Watermark,
    changes: Mapping[str, Change],
    fractions: Sequence[float],
    edited: float,
    *,
    seed: int = 0,
    dtype: str | None = None,
) -> pd.DataFrame:
    """Test each text after each edit of each fraction: by the paper's test, the sharper one and
    both at once (``TESTS``), and by the sharper one on what ``channel.cleaned`` leaves of the text.

    Returns:
        ``test, edit`` (as :func:`named_edit` has it), ``pair, kind, psi, p_value``.
    """
    noise_of = held_noises(wm.on(lm.model), pairs.keys)
    sharper_weights = channel.weights(lm.model, edited)
    weighings = [channel.weights(lm.model, 0.0), sharper_weights]
    edits = {UNEDITED: (unedited, 0.0)}  # name → (change, fraction)
    for fraction in fractions:
        for name, change in changes.items():
            edits[named_edit(name, fraction)] = (change, fraction)
    rows = []
    for edit, (change, fraction) in edits.items():
        prompts, responses = change(pairs.prompts, texts, fraction, seed)
        of_texts = gradients.gradients(
            lm.model,
            prompts,
            responses,
            wm,
            token_weights=weighings,
            dtype=dtype,
        )
        for of_text in in_lists(of_texts, len(weighings)):
            psis_by_key = _psi(noise_of, pairs.n, of_text)
            for kind, psi in zip((OWN, WRONG), psis_by_key, strict=True):
                psis = [*psi, largest.psi_of_largest(of_text, psi)]  # in the order of TESTS
                rows += [
                    (
                        test,
                        edit,
                        of_text[0].text,
                        kind,
                        psi_of_test,
                        norm.sf(psi_of_test),
                    )
                    for test, psi_of_test in zip(TESTS, psis, strict=True)
                ]
        cleaned = channel.cleaned(lm.model, prompts, responses, edited)
        of_cleaned = gradients.gradients(
            lm.model,
            prompts,
            cleaned,
            wm,
            token_weights=sharper_weights,
            dtype=dtype,
        )
        for gradient in of_cleaned:
            psis_by_key = _psi(noise_of, pairs.n, [gradient])
            for kind, [psi] in zip((OWN, WRONG), psis_by_key, strict=True):
                rows.append(
                    (
                        CLEANED,
                        edit,
                        gradient.text,
                        kind,
                        psi,
                        norm.sf(psi),
                    )
                )
    return pd.DataFrame(rows, columns=["test", "edit", "pair", "kind", "psi", "p_value"])


def named_edit(edit: str, fraction: float) -> str:
    """Name an edit and its strength.

    >>> named_edit("delete at random", 0.3)
    'delete at random, 30%'
    """
    return f"{edit}, {fraction:.0%}"


def wide(table: pd.DataFrame, edit: str, column: str, kind: str = OWN) -> pd.DataFrame:
    """Spread the table of :func:`after_edits`: one row per pair, one column per test."""
    # of one edit under one kind of key
    rows = table[(table["edit"] == edit) & (table["kind"] == kind)]
    return rows.pivot(index="pair", columns="test", values=column)


def rivals(
    lm: models.LM,
    pairs: Pairs,
    wm: Watermark,
    n_tokens: int,
    n_leaked: int,
    *,
    seed: int = 0,
    **sampling,
) -> pd.DataFrame:
    """Compare a watermark on a matrix with a watermark on the output biases.

    Returns:
        One row per ``mark``: ``d``, how many numbers it has; means over its texts of ``psi`` and
        ``nats`` (divergence), with ``psi²/(2 nats)``, which is 1 to first order; and what
        ``n_leaked`` texts of one key reveal of its noise. ``cosine`` is that of the noise with its
        posterior mean Σu/(1/σ² + F), F = Σu² of each number. ``law`` is √(mean of x/(1 + x)),
        x = σ²F, which holds for numbers that show independently of each other.
    """
    key = pairs.keys[0]
    leaked_prompts = list(islice(cycle(pairs.prompts), n_leaked))
    rows = []
    for mark, scheme in (
        ("a matrix", GaussMark(wm, key)),
        (BIASES, OutputBiases(key)),
    ):
        texts = scheme.generate(
            lm.model,
            pairs.prompts,
            n_tokens,
            keys=pairs.keys,
            seed=seed,
            **sampling,
        )
        scores = scheme.score(lm.model, pairs.prompts, texts, pairs.keys)
        psi = scores["statistic"].mean()
        # mean divergence per text
        nats = scheme.divergences(lm.model, pairs.prompts, texts, pairs.keys).mean()
        # all under one key
        leaked = scheme.generate(lm.model, leaked_prompts, n_tokens, seed=seed + 1, **sampling)
        if mark == BIASES:
            of_biases = biases.slopes(lm.model, leaked_prompts, leaked)
            slopes = [torch.from_numpy(u) for u in of_biases]
            sigma = scheme.sigma
            z = torch.from_numpy(scheme.noise(len(slopes[0])))
        else:
            of_texts = gradients.gradients(lm.model, leaked_prompts, leaked, wm)
            slopes = (gradient.G.double() for gradient in of_texts)  # never all at once
            sigma = wm.sigma
            z = perturb.noise(lm.model, wm, key)
        total = 0.0
        F = 0.0
        for u in slopes:
            total = total + u
            F = F + u**2
        posterior_mean = learning.shrunk(total, 1, F, sigma)
        cosine = learning.cosine(posterior_mean, z)
        law = (1 - 1 / (1 + sigma**2 * F)).mean().sqrt().item()
        rows.append((mark, z.numel(), psi, nats, psi**2 / 2 / nats, cosine, law))
    columns = [
        "mark",
        "d",
        "psi",
        "nats",
        "psi²/(2 nats)",
        "cosine",
        "law",
    ]
    return pd.DataFrame(rows, columns=columns)


@torch.no_grad()
def spared(
    lm: models.LM,
    pairs: Pairs,
    texts: Texts,
    wm: Watermark,
    h: float = 0.1,
) -> pd.DataFrame:
    """Bound how much of its price tuning could save a watermark, whatever weights are tuned.

    Along a marked text let r(v) be the slope of log p_{θ+sξ}(v) at s = 0, for each next token v.
    By Gibbs' inequality every distribution q′ with the watermark's mean slope E_q r = ⟨ξ, E_q G⟩
    has

        KL(q′ ‖ p) ≥ E_q r − log E_p e^r = KL(q ‖ p) − KL(q ‖ p e^r / E_p e^r)

    The slope is a central difference over ±hξ.

    Returns:
        ``pair, nats`` (KL(q ‖ p), the price) and ``most`` (the last term: the nats that tuning
        could save), per text.
    """
    placed = wm.on(lm.model)
    rows = []
    for i, (prompt, text, key) in enumerate(zip(pairs.prompts, texts, pairs.keys, strict=True)):
        inputs, is_token = divergence.laid_out(lm.model, [(prompt, text)])
        xi = perturb.noise(lm.model, wm, key)  # of the pair's key
        logits = [divergence.logits(lm.model, inputs, len(text))]
        for scale in (1.0, h, -h):
            with perturb.moved(placed, [scale * xi]):
                logits.append(divergence.logits(lm.model, inputs, len(text)))
        # log-probabilities of the base, of the marked model, and a step to either side
        p, q, above, below = (of_model.double().log_softmax(-1) for of_model in logits)
        slope = (above - below) / (2 * h)
        [nats] = divergence.summed(q, p, is_token)
        [saved] = divergence.summed(q, p + slope, is_token)  # normalised there, by E_p e^r
        rows.append({"pair": i, "nats": nats, "most": saved})
    return pd.DataFrame(rows)


def nearest(model: PreTrainedModel, weight: str, n: int) -> list[str]:
    """Return a weight and up to n − 1 of the same kind in other blocks, the nearest first."""
    kind = matrix_kind(weight)
    names = [name for name in models.watermarkable(model) if matrix_kind(name) == kind]
    place = names.index(weight)  # among its kind, as the model lists them
    return sorted(names, key=lambda name: abs(names.index(name) - place))[:n]


def spread(
    lm: models.LM,
    weights: Sequence[str],
    pairs: Pairs,
    plain: Texts,
    psi: float,
) -> dict[int, Watermark]:
    """Return watermarks with the same predicted ψ, on the first of the weights and on all, by how
    many weights they have. Each weight adds the same share to ψ² = Σ σ_s²‖G_s‖².
    """
    table = gradients.norms(lm.model, pairs.prompts[: len(plain)], plain, weights)
    norms = table.groupby("weight")["grad_norm"].median()  # medians over plain texts
    watermarks = {}
    for n_weights in (1, len(weights)):
        names = weights[:n_weights]
        sigmas = [psi / (math.sqrt(n_weights) * float(norms[name])) for name in names]
        watermarks[n_weights] = Watermark(names, sigmas)
    return watermarks


def spread_out(
    lm: models.LM,
    wms: Mapping[int, Watermark],
    pairs: Pairs,
    human: Texts,
    n_tokens: int,
    *,
    seed: int = 0,
    **sampling,
) -> pd.DataFrame:
    """Write texts with each watermark, test them and measure their price.

    Returns:
        ``matrices, pair, psi, forecast`` (σ‖G‖), ``own`` (nats of divergence over the watermark's
        own text) and ``human`` (the nats by which a human text after the prompt becomes less
        likely).
    """
    tables = []
    base_nats = likelihood.cross_entropy(lm.model, human, prompts=pairs.prompts)  # per token
    human_lengths = [len(text) for text in human]  # from nats per token to nats per text
    for n_matrices, wm in wms.items():
        marks = [(wm, key) for key in pairs.keys]
        texts = generate.sample(
            lm.model,
            pairs.prompts,
            n_tokens,
            marks=marks,
            seed=seed,
            **sampling,
        )
        scores = score.score(lm.model, pairs.prompts, texts, wm, pairs.keys, paired=True)
        marked_nats = []
        for prompt, text, key in zip(pairs.prompts, human, pairs.keys, strict=True):
            with perturb.watermarked(lm.model, wm, key):
                nats = likelihood.cross_entropy(lm.model, [text], prompts=[prompt])
            marked_nats.append(nats.item())
        columns = {
            "matrices": n_matrices,
            "pair": range(pairs.n),
            "psi": scores["psi"],
            "own": divergence.per_text(lm.model, pairs.prompts, texts, marks=marks),
            "forecast": wm.sigmas[0] * scores["grad_norm"],
            "human": (np.array(marked_nats) - base_nats) * human_lengths,
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def likelihood_ratio(
    lm: models.LM,
    prompt: Ids,
    response: Ids,
    wm: Watermark,
    key: Key,
    *,
    n_keys: int,
    tilt: float,
    seed: int = 0,
) -> dict[str, float]:
    """Rank log p_{θ+ξ}(y) − log p_θ(y) among fresh keys.

    The fresh keys are drawn with a tilt a = ``tilt`` towards u = G/‖G‖: z′ = z + a·u, with weight
    w(z′) = exp(−a⟨z′, u⟩ + a²/2), and the key itself counts with its own weight:

        p = (w(z) + Σ_i w(z′_i)·1{LR_i ≥ LR})/(n + 1)

    P(p ≤ α) ≤ α over keys for any text and any a that do not depend on the key (Harrison,
    Biometrika 99, 2012). With a = 0, p is the rank, at least 1/(n + 1).

    Returns:
        ``ratio`` (nats), an exact ``p_value``, and ``psi`` of the same key.
    """
    placed = wm.on(lm.model)
    [gradient] = gradients.gradients(lm.model, [prompt], [response], wm)
    u = gradient.unit()
    rng = np.random.default_rng([seed, 17])  # of the fresh keys

    def log_p() -> float:
        [nats] = likelihood.cross_entropy(lm.model, [response], prompts=[prompt])
        return -float(nats) * len(response)

    def log_p_and_weight(z: Float[Tensor, " d"]) -> tuple[float, float]:
        """log p under this noise, and the log of its weight."""
        xi = (wm.sigma * z).reshape(placed.linear.shape)
        with perturb.moved(placed, [xi]):
            log_weight = tilt**2 / 2 - tilt * torch.dot(z, u).item()
            return log_p(), log_weight

    base_log_p = log_p()
    z = torch.from_numpy(key.normals(placed.d, dtype=np.float32)).to(u)  # ξ/σ of the key
    keys_log_p, keys_log_weight = log_p_and_weight(z)
    log_weights = [keys_log_weight]  # of the key, and of the fresh keys with at least its ratio
    for _ in range(n_keys):
        fresh = torch.from_numpy(rng.standard_normal(placed.d, np.float32)).to(u)
        fresh_log_p, log_weight = log_p_and_weight(fresh + tilt * u)
        if fresh_log_p >= keys_log_p:
            log_weights.append(log_weight)
    p = min(1.0, np.exp(log_weights).sum() / (n_keys + 1))
    return {
        "ratio": keys_log_p - base_log_p,
        "p_value": p,
        "psi": torch.dot(z, u).item(),
    }


def ratios(
    lm: models.LM,
    pairs: Pairs,
    texts: Texts,
    wm: Watermark,
    n: int,
    **options,
) -> pd.DataFrame:
    """Test the first n texts by :func:`likelihood_ratio` under their own and the next pair's key.

    Returns:
        ``pair, kind, ratio, p_value, psi``, and ``p_psi``, the p-value of ψ.
    """
    rows = []
    for i in range(min(n, pairs.n)):
        # the wrong key is the next pair's
        keys = {OWN: pairs.keys[i], WRONG: pairs.keys[(i + 1) % pairs.n]}
        for kind, key in keys.items():
            tested = likelihood_ratio(lm, pairs.prompts[i], texts[i], wm, key, **options)
            p_psi = norm.sf(tested["psi"])
            rows.append({"pair": i, "kind": kind, **tested, "p_psi": p_psi})
    return pd.DataFrame(rows)


def power_gain(
    table: pd.DataFrame, edit: str, test: str, base: str, level: float
) -> stats.Estimate:
    """Return the share that ``test`` detects less the share that ``base`` detects of the same
    texts.
    """
    # (pairs, tests): whether the text is detected
    hits = wide(table, edit, "p_value") <= level
    return stats.interval(np.subtract(hits[test], hits[base], dtype=float))
