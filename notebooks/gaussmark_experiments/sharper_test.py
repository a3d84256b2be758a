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
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from scipy.stats import norm
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_experiments import intervals
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
from gaussmark_lib.workbench.begin import N_TEXTS
from gaussmark_lib.workbench.pairs import (
    OWN,
    WRONG,
    Pairs,
    Tables,
    means,
    numbering,
    over_pairs,
    ratio_over_pairs,
)
from gaussmark_lib.workbench.runs import Run

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
OLD_NAMES = {"a random one": RANDOM}  # of a direction, in records that are older than its name
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


def kept_along(along: pd.DataFrame, direction: str) -> stats.Estimate:
    """Divide mean ψ of watermarked texts along a direction of :func:`along` by mean ψ along G."""
    own = along[along["kind"] == OWN].replace({"direction": OLD_NAMES})
    pair = numbering(own, "pair")
    psis = own.pivot(index=pair, columns="direction", values="psi")
    return ratio_over_pairs(psis[direction], psis[PAPER])


def kept(along: pd.DataFrame) -> pd.DataFrame:
    """Return :func:`kept_along` of each direction but G: ``direction, value, low, high, n``."""
    names = along["direction"].replace(OLD_NAMES).unique()
    rows = [
        {"direction": direction, **kept_along(along, direction).row()}
        for direction in names
        if direction != PAPER
    ]
    return pd.DataFrame(rows)


def kept_by_the_law(along: pd.DataFrame) -> pd.DataFrame:
    """Return the shares of :func:`kept` that the cosines predict: ``direction, value``."""
    own = along[along["kind"] == OWN]
    forecasts = own.groupby("direction", sort=False)["forecast"].mean()
    shares = forecasts.drop(PAPER) / forecasts[PAPER]
    return shares.rename("value").reset_index()


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
    return rows.pivot(
        index=numbering(rows, "pair"),
        columns="test",
        values=column,
    )


def gains(after: pd.DataFrame) -> pd.DataFrame:
    """Divide mean ψ of the sharper test by the paper's, without and with cleaning, for each edit of
    :func:`after_edits`: ``edit, test, value, low, high, n``.
    """
    rows = []
    for edit in after["edit"].unique():
        psis = wide(after, edit, "psi")
        for test in (SHARPER, CLEANED):
            gain = ratio_over_pairs(psis[test], psis[PAPERS])
            rows.append({"edit": edit, "test": test, **gain.row()})
    return pd.DataFrame(rows)


def in_words(gains: pd.DataFrame) -> pd.DataFrame:
    """Write the table of :func:`gains` of several runs (column ``run``) as text: a row per edit and
    test, a column per run.
    """
    as_text = [
        f"{gain.value:.2f} ({gain.low:.2f} to {gain.high:.2f}), n = {gain.n}"
        for gain in gains.itertuples()
    ]
    by_run = gains.assign(text=as_text).pivot(index=["edit", "test"], columns="run", values="text")
    rows = pd.MultiIndex.from_frame(gains[["edit", "test"]].drop_duplicates())
    return by_run.loc[rows, gains["run"].unique()].fillna("not measured")


def detected(after: pd.DataFrame, level: float) -> pd.DataFrame:
    """Return the share of texts that each test detects after each edit, and the share that the
    larger of both calls watermarked under a wrong key: ``edit, test, value, low, high, n``.
    """
    is_own = after["kind"] == OWN
    is_control = (after["kind"] == WRONG) & (after["test"] == BOTH)
    control = after[is_control].assign(test=f"{BOTH}, a wrong key")
    tested = pd.concat([after[is_own], control])
    return means(tested.assign(hit=tested["p_value"] <= level), ["edit", "test"], "hit")


def first_fraction(detected: pd.DataFrame, params: Mapping) -> pd.DataFrame:
    """Keep the rows of :func:`detected` for the unedited texts and the edits of the first fraction
    of a run with these parameters, by the three tests.
    """
    edits = [UNEDITED, *(named_edit(edit, params["fractions"][0]) for edit in params["edits"])]
    return detected[detected["edit"].isin(edits) & detected["test"].isin(TESTS)]


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


def growth(stronger: pd.DataFrame, weaker: pd.DataFrame) -> stats.Estimate:
    """Divide the share that tuning could save (:func:`spared`) with stronger noise by the share
    with weaker noise, in the same texts.
    """
    columns = ["nats", "most"]
    rows = np.concatenate([stronger[columns], weaker[columns]], axis=1)  # (texts, 4)

    def factor(rows: Float[np.ndarray, "texts four"]) -> float:
        price, most, price_of_weaker, most_of_weaker = rows.mean(axis=0)
        return (most / price) / (most_of_weaker / price_of_weaker)

    return stats.bootstrap(rows, factor)


def recorded_growth(run: Run) -> stats.Estimate | None:
    """Return the :func:`growth` of a record; None if the record is older than it."""
    row = run.results.get("growth")
    return intervals.of_row(row) if row else None


def nearest(model: PreTrainedModel, weight: str, n: int) -> list[str]:
    """Return a weight and up to n − 1 of the same kind in other blocks, the nearest first."""
    kind = matrix_kind(weight)
    names = [name for name in models.watermarkable(model) if matrix_kind(name) == kind]
    place = names.index(weight)  # among its kind, as the model lists them
    return sorted(names, key=lambda name: abs(names.index(name) - place))[:n]


def spread(
    lm: models.LM,
    weights: Sequence[str],
    prompts: Texts,
    n_tokens: int,
    psi: float,
    **sampling,
) -> dict[int, Watermark]:
    """Return watermarks with the same predicted ψ, on the first of the weights and on all, by how
    many weights they have. Each weight adds the same share to ψ² = Σ σ_s²‖G_s‖².

    The norms are those of plain continuations of the first prompts (``begin.pilot_prompts``), as in
    ``begin.solved``.
    """
    prompts = prompts[:N_TEXTS]
    plain = generate.sample(lm.model, prompts, n_tokens, **sampling)
    table = gradients.norms(lm.model, prompts, plain, weights)
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


def nearer(spread_out: pd.DataFrame) -> stats.Estimate:
    """Subtract ψ/(σ‖G‖) with the noise in one matrix from ψ/(σ‖G‖) with the noise in most matrices:
    mean over the pairs of :func:`spread_out`.
    """
    fulfilled = spread_out.assign(share=spread_out["psi"] / spread_out["forecast"])
    pair = numbering(fulfilled, "pair")
    shares = fulfilled.pivot(index=pair, columns="matrices", values="share")
    return over_pairs(shares[shares.columns.max()] - shares[1])


def damage(spread_out: pd.DataFrame) -> stats.Estimate:
    """Divide what human text pays with the noise in most matrices by what it pays with the noise in
    one matrix.
    """
    pair = numbering(spread_out, "pair")
    nats = spread_out.pivot(index=pair, columns="matrices", values="human")
    return ratio_over_pairs(nats[nats.columns.max()], nats[1])


def by_matrices(spread_out: pd.DataFrame, numerator: str, denominator: str) -> dict[str, float]:
    """Divide the means of two columns of :func:`spread_out`, by the number of matrices."""
    means_of_columns = spread_out.groupby("matrices")[[numerator, denominator]].mean()
    ratios = means_of_columns[numerator] / means_of_columns[denominator]
    return {str(n_matrices): ratio for n_matrices, ratio in ratios.items()}


def told(spread_out: pd.DataFrame) -> pd.DataFrame:
    """Return what :func:`spread_out` measured, for ``panels``: ``matrices`` (in words), ``what,
    value, low, high, n``.
    """
    ratios = {"ψ divided by σ‖G‖": ("psi", "forecast"), "price: human / own text": ("human", "own")}
    rows = []
    for what, (numerator, denominator) in ratios.items():
        for n_matrices, pairs in spread_out.groupby("matrices"):
            by_pair = pairs.set_index(numbering(pairs, "pair"))
            ratio = ratio_over_pairs(by_pair[numerator], by_pair[denominator])
            in_words = "noise in one matrix" if n_matrices == 1 else "noise in several matrices"
            rows.append({"matrices": in_words, "what": what, **ratio.row()})
    return pd.DataFrame(rows)


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
    hits = (wide(table, edit, "p_value") <= level).astype(float)
    return over_pairs(hits[test] - hits[base])


def likelihood_gain(ratios: pd.DataFrame, level: float) -> stats.Estimate:
    """Return the share that the likelihood ratio detects less the share that ψ detects, from the
    table of :func:`ratios`.
    """
    own = ratios[ratios["kind"] == OWN]
    by_pair = own.set_index(numbering(own, "pair"))
    # two tests of the same texts
    by_ratio = by_pair["p_value"] <= level
    by_psi = by_pair["p_psi"] <= level
    return over_pairs(by_ratio.astype(float) - by_psi)


def estimates(
    tables: Tables,
    params: Mapping[str, Any],
) -> dict[str, stats.Estimate]:
    """Return the findings and the headline that the rows of the recorded tables decide, by their
    sentences.
    """
    after = tables["after_edits"]
    level = params["level"]
    first_edit = named_edit(params["edits"][0], params["fractions"][0])
    found = {}
    for edit in after["edit"].unique():
        psis = wide(after, edit, "psi")
        for test, how in ((SHARPER, ""), (CLEANED, ", cleaned first")):
            sentence = f"ψ, {edit}{how}: sharper divided by the paper's"
            found[sentence] = ratio_over_pairs(psis[test], psis[PAPERS])
    # the larger of both tests, next to the better one
    for edit, base in ((UNEDITED, PAPERS), (first_edit, SHARPER)):
        sentence = f"share detected, {edit}: the larger of both less {base}"
        found[sentence] = power_gain(after, edit, BOTH, base, level)
    gain = likelihood_gain(tables["likelihood_ratios"], level)
    found["share detected, likelihood ratio less ψ"] = gain
    return found


def summaries(
    tables: Tables,
    params: Mapping[str, Any],
) -> dict[str, pd.DataFrame]:
    """Return the recorded table that the rows of ``after_edits`` decide."""
    return {"detected": detected(tables["after_edits"], params["level"])}


def numbers(
    tables: Tables,
    params: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the other recorded results that the tables decide."""
    of_spread = tables["spread"]  # one matrix, and several
    return {
        "bend": by_matrices(of_spread, "psi", "forecast"),
        "price": by_matrices(of_spread, "human", "own"),
    }
