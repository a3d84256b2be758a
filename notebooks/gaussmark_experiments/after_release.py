"""14: the weights are released. What does each attack leave of the watermark in texts and in
weights, what predicts that, and what does it cost? And what does each way of serving leave?

Let p′ be the next-token distribution of the suspect, the attacked model. Let
e(v) = ⟨ξ, ∇log p_θ(v | context)⟩ be the slope of a token's log-probability along the noise. To
first order, a text that p′ writes in T contexts has

    E ψ = Σ_t Σ_v p′_t(v) e_t(v) / (σ‖G‖),

and for p′ = p_{θ+ξ} this is σ‖G‖. The contexts and ‖G‖ come from plain texts of the base model
(``foretold``), so the prediction needs no text of the suspect. If θ′ − θ = s·ξ + Δ₂ and Δ₂ moves no
probability along ξ, the mean is s times that of the release (``share``).

A *release* is the checkpoint of one key. Its texts are not independent, so intervals cluster by
release.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from functools import cache, partial
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import torch
from IPython.display import Markdown
from jaxtyping import Float
from matplotlib.figure import Figure
from scipy.stats import binomtest, norm
from torch import Tensor
from transformers import (
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
    TopKLogitsWarper,
    TypicalLogitsWarper,
)
from transformers.utils import logging

from gaussmark_experiments import intervals
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
from gaussmark_lib.errors import ParameterError
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.tokens import Texts
from gaussmark_lib.workbench import claims, runs
from gaussmark_lib.workbench import pairs as several
from gaussmark_lib.workbench.answers import THIS_RUN, beside, listed, title
from gaussmark_lib.workbench.pairs import Pairs
from gaussmark_lib.workbench.plots import style
from gaussmark_lib.workbench.plots.panels import panels

# Names of attacks and of their families, as tables and figures show them.
RELEASED = "as released"
OPENING = 32  # prompt tokens for a model without a chat template
SMALL = 0.25  # step of the central difference for slopes, as a share of ξ
ERASED = 1e3  # a σ so large that shrinking leaves next to nothing of the matrix
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
TIES = "TIES with a sibling"
DARE = "DARE with a sibling"
AT_RANDOM = "pruned at random, 20%"
# ways of training further; a curve is named "LoRA on news"
LORA = "LoRA"
FULL = "full"
LORA_RANK = 8
# what a curve shows
PSI_OF_TEXTS = "mean ψ of texts"
DETECTED = "share detected"
MEASURED = "measured"
PREDICTED = "predicted"
CONTROL = "base, trained alike"
# records that the text quotes, and the column of the first
POOLED = "after_release_pooled"
ENGINE = "after_release_engine"
LARGER = "doclm, three larger runs"
REAL = "SmolLM2, reference"
ATTACKS = "after_release_attacks"  # the record of sections 1 to 5 on SmolLM2
ANSWERS = "ψ of answers "
OVER_FORECAST = ", divided by the forecast"
NOTEBOOK = "14_after_release"
# the records of the section on a curve over steps: a record for each curve of a model
CURVES = tuple(f"after_release_curve{ending}" for ending in ("", "_full", "_news", "_answers"))
MOST_STEPS = 60  # of the curves whose ranges were chosen
SHARE_LEFT = {FULL: (0.3, 0.8), LORA: (0.6, 1.0)}  # expected after these steps
Attack = Callable[[PreTrainedModel], PreTrainedModel]
Training = Callable[[PreTrainedModel], Iterator[tuple[int, PreTrainedModel]]]


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
    """Return name → (family, attack).

    Training is on ``texts``. Fine-tuning takes each number of ``steps``. LoRA, the siblings of the
    base and the retrained matrix, which begins at 0, take the first number. A student is the base
    model, trained for the last number on what the release writes after the first halves of the
    texts.
    """
    base = lm.model  # the model without a watermark
    tuned = partial(
        attacks.fine_tuned,
        texts=texts,
        lr=lr,
        batch_size=batch_size,
        seed=seed,
    )

    @cache
    def sibling(number: int) -> PreTrainedModel:
        return tuned(base, steps=steps[0], seed=seed + number)

    def retrained(model: PreTrainedModel) -> PreTrainedModel:
        # fine-tuning has to fill this matrix again
        empty = attacks.shrunk(model, wm.weight, ERASED)
        return attacks.swapped(model, tuned(empty, steps=steps[0]), wm.weight)

    def student(model: PreTrainedModel) -> PreTrainedModel:
        n_tokens = len(texts[0]) // 2
        first_halves = [ids[:n_tokens] for ids in texts]  # prompts of the student's texts
        written = generate.sample(model, first_halves, n_tokens, seed=seed)
        return tuned(base, texts=written, steps=steps[-1])

    attackers_key = Key.from_seed(10**6 + 3 * 10**12 * seed)  # no pair of this seed has it
    attacks_by_name = {RELEASED: (RELEASED, deepcopy)}
    attacks_by_name |= _rounding_and_pruning(texts[:16])
    attacks_by_name |= _merging(base, sibling)
    for n in steps:
        attacks_by_name[tuned_name(n)] = (
            TRAINED,
            partial(tuned, steps=n),
        )
    attacks_by_name[LORA] = (
        TRAINED,
        partial(tuned, steps=steps[0], lora_rank=LORA_RANK),
    )
    attacks_by_name[STUDENT] = (TRAINED, student)
    # These attackers know the weight and σ, but not the key.
    renoised = partial(attacks.renoised, wm=wm, key=attackers_key)
    attacks_by_name["re-noised"] = (KNOWING, renoised)
    shrunk = partial(attacks.shrunk, name=wm.weight, sigma=wm.sigma)
    attacks_by_name[SHRUNK] = (KNOWING, shrunk)
    attacks_by_name[RETRAINED] = (KNOWING, retrained)
    return attacks_by_name


def _rounding_and_pruning(
    calibration: Texts,
) -> dict[str, tuple[str, Attack]]:
    """Attacks that make the checkpoint smaller. Wanda weighs columns by ``calibration`` texts."""
    smaller = {f"{bits} bits": (ROUNDED, partial(attacks.rounded, bits=bits)) for bits in (8, 4, 3)}
    smaller["NF4"] = (ROUNDED, attacks.nf4)
    for share in (0.2, 0.5):
        smaller[f"pruned, {share:.0%}"] = (
            PRUNED,
            partial(attacks.pruned, share=share),
        )
    wanda = partial(attacks.pruned, share=0.5, how="wanda", texts=calibration)
    smaller["Wanda, 50%"] = (PRUNED, wanda)
    smaller[AT_RANDOM] = (PRUNED, partial(attacks.pruned, share=0.2, how="random"))
    return smaller


def _merging(
    base: PreTrainedModel, sibling: Callable[[int], PreTrainedModel]
) -> dict[str, tuple[str, Attack]]:
    """Attacks that merge the release with the base model or with its fine-tuned siblings."""

    def half(model: PreTrainedModel) -> PreTrainedModel:
        return attacks.merged([model, base])

    def with_task(model: PreTrainedModel) -> PreTrainedModel:
        # the release plus everything that fine-tuning changed in a sibling
        return attacks.merged([model, sibling(0)], shares=[1.0, 1.0], how="task", base=base)

    def on_sphere(model: PreTrainedModel) -> PreTrainedModel:
        return attacks.merged([model, sibling(0)], how="slerp")

    def mean(model: PreTrainedModel) -> PreTrainedModel:
        return attacks.merged([model, sibling(0), sibling(1), sibling(2)])

    def by_tasks(model: PreTrainedModel, how: str, density: float) -> PreTrainedModel:
        # what both learnt, of which the merge keeps a share
        both = [model, sibling(0)]
        return attacks.merged(both, shares=[1.0, 1.0], how=how, base=base, density=density)

    return {
        HALF: (MERGED, half),
        TASK: (MERGED, with_task),
        SPHERE: (MERGED, on_sphere),
        MEAN: (MERGED, mean),
        TIES: (MERGED, partial(by_tasks, how="ties", density=0.2)),
        DARE: (MERGED, partial(by_tasks, how="dare", density=0.5)),
    }


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
    """Measure each attack on each release, whose key is ``pairs.keys[release]``.

    Returns:
        One row per text, with ``attack, family, release``.

        Columns of the text: ``psi``; ``removed``, ψ of the release's text less that; ``sharper``,
        ψ by ``channel`` for a share ``edited``; ``wrong``, ψ under another release's key.
        ``foretold`` is predicted from a plain text after the same prompt. ``nats`` is the amount
        by which each token of the human text after it is less likely than under the release.

        Columns of the checkpoint, the same on each of its rows: ``psi_w``, ψ of its weights;
        ``share``, the s above; and ``change``, ‖θ′ − θ − ξ‖/‖ξ‖.
    """
    plain = generate.sample(lm.model, pairs.prompts, n_tokens, seed=seed, **sampling)
    tables = []
    for release in releases(lm, pairs, wm, plain, human, n_releases):
        of_attacks = {}
        for name, (family, attack) in made.items():
            suspect = attack(release.model)
            table = release.tested(suspect, n_tokens, edited=edited, seed=seed, **sampling)
            table.insert(0, "attack", name)
            table.insert(1, "family", family)
            of_attacks[name] = table
        released_psi = of_attacks[RELEASED]["psi"]
        for table in of_attacks.values():
            table.insert(4, "removed", released_psi - table["psi"])
            tables.append(table)
    return pd.concat(tables, ignore_index=True)


class Release(NamedTuple):
    """The checkpoint of a key, and what is known before a suspect writes."""

    lm: models.LM
    wm: Watermark
    number: int
    keys: list[Key]  # the release's, and a wrong one
    prompts: Texts
    plain: Texts  # of the base, after the prompts
    human: Texts
    xi: Float[Tensor, "d_out d_in"]
    slopes: list[Float[Tensor, "n vocabulary"]]  # of the plain texts (``along``)
    model: PreTrainedModel  # θ + ξ
    nats: Float[np.ndarray, " texts"]  # per token of the human texts, under the release

    def tested(
        self,
        suspect: PreTrainedModel,
        n_tokens: int,
        *,
        edited: float,
        seed: int = 0,
        **sampling,
    ) -> pd.DataFrame:
        """Predict ψ of the suspect's texts, let it write them, and test them and its weights: the
        columns of :func:`measured` from ``release`` on, except ``removed``.
        """
        lm = self.lm
        placed = self.wm.on(lm.model)
        predicted = foretold(suspect, self.prompts, self.plain, self.slopes)
        of_weights = provenance.weights(lm.model, suspect, self.wm, self.keys[:1])
        delta = provenance.directions(placed, suspect)[0] * self.wm.sigma  # θ′ − θ

        written = generate.sample(
            suspect,
            self.prompts,
            n_tokens,
            seed=seed + 1 + self.number,
            **sampling,
        )
        weighings = [channel.weights(lm.model, share) for share in (0.0, edited)]
        psi = tested(lm, self.wm, self.prompts, written, self.keys, weighings)
        nats = likelihood.cross_entropy(suspect, self.human, prompts=self.prompts)
        columns = {
            "release": self.number,
            "psi": psi[:, 0, 0],
            "wrong": psi[:, 0, 1],
            "sharper": psi[:, 1, 0],
            "foretold": predicted,
            "nats": nats - self.nats,
            "psi_w": of_weights["psi"].item(),
            "share": ((self.xi * delta).sum() / self.xi.square().sum()).item(),
            "change": ((delta - self.xi).norm() / self.xi.norm()).item(),
        }
        return pd.DataFrame(columns)


def releases(
    lm: models.LM,
    pairs: Pairs,
    wm: Watermark,
    plain: Texts,
    human: Texts,
    n_releases: int,
) -> Iterator[Release]:
    """Yield releases that share the prompts equally."""
    for number, rows in enumerate(np.array_split(np.arange(pairs.n), n_releases)):
        prompts = [pairs.prompts[i] for i in rows]
        plain_ends = [plain[i] for i in rows]
        human_ends = [human[i] for i in rows]
        keys = [pairs.keys[number], pairs.keys[number - 1]]
        xi = perturb.noise(lm.model, wm, keys[0])
        model = attacks.released(lm.model, wm, keys[0])
        yield Release(
            lm,
            wm,
            number,
            keys,
            prompts,
            plain_ends,
            human_ends,
            xi,
            slopes=along(lm, wm, xi, prompts, plain_ends),
            model=model,
            nats=likelihood.cross_entropy(model, human_ends, prompts=prompts),
        )


def tested(
    lm: models.LM,
    wm: Watermark,
    prompts: Texts,
    written: Texts,
    keys: Sequence[Key],
    weighings: Sequence[gradients.Weigh | None],
) -> Float[np.ndarray, "texts weighings keys"]:
    """Return ψ of each text, by each weighing of its tokens, under each key."""
    of_texts = [*gradients.gradients(lm.model, prompts, written, wm, token_weights=weighings)]
    psi = score.psi(of_texts, wm.on(lm.model), keys)
    # gradients come in batches of their own order: back to the order of the texts
    by_text = np.argsort([gradient.text for gradient in of_texts], kind="stable")
    return psi[by_text].reshape(len(written), len(weighings), len(keys))


class Curves(NamedTuple):
    """What further training leaves, step by step.

    Attributes:
        texts: one row per text of a release, with ``curve, steps`` and the columns of
            :func:`measured` from ``release`` on, except ``removed``. At 0 steps, the rows of a
            release are the same for all curves.
        control: the base is trained alike. Its texts after the prompts of the first release are
            tested under the key of each release: ``curve, steps, release, psi``.
    """

    texts: pd.DataFrame
    control: pd.DataFrame


def trainings(
    lm: models.LM,
    names: Sequence[str],
    text: str,
    own: Texts,
    steps: Sequence[int],
    *,
    lr: float,
    batch_size: int,
    seed: int = 0,
) -> dict[str, Training]:
    """Return curve → how it trains a model further.

    Args:
        names: of curves. A name has the way and the kind of text: "LoRA on news". A name without a
            kind ("LoRA", "full") trains on ``own``, which are of the kind ``text``. Texts of
            another kind are as many, and as long.
        steps: the numbers of steps after which a training yields the model.
    """
    by_name = {}
    for name in names:
        way, _, kind = name.partition(" on ")
        if way not in (LORA, FULL):
            raise ParameterError(f"curves: expected {LORA} or {FULL}, got {name!r}")
        training = own
        if kind not in ("", text):
            training = texts.human(lm, kind, len(own), len(own[0]), seed=seed)
        by_name[name] = partial(
            attacks.fine_tuning,
            texts=training,
            steps=steps,
            lr=lr,
            batch_size=batch_size,
            lora_rank=LORA_RANK if way == LORA else None,
            seed=seed,
        )
    return by_name


def curves(
    lm: models.LM,
    pairs: Pairs,
    wm: Watermark,
    human: Texts,
    by_name: Mapping[str, Training],
    n_tokens: int,
    *,
    n_releases: int,
    edited: float,
    seed: int = 0,
    **sampling,
) -> Curves:
    """Train each release further, and measure it before, and whenever a training yields it."""
    plain = generate.sample(lm.model, pairs.prompts, n_tokens, seed=seed, **sampling)
    tables = []
    for release in releases(lm, pairs, wm, plain, human, n_releases):
        test = partial(release.tested, n_tokens=n_tokens, edited=edited, seed=seed, **sampling)
        untrained = test(release.model)
        for curve, training in by_name.items():
            tables.append(untrained.assign(curve=curve, steps=0))
            for n_steps, suspect in training(release.model):
                tables.append(test(suspect).assign(curve=curve, steps=n_steps))

    keys = pairs.keys[:n_releases]
    prompts = pairs.prompts[: pairs.n // n_releases]
    controls = []
    for curve, training in by_name.items():
        for n_steps, model in training(lm.model):
            written = generate.sample(model, prompts, n_tokens, seed=seed + 1, **sampling)
            psi = tested(lm, wm, prompts, written, keys, [None])[:, 0]  # (texts, keys)
            for number, of_key in enumerate(psi.T):
                columns = {"curve": curve, "steps": n_steps, "release": number, "psi": of_key}
                controls.append(pd.DataFrame(columns))
    return Curves(
        pd.concat(tables, ignore_index=True),
        pd.concat(controls, ignore_index=True),
    )


def along_curves(found: Curves, level: float) -> pd.DataFrame:
    """Return mean ψ and the share of detected texts at each point of each curve.

    Returns:
        ``curve, steps, quantity`` ("mean ψ of texts" or "share detected"), ``what`` (measured,
        predicted before a text was written, and the base that was trained alike), and an estimate
        over releases.
    """
    threshold = stats.threshold(level)
    rows = found.texts.assign(
        detected=found.texts["psi"] >= threshold,
        chance=norm.sf(threshold - found.texts["foretold"]),
    )
    control = found.control.assign(detected=found.control["psi"] >= threshold)
    columns = [  # rows, column, quantity, what
        (rows, "psi", PSI_OF_TEXTS, MEASURED),
        (rows, "foretold", PSI_OF_TEXTS, PREDICTED),
        (control, "psi", PSI_OF_TEXTS, CONTROL),
        (rows, "detected", DETECTED, MEASURED),
        (rows, "chance", DETECTED, PREDICTED),
        (control, "detected", DETECTED, CONTROL),
    ]
    tables = [
        means(table, column, ["curve", "steps"]).assign(quantity=quantity, what=what)
        for table, column, quantity, what in columns
    ]
    return pd.concat(tables, ignore_index=True)


def along(
    lm: models.LM,
    wm: Watermark,
    xi: Float[Tensor, "d_out d_in"],
    prompts: Texts,
    texts: Texts,
) -> list[Float[Tensor, "n vocabulary"]]:
    """Return e_t(v)/(σ‖G‖) of every token that could stand at each place of each text."""
    of_texts = gradients.gradients(lm.model, prompts, texts, wm)
    # texts come in batches of their own order
    norms = {gradient.text: gradient.norm for gradient in of_texts}
    with perturb.moved(wm.on(lm.model), [SMALL * xi]):
        forwards = next_tokens(lm.model, prompts, texts)
    with perturb.moved(wm.on(lm.model), [-SMALL * xi]):
        backwards = next_tokens(lm.model, prompts, texts)
    slopes = []
    for i, (above, below) in enumerate(zip(forwards, backwards, strict=True)):
        step = 2 * SMALL * wm.sigma * norms[i]  # on the scale of ψ
        slopes.append((above - below) / step)
    return slopes


def foretold(
    suspect: PreTrainedModel,
    prompts: Texts,
    texts: Texts,
    slopes: Sequence[Float[Tensor, "n vocabulary"]],
) -> list[float]:
    """Return Σ_t Σ_v p′_t(v) e_t(v)/(σ‖G‖) of each text."""
    log_ps = next_tokens(suspect, prompts, texts)
    return [(log_p.exp() * slope).sum().item() for log_p, slope in zip(log_ps, slopes, strict=True)]


@torch.no_grad()
def next_tokens(
    model: PreTrainedModel, prompts: Texts, texts: Texts
) -> list[Float[Tensor, "n vocabulary"]]:
    """Return log p of every token at each place of each text."""
    # number: (texts, places), above 0 where a place predicts a token of the text
    logits, _, number = likelihood.predictions(model, [*zip(prompts, texts, strict=True)])
    log_p = logits.float().log_softmax(-1).cpu()  # (texts, places, vocabulary)
    return [rows[is_text] for rows, is_text in zip(log_p, number.cpu() > 0, strict=True)]


def share_left(rows: pd.DataFrame) -> stats.Estimate:
    """Return mean ψ at the last point of a curve, divided by that of the release.

    Args:
        rows: of a single curve, as in ``Curves.texts``.
    """
    first = rows[rows["steps"] == 0]
    last = rows[rows["steps"] == rows["steps"].max()]
    return stats.ratio(last["psi"], first["psi"], last["release"])


def curves_in_words(curve: pd.DataFrame, level: float) -> str:
    """Say what is left at the end of each curve, and what was predicted.

    Args:
        curve: ``Curves.texts``, by its name in a record.
        level: of detection.
    """
    threshold = stats.threshold(level)
    sentences = []
    for name, rows in curve.groupby("curve", sort=False):
        first = rows[rows["steps"] == 0]
        last = rows[rows["steps"] == rows["steps"].max()]
        chance = norm.sf(threshold - last["foretold"]).mean()
        forecast = last["foretold"].mean() / first["foretold"].mean()
        sentences.append(
            f"{name}, {last['steps'].iloc[0]} steps: share of ψ left"
            f" **{share_left(rows)}** releases (forecast {forecast:.2f});"
            f" detected at {level:g}: {(last['psi'] >= threshold).mean():.2f}"
            f" (forecast {chance:.2f}), and {(first['psi'] >= threshold).mean():.2f} before"
        )
    return ". ".join(sentences)


def curves_in_all_runs(curve: pd.DataFrame, level: float, model: str) -> Markdown:
    """Say it (:func:`curves_in_words`) of the records of each model, and then of this run.

    Args:
        curve: ``Curves.texts`` of this run.
        level: of detection.
        model: the name of this run's model.
    """
    said = defaultdict(list)
    for run in chain.from_iterable(map(runs.references, CURVES)):
        said[title(run)].append(curves_in_words(run.table("curve"), level))
    joined = {name: ". ".join(sentences) for name, sentences in said.items()}
    return listed(joined, curves_in_words(curve, level), model)


def worded_rivals() -> str:
    """Return what others report about fine-tuning, in words."""
    sentences = []
    for row in runs.rivals("share detected after LoRA"):
        shares = ", ".join(f"{share:g}" for share in row["values"])
        steps = ", ".join(f"{n:,}" for n in row["steps"])
        sentences.append(
            f"Published for {row['scheme']} on {row['model']}: after {steps} steps of LoRA, the"
            f" share of texts that is detected at level {row['level']:g} is {shares} (source:"
            f" {row['source']})."
        )
    return " ".join(sentences)


def outcomes_of_curves(
    found: Curves, level: float
) -> tuple[list[claims.Finding], list[dict[str, Any]]]:
    """Return findings about curves of at least ``MOST_STEPS`` steps, and a check."""
    threshold = stats.threshold(level)
    findings = []
    for name, rows in found.texts.groupby("curve", sort=False):
        if rows["steps"].max() < MOST_STEPS:  # the ranges were chosen for as many
            continue
        least, most = SHARE_LEFT[name.partition(" on ")[0]]
        claim = f"ψ of texts at the end of a curve, divided by the release's: {name}"
        findings.append(claims.finding(claim, share_left(rows), least=least, most=most, planned=8))
        trained = rows[rows["steps"] > 0]
        claim = f"measured ψ divided by the forecast, along a curve: {name}"
        quotient = stats.ratio(trained["psi"], trained["foretold"], trained["release"])
        findings.append(claims.finding(claim, quotient, least=0.8, most=1.2, law=1.0, planned=8))
        claim = f"share detected at {level:g} less its forecast, along a curve: {name}"
        chance = norm.sf(threshold - trained["foretold"])
        gap = stats.mean((trained["psi"] >= threshold) - chance, cluster=trained["release"])
        findings.append(claims.finding(claim, gap, least=-0.15, most=0.15, law=0.0, planned=8))
    # a failed check stops the run: chance must not fail it
    control = found.control
    mean = stats.mean(control["psi"], cluster=control["release"], confidence=0.9999)
    is_kept = not (mean.low > 0 or mean.high < 0)  # no interval: nothing to contradict
    return findings, [claims.check("the base, trained alike, carries no key", is_kept)]


def draw_curves(points: pd.DataFrame, caption: str) -> Figure:
    """Draw the points of this run under those of the records (:func:`along_curves`). Each curve has
    a colour; its forecast is dashed, without intervals. Of the base that was trained alike, only ψ
    is shown.
    """
    tables = [beside(points, name, "curve_points") for name in CURVES]
    table = pd.concat(tables, ignore_index=True).drop_duplicates()  # this run is in each
    table = table.assign(
        title=table["run"] + ": " + table["quantity"],
        line=table["curve"] + ", " + table["what"],
    )
    table.loc[table["what"] == PREDICTED, ["low", "high"]] = np.nan
    table = table[(table["what"] != CONTROL) | (table["quantity"] == PSI_OF_TEXTS)]
    looks = {}
    for i, curve in enumerate(table["curve"].unique()):
        colour = {"color": style.OTHERS[i]}
        looks[f"{curve}, {MEASURED}"] = colour | {"label": curve}
        looks[f"{curve}, {PREDICTED}"] = colour | {
            "label": f"{curve}, forecast",
            "linestyle": "--",
            "marker": "",
        }
        looks[f"{curve}, {CONTROL}"] = {
            "label": CONTROL,
            "color": style.THEORY,
            "linestyle": "none",
            "marker": "x",
        }
    return panels(
        table.sort_values("run", kind="stable"),
        "steps",
        by="line",
        looks=looks,
        panel="title",
        xlabel="steps of fine-tuning",
        ylabel="",
        sharey=False,
        caption=caption,
        title="How much do more steps remove?",
    )


def means(table: pd.DataFrame, column: str, by: Sequence[str] = ("attack",)) -> pd.DataFrame:
    """Return ``pairs.means`` of rows that belong to releases, without intervals of a few
    releases.
    """
    return intervals.rows_of_enough(several.means(table, by, column, "release"))


def ratio(
    table: pd.DataFrame,
    names: Sequence[str],
    column: str = "psi",
    base: str | None = None,
) -> stats.Estimate:
    """Divide the mean of a column after these attacks by the mean ψ of the release, or by the mean
    of the column ``base`` after the same attacks.
    """
    rows = table[table["attack"].isin(names)]
    released_psi = rows["psi"] + rows["removed"]
    below = rows[base] if base else released_psi
    return stats.ratio(rows[column], below, rows["release"])


def by_release(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each release and attack: the means over the release's texts."""
    # its texts are not independent: one row stands for them
    of_release = table.groupby(["release", "attack"], sort=False)
    return of_release[["psi", "removed", "wrong", "nats", "psi_w"]].mean().reset_index()


def pooled(releases: pd.DataFrame, served: pd.DataFrame) -> dict[str, Any]:
    """Pool several records, to be recorded as the results of one.

    Args:
        releases: :func:`by_release` of each record, with a name of its own for each release.
        served: :func:`served` of each record, with a name of its own for each pair.

    Returns:
        For each attack: ``texts``, ψ of texts divided by the release's; ``nats``, which human text
        pays; and ``weights``, the smallest and the largest ψ of weights. For each way of serving:
        ``served``, ψ divided by ψ at temperature 1. Then ``student``, ψ of a student's texts less
        ψ of a wrong key; and ``claims``, against the ranges that were written before the first of
        the records.
    """
    names = [name for name in releases["attack"].unique() if name != RELEASED]
    # name → rows of the releases
    of_attack = {name: releases[releases["attack"] == name] for name in names}
    share_left = {name: ratio(releases, [name]) for name in names}
    nats = {name: stats.interval(rows["nats"].to_numpy()) for name, rows in of_attack.items()}
    in_weights = {
        name: [rows["psi_w"].min(), rows["psi_w"].max()] for name, rows in of_attack.items()
    }
    student = of_attack[STUDENT]
    psis = served.pivot(index="pair", columns="way", values="psi")  # (pairs, ways)
    by_way = {way: stats.ratio(psis[way], psis["temperature 1"]) for way in psis}
    # the fine-tuning with the most steps: the strongest of its family
    most_steps = max((name for name in names if name.startswith(TRAINED)), key=_steps)
    n = releases["release"].nunique()
    by_texts = "ψ of texts, divided by the release's"
    findings = [
        claims.finding(
            f"{by_texts}: 4 bits",
            share_left["4 bits"],
            least=0.85,
            most=1.05,
            law=1.0,
            planned=n,
        ),
        claims.finding(
            f"{by_texts}: fine-tuned",
            share_left[most_steps],
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
        "texts": share_left,
        "nats": nats,
        "weights": in_weights,
        "served": by_way,
        "student": stats.interval((student["psi"] - student["wrong"]).to_numpy()),
    }


def tuned_name(n_steps: int) -> str:
    """Return the name of the attack that fine-tunes for so many steps.

    >>> tuned_name(1), tuned_name(40)
    ('fine-tuned, 1 step', 'fine-tuned, 40 steps')
    """
    unit = "step" if n_steps == 1 else "steps"
    return f"{TRAINED}, {n_steps} {unit}"


def _steps(name: str) -> int:
    """Return 40 of ``fine-tuned, 40 steps``."""
    return int(name.split()[1])


def worded_forecasts(quotients: Mapping[str, stats.Estimate], pooled: stats.Estimate | None) -> str:
    """Word the attacks whose two predictions differ, and measured ψ divided by the prediction from
    probabilities, for each of these attacks and for all of them (None if there are no such
    attacks).
    """
    covered = (
        "We expected an error below 20% for attacks that raise the loss on human text by at most"
        " 0.1 nats per token."
        " Among those with a predicted ψ of at least 1,"
    )
    if pooled is None:
        return f"{covered} no attack has two predictions that differ by more than 5%."
    of_attacks = "; ".join(
        f"{name} {intervals.of_enough(quotient)}" for name, quotient in quotients.items()
    )
    return (
        f"{covered} the two predictions differ by more than 5% for {', '.join(quotients)}. For"
        " these attacks together, measured ψ divided by the prediction from probabilities is"
        f" **{intervals.of_enough(pooled)}** releases ({of_attacks})."
    )


def in_all_runs(
    kind: str, here: Mapping[str, object], others: Sequence[str] = (), title: str = ""
) -> pd.DataFrame:
    """Return numbers of attacks (rows) in the records and in this run (columns).

    Args:
        kind: ``texts`` or ``nats`` of :func:`pooled`.
        here: the numbers of this run, by attack; without intervals of a few releases.
        others: further attacks, of the records alone.
        title: what the numbers are.
    """
    columns = {
        REAL: _recorded(f"{ATTACKS}_smollm2", kind),
        LARGER: _recorded(POOLED, kind),
        THIS_RUN: {name: _of_enough(number) for name, number in here.items()},
    }
    rows = {
        name: {column: str(found.get(name, "–")) for column, found in columns.items() if found}
        for name in dict.fromkeys([*here, *others])
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis(columns=title)


def _of_enough(number: object) -> object:
    return intervals.of_enough(number) if isinstance(number, stats.Estimate) else number


def _recorded(name: str, kind: str) -> dict[str, stats.Estimate]:
    """Numbers of attacks in a record, by attack; none without a record."""
    run = runs.reference(name)
    rows = run.results.get(kind, {}) if run else {}
    return {attack: intervals.of_row(row) for attack, row in rows.items()}


def shares_and_prices(table: pd.DataFrame) -> dict[str, dict[str, stats.Estimate]]:
    """Return what is left of ψ in texts, and what human text pays, to be recorded: ``texts`` and
    ``nats`` of :func:`pooled`, by attack.

    Args:
        table: of :func:`measured`.
    """
    shares, prices = {}, {}
    for name, rows in table.groupby("attack", sort=False):
        shares[name] = ratio(table, [name])
        prices[name] = stats.interval(rows["nats"].to_numpy(), cluster=rows["release"])
    return {"texts": shares, "nats": prices}


def worded_student() -> str:
    """Say what a student learns in the pooled record of doclm."""
    record = runs.reference(POOLED)
    if not record:
        return ""
    releases = record.table("releases")
    student = releases[releases["attack"] == STUDENT]
    own, wrong = (stats.interval(student[key].to_numpy()) for key in ("psi", "wrong"))
    return (
        f"In the three larger runs of doclm, the mean ψ of a student's texts is {own} keys, and"
        f" under a wrong key it is {wrong}."
    )


def recorded_temperatures() -> pd.DataFrame:
    """Return mean σ‖G‖ and mean ψ at two temperatures, in the pooled record of doclm."""
    served = runs.reference(POOLED).table("served")
    rows = served[served["way"].isin(["temperature 1", "temperature 1.3"])]
    columns = {"forecast": "mean σ‖G‖", "psi": "mean ψ"}
    return rows.groupby("way")[[*columns]].mean().round(1).rename(columns=columns)


def worded_greedy(greedy: stats.Estimate) -> str:
    """Word ψ of greedy texts divided by ψ of sampled texts, and whether this decides between a half
    and all of it.
    """
    if greedy.n < intervals.FEWEST:
        return f"{greedy.n} pairs are too few to compare greedy with sampled texts."
    sentence = f"ψ of greedy texts divided by ψ of texts sampled at temperature 1: {greedy} pairs."
    if greedy.low <= 0.5 and greedy.high >= 1:
        sentence += " The interval contains 0.5 and 1, so these pairs do not decide between them."
    return sentence


def law(change: Float[np.ndarray, " n"], d: int) -> Float[np.ndarray, " n"]:
    """Return √d/√(1 + x²): ψ of weights after a change of size x = ‖Δ₂‖/‖ξ‖ that does not lean
    towards ξ.

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
    """Attack the base model, which has no watermark, and test its weights with fresh keys.

    Returns:
        ``attack``, and the share of keys that are detected, ``value, low, high, n``.
    """
    # no pair of any seed has these keys
    keys = [Key.from_seed(2 * 10**12 + i) for i in range(n_keys)]
    rows = []
    for name, (_, attack) in made.items():
        if name in (
            RELEASED,
            HALF,
        ):  # these leave the base model as it is
            continue
        tested = provenance.weights(lm.model, attack(lm.model), wm, keys)
        share = stats.interval((tested["p_value"] <= level).to_numpy())
        rows.append({"attack": name, **share.row()})
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
    """Write a text of each pair by each way of serving. The last three ways serve a released
    checkpoint per pair.

    Returns:
        ``way, pair, psi, wrong`` (ψ under another pair's key) and ``forecast`` (σ‖G‖).
    """
    texts = _sampled(lm, pairs, wm, n_tokens, seed)
    texts[f"beam search, {beams}"] = [
        stock_generate(lm, GaussMark(wm, key), prompt, key, n_tokens, beams)
        for prompt, key in zip(*pairs, strict=True)
    ]
    for i, (prompt, key) in enumerate(zip(*pairs, strict=True)):
        release = attacks.released(lm.model, wm, key)  # θ + ξ of this pair's key
        for way, ids in _by_checkpoint(lm, release, prompt, n_tokens, seed + i).items():
            texts.setdefault(way, []).append(ids)
    placed = wm.on(lm.model)
    rows = []
    for way, written in texts.items():
        for gradient in gradients.gradients(lm.model, pairs.prompts, written, wm):
            pair = gradient.text
            keys = [pairs.keys[pair], pairs.keys[pair - 1]]  # the pair's own, and a wrong one
            psi, wrong = score.psi([gradient], placed, keys)[0]
            rows.append((way, pair, psi, wrong, wm.sigma * gradient.norm))
    return pd.DataFrame(rows, columns=["way", "pair", "psi", "wrong", "forecast"])


def _sampled(
    lm: models.LM, pairs: Pairs, wm: Watermark, n_tokens: int, seed: int
) -> dict[str, list[list[int]]]:
    """A text of each pair by each setting of the sampler, with the pair's key on the weights."""
    settings = {f"temperature {t:g}": {"temperature": t} for t in (1.3, 1.0, 0.7, 0.3)}
    settings |= {
        "top-p 0.9": {"top_p": 0.9},
        # a processor is made for the rows of a batch; these are the same for all rows
        "top-k 20": {"processor": lambda _: TopKLogitsWarper(20)},
        "typical 0.9": {"processor": lambda _: TypicalLogitsWarper(0.9)},
        "repetition penalty 1.3": {"processor": lambda _: RepetitionPenaltyLogitsProcessor(1.3)},
        "greedy": {"temperature": 0.0},
    }
    marks = [(wm, key) for key in pairs.keys]
    write = partial(
        generate.sample,
        lm.model,
        pairs.prompts,
        n_tokens,
        marks=marks,
        seed=seed,
    )
    return {way: write(**options) for way, options in settings.items()}


def _by_checkpoint(
    lm: models.LM,
    release: PreTrainedModel,
    prompt: list[int],
    n_tokens: int,
    seed: int,
) -> dict[str, list[int]]:
    """A text of a released checkpoint by each way of serving checkpoints."""
    rounded = attacks.rounded(release, 8)
    half = deepcopy(release).half()  # a copy: the release serves the other ways, too
    return {
        "8 bits": generate.sample(rounded, [prompt], n_tokens, seed=seed)[0],
        "float16": generate.sample(half, [prompt], n_tokens, seed=seed)[0],
        "drafted by the base": assisted(release, lm.model, prompt, n_tokens, seed),
    }


class ByEngine(NamedTuple):
    """What llama.cpp made of a key's files: tables of ``release.served``."""

    weights: pd.DataFrame  # ψ of each file's weights
    answers: pd.DataFrame  # ψ of each answer, and its forecast
    alarms: pd.DataFrame  # how many fresh keys an unmarked file alarms


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
    first = 5 * 10**12 + 10**6 * seed  # no pair of any seed has these keys
    keys = [Key.from_seed(first + i) for i in range(n_keys)]
    others = [Key.from_seed(first + n_keys + i) for i in range(n_null)]
    if lm.is_chat:
        prompts = engine.questions(n_keys, seed)
    else:
        starts = texts.prompts(lm, text, n_keys, OPENING, seed=seed)
        prompts = [lm.decode(ids) for ids in starts]
    asked = {"n_base": min(n_few, n_keys), "seed": seed}
    is_small = n_keys <= 10  # a key has six files of the size of the model
    with engine.files(models.gguf_file(model), wm, keep=is_small) as files:
        alarms = engine.alarms(lm, files, others, level)
        weights = engine.weights(files, keys)
        of_files = engine.answers(lm, files, keys, engine.FILES, prompts, n_tokens, **asked)
        of_ways = engine.answers(
            lm, files, keys[:n_few], engine.SERVING, prompts, n_tokens, **asked
        )
    answers = pd.concat([of_files, of_ways], ignore_index=True)
    return ByEngine(weights, engine.forecasts(answers, weights), alarms)


def means_by_engine(found: ByEngine) -> pd.DataFrame:
    """Return mean ψ of answers by each way of serving, the forecast, and both controls: ``way,
    what`` and an estimate.
    """
    is_marked = found.answers["is_marked"]
    marked = found.answers[is_marked]
    unmarked = found.answers[~is_marked]
    columns = {  # label → (rows, column)
        "watermarked file, its key": (marked, "psi"),
        "forecast": (unmarked, "forecast"),
        "watermarked file, another key": (marked, "wrong"),
        "plain file, the key": (unmarked, "psi"),
    }
    return pd.concat(
        intervals.rows_of_enough(several.means(table, ["way"], column)).assign(what=name)
        for name, (table, column) in columns.items()
    )


def figure_by_engine(found: ByEngine, caption: str) -> Figure:
    """Draw :func:`means_by_engine` as points. The caption gets the sizes."""
    # unmarked answers use the smaller number of keys
    is_marked = found.answers["is_marked"]
    n_keys = found.weights["key"].nunique()
    n_few = found.answers.loc[~is_marked, "key"].nunique()
    n_tokens = found.answers["n_tokens"].max()
    sizes = (
        f"{n_keys} keys for each file type, {n_few} for the other ways and the plain file;"
        f" answers of {n_tokens} tokens; {intervals.note(n_few, 'keys')}"
    )
    return panels(
        means_by_engine(found),
        "way",
        by="what",
        xlabel="",
        ylabel="mean ψ of answers",
        caption=f"{caption}; {sizes}",
        title="Does an inference engine keep the watermark?",
    )


def outcomes_by_engine(
    found: ByEngine | None, level: float
) -> tuple[list[claims.Finding], list[dict]]:
    """Return findings and checks about what llama.cpp served; none if it served nothing."""
    if found is None:
        return [], []
    findings = []
    for name in engine.FILES:
        claim = f"ψ of answers from a file {name}, divided by the forecast"
        quotient = engine.measured_by_forecast(found.answers, [name])
        findings.append(claims.finding(claim, quotient, least=0.8, most=1.2, law=1.0, planned=60))
    claim = "ψ of answers by six other ways of serving, divided by the forecast"
    quotient = engine.measured_by_forecast(found.answers, [*engine.SERVING])
    findings.append(claims.finding(claim, quotient, least=0.8, most=1.2, law=1.0, planned=20))

    marked = found.answers[found.answers["is_marked"]]
    # a failed check stops the run: chance must not fail it
    wrong = stats.interval(marked["wrong"], cluster=marked["key"], confidence=0.9999)
    # over keys, the alarms of an unmarked file are independent coins
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


def engine_in_all_runs(findings: Sequence[claims.Finding]) -> pd.DataFrame:
    """Return ψ of answers of served files, divided by the forecast: a row per finding, in the
    record of SmolLM2 and in this run.
    """
    here = {finding.sentence: str(intervals.of_enough(finding.estimate)) for finding in findings}
    rows = {}
    for row in runs.reference(ENGINE).findings:
        if row["claim"].startswith(ANSWERS):
            name = row["claim"].removeprefix(ANSWERS).removesuffix(OVER_FORECAST)
            recorded = f"{row['value']} {row['basis']}"
            rows[name] = {"SmolLM2": recorded, THIS_RUN: here.get(row["claim"], "–")}
    table = pd.DataFrame.from_dict(rows, orient="index")
    return table.rename_axis(columns="ψ of answers, divided by the forecast")


def recorded_answers() -> pd.DataFrame:
    """Return mean ψ of answers of watermarked files, and the mean promise of the plain files, for
    each way of serving in the record of SmolLM2.
    """
    answers = runs.reference(ENGINE).table("engine_answers")
    marked = answers[answers["is_marked"]].groupby("way", sort=False)
    plain = answers[~answers["is_marked"]].groupby("way", sort=False)
    columns = {
        "mean ψ of watermarked answers": marked["psi"].mean(),
        "mean promise of plain answers": plain["promised"].mean(),
    }
    return pd.DataFrame(columns).round(2)


def assisted(
    model: PreTrainedModel,
    draft: PreTrainedModel,
    prompt: list[int],
    n_tokens: int,
    seed: int,
) -> list[int]:
    """Sample speculatively by transformers: ``draft`` proposes tokens, and the model accepts or
    replaces them so that its own distribution is kept (Leviathan et al. 2023).
    """
    torch.manual_seed(seed)
    with _without_warnings():
        return continued(
            model,
            prompt,
            n_tokens,
            assistant_model=draft,
            do_sample=True,
            top_k=0,  # no truncation: transformers' default is 50
            use_cache=True,
        )


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence transformers: its assisted generation calls itself in a way that it deprecates."""
    before = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(before)
