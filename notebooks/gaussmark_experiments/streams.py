"""A stream of texts under one key: evidence that may be looked at after every text
(``joint.stream``), what marked texts teach the memory, and what an asker of a detector gains.

What the memory knows of z after n marked texts, to second order: text i with Fisher information
F_i says as much as an observation of precision σ²F_i, so z has the precision I + σ²ΣF_i. If all
directions of F were alike, a further marked text would keep the share 1/(1 + nc) of its ψ, with
c = σ² tr F²/tr F; any other spectrum of F keeps more (1/(1 + x) is convex).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from jaxtyping import Bool, Float
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from gaussmark_experiments.one_key_in_production import TAU, Human, units
from gaussmark_experiments.whose_text import gradients
from gaussmark_lib import generate, models, perturb, score, stats
from gaussmark_lib.beyond import joint
from gaussmark_lib.beyond.attacks import learning
from gaussmark_lib.gradients import TextGradient
from gaussmark_lib.workbench.plots import style
from gaussmark_lib.workbench.plots.panels import panels

SHARE = 0.1  # π, the share of marked texts that the evidence bets on
BET = "E ≥ 20 at any time"
KNOWN = "p ≤ 0.05 at any time"
NAIVE = "p ≤ 0.05, ψ taken for independent"
N_TRIED = 8  # questions per step of an attack


def log_evidence(
    psi: Float[np.ndarray, "keys n"],
    K: Float[np.ndarray, "n n"],
    strength: Float[np.ndarray, " n"],
) -> Float[np.ndarray, "keys n"]:
    """log E after each text, for ``strength`` σ‖G‖ of the texts."""
    r, residuals = joint.law.innovations(psi, K)
    bets = joint.stream.log_bets(np.nan_to_num(r), strength * residuals, SHARE)
    return bets.cumsum(1)


def peeked(
    psi: Float[np.ndarray, "keys n"], K: Float[np.ndarray, "n n"]
) -> Bool[np.ndarray, " keys"]:
    """Whether Σ_{j ≤ i} ψ_j is significant by itself at level 0.05 after any text i; its standard
    deviation is √(Σ_{j,l ≤ i} K_jl).
    """
    z = psi.cumsum(1) / np.sqrt(np.diag(K.cumsum(0).cumsum(1)))
    return (z >= TAU).any(1)


def accused(
    innocent: Mapping[str, tuple[np.ndarray, np.ndarray, np.ndarray]],
) -> pd.DataFrame:
    """The share of innocent keys that are accused at any time, by who watches: ``kind, who stops,
    value, low, high, n``. Each kind of text has (ψ, K, log E).
    """
    rows = []
    for kind, (psis, K, log_e) in innocent.items():
        hits = {
            BET: log_e.max(1) >= np.log(20),
            KNOWN: peeked(psis, K),
            NAIVE: peeked(psis, np.eye(len(K))),
        }
        rows += [
            {"kind": kind, "who stops": who} | stats.interval(hit).row()
            for who, hit in hits.items()
        ]
    return pd.DataFrame(rows)


def mixed(
    lm: models.LM,
    human: Human,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    every: Sequence[int],
    *,
    dtype: str | None = None,
    seed: int = 0,
) -> pd.DataFrame:
    """For each key, and each k of ``every``, the stream of human texts in which every k-th is
    exchanged for one that the key wrote: ``key_id, every, place, marked, psi, innovation, log_e``.

    Streams of one key share their marked texts; all streams share the human ones.
    """
    n = len(human.prompts)
    n_tokens = len(human.responses[0])
    plain = gradients(lm, human.prompts, human.responses, wm, dtype)
    psi_plain = score.psi(plain, wm.on(lm.model), keys)
    u = units(plain)
    K_plain = joint.directions.inner(u, u)
    place = np.arange(n)
    tables = []
    for i, key in enumerate(keys):
        asked = [human.prompts[(i + j) % n] for j in range(n // min(every))]
        marked = marked_gradients(lm, asked, wm, key, n_tokens, dtype=dtype, seed=seed + i)
        v = units(marked)
        across = joint.directions.inner(v, u)
        K = np.block([[K_plain, across.T], [across, joint.directions.inner(v, v)]])
        psi = np.append(psi_plain[:, i], score.psi(marked, wm.on(lm.model), [key]))
        strength = wm.sigma * np.array([gradient.norm for gradient in [*plain, *marked]])
        for k in every:
            is_marked = (place + 1) % k == 0
            texts = np.where(is_marked, n + place // k, place)  # of all, plain ones first
            of_stream = psi[None, texts], K[np.ix_(texts, texts)]
            columns = {
                "place": place,
                "marked": is_marked,
                "psi": psi[texts],
                "innovation": joint.law.innovations(*of_stream)[0][0],
                "log_e": log_evidence(*of_stream, strength[texts])[0],
                "key_id": key.key_id,
                "every": k,
            }
            tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def marked_gradients(
    lm: models.LM,
    prompts: Sequence[Sequence[int]],
    wm: perturb.Watermark,
    key: perturb.Key,
    n_tokens: int,
    *,
    dtype: str | None = None,
    seed: int = 0,
) -> list[TextGradient]:
    """Gradients of texts that one key writes to these prompts."""
    with perturb.watermarked(lm.model, wm, key):
        responses = generate.sample(lm.model, prompts, n_tokens, seed=seed)
    return gradients(lm, prompts, responses, wm, dtype)


def found_by(streams: pd.DataFrame) -> pd.DataFrame:
    """Share of the streams whose E has reached 20 after so many texts: ``every, texts, value, low,
    high, n``.
    """
    highest = streams.groupby(["key_id", "every"])["log_e"].cummax()
    hits = (highest >= np.log(20)).groupby([streams["every"], streams["place"]])
    return pd.DataFrame(
        {"every": f"1 in {every}", "texts": place + 1} | stats.interval(rows).row()
        for (every, place), rows in hits
    )


def kept(
    marked: Sequence[TextGradient],
    key: perturb.Key,
    wm: perturb.PlacedWatermark,
    ends: Sequence[int],
) -> pd.DataFrame:
    """Innovation divided by ψ of one key's marked texts, by their place in a stream of which all
    are marked: ``texts`` (the middle of a segment that ends at one of ``ends``), ``measured``, and
    ``first order``: L⁻¹m over m, for m = σ‖G‖ and K = LLᵀ.
    """
    u = units(marked)
    m = wm.sigma * np.array([gradient.norm for gradient in marked])
    psi = np.stack([score.psi(marked, wm, [key])[:, 0], m])
    r, _ = joint.law.innovations(psi, joint.directions.inner(u, u))
    segments = (
        np.split(np.nan_to_num(r), ends[:-1], axis=1),
        np.split(psi, ends[:-1], axis=1),
    )
    shares = [new.sum(1) / old.sum(1) for new, old in zip(*segments, strict=True)]
    table = pd.DataFrame(shares, columns=["measured", "first order"])
    return table.assign(texts=(np.array([0, *ends[:-1]]) + ends) / 2, key_id=key.key_id)


def draw_kept(long: pd.DataFrame, c: float, caption: str) -> Figure:
    """The measured share of ψ that is still new (rows of :func:`kept`, several keys), and two
    theories: of the first order, and 1/(1 + nc).
    """
    rows = []
    confidence = 1 - 0.05 / long["texts"].nunique()  # all points together, 95%
    for middle, segment in long.groupby("texts"):
        measured = stats.interval(segment["measured"], confidence=confidence)
        theories = {
            "first order: L⁻¹m / m": segment["first order"].mean(),
            "second order, all directions alike": 1 / (1 + middle * c),
        }
        rows += [{"texts": middle, "what": "measured"} | measured.row()]
        rows += [{"texts": middle, "what": what, "value": v} for what, v in theories.items()]
    return panels(
        pd.DataFrame(rows),
        "texts",
        by="what",
        title="Which share of ψ is still new in the n-th marked text?",
        caption=f"{caption}; intervals over keys, 95% for all points together",
        xlabel="marked texts before",
        ylabel="innovation divided by ψ",
    )


def flat_information(plain: Sequence[TextGradient], sigma: float) -> float:
    """c = σ² tr F²/tr F = σ²κ tr F/d (``learning.unevenness``), from texts of the base model."""
    squares = np.mean([gradient.norm**2 for gradient in plain])
    return sigma**2 * learning.unevenness(plain) * squares / plain[0].unit().numel()


def forged(
    lm: models.LM,
    prompt: Sequence[int],
    response: Sequence[int],
    wm: perturb.Watermark,
    key: perturb.Key,
    *,
    n_steps: int,
    seed: int = 0,
) -> dict:
    """A human text edited until a detector that answers ψ accuses it: of eight texts with one
    token exchanged, the best is kept, step by step. The *forged* text has one more edit, and was
    not asked about.

    Returns its ``psi`` and ``innovation`` (given all questions), and ``climb``, the best ψ of each
    step.
    """
    rng = np.random.default_rng(seed)
    state = joint.State()
    best = list(response)
    climb = []
    settings = {"state": state, "batch_size": N_TRIED}
    for _ in range(n_steps):
        tries = [edited(best, rng) for _ in range(N_TRIED)]
        answers = joint.sequence(lm.model, [prompt] * N_TRIED, tries, wm, [key], **settings)
        best = tries[answers["psi"].argmax()]
        climb.append(answers["psi"].max())
    last = joint.sequence(lm.model, [prompt], [edited(best, rng)], wm, [key], **settings)
    return {
        "psi": last["psi"][0],
        "innovation": last["innovation"][0],
        "climb": climb,
    }


def edited(ids: Sequence[int], rng: np.random.Generator) -> list[int]:
    """The text with one token exchanged for another of its own."""
    ids, place = list(ids), int(rng.integers(len(ids)))
    others = sorted(set(ids) - {ids[place]})
    return [*ids[:place], int(rng.choice(others)), *ids[place + 1 :]] if others else ids


def wealth(lines: dict[str, Float[np.ndarray, "keys n"]], caption: str) -> Figure:
    """log₁₀ E against the number of texts: a line per key, a colour per kind of stream."""
    figure, axes = plt.subplots()
    for colour, (name, log_e) in zip((style.PLAIN, style.WATERMARKED), lines.items(), strict=False):
        places = np.arange(1, log_e.shape[1] + 1)
        axes.plot(
            places,
            log_e.T / np.log(10),
            color=colour,
            alpha=min(0.7, 12 / len(log_e)),
        )
        axes.plot([], [], color=colour, label=name)
    axes.axhline(
        np.log10(20),
        **style.DASHED,
        label="20, reached by 1 in 20 at most",
    )
    axes.set(xlabel="texts so far", ylabel="log₁₀ of what 1 has become")
    return style.caption(figure, caption, "What does a fair bet become?")
