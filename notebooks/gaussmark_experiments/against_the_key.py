"""15: against the key. What does somebody learn, forge, scrub, ask and average who knows the
scheme, σ, the weight and θ, and not ξ?

The laws are those of ``attacks.learning``; ψ_0 and all prices are measured on text that the key
itself writes after the same prompts. Forged text is written at θ + s·ξ̂, scrubbed text at
θ + ξ − s·ξ̂. With s = 1/√κ the first pays what the key's own text pays, as
long as few texts taught it, and

    ψ of the forged text = √κ cos ψ_0,   ψ that scrubbing leaves = (1 − √κ cos) ψ_0
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.stats import norm
from torch import Tensor

from gaussmark_lib import (
    generate,
    gradients,
    models,
    perturb,
    score,
    stats,
)
from gaussmark_lib.beyond import channel
from gaussmark_lib.beyond.attacks import askers, learning
from gaussmark_lib.beyond.joint import Public, public
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.tokens import Texts
from gaussmark_lib.workbench.pairs import Pairs, marked_and_plain, means

OWN = "the key's own"
FORGED = "forged"
SCRUBBED = "scrubbed"
MEASURED = "measured"
LAW = "the law with κ"
PLAIN_LAW = "the plain law"
INHERITED = "inherited verdicts"
ALONE = "each text at α"
PUBLIC = "the public rule"
N_TRIED = 8  # questions per step of a climb
LARGE = 58_720_256  # numbers of an 8-billion-parameter model's widest matrix


def taught(
    lm: models.LM,
    wm: Watermark,
    keys: Sequence[Key],
    prompts: Texts,
    held: Pairs,
    ends: Sequence[int],
    n_tokens: int,
    seed: int,
) -> tuple[pd.DataFrame, list[dict[int, Tensor]]]:
    """What the first n texts of each key say of its noise, for each n of ``ends``: ``weight, key,
    n, d, kappa, psi`` (κ with its interval), the cosine of ΣG ``measured`` and by the law; and ΣG
    of each key by n.

    What the law needs is from ``held``, pairs of other prompts and keys: κ from their
    plain texts, and ψ = E ψ‖G‖/√E‖G‖² from their marked ones.
    """
    marked, plain = marked_and_plain(lm, held, wm, n_tokens, seed)
    each = list(gradients.gradients(lm.model, held.prompts, plain, wm))
    kappa = stats.interval(
        np.arange(held.n),
        lambda chosen: learning.unevenness([each[i] for i in chosen]),
        cluster=np.arange(held.n) % 10,  # a jackknife: no text may stand beside itself
    )
    each = list(gradients.gradients(lm.model, held.prompts, marked, wm))
    psis = score.psi(each, wm.on(lm.model), held.keys, paired=True)
    norms = [g.norm for g in each]
    psi = np.mean(psis * norms) / np.sqrt(np.mean(np.square(norms)))
    rows = []
    sums = []
    for i, key in enumerate(keys):
        xi = perturb.noise(lm.model, wm, key)
        with perturb.watermarked(lm.model, wm, key):
            texts = generate.sample(lm.model, prompts, n_tokens, seed=seed + i + 1)
        totals = learning.estimates(lm.model, prompts, texts, wm, ends)
        sums.append(dict(zip(ends, totals, strict=True)))
        for n, total in sums[-1].items():
            columns = {
                "weight": wm.weight,
                "key": i,
                "n": n,
                "d": xi.numel(),
            }
            columns |= kappa.row("kappa") | {
                "psi": psi,
                MEASURED: learning.cosine(total, xi),
            }
            rows.append(columns | {LAW: learning.law(n, psi, xi.numel(), kappa.value)})
    return pd.DataFrame(rows), sums


def drawn_on(learnt: pd.DataFrame) -> pd.DataFrame:
    """The laws up to ten million texts, at one weight's d and at ``LARGE``, and the mean cosines of
    its keys: ``texts, what, value``.
    """
    facts = learnt.iloc[0]
    laws = {
        PLAIN_LAW: (facts["d"], 1.0),
        LAW: (facts["d"], facts["kappa"]),
    }
    laws[f"{LAW}, {LARGE / 1e6:.0f} M numbers"] = LARGE, facts["kappa"]
    rows = [
        {
            "texts": float(n),
            "what": what,
            "value": learning.law(n, facts["psi"], *of),
        }
        for what, of in laws.items()
        for n in {*learnt["n"], *10 ** np.arange(2, 8)}
    ]
    measured = learnt.assign(texts=learnt["n"], what=MEASURED)
    return pd.concat([pd.DataFrame(rows), means(measured, ["texts", "what"], MEASURED)])


def attacked(
    lm: models.LM,
    prompts: Texts,
    wm: Watermark,
    noise: Tensor,
    keys: Sequence[Key],
    n_tokens: int,
    seed: int,
) -> pd.DataFrame:
    """Text of the model at θ + a given noise, one row per prompt: ``psi``, the mean under these
    keys but the last, which has no part in the noise (``wrong``); ``sharper``, the same by the test
    that expects a tenth of the tokens to be edited; ``nats`` of price; and the ``prompt``.
    """
    texts, nats = learning.sample_with_noise(lm.model, prompts, wm, noise, n_tokens, seed=seed)
    weighings = [channel.weights(lm.model, exchanged) for exchanged in (0.0, 0.1)]
    scores = score.score(lm.model, prompts, texts, wm, keys, token_weights=weighings)
    # (texts, weighings, keys)
    found = scores["psi"].to_numpy().reshape(len(texts), len(weighings), len(keys))
    psi, sharper = found[..., :-1].mean(2).T
    columns = {
        "psi": psi,
        "sharper": sharper,
        "wrong": found[:, 0, -1],
        "nats": nats,
    }
    return pd.DataFrame(columns | {"prompt": range(len(prompts))})


def shares(used: pd.DataFrame, what: str, columns: Mapping[str, str]) -> pd.DataFrame:
    """Columns of forged or scrubbed text, each under a name, divided by those of the key's own text
    after the same prompts: ``texts`` (that taught it), ``of`` (the name), ``value, low, high, n``
    of prompts.
    """
    own = used[used["what"] == OWN]
    several = used[used["what"] == what].groupby("n")
    return pd.DataFrame(
        {"texts": n, "of": name} | stats.ratio(rows[column], own[column], own["prompt"]).row()
        for name, column in columns.items()
        for n, rows in several
    )


def climbs(
    lm: models.LM,
    pairs: Pairs,
    human: Texts,
    wm: Watermark,
    n_steps: int,
    level: float,
    seed: int,
    given: tuple[Texts, Sequence[int], int],
) -> pd.DataFrame:
    """Each pair's human text, edited by an asker whom its key answers with numbers, by the public
    rule, or, the control, not at all; or whom nobody answers, and who has n marked texts and climbs
    along their ΣG. ``answers, psi`` and ``accused``: whether the rule said yes, of who does not ask
    it on the way to the last text alone.

    ``given``: prompts of the marked texts, each n, ascending, and the tokens of a text.
    """
    prompts, n_held, n_tokens = given
    rows = []
    for i, (prompt, ids, key) in enumerate(zip(pairs.prompts, human, pairs.keys, strict=True)):
        state = Public(None, level, {})

        def psi(texts, prompt=prompt, key=key, xis=None):
            asked = [prompt] * len(texts), texts
            return score.score(lm.model, *asked, wm, [key], xis=xis)["psi"].tolist()

        def answer(texts, state=state, psi=psi):
            asked = zip(texts, norm.sf(psi(texts)), strict=True)
            return [state.answer(str(y), public.runs(y), p) for y, p in asked]

        with perturb.watermarked(lm.model, wm, key):
            marked = generate.sample(lm.model, prompts[: max(n_held)], n_tokens, seed=seed)
        sums = learning.estimates(lm.model, prompts, marked, wm, n_held)
        each = {
            "ψ": psi,
            "yes or no": answer,
            "none": lambda y: [0.0] * len(y),
        }
        for n, total in zip(n_held, sums, strict=True):
            each[f"none, {n} marked"] = partial(psi, xis=total[None])
        for name, ask in each.items():
            rng = np.random.default_rng([seed, i])
            last, best = askers.climbed(ask, ids, n_steps, N_TRIED, rng)
            [found] = psi([last])
            yes = best > 0 if ask is answer else norm.sf(found) <= public.level_of(1, level)
            rows.append((name, found, yes))
    return pd.DataFrame(rows, columns=["answers", "psi", "accused"])


def verdicts(
    texts: Texts,
    psi: Float[np.ndarray, "keys n"],
    level: float,
    inherited: Callable[..., np.ndarray] = np.any,
) -> pd.DataFrame:
    """Whether the last of the texts is called detected after the others were asked, and whether any
    is, and whether the last is as a first question: ``rule, last, any, first``, a row per rule and
    key. Verdicts are inherited as suits the asker: ``np.any`` of them frames, ``np.all`` washes.
    """
    hit = psi >= stats.threshold(level)
    yes = askers.answered(texts, psi, level)
    first = psi[:, -1] >= stats.threshold(public.level_of(1, level))
    of_rule = {
        INHERITED: (inherited(hit, 1), hit),
        ALONE: (hit[:, -1], hit),
    }
    of_rule |= {PUBLIC: (yes[:, -1], yes)}
    return pd.concat(
        pd.DataFrame(
            {
                "rule": rule,
                "last": last,
                "any": each.any(1),
                "first": first,
            }
        )
        for rule, (last, each) in of_rule.items()
    )


def by_key(
    K: Float[np.ndarray, "n n"],
    files: Sequence[str],
    levels: Sequence[float],
) -> tuple[pd.DataFrame, Float[np.ndarray, " n"]]:
    """Which share of further texts of a kind a key accuses, by its z₀, from the cosines of human
    texts alone: ``z0, level, value, low, high, n``, with intervals over the texts' files; and k.
    """
    k = askers.loadings(K)
    rows = [
        {"z0": z0, "level": f"{level:g}"}
        | stats.interval(
            askers.one_key(stats.threshold(level), k, z0),
            cluster=files,
            share=True,
        ).row()
        for level in levels
        for z0 in range(-3, 4)
    ]
    return pd.DataFrame(rows), k
