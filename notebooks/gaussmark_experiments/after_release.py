"""14: the weights are out. What is left of the mark in texts and in weights after each attack, what
foretells it, what it costs; and every way of serving.

Let p′ be the suspect's next-token distribution, and e(v) = ⟨ξ, ∇log p_θ(v | context)⟩ the slope of
a token's log-probability along the noise. A text that p′ writes in T contexts has to first order

    E ψ = Σ_t Σ_v p′_t(v) e_t(v) / (σ‖G‖),

and for p′ = p_{θ+ξ} this is σ‖G‖. Contexts and ‖G‖ are taken from plain texts of the base
(``foretold``): no text of the suspect is needed. Where θ′ − θ = s·ξ + Δ₂ and Δ₂ moves no
probability along ξ, the mean is s times that of the release (``share``).

A *release* is a key's checkpoint; its texts are not independent, so intervals cluster by releases.
"""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from scipy.stats import binomtest
from torch import Tensor
from transformers import (
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TypicalLogitsWarper,
)

from gaussmark_experiments.kgw_baseline import continued, stock_generate
from gaussmark_lib import (
    generate,
    gradients,
    likelihood,
    models,
    perturb,
    score,
    stats,
    texts,
)
from gaussmark_lib.beyond import channel
from gaussmark_lib.beyond.release import attacks, provenance
from gaussmark_lib.beyond.release import served as engine
from gaussmark_lib.beyond.schemes import GaussMark
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.tokens import Texts
from gaussmark_lib.workbench import claims
from gaussmark_lib.workbench import pairs as several
from gaussmark_lib.workbench.pairs import Pairs
from gaussmark_lib.workbench.plots.panels import panels

RELEASED = "as released"
OPENING = 32  # tokens that a model without a chat template goes on from
SMALL = 0.25  # of ξ: the step at which slopes are taken, forwards and back
ROUNDED = "rounded"
PRUNED = "pruned"
MERGED = "merged"
TRAINED = "fine-tuned"
KNOWING = "knows the scheme"
STUDENT = "a student of its texts"
HALF = "half the base"
SHRUNK = "shrunk"
RETRAINED = "one matrix retrained"
TASK = "plus a sibling's task"
SPHERE = "halfway to a sibling"
MEAN = "mean with 3 siblings"
Attack = Callable[[PreTrainedModel], PreTrainedModel]


def attacks_on(
    lm: models.LM,
    wm: Watermark,
    texts: Texts,
    steps: Sequence[int],
    *,
    lr: float,
    batch_size: int,
    seed: int = 0,
) -> dict[str, tuple[str, Attack]]:
    """Name → (family, attack). Training is on ``texts``, for each number of ``steps``, of LoRA,
    siblings of the base and a retrained matrix, which begins at 0, for the first. A student is the
    base, trained for the last on what the release writes after the first halves of the texts.
    """
    base = lm.model
    merged = attacks.merged
    tuned = partial(
        attacks.fine_tuned,
        texts=texts,
        lr=lr,
        batch_size=batch_size,
        seed=seed,
    )
    sibling = cache(lambda i: tuned(base, steps=steps[0], seed=seed + i))

    def retrained(model: PreTrainedModel) -> PreTrainedModel:
        empty = attacks.shrunk(model, wm.weight, 1e3)
        return attacks.swapped(model, tuned(empty, steps=steps[0]), wm.weight)

    def student(model: PreTrainedModel) -> PreTrainedModel:
        n = len(texts[0]) // 2
        written = generate.sample(model, [ids[:n] for ids in texts], n, seed=seed)
        return tuned(base, texts=written, steps=steps[-1])

    own = Key.from_seed(10**6 + 3 * 10**12 * seed)  # the attacker's: no pair of any seed has it
    made = {RELEASED: (RELEASED, deepcopy)}
    for bits in (8, 4, 3):
        made[f"{bits} bits"] = (
            ROUNDED,
            partial(attacks.rounded, bits=bits),
        )
    made["NF4"] = ROUNDED, attacks.nf4
    for share in (0.2, 0.5):
        made[f"pruned, {share:.0%}"] = (
            PRUNED,
            partial(attacks.pruned, share=share),
        )
    made["Wanda, 50%"] = (
        PRUNED,
        partial(attacks.pruned, share=0.5, how="wanda", texts=texts[:16]),
    )
    task = {"shares": [1.0, 1.0], "how": "task", "base": base}
    made[HALF] = MERGED, lambda model: merged([model, base])
    made[TASK] = MERGED, lambda model: merged([model, sibling(0)], **task)
    made[SPHERE] = (
        MERGED,
        lambda model: merged([model, sibling(0)], how="slerp"),
    )
    made[MEAN] = (
        MERGED,
        lambda model: merged([model, *map(sibling, range(3))]),
    )
    for n in steps:
        made[f"fine-tuned, {n} steps"] = TRAINED, partial(tuned, steps=n)
    made["LoRA"] = TRAINED, partial(tuned, steps=steps[0], lora_rank=8)
    made[STUDENT] = TRAINED, student
    made["re-noised"] = (
        KNOWING,
        lambda model: attacks.renoised(model, wm, own),
    )
    made[SHRUNK] = (
        KNOWING,
        partial(attacks.shrunk, name=wm.weight, sigma=wm.sigma),
    )
    made[RETRAINED] = KNOWING, retrained
    return made


def measured(
    lm: models.LM,
    pairs: Pairs,
    wm: Watermark,
    human: Texts,
    made: Mapping[str, tuple[str, Attack]],
    n_tokens: int,
    *,
    n_releases: int,
    edited: float,
    seed: int = 0,
    **sampling,
) -> pd.DataFrame:
    """Each attack on each release, whose key is ``pairs.keys[release]``: one row per text, with
    ``attack, family, release``.

    Of texts: ``psi``, ``removed`` (ψ of the release's text, less that), ``sharper`` (by
    ``channel`` for a share ``edited``) and ``wrong`` (ψ under another key); ``foretold`` of a plain
    text after the same prompt; ``nats``, by which each token of the human text after it is less
    likely than under the release. Of the checkpoint, on each of its rows: ``psi_w, share`` (s), and
    ``change``, ‖θ′ − θ − ξ‖/‖ξ‖.
    """
    tables = []
    placed = wm.on(lm.model)
    written = 0.0
    weighings = [
        channel.weights(lm.model, 0.0),
        channel.weights(lm.model, edited),
    ]
    plain = generate.sample(lm.model, pairs.prompts, n_tokens, seed=seed, **sampling)
    for r, rows in enumerate(np.array_split(np.arange(pairs.n), n_releases)):
        x, y, own = ([texts[i] for i in rows] for texts in (pairs.prompts, plain, human))
        keys = [pairs.keys[r], pairs.keys[r - 1]]
        xi = perturb.noise(lm.model, wm, keys[0])
        slopes = along(lm, wm, xi, x, y)
        release = attacks.renoised(lm.model, wm, keys[0])
        before = likelihood.cross_entropy(release, own, prompts=x)
        for name, (family, attack) in made.items():
            suspect = attack(release)
            texts = generate.sample(suspect, x, n_tokens, seed=seed + 1 + r, **sampling)
            each = [*gradients.gradients(lm.model, x, texts, wm, token_weights=weighings)]
            psi = score.psi(each, placed, keys)
            psi = psi[np.argsort([one.text for one in each], kind="stable")]
            delta = provenance.directions(placed, suspect)[0] * wm.sigma
            written = psi[::2, 0] if name == RELEASED else written
            columns = {
                "attack": name,
                "family": family,
                "release": r,
                "psi": psi[::2, 0],
                "removed": written - psi[::2, 0],
                "wrong": psi[::2, 1],
                "sharper": psi[1::2, 0],
                "foretold": foretold(suspect, x, y, slopes),
                "nats": likelihood.cross_entropy(suspect, own, prompts=x) - before,
                "psi_w": provenance.weights(lm.model, suspect, wm, keys[:1])["psi"].item(),
                "share": ((xi * delta).sum() / xi.square().sum()).item(),
                "change": ((delta - xi).norm() / xi.norm()).item(),
            }
            tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def along(
    lm: models.LM,
    wm: Watermark,
    xi: Float[Tensor, "d_out d_in"],
    prompts: Texts,
    texts: Texts,
) -> list[Float[Tensor, "n vocabulary"]]:
    """e_t(v)/(σ‖G‖) of every token that could stand at each place of each text."""
    each = gradients.gradients(lm.model, prompts, texts, wm)
    norms = {one.text: one.norm for one in each}
    sides = []
    for step in (SMALL, -SMALL):
        with perturb.moved(wm.on(lm.model), [step * xi]):
            sides.append(next_tokens(lm.model, prompts, texts))
    return [
        (up - down) / (2 * SMALL * wm.sigma * norms[i])
        for i, (up, down) in enumerate(zip(*sides, strict=True))
    ]


def foretold(
    suspect: PreTrainedModel,
    prompts: Texts,
    texts: Texts,
    slopes: Sequence[Float[Tensor, "n vocabulary"]],
) -> list[float]:
    """Σ_t Σ_v p′_t(v) e_t(v)/(σ‖G‖) of each text."""
    each = zip(next_tokens(suspect, prompts, texts), slopes, strict=True)
    return [(log_p.exp() * slope).sum().item() for log_p, slope in each]


@torch.no_grad()
def next_tokens(
    model: PreTrainedModel, prompts: Texts, texts: Texts
) -> list[Float[Tensor, "n vocabulary"]]:
    """log p of every token at each place of each text."""
    logits, _, number = likelihood.predictions(model, [*zip(prompts, texts, strict=True)])
    log_p = logits.float().log_softmax(-1).cpu()
    return [rows[is_text] for rows, is_text in zip(log_p, number.cpu() > 0, strict=True)]


def means(table: pd.DataFrame, column: str, by: Sequence[str] = ("attack",)) -> pd.DataFrame:
    """``pairs.means``, of rows that belong to releases."""
    return several.means(table, by, column, "release")


def ratio(
    table: pd.DataFrame,
    names: Sequence[str],
    column: str = "psi",
    base: str | None = None,
) -> stats.Estimate:
    """Mean of a column after these attacks, divided by that of the release's ψ, or of the column
    ``base`` after the same attacks.
    """
    rows = table[table["attack"].isin(names)]
    below = rows[base] if base else rows["psi"] + rows["removed"]
    return stats.ratio(rows[column], below, rows["release"])


def by_release(table: pd.DataFrame) -> pd.DataFrame:
    """One row for each release and attack: the means over the release's texts."""
    of_release = table.groupby(["release", "attack"], sort=False)
    return of_release[["psi", "removed", "wrong", "nats", "psi_w"]].mean().reset_index()


def pooled(releases: pd.DataFrame, served: pd.DataFrame) -> dict[str, Any]:
    """What several records say together, to be recorded as the results of one.

    Args:
        releases: :func:`by_release` of each record, with releases that are named differently.
        served: :func:`served` of each record, with pairs that are named differently.

    Returns:
        By attack ``texts``, ψ of texts divided by the release's, ``nats`` that human text pays, and
        ``weights``, the smallest and the largest ψ of weights; by way ``served``, ψ divided by that
        at temperature 1; ``student``, ψ of a student's texts less that of a wrong key; and
        ``claims``, against the ranges that were written before the first of the records.
    """
    names = [name for name in releases["attack"].unique() if name != RELEASED]
    of_attack = {name: releases[releases["attack"] == name] for name in names}
    left = {name: ratio(releases, [name]) for name in names}
    nats = {name: stats.interval(rows["nats"].to_numpy()) for name, rows in of_attack.items()}
    in_weights = {
        name: [rows["psi_w"].min(), rows["psi_w"].max()] for name, rows in of_attack.items()
    }
    student = of_attack[STUDENT]
    psis = served.pivot(index="pair", columns="way", values="psi")
    by_way = {way: stats.ratio(psis[way], psis["temperature 1"]) for way in psis}
    most_steps = max((name for name in names if name.startswith(TRAINED)), key=_steps)
    n = releases["release"].nunique()
    by_texts = "ψ of texts, divided by the release's"
    findings = [
        claims.finding(
            f"{by_texts}: 4 bits",
            left["4 bits"],
            least=0.85,
            most=1.05,
            law=1.0,
            planned=n,
        ),
        claims.finding(
            f"{by_texts}: fine-tuned",
            left[most_steps],
            least=0.3,
            most=0.8,
            planned=n,
        ),
        claims.finding(
            "nats per token that human text pays for a shrunk matrix",
            nats[SHRUNK],
            most=0.0,
            planned=n,
        ),
        claims.finding(
            "ψ of greedy texts, divided by that of sampled ones",
            by_way["greedy"],
            least=0.3,
            planned=len(psis),
        ),
    ]
    return {
        "claims": [finding.row() for finding in findings],
        "texts": left,
        "nats": nats,
        "weights": in_weights,
        "served": by_way,
        "student": stats.interval((student["psi"] - student["wrong"]).to_numpy()),
    }


def _steps(name: str) -> int:
    """Of ``fine-tuned, 40 steps``."""
    return int(name.split()[1])


def law(change: Float[np.ndarray, " n"], d: int) -> Float[np.ndarray, " n"]:
    """√d/√(1 + x²), ψ of weights where a change of x = ‖Δ₂‖/‖ξ‖ does not lean towards ξ.

    >>> law(np.array([0.0, 1.0]), 100).round(2).tolist()
    [10.0, 7.07]
    """
    return np.sqrt(d / (1 + change**2))


def alarms(
    lm: models.LM,
    wm: Watermark,
    made: Mapping[str, tuple[str, Attack]],
    n_keys: int,
    level: float,
) -> pd.DataFrame:
    """The attacks on the base, which has no mark: ``attack``, and the share of fresh keys that ψ of
    weights calls its own, ``value, low, high, n``.
    """
    keys = [Key.from_seed(2 * 10**6 + i) for i in range(n_keys)]
    rows = []
    for name, (_, attack) in made.items():
        if name not in (RELEASED, HALF):  # these leave the base as it is
            found = provenance.weights(lm.model, attack(lm.model), wm, keys)
            hits = stats.interval((found["p_value"] <= level).to_numpy())
            rows.append({"attack": name, **hits.row()})
    return pd.DataFrame(rows)


def served(
    lm: models.LM,
    pairs: Pairs,
    wm: Watermark,
    n_tokens: int,
    *,
    beams: int,
    seed: int = 0,
) -> pd.DataFrame:
    """A text of each pair by each way of serving: ``way, pair, psi, wrong`` (under another pair's
    key) and ``forecast`` (σ‖G‖). The last three are of a released checkpoint per pair.
    """
    ways = {f"temperature {t:g}": {"temperature": t} for t in (1.3, 1.0, 0.7, 0.3)}
    ways |= {
        "top-p 0.9": {"top_p": 0.9},
        "top-k 20": {"processor": lambda _: TopKLogitsWarper(20)},
        "typical 0.9": {"processor": lambda _: TypicalLogitsWarper(0.9)},
        "repetition penalty 1.3": {"processor": lambda _: RepetitionPenaltyLogitsProcessor(1.3)},
        "greedy": {"temperature": 0.0},
    }
    asked = (lm.model, pairs.prompts)
    marks = [(wm, key) for key in pairs.keys]
    texts = {
        way: generate.sample(*asked, n_tokens, marks=marks, seed=seed, **options)
        for way, options in ways.items()
    }
    texts[f"beam search, {beams}"] = [
        stock_generate(lm, GaussMark(wm, key), x, key, n_tokens, beams)
        for x, key in zip(*pairs, strict=True)
    ]
    for i, (x, key) in enumerate(zip(*pairs, strict=True)):
        release = attacks.renoised(lm.model, wm, key)
        once = {"seed": seed + i, "n_tokens": n_tokens}
        by_way = {
            "8 bits": generate.sample(attacks.rounded(release, 8), [x], **once)[0],
            "float16": generate.sample(deepcopy(release).half(), [x], **once)[0],
            "drafted by the base": assisted(release, lm.model, x, **once),
        }
        for way, ids in by_way.items():
            texts.setdefault(way, []).append(ids)
    rows = []
    for way, written in texts.items():
        for one in gradients.gradients(*asked, written, wm):
            keys = [pairs.keys[one.text], pairs.keys[one.text - 1]]
            psi, wrong = score.psi([one], wm.on(lm.model), keys)[0]
            rows.append((way, one.text, psi, wrong, wm.sigma * one.norm))
    return pd.DataFrame(rows, columns=["way", "pair", "psi", "wrong", "forecast"])


class ByEngine(NamedTuple):
    """What llama.cpp made of a key's files, as ``release.served`` has it."""

    weights: pd.DataFrame
    answers: pd.DataFrame
    alarms: pd.DataFrame


def by_engine(
    model: str,
    lm: models.LM,
    wm: Watermark,
    *,
    text: str,
    n_tokens: int,
    n_keys: int,
    n_few: int,
    n_null: int,
    level: float,
    seed: int = 0,
) -> ByEngine:
    """Serve marked files by llama.cpp.

    Args:
        text: kind of text that a model without a chat template goes on from.
        n_tokens: of each answer.
        n_keys: fresh keys, each with a file of its own in every quantisation.
        n_few: of these keys, for the other ways of serving, and for the base's answers.
        n_null: fresh keys for false alarms of unmarked files.
    """
    first = 5 * 10**9 + 10**6 * seed  # no pair of any seed has these keys
    keys = [Key.from_seed(first + i) for i in range(n_keys)]
    others = [Key.from_seed(first + n_keys + i) for i in range(n_null)]
    if lm.is_chat:
        prompts = engine.questions(n_keys, seed)
    else:
        starts = texts.prompts(lm, text, n_keys, OPENING, seed=seed)
        prompts = [lm.decode(ids) for ids in starts]
    asked = {"n_base": min(n_few, n_keys), "seed": seed}
    with engine.files(models.gguf_file(model), wm) as files:
        alarms = engine.alarms(lm, files, others, level)
        weights = engine.weights(files, keys)
        of_files = engine.answers(lm, files, keys, engine.FILES, prompts, n_tokens, **asked)
        of_ways = engine.answers(
            lm,
            files,
            keys[:n_few],
            engine.SERVING,
            prompts,
            n_tokens,
            **asked,
        )
    answers = pd.concat([of_files, of_ways], ignore_index=True)
    return ByEngine(weights, engine.forecasts(answers, weights), alarms)


def means_by_engine(found: ByEngine) -> pd.DataFrame:
    """Mean ψ of answers in each way of serving, the forecast, and both controls: ``way, what`` and
    an estimate.
    """
    is_marked = found.answers["is_marked"]
    marked = found.answers[is_marked]
    unmarked = found.answers[~is_marked]
    columns = {
        "marked file, its key": (marked, "psi"),
        "forecast": (unmarked, "forecast"),
        "marked file, another key": (marked, "wrong"),
        "unmarked file, the key": (unmarked, "psi"),
    }
    return pd.concat(
        several.means(table, ["way"], column).assign(what=name)
        for name, (table, column) in columns.items()
    )


def figure_by_engine(found: ByEngine, caption: str) -> Figure:
    """:func:`means_by_engine` as points; the caption gets the sizes."""
    is_marked = found.answers["is_marked"]
    n_keys = found.weights["key"].nunique()
    n_few = found.answers.loc[~is_marked, "key"].nunique()
    n_tokens = found.answers["n_tokens"].max()
    sizes = (
        f"{n_keys} keys for each file type, {n_few} for the other ways and the unmarked file;"
        f" answers of {n_tokens} tokens; 95% intervals over keys"
    )
    return panels(
        means_by_engine(found),
        "way",
        by="what",
        xlabel="",
        ylabel="mean ψ of answers",
        caption=f"{caption}; {sizes}",
        title="Does an engine keep the mark?",
    )


def outcomes_by_engine(
    found: ByEngine | None, level: float
) -> tuple[list[claims.Finding], list[dict]]:
    """Findings and checks about what llama.cpp served; none where it served nothing."""
    if found is None:
        return [], []
    findings = []
    for name in engine.FILES:
        claim = f"ψ of answers from a file {name}, divided by the forecast"
        quotient = engine.measured_by_forecast(found.answers, [name])
        findings.append(claims.finding(claim, quotient, least=0.8, most=1.2, planned=60))
    claim = "ψ of answers by six other ways of serving, divided by the forecast"
    quotient = engine.measured_by_forecast(found.answers, [*engine.SERVING])
    findings.append(claims.finding(claim, quotient, least=0.8, most=1.2, planned=20))

    marked = found.answers[found.answers["is_marked"]]
    wrong = stats.interval(marked["wrong"], cluster=marked["key"], confidence=0.9999)
    odds = [binomtest(row.n_hits, row.n_keys, level) for row in found.alarms.itertuples()]
    is_kept = bool(min(odd.pvalue for odd in odds) > 1e-5)
    checks = [
        claims.check(
            "another key finds nothing in answers",
            wrong.low <= 0 <= wrong.high,
        ),
        claims.check(
            "unmarked files of five types keep the level over keys",
            is_kept,
        ),
    ]
    return findings, checks


def assisted(
    model: PreTrainedModel,
    draft: PreTrainedModel,
    prompt: list[int],
    n_tokens: int,
    seed: int,
) -> list[int]:
    """Speculative sampling by transformers: ``draft`` proposes tokens, the model takes or exchanges
    them so that its own distribution is kept (Leviathan et al. 2023).
    """
    torch.manual_seed(seed)
    drafted = {
        "assistant_model": draft,
        "do_sample": True,
        "top_k": 0,
        "use_cache": True,
    }
    return continued(model, prompt, n_tokens, **drafted)
