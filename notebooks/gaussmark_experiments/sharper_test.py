"""17: the direction is free. What does each direction detect, which one is best after edits, and is
the likelihood ratio itself better than any?

For a direction u(y) that does not look at the key, ψ_u = ⟨ξ, u⟩/(σ‖u‖) is N(0, 1) over keys. Of a
marked text as it was written, ξ leans towards G = ∇log p_θ(y) alone: to first order in σ, its mean
given the text is σ²G, so

    E ψ_u = cos(u, G)·σ‖G‖

and no direction is better than G. All tables are over pairs; a text's wrong key is the next pair's.
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

TESTS = PAPERS, SHARPER, BOTH = (
    "the paper's ψ",
    "the sharper ψ",
    "the larger of both",
)
BIASES = "the output biases"
CLEANED = "the sharper ψ, cleaned first"
Direction = Callable[[Tensor], Tensor]
PAPER = "G, the paper's"
RANDOM = "a random one"
SIGN = "the sign of G"
TOP = "G's two largest singular directions"
WHITENED = "G divided by the Fisher diagonal"


def directions(
    lm: models.LM, wm: Watermark, prompts: Texts, plain: Texts, seed: int
) -> dict[str, Direction]:
    """What to test along, made from G and from plain texts: nothing here has seen a key."""
    fisher = sum(one.G.double() ** 2 for one in gradients.gradients(lm.model, prompts, plain, wm))
    fisher = (fisher / len(plain)).float()
    random = torch.Generator().manual_seed(seed)

    def largest(G: Tensor, k: int = 2) -> Tensor:
        U, s, V = torch.svd_lowrank(G, q=k + 4, niter=4)
        return (U[:, :k] * s[:k]) @ V[:, :k].T

    return {
        PAPER: lambda G: G,
        SIGN: torch.sign,
        TOP: largest,
        WHITENED: lambda G: G / (fisher + fisher.mean()),
        RANDOM: lambda G: torch.randn(G.shape, generator=random).to(G),
    }


def along(
    lm: models.LM,
    pairs: Pairs,
    texts: Texts,
    wm: Watermark,
    named: Mapping[str, Direction],
    dtype: str | None = None,
) -> pd.DataFrame:
    """ψ of each text in each direction, under its own key and the next pair's: ``direction, pair,
    kind, psi, cosine`` (with G) and ``forecast``, the mean that the text promises.
    """
    rows = []
    noise_of = held_noises(wm.on(lm.model), pairs.keys)
    for one in gradients.gradients(lm.model, pairs.prompts, texts, wm, dtype=dtype):
        made = [replace(one, parts=[make(one.G)]) for make in named.values()]
        cosines = [direction.cosine(one) for direction in made]
        for kind, psi in zip((OWN, WRONG), _psi(noise_of, pairs.n, made), strict=True):
            most = wm.sigma * one.norm if kind == OWN else 0.0
            rows += [
                (name, one.text, kind, value, cosine, most * cosine)
                for name, value, cosine in zip(named, psi, cosines, strict=True)
            ]
    columns = ["direction", "pair", "kind", "psi", "cosine", "forecast"]
    return pd.DataFrame(rows, columns=columns)


def _psi(
    noise_of: Callable[[int], Tensor],
    n: int,
    of_text: Sequence[gradients.TextGradient],
) -> Float[np.ndarray, "two directions"]:
    """ψ in each direction of one of n texts, under its own key and under the next pair's."""
    i = of_text[0].text
    return np.array(
        [[along_noise(one, noise_of(key)) for one in of_text] for key in (i, (i + 1) % n)]
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
    """The paper's test, the sharper one and both at once (``TESTS``) of each text after each edit
    of each fraction, and the sharper one of what ``channel.cleaned`` leaves of it: ``test, edit``
    (as :func:`named_edit` has it), ``pair, kind, psi, p_value``.
    """
    noise_of = held_noises(wm.on(lm.model), pairs.keys)
    sharper_weights = channel.weights(lm.model, edited)
    weighings = [channel.weights(lm.model, 0.0), sharper_weights]
    rows = []
    edits = {
        named_edit(name, f): (change, f) for f in fractions for name, change in changes.items()
    }
    for edit, (change, f) in {UNEDITED: (unedited, 0.0), **edits}.items():
        x, y = change(pairs.prompts, texts, f, seed)
        each = gradients.gradients(lm.model, x, y, wm, token_weights=weighings, dtype=dtype)
        for both in in_lists(each, 2):
            for kind, psi in zip((OWN, WRONG), _psi(noise_of, pairs.n, both), strict=True):
                psis = [*psi, largest.psi_of_largest(both, psi)]
                rows += [
                    (
                        test,
                        edit,
                        both[0].text,
                        kind,
                        psi_of_test,
                        norm.sf(psi_of_test),
                    )
                    for test, psi_of_test in zip(TESTS, psis, strict=True)
                ]
        y = channel.cleaned(lm.model, x, y, edited)
        each = gradients.gradients(lm.model, x, y, wm, token_weights=sharper_weights, dtype=dtype)
        for gradient in each:
            for kind, [psi] in zip(
                (OWN, WRONG),
                _psi(noise_of, pairs.n, [gradient]),
                strict=True,
            ):
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
    """
    >>> named_edit("delete at random", 0.3)
    'delete at random, 30%'
    """
    return f"{edit}, {fraction:.0%}"


def wide(table: pd.DataFrame, edit: str, column: str, kind: str = OWN) -> pd.DataFrame:
    """One row per pair, one column per test, of :func:`after_edits`."""
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
    """The mark on a matrix beside one on the output biases. One row per ``mark``: its numbers
    ``d``; of its texts ``psi`` and ``nats`` (divergence), with ``psi²/(2 nats)``, which is 1 to
    first order; and what ``n_leaked`` texts of one key give away of its noise: the ``cosine`` of
    the noise with its posterior mean Σu/(1/σ² + F), F = Σu² of each number, and the ``law``
    √(mean of x/(1 + x)), x = σ²F, of numbers that show independently of each other.
    """
    rows = []
    one_key = pairs.keys[0]
    leaking = {"seed": seed + 1, **sampling}
    prompts = list(islice(cycle(pairs.prompts), n_leaked))
    for mark, scheme in (
        ("a matrix", GaussMark(wm, one_key)),
        (BIASES, OutputBiases(one_key)),
    ):
        asked = lm.model, pairs.prompts
        texts = scheme.generate(*asked, n_tokens, keys=pairs.keys, seed=seed, **sampling)
        psi = scheme.score(*asked, texts, pairs.keys)["statistic"].mean()
        nats = scheme.divergences(*asked, texts, pairs.keys).mean()
        leaked = (
            lm.model,
            prompts,
            scheme.generate(lm.model, prompts, n_tokens, **leaking),
        )
        if mark == BIASES:
            slopes = [torch.from_numpy(u) for u in biases.slopes(*leaked)]
            sigma = scheme.sigma
            z = torch.from_numpy(scheme.noise(len(slopes[0])))
        else:
            slopes = (one.G.double() for one in gradients.gradients(*leaked, wm))
            sigma = wm.sigma
            z = perturb.noise(lm.model, wm, one_key)
        total = F = 0.0
        for u in slopes:
            total = total + u
            F = F + u**2
        cosine = learning.cosine(learning.shrunk(total, 1, F, sigma), z)
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
    """How much of its price could a mark be spared by tuning, whatever weights are tuned?

    Along a mark's own text let r(v) be the slope of log p_{θ+sξ}(v) at s = 0, of each next token v.
    By Gibbs' inequality every distribution q′ with the mark's mean slope E_q r = ⟨ξ, E_q G⟩ has

        KL(q′ ‖ p) ≥ E_q r − log E_p e^r = KL(q ‖ p) − KL(q ‖ p e^r / E_p e^r)

    The slope is a central difference over ±hξ. ``pair, nats`` (KL(q ‖ p), the price) and ``most``
    (the last term, nats that tuning could save), per text.
    """
    rows = []
    placed = wm.on(lm.model)
    for i, (x, y, key) in enumerate(zip(pairs.prompts, texts, pairs.keys, strict=True)):
        inputs, is_token = divergence.laid_out(lm.model, [(x, y)])
        xi = perturb.noise(lm.model, wm, key)
        logits = [divergence.logits(lm.model, inputs, len(y))]
        for scale in (1.0, h, -h):
            with perturb.moved(placed, [scale * xi]):
                logits.append(divergence.logits(lm.model, inputs, len(y)))
        p, q, above, below = (one.double().log_softmax(-1) for one in logits)
        best = p + (above - below) / (2 * h)  # up to E_p e^r
        [nats], [most] = (divergence.summed(q, other, is_token) for other in (p, best))
        rows.append({"pair": i, "nats": nats, "most": most})
    return pd.DataFrame(rows)


def nearest(model: PreTrainedModel, weight: str, n: int) -> list[str]:
    """A weight, and up to n − 1 of the same kind in other blocks, the nearest first."""
    kind = [
        name for name in models.watermarkable(model) if matrix_kind(name) == matrix_kind(weight)
    ]
    return sorted(kind, key=lambda name: abs(kind.index(name) - kind.index(weight)))[:n]


def spread(
    lm: models.LM,
    weights: Sequence[str],
    pairs: Pairs,
    plain: Texts,
    psi: float,
) -> dict[int, Watermark]:
    """Watermarks of one predicted ψ on the first of the weights and on all, by their number: each
    weight adds the same share to ψ² = Σ σ_s²‖G_s‖².
    """
    table = gradients.norms(lm.model, pairs.prompts[: len(plain)], plain, weights)
    norms = table.groupby("weight")["grad_norm"].median()
    return {
        m: Watermark(
            weights[:m],
            [psi / (math.sqrt(m) * float(norms[name])) for name in weights[:m]],
        )
        for m in (1, len(weights))
    }


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
    """Texts and prices of each watermark: ``matrices, pair, psi, forecast`` (σ‖G‖), ``own`` (nats
    of divergence over its own text) and ``human`` (nats by which a human text after the prompt
    becomes less likely).
    """
    tables = []
    asked = (lm.model, pairs.prompts)
    base = likelihood.cross_entropy(lm.model, human, prompts=pairs.prompts)
    for m, wm in wms.items():
        marks = [(wm, key) for key in pairs.keys]
        texts = generate.sample(*asked, n_tokens, marks=marks, seed=seed, **sampling)
        found = score.score(*asked, texts, wm, pairs.keys, paired=True)
        nats = []
        for x, y, key in zip(pairs.prompts, human, pairs.keys, strict=True):
            with perturb.watermarked(lm.model, wm, key):
                nats.append(likelihood.cross_entropy(lm.model, [y], prompts=[x]).item())
        own = divergence.per_text(*asked, texts, marks=marks)
        forecast = wm.sigmas[0] * found["grad_norm"]
        columns = {
            "matrices": m,
            "pair": range(pairs.n),
            "psi": found["psi"],
            "own": own,
        }
        human_nats = (np.array(nats) - base) * [len(y) for y in human]
        tables.append(pd.DataFrame(columns).assign(forecast=forecast, human=human_nats))
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
    """log p_{θ+ξ}(y) − log p_θ(y), ranked among fresh keys: ``ratio`` (nats) and an exact
    ``p_value``, beside ``psi``.

    The fresh keys are drawn tilted by a = ``tilt`` towards u = G/‖G‖: z′ = z + a·u, with weight
    w(z′) = exp(−a⟨z′, u⟩ + a²/2), and the key itself counts with its own:

        p = (w(z) + Σ_i w(z′_i)·1{LR_i ≥ LR})/(n + 1)

    P(p ≤ α) ≤ α over keys for any text and any a that do not depend on the key (Harrison,
    Biometrika 99, 2012). With a = 0 p is the rank, at least 1/(n + 1).
    """
    placed = wm.on(lm.model)
    a = tilt
    [one] = gradients.gradients(lm.model, [prompt], [response], wm)
    u = one.unit()
    draw = np.random.default_rng([seed, 17])

    def log_p() -> float:
        [nats] = likelihood.cross_entropy(lm.model, [response], prompts=[prompt])
        return -float(nats) * len(response)

    def tried(z: Float[Tensor, " d"]) -> tuple[float, float]:
        """log p under this noise, and its log weight."""
        with perturb.moved(placed, [(wm.sigma * z).reshape(placed.linear.shape)]):
            return log_p(), a**2 / 2 - a * torch.dot(z, u).item()

    base = log_p()
    z = torch.from_numpy(key.normals(placed.d, dtype=np.float32)).to(u)
    ratio, own = tried(z)
    fresh = [
        tried(torch.from_numpy(draw.standard_normal(placed.d, np.float32)).to(u) + a * u)
        for _ in range(n_keys)
    ]
    as_large = [log_w for value, log_w in fresh if value >= ratio]
    p = min(1.0, np.exp([own, *as_large]).sum() / (n_keys + 1))
    return {
        "ratio": ratio - base,
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
    """:func:`likelihood_ratio` of the first n texts under their own and the next pair's key, beside
    the p-value of ψ: ``pair, kind, ratio, p_value, psi, p_psi``.
    """
    rows = []
    for i in range(min(n, pairs.n)):
        for kind, key in (
            (OWN, pairs.keys[i]),
            (WRONG, pairs.keys[(i + 1) % pairs.n]),
        ):
            found = likelihood_ratio(lm, pairs.prompts[i], texts[i], wm, key, **options)
            rows.append(
                {
                    "pair": i,
                    "kind": kind,
                    **found,
                    "p_psi": norm.sf(found["psi"]),
                }
            )
    return pd.DataFrame(rows)


def power_gain(
    table: pd.DataFrame, edit: str, test: str, base: str, level: float
) -> stats.Estimate:
    """Share detected by one test less that by another, of the same texts."""
    hits = wide(table, edit, "p_value") <= level
    return stats.interval(np.subtract(hits[test], hits[base], dtype=float))
