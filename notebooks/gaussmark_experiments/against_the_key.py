"""15: against the key. What can an attacker learn, forge, scrub, query and average who knows the
scheme, σ, the weight and θ, but not ξ?

The laws are those of ``attacks.learning``; ψ_0 and all prices are measured on text that the key
itself writes after the same prompts. Forged text is written at θ + s·ξ̂, scrubbed text at
θ + ξ − s·ξ̂. With s = 1/√κ, and as long as few texts taught ξ̂, forged text pays what the key's own
text pays, and

    ψ of the forged text = √κ cos ψ_0,   ψ that scrubbing leaves = (1 − √κ cos) ψ_0
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from IPython.display import Markdown
from jaxtyping import Float
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from scipy.stats import norm
from torch import Tensor

from gaussmark_experiments import intervals
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
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.tokens import Texts
from gaussmark_lib.workbench.answers import sentences
from gaussmark_lib.workbench.pairs import (
    Pairs,
    marked_and_plain,
    means,
)
from gaussmark_lib.workbench.plots.panels import panels

# Names of texts, laws and rules, as tables and figures show them.
OWN = "the key's own"
FORGED = "forged"
SCRUBBED = "scrubbed"
MEASURED = "measured"
LAW = "the law with κ"
PLAIN_LAW = "the plain law"
INHERITED = "inherited verdicts"
ALONE = "each text at α"
PUBLIC = "the public rule"
UNREGISTERED = "all runs count"  # in the neighbourhoods of the public rule
REGISTERED = "template registered"
RULE = "yes or no"  # how the public rule answers
N_TRIED = 8  # queries per step of a climb
LARGE = 58_720_256  # numbers of an 8-billion-parameter model's widest matrix
FOLDS = 10  # of the jackknife for κ
EDITED = 0.1  # share of exchanged tokens that the sharper test expects


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
    """Measure what the first n texts of each key reveal of its noise, for each n of ``ends``.

    What the law needs is from ``held``, pairs of other prompts and keys: κ from their plain texts,
    and ψ = E ψ‖G‖/√E‖G‖² from their marked texts.

    Returns:
        ``weight, key, n, d, kappa, psi`` (κ with its interval), the cosine of ΣG with the noise
        ``measured`` and by the law; and ΣG of each key by n.
    """
    marked, plain = marked_and_plain(lm, held, wm, n_tokens, seed)
    kappa = _unevenness(lm, wm, held.prompts, plain)
    of_marked = list(gradients.gradients(lm.model, held.prompts, marked, wm))
    psis = score.psi(of_marked, wm.on(lm.model), held.keys, paired=True)
    norms = [gradient.norm for gradient in of_marked]  # ‖G‖ of each marked text
    psi = np.mean(psis * norms) / np.sqrt(np.mean(np.square(norms)))
    rows = []
    sums = []
    for i, key in enumerate(keys):
        xi = perturb.noise(lm.model, wm, key)
        d = xi.numel()
        with perturb.watermarked(lm.model, wm, key):
            texts = generate.sample(lm.model, prompts, n_tokens, seed=seed + i + 1)
        totals = learning.estimates(lm.model, prompts, texts, wm, ends)
        sums_of_key = dict(zip(ends, totals, strict=True))
        sums.append(sums_of_key)
        for n, total in sums_of_key.items():
            rows.append(
                {
                    "weight": wm.weight,
                    "key": i,
                    "n": n,
                    "d": d,
                    **kappa.row("kappa"),
                    "psi": psi,
                    MEASURED: learning.cosine(total, xi),
                    LAW: learning.law(n, psi, d, kappa.value),
                }
            )
    return pd.DataFrame(rows), sums


def texts_needed(learnt: pd.DataFrame) -> pd.DataFrame:
    """Return how many texts of one key an attacker needs for a cosine with the noise, for the
    measured weight and for a weight with ``LARGE`` numbers.

    Args:
        learnt: as from :func:`taught`; κ, ψ and d of its first row count.
    """
    first = learnt.iloc[0]
    kappa = first["kappa"]
    limit = kappa**-0.5  # of the cosine
    columns = {
        f"cosine {limit / 2:.2f}, half of the limit": (limit / 2, kappa),
        "cosine 0.5, if κ = 1": (0.5, 1.0),
        "cosine 0.5, with this κ": (0.5, kappa),
    }
    rows = []
    for d in (int(first["d"]), LARGE):
        row = {"entries of the weight": f"{d:,}"}
        for name, (wanted, unevenness) in columns.items():
            n = learning.texts_needed(wanted, first["psi"], d, unevenness)
            row[name] = f"{float(f'{n:.2g}'):,.0f} texts" if np.isfinite(n) else "never"
        rows.append(row)
    return pd.DataFrame(rows)


def _unevenness(lm: models.LM, wm: Watermark, prompts: Texts, plain: Texts) -> stats.Estimate:
    """κ of plain texts, with an interval."""
    of_plain = list(gradients.gradients(lm.model, prompts, plain, wm))
    numbers = np.arange(len(of_plain))

    def unevenness(chosen: np.ndarray) -> float:
        return learning.unevenness([of_plain[i] for i in chosen])

    # a jackknife over folds: a bootstrap would pair a text with itself
    return stats.interval(numbers, unevenness, cluster=numbers % FOLDS)


def drawn_on(learnt: pd.DataFrame) -> pd.DataFrame:
    """Extend the laws to ten million texts, at one weight's d and at ``LARGE``, and add the mean
    cosines of its keys: ``texts, what, value``.
    """
    facts = learnt.iloc[0]
    laws = {  # name → (d, κ)
        PLAIN_LAW: (facts["d"], 1.0),
        LAW: (facts["d"], facts["kappa"]),
        f"{LAW}, {LARGE / 1e6:.0f} M entries": (
            LARGE,
            facts["kappa"],
        ),
    }
    counts = {*learnt["n"], *10 ** np.arange(2, 8)}
    rows = []
    for what, (d, kappa) in laws.items():
        for n in counts:
            value = learning.law(n, facts["psi"], d, kappa)
            rows.append({"texts": float(n), "what": what, "value": value})
    measured = learnt.assign(texts=learnt["n"], what=MEASURED)
    return pd.concat(
        [
            pd.DataFrame(rows),
            means(measured, ["texts", "what"], MEASURED),
        ]
    )


def attacked(
    lm: models.LM,
    prompts: Texts,
    wm: Watermark,
    noise: Tensor,
    keys: Sequence[Key],
    n_tokens: int,
    seed: int,
) -> pd.DataFrame:
    """Write text with the model at θ + a given noise, and test it under these keys. The noise does
    not depend on the last key.

    Returns:
        One row per prompt: ``psi``, the mean under all keys but the last; ``wrong``, ψ under the
        last; ``sharper``, as ``psi``, by the test that expects a tenth of the tokens to be edited;
        ``nats`` of price; and the ``prompt``.
    """
    texts, nats = learning.sample_with_noise(lm.model, prompts, wm, noise, n_tokens, seed=seed)
    weighings = [channel.weights(lm.model, exchanged) for exchanged in (0.0, EDITED)]
    scores = score.score(lm.model, prompts, texts, wm, keys, token_weights=weighings)
    shape = (len(texts), len(weighings), len(keys))  # (texts, weighings, keys)
    psi = scores["psi"].to_numpy().reshape(shape)
    columns = {
        "psi": psi[:, 0, :-1].mean(1),
        "sharper": psi[:, 1, :-1].mean(1),
        "wrong": psi[:, 0, -1],
        "nats": nats,
        "prompt": range(len(prompts)),
    }
    return pd.DataFrame(columns)


def shares(used: pd.DataFrame, what: str, columns: Mapping[str, str]) -> pd.DataFrame:
    """Divide columns of forged or scrubbed text, each under a name, by those of the key's own text
    after the same prompts.

    Returns:
        ``texts`` (that taught the noise), ``of`` (the name), ``value, low, high, n`` of prompts.
    """
    by_key = used[used["what"] == OWN]  # the key's own texts
    by_n = used[used["what"] == what].groupby("n")
    rows = []
    for name, column in columns.items():
        for n, of_n in by_n:
            share = stats.ratio(of_n[column], by_key[column], by_key["prompt"])
            rows.append({"texts": n, "of": name, **share.row()})
    return pd.DataFrame(rows)


def forged_in_all_runs(used: pd.DataFrame, learnt: pd.DataFrame) -> Markdown:
    """Say :func:`forged_in_words` of each record and of this run."""
    return sentences("15_against_the_key", forged_in_words, used=used, learnt=learnt)


def forged_in_words(used: pd.DataFrame, learnt: pd.DataFrame) -> str:
    """Say which share of the key's own ψ forged text reaches after the most texts, and which share
    the law promises.
    """
    last = shares(used, FORGED, {"ψ": "psi"}).iloc[-1]
    share = intervals.of_row(last)
    facts = learnt[learnt["n"] == last["texts"]].iloc[0]  # of the first weight
    law = facts["kappa"] ** 0.5 * facts[LAW]
    return (
        f"after {last['texts']:,} texts, forged text reaches **{share}** of the key's own ψ; the"
        f" law promises {law:.2f}"
    )


def over_laws(learnt: pd.DataFrame, used: pd.DataFrame) -> dict[str, stats.Estimate]:
    """Divide by their laws the cosine with the noise (over keys), the ψ of forged text, and the ψ
    that scrubbing takes (over prompts). Each has the most texts that an attacker got.

    The laws take κ from other texts, so each interval is wider by the uncertainty of κ. The
    estimate κ̂ also sets the strength s = 1/√κ̂ of forged text: if κ is the truth, its law is
    κs·cos. The error of κ and the scatter of the rows are treated as independent. For the cosine of
    several weights, the relative error of the first weight's law stands for all of them, which is
    cautious.

    Args:
        learnt: as from :func:`taught`, of one or more weights.
        used: of the first of these weights: ``what, n, key, prompt, psi``.
    """
    last = learnt.groupby(["weight", "key"], sort=False).last().reset_index()
    facts = last.iloc[0]
    own = used[used["what"] == OWN]
    of_most = used[used["n"] == facts["n"]]
    psi_own, psi_forged, psi_scrubbed = (
        rows["psi"].to_numpy()
        for rows in (
            own,
            of_most[of_most["what"] == FORGED],
            of_most[of_most["what"] == SCRUBBED],
        )
    )
    promised = facts["kappa"] ** 0.5 * facts[LAW] * psi_own
    cosine = stats.interval(last[MEASURED] / last[LAW])
    forged = stats.ratio(psi_forged, promised, own["prompt"])
    scrubbed = stats.ratio(psi_own - psi_scrubbed, promised, own["prompt"])

    def law_of_cosine(kappa: float) -> float:
        return learning.law(facts["n"], facts["psi"], facts["d"], kappa)

    def law_of_psi(kappa: float) -> float:
        return kappa * law_of_cosine(kappa)

    return {
        "cosine": _widened(cosine, facts, law_of_cosine),
        "ψ of forged text": _widened(forged, facts, law_of_psi),
        "ψ that scrubbing takes": _widened(scrubbed, facts, law_of_psi),
    }


def _widened(
    quotient: stats.Estimate,
    facts: pd.Series,
    law: Callable[[float], float],
) -> stats.Estimate:
    """Add the uncertainty of a law, over the interval of κ, to that of a quotient.

    >>> facts = pd.Series({"kappa": 4.0, "kappa_low": 3.0, "kappa_high": 5.0})
    >>> print(_widened(stats.Estimate(1.0, 0.7, 1.3, 9), facts, lambda kappa: kappa))
    1 (0.609 to 1.39), n = 9
    """
    ends = [law(max(facts[name], 1.0)) for name in ("kappa_low", "kappa_high")]
    of_law = quotient.value * np.ptp(ends) / 2 / law(facts["kappa"])
    below = np.hypot(quotient.value - quotient.low, of_law)
    above = np.hypot(quotient.high - quotient.value, of_law)
    return stats.Estimate(
        quotient.value,
        float(quotient.value - below),
        float(quotient.value + above),
        quotient.n,
    )


def noted(unrelated: stats.Estimate, n_keys: int) -> str:
    """Word a caution if the interval of mean ψ under unrelated keys excludes 0. Otherwise return
    nothing. The interval is over prompts.
    """
    if not (unrelated.low > 0 or unrelated.high < 0):  # NaN: no interval
        return ""
    keys = "a single unrelated key" if n_keys == 1 else f"only {n_keys} unrelated keys"
    return (
        f" The second interval excludes 0. But it is over prompts, and this run has {keys}: all"
        " texts forged in a victim's name use the same estimate of the noise, so their ψ under an"
        " unrelated key vary together."
    )


def by_answers(climbs: pd.DataFrame, column: str) -> list[stats.Estimate]:
    """Return the mean of a column of :func:`climbs` for each kind of answers, without intervals of
    a few attackers.
    """
    groups = climbs.groupby("answers", sort=False)[column]
    return [intervals.of_enough(stats.interval(values)) for _, values in groups]


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
    """Let an attacker edit each pair's human text until it scores high under the pair's key.

    The key answers the attacker's queries with numbers, by the public rule, or (the control) not at
    all. Without answers, an attacker may also have n marked texts, and climb along their ΣG.

    Args:
        given: prompts of the marked texts, each n, ascending, and the tokens of a text.

    Returns:
        ``answers, psi`` and ``accused``: whether the rule said yes on the way to the last text. To
        an attacker who does not ask the rule, it answers for the last text alone.
    """
    prompts, counts, n_tokens = given
    rows = []
    for i, (prompt, ids, key) in enumerate(zip(pairs.prompts, human, pairs.keys, strict=True)):
        with perturb.watermarked(lm.model, wm, key):
            marked = generate.sample(lm.model, prompts[: max(counts)], n_tokens, seed=seed)
        # ΣG of the first n texts, for each n
        sums = learning.estimates(lm.model, prompts, marked, wm, counts)
        psi = partial(_psi, lm, wm, key, prompt)
        answers = {
            "ψ": psi,
            RULE: partial(_by_rule, Public(None, level, {}), psi),
            "none": _no_answers,
        }
        for n, total in zip(counts, sums, strict=True):
            answers[f"none, {n} marked"] = partial(psi, xis=total[None])  # ψ along ΣG
        for name, ask in answers.items():
            rng = np.random.default_rng([seed, i])
            last, best = askers.climbed(ask, ids, n_steps, N_TRIED, rng)
            [last_psi] = psi([last])
            if name == RULE:
                is_accused = best > 0  # the best answer was a yes
            else:
                is_accused = norm.sf(last_psi) <= public.level_of(1, level)
            rows.append((name, last_psi, is_accused))
    return pd.DataFrame(rows, columns=["answers", "psi", "accused"])


def _psi(
    lm: models.LM,
    wm: Watermark,
    key: Key,
    prompt: Sequence[int],
    texts: Texts,
    xis: Tensor | None = None,
) -> list[float]:
    """ψ of texts after one prompt, under the key or under the noises ``xis``."""
    prompts = [prompt] * len(texts)
    scores = score.score(lm.model, prompts, texts, wm, [key], xis=xis)
    return scores["psi"].tolist()


def _by_rule(state: Public, psi: Callable[[Texts], list[float]], texts: Texts) -> list:
    """The public rule's answers; the state counts the queries."""
    p_values = norm.sf(psi(texts))
    return [
        state.answer(str(ids), public.runs(ids), p) for ids, p in zip(texts, p_values, strict=True)
    ]


def _no_answers(texts: Texts) -> list[float]:
    return [0.0] * len(texts)


def verdicts(
    texts: Texts,
    psi: Float[np.ndarray, "keys n"],
    level: float,
    inherited: Callable[..., np.ndarray] = np.any,
) -> pd.DataFrame:
    """Tell what each rule answers if a text is asked about after other texts.

    Verdicts are inherited as suits the attacker: ``np.any`` of them frames, ``np.all`` clears a
    marked text.

    Returns:
        A row per rule and key: ``rule``; ``last``, whether the last of the texts is called detected
        after the others were asked about; ``any``, whether any text is; and ``first``, whether the
        last is as a first query.
    """
    is_high = psi >= stats.threshold(level)
    by_rule = askers.answered(texts, psi, level)
    first = psi[:, -1] >= stats.threshold(public.level_of(1, level))
    # rule → (verdict on the last text, verdicts on all texts)
    verdicts_of = {
        INHERITED: (inherited(is_high, 1), is_high),
        ALONE: (is_high[:, -1], is_high),
        PUBLIC: (by_rule[:, -1], by_rule),
    }
    tables = []
    for rule, (last, is_detected) in verdicts_of.items():
        columns = {
            "rule": rule,
            "last": last,
            "any": is_detected.any(1),
            "first": first,
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables)


def letters(texts: Texts, n: int, n_tokens: int, seed: int) -> tuple[list[list[int]], list[int]]:
    """Return n letters of one template, and the template, which is a fifth of each letter's runs.

    The template is the beginning of the first text that has so many different runs. The rest of
    each letter is drawn from the tokens of all texts. The levels of the public rule depend on
    nothing else.

    Raises:
        InvalidTextError: no text has so many different runs.
    """
    rng = np.random.default_rng(seed)
    n_runs = n_tokens - public.RUN + 1
    n_shared_runs = int(np.ceil(n_runs * public.SHARED))
    enough = [ids for ids in texts if len(public.runs(ids)) >= n_shared_runs]
    if not enough:
        raise InvalidTextError(
            f"expected a text with {n_shared_runs} different runs of {public.RUN} tokens, got none"
        )
    n_shared = n_shared_runs + public.RUN - 1
    while len(public.runs(enough[0][:n_shared])) < n_shared_runs:  # a run that occurs twice
        n_shared += 1
    template = list(enough[0][:n_shared])
    pool = np.concatenate(texts)
    bodies = rng.choice(pool, (n, n_tokens - len(template)))
    return [template + body.tolist() for body in bodies], template


def of_letters(
    texts: Texts,
    psi: ArrayLike,
    n_letters: int,
    level: float,
    seed: int,
) -> pd.DataFrame:
    """Return the level at which letters of one template are tested, by the place of the letter, and
    the share of watermarked texts, with these ψ, that is detected at this level.

    Returns:
        ``rule, letter, level, value, low, high, n``. The letters are as long as the texts.
    """
    asked, template = letters(texts, n_letters, len(texts[0]), seed)
    places = np.unique(np.geomspace(1, n_letters, 7).round().astype(int))
    rows = []
    for rule, boilerplate in {UNREGISTERED: [], REGISTERED: [template]}.items():
        levels = public.levels(asked, level, boilerplate)
        for place in places:
            at = levels[place - 1]
            detected = stats.interval(norm.sf(np.asarray(psi)) <= at)
            rows.append({"rule": rule, "letter": place, "level": at, **detected.row()})
    return pd.DataFrame(rows)


def draw_letters(table: pd.DataFrame, caption: str) -> Figure:
    """Draw the share of watermarked letters that is detected, by the place of the letter."""
    return panels(
        table,
        "letter",
        by="rule",
        title="Watermarked letters of one template that are detected",
        caption=caption,
        xlabel="place of the letter",
        ylabel="share of watermarked letters detected",
        xscale="log",
        ylim=(-0.02, 1.02),
    )


def last_letters(table: pd.DataFrame) -> dict[str, dict]:
    """Return the row of the last letter for each rule, from :func:`of_letters`."""
    rows = table[table["letter"] == table["letter"].max()]
    return rows.set_index("rule").to_dict("index")


def letters_in_words(table: pd.DataFrame) -> str:
    """Say which share of the watermarked texts each rule detects as the last letter."""
    sentences = []
    for rule, row in last_letters(table).items():
        detected = intervals.of_row(row)
        sentences.append(
            f"Letter {row['letter']:,} ({rule}) is tested at level {row['level']:.1e}. At this"
            f" level, the share of watermarked letters that is detected is **{detected}** texts."
        )
    return " ".join(sentences)


def by_key(
    K: Float[np.ndarray, "n n"],
    files: Sequence[str],
    levels: Sequence[float],
) -> tuple[pd.DataFrame, Float[np.ndarray, " n"]]:
    """Predict the share of further texts of a kind that a key accuses, by its z₀, from the cosines
    of human texts alone.

    Returns:
        ``z0, level, value, low, high, n``, with intervals over the texts' files; and k.
    """
    k = askers.loadings(K)
    rows = []
    for level in levels:
        tau = stats.threshold(level)
        for z0 in range(-3, 4):
            chances = askers.one_key(tau, k, z0)  # of each text
            share = stats.interval(chances, cluster=files, share=True)
            rows.append({"z0": z0, "level": f"{level:g}", **share.row()})
    return pd.DataFrame(rows), k
