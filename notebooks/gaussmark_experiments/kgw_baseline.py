"""08: five watermarks on the same n pairs of a prompt and a key. How many tokens does each need,
what does it cost, what does one fixed key do, and what is detected without sampling?

Schemes are compared by exact p-values only. There are two costs. The divergence KL(q ‖ p) under the
key that wrote a text is large for a scheme that is certain of its next token, however the text
reads. The change of the cross-entropy −(1/T) log p_θ(y | x), over keys, is what a reader could
notice; it is 0 for every scheme that keeps the distribution of texts over keys.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from IPython.display import HTML
from jaxtyping import Float
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from scipy.stats import binom, norm, spearmanr
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_experiments import intervals, quality, robustness
from gaussmark_experiments.measures import compare
from gaussmark_experiments.one_key_in_production import Human
from gaussmark_experiments.token_level_keys import difference
from gaussmark_lib import (
    divergence,
    generate,
    models,
    perturb,
    stats,
    texts,
)
from gaussmark_lib.beyond.schemes import GaussMark, GumbelMax, SynthID, named
from gaussmark_lib.engine.arithmetic import wide
from gaussmark_lib.engine.blocks import in_lists
from gaussmark_lib.errors import InvalidTextError
from gaussmark_lib.kgw import KGW, exact_tail, z_score
from gaussmark_lib.perturb import Key, Watermark, watermarked
from gaussmark_lib.scheme import Scheme
from gaussmark_lib.tokens import Texts
from gaussmark_lib.workbench import answers, record, runs
from gaussmark_lib.workbench.pairs import (
    Pairs,
    Tables,
    means,
    numbering,
    over_pairs,
    ratio_over_pairs,
    shares,
)
from gaussmark_lib.workbench.plots import style
from gaussmark_lib.workbench.plots.panels import panels
from gaussmark_lib.workbench.runs.folder import Run
from gaussmark_lib.workbench.words import number

FEWEST_HUMAN = 20  # texts of a kind, below which the rate of one key is not shown
LEVELS = (1e-2, 1e-6)
# Names of contenders, as tables and figures show them.
CONTROL = "plain, drawn again"
EVERY_TOKEN = "Gumbel-max, every token"
NO_PROMPT = "GaussMark, no prompt"
SHARPER = robustness.SHARPER
UNEDITED = robustness.UNEDITED
CORRECTION = "kgw_baseline_correction"  # records of section 10, and of costs as temperatures
ENTROPY = "kgw_baseline_entropy"  # records of section 8
AT_COST = "GaussMark at KGW-1's cost"
COLUMNS = ("GaussMark", AT_COST, "KGW-1", "KGW-2", "SynthID", "Gumbel-max")  # of the first table
# Names of the two costs. The first has the number of its texts in brackets.
UNDER_ONE_KEY = "KL under one key"
OVER_KEYS = "Δ cross-entropy over keys"
GREEDY = "detection at temperature 0"
STATISTIC = "statistic"  # a measure: ψ, or KGW's z
TASKS = {  # kind of answer: (forms of a request, subjects)
    "code": (
        (
            "Write a Python function that {}.",
            "Write a JavaScript function that {}.",
        ),
        (
            "reverses a string",
            "finds the largest number of a list",
            "counts the words of a text",
            "checks whether a number is prime",
            "sorts a list of names",
            "merges two sorted lists",
            "removes duplicates from a list",
            "converts Celsius to Fahrenheit",
            "reads a CSV file",
            "computes the factorial of a number",
            "finds the common elements of two lists",
            "checks whether a word is a palindrome",
            "draws a random password",
            "computes the median of a list",
            "counts how often each letter occurs",
            "flattens a nested list",
            "validates an e-mail address",
            "transposes a matrix",
            "finds the longest word of a sentence",
            "simulates a coin toss",
        ),
    ),
    "list": (
        (
            "Make a numbered list of twelve {}.",
            "List {}, one per line, with a remark on each.",
        ),
        (
            "countries of Europe",
            "animals of the forest",
            "things to pack for a trip",
            "healthy breakfasts",
            "famous inventions",
            "kitchen tools",
            "musical instruments",
            "habits of good students",
            "sports that need no ball",
            "trees and their uses",
            "ways to save energy",
            "questions for a job interview",
            "books for children",
            "birds of the sea",
            "gifts for a friend",
            "rivers of the world",
            "rules for a shared flat",
            "spices for a curry",
            "games for a rainy day",
            "jobs in a hospital",
        ),
    ),
    "chat": (
        ("Explain {} to a child.", "Why do people care about {}?"),
        (
            "rainbows",
            "money",
            "volcanoes",
            "vaccines",
            "the moon",
            "democracy",
            "dinosaurs",
            "electricity",
            "friendship",
            "recycling",
            "the internet",
            "dreams",
            "earthquakes",
            "museums",
            "music",
            "sleep",
            "bees",
            "the ocean",
            "old buildings",
            "chess",
        ),
    ),
}
BEAM_SEARCH = "beam search"
FEWEST_SEARCHED = 10  # texts by beam search that are drawn; fewer have no useful interval
FEW_PAIRS = 20  # with fewer pairs, ratios of tokens are too uncertain
ITERATIONS = 3  # of solving σ: each multiplies σ² by the wanted price over the price at this σ


def contenders(
    wm: Watermark,
    key: Key,
    *,
    context: int,
    depth: int,
    dtype: str | None = None,
    more: Sequence[str] = (),
) -> dict[str, Scheme]:
    """Return the schemes that write. ``context`` is for Gumbel-max, ``depth`` for SynthID, and
    ``more`` has names of further registered schemes.
    """
    five = {
        "GaussMark": GaussMark(wm, key, dtype=dtype),
        "KGW-1": KGW(1.0, key),
        "KGW-2": KGW(2.0, key),
        # weighted: deeper layers tell less, and count less
        "SynthID": SynthID(key, depth, weighted=True),
        "Gumbel-max": GumbelMax(key, context),
    }
    return five | named(wm, key, more)


def tests_of(tried: Mapping[str, Scheme]) -> dict[str, Scheme]:
    """Return the schemes' different tests. KGW-1 and KGW-2 have the same test. The inexact tests
    that are common for KGW and for Gumbel-max are added.
    """
    tests = {name: scheme for name, scheme in tried.items() if name != "KGW-1"}
    tests["KGW-2 z-test"] = replace(tried["KGW-2"], test="z")
    tests[EVERY_TOKEN] = replace(tried["Gumbel-max"], once=False)
    return tests


@torch.no_grad()
def prices_along(
    lm: models.LM,
    scheme: Scheme,
    pairs: Pairs,
    plain: Texts,
) -> pd.DataFrame:
    """Measure what each pair's key would cost a plain text of the model, in nats per token.

    Returns:
        ``kl``, the mean of KL(q ‖ p) over the text's places, and ``change``, the mean of
        −Σ_v q(v) log p(v) minus the entropy of p. Both sums are exact over the next token. For
        noise they are means over ξ and −ξ, which removes the part that is linear in ξ.
    """
    rows = []
    for prompt, text, key in zip(pairs.prompts, plain, pairs.keys, strict=True):
        # the text is alone in its batch
        inputs, _ = divergence.laid_out(lm.model, [(prompt, text)])
        p = divergence.logits(lm.model, inputs, len(text))  # (1, places, vocabulary)
        log_p = wide(p).log_softmax(-1)
        entropy = torch.special.entr(log_p.exp()).sum()
        costs = []  # of each marked model: (kl, change), summed over places
        [marked] = _marked_logits(lm, scheme, key, inputs, p, [1.0])
        for q in marked:
            log_q = wide(q).log_softmax(-1)
            crossed = -(log_q.exp() * log_p).sum()
            kl = (log_q.exp() * (log_q - log_p)).sum()
            costs.append([kl.item(), (crossed - entropy).item()])
        kl, change = np.mean(costs, axis=0) / len(text)
        rows.append({"kl": kl, "change": change})
    return pd.DataFrame(rows)


def _marked_logits(
    lm: models.LM,
    scheme: Scheme,
    key: Key,
    inputs: Mapping[str, Tensor],
    plain_logits: Float[Tensor, "_ tokens vocabulary"],
    temperatures: Sequence[float],
) -> list[list[Float[Tensor, "_ tokens vocabulary"]]]:
    """Logits under the key at each temperature: for noise, of the model at θ + ξ and at θ − ξ."""
    n_tokens = plain_logits.shape[1]
    if isinstance(scheme, GaussMark):
        placed = scheme.wm.on(lm.model)
        xi = perturb.noise(lm.model, scheme.wm, key)
        marked = []
        for sign in (1, -1):
            with perturb.moved(placed, [sign * xi]):
                marked.append(divergence.logits(lm.model, inputs, n_tokens))
        return [[logits / temperature for logits in marked] for temperature in temperatures]
    process = scheme.processor_of_rows(lm.model, [key])
    ids = inputs["input_ids"]
    start = ids.shape[1] - n_tokens
    marked = []
    for temperature in temperatures:
        # a processor sees the tokens so far, and changes the logits of the next one
        shaped = plain_logits / temperature
        steps = [process(ids[:, : start + t], shaped[:, t]) for t in range(n_tokens)]
        marked.append([torch.stack(steps, dim=1)])
    return marked


def at_equal_price(
    lm: models.LM,
    wm: Watermark,
    rival: Scheme,
    pilot: Pairs,
    plain: Texts,
    price: str,
) -> Watermark:
    """Solve σ of ``wm`` for the rival's mean price (a column of :func:`prices_along`) along the
    pilot's plain texts: price ∝ σ² to first order, and a few steps of that.
    """
    wanted = prices_along(lm, rival, pilot, plain)[price].mean()
    for _ in range(ITERATIONS):
        scheme = GaussMark(wm, pilot.keys[0])
        # KL or change, at the σ so far
        price_now = prices_along(lm, scheme, pilot, plain)[price].mean()
        # clipped: a price near 0 is mostly noise
        factor = np.sqrt(np.clip(wanted / price_now, 0.1, 10))
        wm = replace(wm, sigma=float(wm.sigma * factor))
    return wm


def at_prices_of(
    lm: models.LM,
    wm: Watermark,
    bias: float,
    text: str,
    n: int,
    prompt_tokens: int,
    n_tokens: int,
    *,
    seed: int = 0,
    **sampling,
) -> tuple[Watermark, Watermark]:
    """Return ``wm`` with the σ of KGW's KL, and with the σ of KGW's change of the cross-entropy
    over keys (:func:`prices_along`), both on n prompts of the pilot and keys of their own.
    """
    pilot, plain = _pilot(lm, text, n, prompt_tokens, n_tokens, seed, **sampling)
    rival = KGW(bias, pilot.keys[0])
    at_kl = at_equal_price(lm, wm, rival, pilot, plain, "kl")
    # starts from the solution for KL, which is near
    at_change = at_equal_price(lm, at_kl, rival, pilot, plain, "change")
    return at_kl, at_change


def _pilot(
    lm: models.LM,
    text: str,
    n: int,
    prompt_tokens: int,
    n_tokens: int,
    seed: int,
    **sampling,
) -> tuple[Pairs, Texts]:
    """n prompts of the pilot with keys of their own, and the model's plain texts after them."""
    prompts = texts.prompts(lm, text, n, prompt_tokens, split="pilot")
    first_seed = 1_000_000 * seed + 900_000  # beyond the keys of the pairs of this seed
    keys = [Key.from_seed(first_seed + i) for i in range(n)]
    plain = generate.sample(lm.model, prompts, n_tokens, seed=seed, **sampling)
    return Pairs(prompts, keys), plain


def cancelling_temperatures(
    lm: models.LM,
    tried: Mapping[str, Scheme],
    text: str,
    n: int,
    prompt_tokens: int,
    n_tokens: int,
    *,
    seed: int = 0,
) -> dict[str, float]:
    """Choose for each scheme the temperature that cancels its cost over keys, on n plain texts of
    the pilot. The key is not needed to use it.

    A temperature τ changes the mean surprisal of the next token by V·(τ − 1) to first order, where
    V is the variance of the surprisal. So τ = 1 − change / V, with the change of
    :func:`prices_along`.
    """
    pilot, plain = _pilot(lm, text, n, prompt_tokens, n_tokens, seed)
    variance = divergence.surprisal(lm.model, pilot.prompts, plain).variance.mean()
    return {
        name: float(1 - prices_along(lm, scheme, pilot, plain)["change"].mean() / variance)
        for name, scheme in tried.items()
    }


@torch.no_grad()
def distances_over_keys(
    lm: models.LM,
    scheme: Scheme,
    pairs: Pairs,
    plain: Texts,
    temperatures: Sequence[float],
    n_keys: int = 4,
) -> pd.DataFrame:
    """Measure how far the next token of a scheme, averaged over keys, is from that of the base
    model at temperature 1, along plain texts, nats per token.

    With q̄ the mean over keys, KL(q̄ ‖ p) = ½ Σ_v (q̄(v) − p(v))²/p(v) to second order. For two
    keys, (q_k − p)(q_l − p) has the mean (q̄ − p)². So the mean over pairs of keys is unbiased. For
    noise, q_k is the mean over ξ and −ξ. Text i takes the keys of ``n_keys`` pairs from number i
    on, two or more.

    Returns:
        A row per text, and a column per temperature.
    """
    rows = []
    for i, (prompt, text) in enumerate(zip(pairs.prompts, plain, strict=True)):
        keys = [pairs.keys[(i + j) % pairs.n] for j in range(n_keys)]
        inputs, _ = divergence.laid_out(lm.model, [(prompt, text)])
        plain_logits = divergence.logits(lm.model, inputs, len(text))
        p = wide(plain_logits).softmax(-1)  # (1, places, vocabulary)
        total = torch.zeros(len(temperatures), *p.shape[1:])  # Σ_k (q_k − p)/√p
        squares = torch.zeros_like(total)
        for key in keys:
            marked = _marked_logits(lm, scheme, key, inputs, plain_logits, temperatures)
            for i_temperature, of_temperature in enumerate(marked):
                q = torch.cat([wide(logits).softmax(-1) for logits in of_temperature]).mean(0)
                excess = ((q - p[0]) / p[0].clamp_min(1e-30).sqrt()).cpu()
                total[i_temperature] += excess
                squares[i_temperature] += excess**2
        products = (total**2 - squares).double().sum((1, 2)) / (n_keys * (n_keys - 1))
        rows.append((products / (2 * len(text))).tolist())
    return pd.DataFrame(rows, columns=[*temperatures])


def distances(
    lm: models.LM,
    tried: Mapping[str, Scheme],
    cooler: Mapping[str, float],
    pairs: Pairs,
    plain: Texts,
    n_keys: int = 4,
) -> pd.DataFrame:
    """Return the :func:`distances_over_keys` of each scheme at temperature 1 and at the temperature
    that cancels its cost: ``scheme, text, temperature, before, after``.
    """
    tables = []
    for name, temperature in cooler.items():
        n = min(n_keys, pairs.n)
        both = [1.0, temperature]
        table = distances_over_keys(lm, tried[name], pairs, plain[: pairs.n], both, n)
        table.columns = ["before", "after"]
        tables.append(table.assign(scheme=name, text=table.index, temperature=temperature))
    return pd.concat(tables, ignore_index=True)


def corrected(
    lm: models.LM,
    tried: Mapping[str, Scheme],
    cooler: Mapping[str, float],
    pairs: Pairs,
    written: Mapping[str, Texts],
    plain: Sequence[Texts],
    *,
    seed: int = 0,
    batch_size: int = 64,
) -> pd.DataFrame:
    """Write each scheme's texts again at the temperature that cancels its cost, and plain texts at
    the same temperature. Compare all of them with plain texts at temperature 1, of which the first
    draw is the control.

    Returns:
        ``measure, model, key`` (the pair's number), ``change``. The measures are ``STATISTIC`` (ψ
        or z), ``OVER_KEYS``, ``classifier`` (held-out texts told from plain texts, minus ½),
        ``distinct_2`` and ``length``.
    """
    n_tokens = len(plain[0][0])
    references = [draw[: pairs.n] for draw in plain[1:]]
    contenders = {CONTROL: plain[0][: pairs.n]}
    marks = {}  # contender → the scheme that wrote it
    for name, temperature in cooler.items():
        options = {"temperature": temperature, "batch_size": batch_size}
        scheme = tried[name]
        marks |= {name: scheme, cooled(name): scheme}
        contenders[name] = written[name][: pairs.n]
        contenders[cooled(name)] = scheme.generate(
            lm.model,
            pairs.prompts,
            n_tokens,
            keys=pairs.keys,
            seed=seed,
            **options,
        )
        contenders[cooled(f"plain, as {name}")] = generate.sample(
            lm.model,
            pairs.prompts,
            n_tokens,
            seed=seed + 1,
            **options,
        )
    change = changes(lm, pairs, contenders, [contenders[CONTROL], *references])
    numbers = range(pairs.n)
    tables = [compare.changes(OVER_KEYS, name, numbers, nats) for name, nats in change.items()]
    for name, scheme in marks.items():
        scores = scheme.score(lm.model, pairs.prompts, contenders[name], pairs.keys)
        tables.append(compare.changes(STATISTIC, name, numbers, scores["statistic"]))
    # one key per text, so that all measures are over keys
    tables.append(quality.told_apart(lm, pairs.prompts, references, contenders, 1))
    tables.append(quality.varied(lm, references, contenders, pairs.n))
    table = pd.concat(tables, ignore_index=True)
    is_held_out = table["measure"] == "classifier"
    held_out = table.groupby(["measure", "model"]).cumcount()
    return table.assign(key=table["key"].mask(is_held_out, held_out))


def cooled(name: str) -> str:
    """Name a contender at its lower temperature."""
    return f"{name}, cooler"


def kept_statistic(corrected: pd.DataFrame, scheme: str) -> stats.Estimate:
    """Divide the mean statistic of a scheme's corrected texts by that of its texts at temperature
    1, over pairs.
    """
    of_texts = corrected[corrected["measure"] == STATISTIC]
    key = numbering(of_texts, "key")
    statistic = of_texts.pivot(index=key, columns="model", values="change")
    return ratio_over_pairs(statistic[cooled(scheme)], statistic[scheme])


def change_left(corrected: pd.DataFrame, scheme: str) -> stats.Estimate:
    """Return the Δ cross-entropy over keys of a scheme's corrected texts."""
    is_cost = corrected["measure"] == OVER_KEYS
    is_cooled = corrected["model"] == cooled(scheme)
    rows = corrected[is_cost & is_cooled]
    return over_pairs(rows.set_index(numbering(rows, "key"))["change"])


def distance_left(distances: pd.DataFrame, scheme: str) -> stats.Estimate:
    """Divide a scheme's mean :func:`distances` after the correction by that before."""
    rows = distances[distances["scheme"] == scheme]
    by_text = rows.set_index(numbering(rows, "text"))
    return ratio_over_pairs(by_text["after"], by_text["before"])


def left_of_gaussmark(distances: pd.DataFrame) -> stats.Estimate:
    """Return :func:`distance_left` of GaussMark."""
    return distance_left(distances, "GaussMark")


def costs_and_distances(corrected: pd.DataFrame, distances: pd.DataFrame) -> pd.DataFrame:
    """Return each scheme's cost over keys (``panel`` "surprisal") and distance over keys ("next
    token"), before and after the correction: ``panel, model, value, low, high, n``.
    """
    costs = means(corrected[corrected["measure"] == OVER_KEYS], ["model"], "change")
    far = distances.melt(["scheme"], ["before", "after"], "when", "nats")
    name = far["scheme"].where(far["when"] == "before", far["scheme"].map(cooled))
    far = means(far.assign(model=name), ["model"], "nats")
    return pd.concat([costs.assign(panel="surprisal"), far.assign(panel="next token")])


def draw_correction(corrected: pd.DataFrame, distances: pd.DataFrame, caption: str) -> Figure:
    """Draw :func:`costs_and_distances` of the notebook's records and of this run."""

    def of_record(run: Run, table: pd.DataFrame) -> pd.DataFrame:
        return costs_and_distances(table, run.table("distances"))

    here = costs_and_distances(corrected, distances)
    table = answers.beside(here, CORRECTION, "corrected", of_record)
    table = table.assign(panel=table["run"] + ", " + table["panel"])
    figure = panels(
        table,
        "model",
        panel="panel",
        sharey=False,
        ylabel="nats per token",
        at={"plain text": 0},
        title="A lower temperature: which distance from plain text does it remove?",
        caption=f"this run: {caption}; 95% intervals",
    )
    for axes in figure.axes:
        axes.locator_params(axis="x", nbins=5)
    return record.save_figure(figure, "correction")


def correction_in_words(corrected: pd.DataFrame, distances: pd.DataFrame) -> str:
    """Word what the correction does to each scheme, and which measures still see its texts. A
    measure that sees the control, plain texts drawn again, says nothing.
    """
    differs = compare.summary(corrected).set_index(["model", "measure"])["differs"]
    sees_control = differs[CONTROL]
    sentences = []
    for name, rows in distances.groupby("scheme", sort=False):
        cost = change_left(corrected, name)
        kept = kept_statistic(corrected, name)
        left = distance_left(distances, name)
        of_texts = differs[cooled(name)].drop([STATISTIC, OVER_KEYS])
        seen = [
            f"{measure} (it also sees a difference in the control, so it says nothing)"
            if sees_control[measure]
            else measure
            for measure, is_seen in of_texts.items()
            if is_seen
        ]
        sentences.append(
            f"**{name}** at temperature {rows['temperature'].iloc[0]:.3f}: the cost over keys is"
            f" {cost}; the statistic is {kept.value:.2f} ({kept.low:.2f} to {kept.high:.2f}) times"
            f" that at temperature 1; **{left.value:.0%}** ({left.low:.0%} to {left.high:.0%}) of"
            f" the next token's distance over keys is left; measures that see a difference from"
            f" plain text: {', '.join(seen) or 'none'}."
        )
    return " ".join(sentences)


def plain_texts(lm: models.LM, pairs: Pairs, n_tokens: int, n_draws: int, **options) -> list[Texts]:
    """Sample ``n_draws`` plain texts for each prompt. Options are those of ``generate.sample``."""
    # one batch, then one list per draw
    prompts = pairs.prompts * n_draws
    draws = generate.sample(lm.model, prompts, n_tokens, **options)
    return [*in_lists(draws, pairs.n)]


def by_length(
    lm: models.LM,
    tried: Mapping[str, Scheme],
    pairs: Pairs,
    written: Mapping[str, Texts],
    lengths: Sequence[int],
) -> pd.DataFrame:
    """Test the first n tokens of each scheme's texts, each text under its own key: ``scheme, text,
    n_tokens, p_value, log10_p``.
    """
    tables = []
    for name, scheme in tried.items():
        if isinstance(scheme, GaussMark):
            [table] = robustness.under_own_keys(
                lm,
                [scheme],
                pairs.keys,
                pairs.prompts,
                written[name],
                owner=range(pairs.n),
                lengths=lengths,
            )
        else:
            # text after text, so that what belongs to a key is made once
            firsts = [ids[:n] for ids in written[name] for n in lengths]
            prompts = [prompt for prompt in pairs.prompts for _ in lengths]
            keys = [key for key in pairs.keys for _ in lengths]
            table = scheme.score(lm.model, prompts, firsts, keys)
            # back from (text, length) to text
            table = table.assign(text=table["text"] // len(lengths))
        tables.append(table.assign(scheme=name))
    columns = ["scheme", "text", "n_tokens", "p_value", "log10_p"]
    return pd.concat(tables, ignore_index=True)[columns]


def with_and_without_prompt(
    lm: models.LM,
    tried: Mapping[str, Scheme],
    pairs: Pairs,
    written: Mapping[str, Texts],
    lengths: Sequence[int],
) -> pd.DataFrame:
    """Return :func:`by_length`, with GaussMark's texts a second time as ``NO_PROMPT``, for a
    detector that does not know their prompts. The tests of the other schemes never use a prompt.
    """
    prompts_unknown = Pairs([[] for _ in pairs.keys], pairs.keys)
    gaussmark = {NO_PROMPT: tried["GaussMark"]}
    its_texts = {NO_PROMPT: written["GaussMark"]}
    with_prompts = by_length(lm, tried, pairs, written, lengths)
    without = by_length(lm, gaussmark, prompts_unknown, its_texts, lengths)
    return pd.concat([with_prompts, without], ignore_index=True)


def first_below(log10_p: ArrayLike, lengths: ArrayLike, level: float) -> float:
    """Return the first length at which log₁₀ p, linear between lengths, reaches log₁₀ of the level.

    This is the first of the lengths if log₁₀ p is there already (an upper bound), and one token
    beyond the last if it never gets there.

    >>> first_below([-1.0, -3.0], [10, 20], 1e-2), first_below([-1.0, -3.0], [10, 20], 1e-4)
    (15.0, 21.0)
    """
    y = np.asarray(log10_p, float)  # at each of the lengths x
    x = np.asarray(lengths, float)
    wanted = np.log10(level)
    below = np.flatnonzero(y <= wanted)
    if not below.size:
        return float(x[-1] + 1)
    i = below[0]
    if i == 0:
        return float(x[0])
    segment = slice(i - 1, i + 1)
    return float(np.interp(-wanted, -y[segment], x[segment]))  # interp wants rising values


def tokens_needed(table: pd.DataFrame, scheme: str, level: float) -> float:
    """Return the number of tokens at which the median of log p over a scheme's texts reaches log of
    the level (:func:`first_below`). At least half of the texts are detected there.
    """
    log10_p = _texts_by_length(table, scheme)  # (texts, lengths)
    return first_below(log10_p.median(), log10_p.columns, level)


def times_as_many(table: pd.DataFrame, scheme: str, base: str, level: float) -> stats.Estimate:
    """Divide the tokens that a scheme needs by the tokens that another scheme needs, on the same
    pairs. The value is NaN if both numbers are only lower limits.
    """
    of_scheme = _texts_by_length(table, scheme)
    of_base = _texts_by_length(table, base)
    lengths = of_scheme.columns

    def ratio(rows: np.ndarray) -> float:
        medians = np.median(rows, axis=0)  # over the resampled pairs
        ours, theirs = np.hsplit(medians, 2)
        return first_below(ours, lengths, level) / first_below(theirs, lengths, level)

    if all(rows.median().min() > np.log10(level) for rows in (of_scheme, of_base)):
        return stats.Estimate(np.nan, np.nan, np.nan, len(of_scheme))
    # side by side, so that both texts of a pair are resampled together
    sides = pd.DataFrame(np.hstack([of_scheme, of_base]), index=of_scheme.index)
    return over_pairs(sides, ratio)


def recorded_ratio(run: Run) -> stats.Estimate | None:
    """Return a record's tokens of GaussMark divided by KGW-1's, at KGW-1's KL if σ was solved for
    it.
    """
    equal = " at KGW-1's KL" if run.params.get("n_pilot") else ""
    claim = f"tokens needed at level 0.01{equal}, GaussMark divided by KGW-1"
    return answers.recorded(run, claim)


def _texts_by_length(table: pd.DataFrame, scheme: str) -> pd.DataFrame:
    """log₁₀ p of a scheme: a row per text, a column per length."""
    rows = table[table["scheme"] == scheme]
    return rows.pivot(index=numbering(rows, "text"), columns="n_tokens", values="log10_p")


def listing(words: Mapping[str, str]) -> str:
    """Join names and words.

    >>> listing({"KGW-1": "39", "KGW-2": "13"})
    '**KGW-1** 39; **KGW-2** 13'
    """
    return "; ".join(f"**{name}** {word}" for name, word in words.items())


def in_words(needed: float, lengths: Sequence[int]) -> str:
    """Word a number of :func:`first_below`, with its bounds.

    >>> in_words(33.6, [8, 96]), in_words(8.0, [8, 96]), in_words(97, [8, 96])
    ('34', 'at most 8', 'more than 96')
    """
    if needed > lengths[-1]:
        return f"more than {lengths[-1]}"
    if needed <= lengths[0]:
        return f"at most {lengths[0]}"
    return f"{needed:.0f}"


def needed_by_scheme(lengths: pd.DataFrame, level: float) -> pd.DataFrame:
    """Return :func:`tokens_needed` of each scheme: ``scheme, value, low, high, n, in_words,
    is_limit``. "At most 8" has the interval from 0 to 8, and "more than 96" has no upper end.
    """
    tested = sorted(lengths["n_tokens"].unique())

    def needed(log10_p: np.ndarray) -> float:
        return first_below(np.median(log10_p, axis=0), tested, level)

    rows = []
    for name in lengths["scheme"].unique():
        log10_p = _texts_by_length(lengths, name)  # (texts, lengths)
        estimate = over_pairs(log10_p, needed, n_resamples=500)
        ends = np.clip([estimate.low, estimate.high], tested[0], tested[-1])
        row = estimate.row() | {"low": ends[0], "high": ends[1]}
        if estimate.value > tested[-1]:
            row |= {"low": estimate.value, "high": np.inf}
        elif estimate.value <= tested[0]:
            row |= {"low": 0.0, "high": estimate.value}
        is_limit = not tested[0] < estimate.value <= tested[-1]
        in_words_of_row = in_words(estimate.value, tested)
        rows.append({"scheme": name, **row, "in_words": in_words_of_row, "is_limit": is_limit})
    return pd.DataFrame(rows)


def draw_needed(lengths: pd.DataFrame, notebook: str, level: float, caption: str) -> Figure:
    """Draw the tokens that each scheme needs at a level, one panel per run: the records of the
    notebook, and this run with its table ``lengths``.
    """

    def of_record(run: Run, table: pd.DataFrame) -> pd.DataFrame:
        return needed_by_scheme(table, level)

    needed = answers.beside(needed_by_scheme(lengths, level), notebook, "lengths", of_record)
    ends = ["low", "high"]
    # a limit has no bar: its words say that it is a limit
    drawn = needed.assign(**{end: needed[end].where(~needed["is_limit"]) for end in ends})
    words_of_level = {1e-2: "0.01", 1e-6: "10⁻⁶"}[level]
    figure = panels(
        drawn,
        "scheme",
        by="run",
        panel="run",
        title=f"How many tokens until half of the texts are detected at level {words_of_level}?",
        caption=f"this run: {caption}",
        ylabel="tokens (logarithmic axis)",
        yscale="log",
        ylim=(4, 5 * drawn["value"].max()),
    )
    for axes in figure.axes:
        for container in axes.containers:  # the points of a run
            words = drawn.loc[drawn["run"] == container.get_label(), "in_words"]
            bars = drawn.loc[drawn["run"] == container.get_label(), "high"]
            points = container.lines[0].get_data()
            for x, y, high, word in zip(*points, bars, words, strict=True):
                right_end = np.nanmax([x, high])
                offset = {"xytext": (8, 0), "textcoords": "offset points", "va": "center"}
                axes.annotate(word, (right_end, y), fontsize="small", **offset)
        style.few_log_ticks(axes.xaxis)
        if axes.get_legend():
            axes.get_legend().remove()  # the panels' titles say it
    return figure


def tokens_in_words(lengths: pd.DataFrame) -> str:
    """Word the tokens that each scheme needs at the first level (:func:`in_tokens`)."""
    tested = sorted(lengths["n_tokens"].unique())
    schemes = lengths["scheme"].unique()
    needed = {name: [tokens_needed(lengths, name, LEVELS[0])] for name in schemes}
    rivals = [name for name in schemes if not name.startswith("GaussMark")]
    times = {name: times_as_many(lengths, "GaussMark", name, LEVELS[0]) for name in rivals}
    return in_tokens(needed, times, tested)


def levels_apart_in_words(lengths: pd.DataFrame) -> str:
    """Word how many times as many tokens each scheme needs at the second level as at the first. A
    scheme whose numbers are limits has a limit, or no number.
    """
    tested = sorted(lengths["n_tokens"].unique())
    words = {}
    unknown = []
    for name in lengths["scheme"].unique():
        first, second = (tokens_needed(lengths, name, level) for level in LEVELS)
        is_low = second > tested[-1]
        is_high = first <= tested[0]
        if first > tested[-1] or (is_low and second <= first):
            unknown.append(name)
            continue
        prefix = "more than " if is_low else ""
        prefix = "at least " if is_high and not is_low else prefix
        words[name] = f"{prefix}{min(second, tested[-1]) / first:.1f}"
    ratio = "Tokens needed at 10⁻⁶, divided by the tokens needed at 0.01"
    sentences = [f"{ratio}: {listing(words)}."] if words else []
    if unknown:
        sentences.append(
            f"The texts of {tested[-1]} tokens are too short for a ratio of: {'; '.join(unknown)}."
        )
    return " ".join(sentences)


def in_tokens(
    needed: Mapping[str, Sequence[float]],
    times: Mapping[str, stats.Estimate],
    lengths: Sequence[int],
) -> str:
    """Word the tokens that each scheme needs at the first level, and which schemes need
    significantly fewer than GaussMark: the interval of the ratio excludes 1.

    A ratio is a lower limit if GaussMark's number is a lower limit or the other number is an upper
    limit. Two lower limits have no ratio.
    """
    at_level = {name: numbers[0] for name, numbers in needed.items()}
    is_above = {name: number > lengths[-1] for name, number in at_level.items()}
    fewer = []
    incomparable = []
    for name, ratio in times.items():
        if is_above["GaussMark"] and is_above[name]:
            incomparable.append(name)
        elif ratio.low > 1:
            is_limit = is_above["GaussMark"] or at_level[name] <= lengths[0]
            prefix = "at least " if is_limit else ""
            fewer.append(f"{name} ({prefix}{ratio.value:.1f} times as many)")
    words = {name: in_words(number, lengths) for name, number in at_level.items()}
    sentences = [
        f"Tokens needed at level {LEVELS[0]:g}: {listing(words)}.",
        f"GaussMark needs significantly more tokens than: {', '.join(fewer) or 'no scheme'}.",
    ]
    if incomparable:
        sentences.append(
            f"GaussMark's number and that of {' and '.join(incomparable)} are both lower limits,"
            " so their ratio says nothing."
        )
    if min(ratio.n for ratio in times.values()) < FEW_PAIRS:
        sentences.append(
            "With so few pairs, the ratios are imprecise; see the intervals in the figure."
        )
    return " ".join(sentences)


def price_in_words(cost: stats.Estimate, needed: float, longest: int) -> str:
    """Word the price of one detection: the mean cost per token, in nats, times the tokens needed.

    The price is a lower limit if more than the ``longest`` number of tokens is needed. There is no
    price if the cost is not significantly above 0.

    >>> cost = stats.Estimate(0.2, 0.15, 0.25, 30)
    >>> price_in_words(cost, 40.0, 96), price_in_words(cost, 97.0, 96)
    ('8.0 nats (6.0 to 10.0)', 'more than 19.2 nats')
    >>> price_in_words(stats.Estimate(0.1, -0.1, 0.3, 30), 40.0, 96)
    'cost not significantly above 0'
    """
    if not cost.low > 0:
        return "cost not significantly above 0"
    if needed > longest:
        return f"more than {cost.value * longest:.1f} nats"
    ends = f"({cost.low * needed:.1f} to {cost.high * needed:.1f})"
    return f"{cost.value * needed:.1f} nats {ends}"


def prices_in_words(costs: pd.DataFrame, lengths: pd.DataFrame) -> str:
    """Word the price of one detection at the first level, of each scheme that changes the text over
    keys. The interval is that of the cost.
    """
    over_keys = costs[costs["cost"] == OVER_KEYS].set_index("scheme")
    longest = lengths["n_tokens"].max()
    words = {}
    for name in ("GaussMark", "KGW-1", "KGW-2"):
        price = intervals.of_row(over_keys.loc[name])
        needed = tokens_needed(lengths, name, LEVELS[0])
        words[name] = price_in_words(price, needed, longest)
    return f"Price of one detection at level {LEVELS[0]:g}: {listing(words)}."


def changes(
    lm: models.LM,
    pairs: Pairs,
    written: Mapping[str, Texts],
    plain: Sequence[Texts],
) -> dict[str, np.ndarray]:
    """Return Δ cross-entropy of each text, nats per token, by scheme: minus the mean of plain texts
    for the same prompt. The first draw of plain texts is the control; the others are subtracted.
    """
    contenders = {CONTROL: plain[0], **written}
    references = plain[1:]
    return quality.surprisal_changes(lm, pairs.prompts, contenders, references)


def divergences(
    lm: models.LM,
    tried: Mapping[str, Scheme],
    pairs: Pairs,
    written: Mapping[str, Texts],
) -> dict[str, np.ndarray]:
    """Return KL(q ‖ p) of each text under the key that wrote it, nats per token, by scheme: of the
    first texts, as many as there are pairs. A plain text costs nothing.
    """
    nats = {CONTROL: np.zeros(pairs.n)}
    for name, scheme in tried.items():
        texts = written[name][: pairs.n]
        n_tokens = [len(ids) for ids in texts]
        nats[name] = scheme.divergences(lm.model, pairs.prompts, texts, pairs.keys) / n_tokens
    return nats


def both_costs(kl: Mapping[str, np.ndarray], change: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Return the means of :func:`divergences` and :func:`changes`: ``cost, scheme, value, low,
    high, n``.
    """
    # the divergences are of the first texts alone
    sides = {
        f"{UNDER_ONE_KEY} ({len(kl[CONTROL])} texts)": kl,
        OVER_KEYS: change,
    }
    costs = pd.concat(  # long: a row per text and scheme
        pd.DataFrame(nats).melt(var_name="scheme", value_name="nats").assign(cost=cost)
        for cost, nats in sides.items()
    )
    return means(costs, ["cost", "scheme"], "nats")


def draw_costs(costs: pd.DataFrame, notebook: str, caption: str) -> Figure:
    """Draw both costs of each scheme, of the notebook's records and of this run."""
    table = answers.beside(costs, notebook, "costs")
    # the number of texts differs between the runs
    without_n = table["cost"].str.partition(" (")[0]
    figure = panels(
        table.assign(cost=without_n),
        "scheme",
        by="run",
        panel="cost",
        ylabel="nats per token",
        at={"no cost": 0},
        title="What does each scheme cost, under one key and over keys?",
        caption=f"this run: {caption}",
    )
    return record.save_figure(figure, "costs")


def costs_in_words(costs: pd.DataFrame) -> str:
    """Word which scheme costs most under one key, and whose cost over keys is above 0."""
    kl = costs[costs["cost"] != OVER_KEYS].set_index("scheme")["value"]
    over_keys = costs[costs["cost"] == OVER_KEYS]
    above = over_keys[over_keys["low"] > 0]
    words = {
        row.scheme: f"{row.value:.2f} ({row.low:.2f} to {row.high:.2f})"
        for row in above.itertuples()
    }
    most = kl.idxmax()
    first = f"Under one key, {most} costs most: {kl[most]:.2f} nats per token"
    first = f"{first} (GaussMark {kl['GaussMark']:.2f})."
    if not words:
        return f"{first} Over keys, no interval of a cost lies above 0."
    return f"{first} Over keys, the interval lies above 0 for {listing(words)}."


def by_version(edited: pd.DataFrame) -> pd.DataFrame:
    """Return the share detected at level 0.01 after each edit, and in ``version`` the edit in
    words.
    """
    detected = shares(edited, ["scheme", "edit", "fraction"], 0.01)
    # the unedited texts have no strength
    strength = (
        detected["fraction"]
        .map(", {:.0%} of the tokens".format)
        .where(detected["fraction"] > 0, "")
    )
    return detected.assign(version=detected["edit"] + strength)


def losses_in_words(after: pd.DataFrame, names: Sequence[str], version: str) -> str:
    """Word the shares detected without an edit and after one edit (:func:`by_version`), and say
    whose share falls most.
    """
    shares = after.set_index(["scheme", "version"])
    words = {}
    losses = {}
    for name in names:
        before = shares.loc[(name, UNEDITED)]
        left = shares.loc[(name, version)]
        words[name] = f"{_share_in_words(before)}, {_share_in_words(left)}"
        losses[name] = before["value"] - left["value"]
    largest = max(losses.values())
    if largest <= 0:
        most = "No share falls."
    else:
        losers = [name for name, loss in losses.items() if np.isclose(loss, largest)]
        points = f"{100 * largest:.0f} points"
        most = f"The share falls most for {' and '.join(losers)}, by {points}."
    n = int(after["n"].min())
    return f"Share of {n} texts detected, unedited and after *{version}*: {listing(words)}. {most}"


def _share_in_words(row: pd.Series) -> str:
    """A share with its interval, in percent."""
    return f"{row['value']:.0%} ({row['low']:.0%} to {row['high']:.0%})"


def edits_in_words(edits: pd.DataFrame) -> str:
    """Word what the first edit leaves of each scheme (:func:`losses_in_words`)."""
    after = by_version(edits)
    versions = [version for version in after["version"].unique() if version != UNEDITED]
    return losses_in_words(after, [*after["scheme"].unique()], versions[0])


def ways_of(ways: pd.DataFrame) -> pd.DataFrame:
    """Return the shares detected at temperatures 0 and 1 and by beam search, if at least ten texts
    were searched for: ``way, scheme, value, low, high, n``.
    """
    earlier = {"sampling": "temperature 1", "greedy search": "temperature 0"}  # names in records
    way = ways["way"].replace(earlier)
    way = way.mask(way.str.contains("beam"), BEAM_SEARCH)
    table = ways.assign(way=way)
    table = table[table["scheme"].isin(COLUMNS)]
    chosen = ["temperature 1", "temperature 0", BEAM_SEARCH]
    is_too_small = (table["way"] == BEAM_SEARCH) & (table["n"] < FEWEST_SEARCHED)
    table = table[table["way"].isin(chosen) & ~is_too_small]
    return table[["way", "scheme", "value", "low", "high", "n"]]


def draw_ways(ways: pd.DataFrame, notebook: str, caption: str) -> Figure:
    """Draw the share detected at level 0.01 by scheme and way of decoding (:func:`ways_of`), one
    panel per run.
    """
    table = answers.beside(ways_of(ways), notebook, "ways", lambda run, table: ways_of(table))
    figure = panels(
        table,
        "scheme",
        by="way",
        panel="run",
        title="How many texts are detected if nothing is sampled?",
        caption=f"this run: {caption}",
        ylim=(-0.02, 1.02),
        ylabel="share of texts detected at level 0.01",
    )
    # one legend, of all ways: a run need not have each
    handles = {}
    for axes in figure.axes:
        handles |= dict(zip(*reversed(axes.get_legend_handles_labels()), strict=True))
        if axes.get_legend():
            axes.get_legend().remove()
    beside = {"loc": "upper left", "bbox_to_anchor": (1.0, 1.0)}
    figure.axes[-1].legend(handles.values(), handles.keys(), **beside)
    return record.save_figure(figure, "ways")


def greedy_in_words(ways: pd.DataFrame) -> str:
    """Word the share detected with sampling and at temperature 0, of each scheme, and say whether
    GaussMark's share at temperature 0 is as large, smaller, or not above the level.
    """
    rows = ways_of(ways).set_index(["scheme", "way"])
    names = [name for name in COLUMNS if (name, "temperature 0") in rows.index]
    if not names or ("GaussMark", "temperature 1") not in rows.index:
        return "no texts at temperatures 0 and 1"
    words = {}
    for name in names:
        sampled, greedy = (rows.loc[(name, f"temperature {t}")] for t in (1, 0))
        words[name] = f"{_share_in_words(sampled)}, {_share_in_words(greedy)}"
    sampled, greedy = (rows.loc[("GaussMark", f"temperature {t}")] for t in (1, 0))
    if greedy["low"] <= LEVELS[0]:
        outcome = "**not significantly above the level**"
    elif greedy["high"] < sampled["low"]:
        outcome = "**fewer than at temperature 1**"
    else:
        outcome = "**not clearly fewer than at temperature 1**: the two intervals overlap"
    n_greedy = int(greedy["n"])
    return (
        f"Texts detected at level 0.01 at temperature 1, and at temperature 0 (n = {n_greedy}):"
        f" {listing(words)}."
        f" GaussMark at temperature 0: {outcome}."
    )


def beams_in_words(ways: pd.DataFrame) -> str:
    """Word the share detected after beam search, next to that of greedy search."""
    is_beam = ways["way"].str.contains("beam")
    is_greedy = ways["way"].isin(["temperature 0", "greedy search"])
    words = {}
    for row in ways[is_beam].itertuples():
        greedy = ways[is_greedy & (ways["scheme"] == row.scheme)]
        other = "".join(f", greedy search {share:.0%}" for share in greedy["value"])
        found = f"{row.value:.0%} ({row.low:.0%} to {row.high:.0%}) of {row.n} texts"
        words[row.scheme] = f"{found}{other}"
    if not words:
        return "no beam search."
    return f"Texts detected at level 0.01 after beam search: {listing(words)}."


def requests(lm: models.LM, n: int) -> tuple[list[str], list[list[int]]]:
    """Return kinds and prompts of n requests (``TASKS``), the kinds in turn.

    Raises:
        InvalidTextError: if there are fewer than n requests.
    """
    by_kind = [  # one list per kind, all equally long
        [(kind, form.format(subject)) for form in forms for subject in subjects]
        for kind, (forms, subjects) in TASKS.items()
    ]
    in_turn = [request for turn in zip(*by_kind, strict=True) for request in turn]
    if n > len(in_turn):
        raise InvalidTextError(f"expected at most {len(in_turn)} requests, got {n}; ask for fewer")
    kinds, wordings = zip(*in_turn[:n], strict=True)
    return list(kinds), [lm.prompt(wording) for wording in wordings]


def at_temperatures(
    lm: models.LM,
    tried: Mapping[str, Scheme],
    pairs: Pairs,
    n_tokens: int,
    temperatures: Sequence[float],
    *,
    batch_size: int,
    seed: int = 0,
) -> pd.DataFrame:
    """Write each scheme's texts at each temperature, and test them under their own keys.

    Returns:
        ``temperature, scheme, text, statistic, p_value``; ``entropy``, the mean over the text of
        the entropy of the model's next token (as in notebook 03); and ``freedom``, the same for
        what its tokens were drawn from, at its temperature and before any watermark. Both in nats.
    """
    tables = []
    for temperature in temperatures:
        written = robustness.texts_by_scheme(
            lm,
            tried,
            pairs,
            n_tokens,
            temperature=temperature,
            batch_size=batch_size,
            seed=seed,
        )
        for name, scheme in tried.items():
            texts = written[name]
            [tested] = robustness.under_own_keys(
                lm,
                [scheme],
                pairs.keys,
                pairs.prompts,
                texts,
                owner=range(pairs.n),
            )
            entropy, freedom = entropies(lm, pairs.prompts, texts, (1.0, temperature))
            table = tested[["text", "statistic", "p_value"]]
            table = table.assign(
                entropy=entropy,
                freedom=freedom,
                temperature=temperature,
                scheme=name,
            )
            tables.append(table)
    return pd.concat(tables, ignore_index=True)


@torch.no_grad()
def entropies(
    lm: models.LM,
    prompts: Texts,
    texts: Texts,
    temperatures: Sequence[float],
    batch_size: int = 8,
) -> Float[np.ndarray, "temperatures texts"]:
    """Return the mean entropy of the model's next token over each text, at each temperature, in
    nats.
    """
    means = []
    for batch in in_lists(zip(prompts, texts, strict=True), batch_size):
        inputs, is_token = divergence.laid_out(lm.model, batch)
        # (batch, places, vocabulary)
        logits = wide(divergence.logits(lm.model, inputs, is_token.shape[1]))
        n_tokens = is_token.sum(-1)
        of_batch = torch.zeros(len(temperatures), len(batch))
        for row, temperature in zip(of_batch, temperatures, strict=True):
            if temperature == 0:  # greedy: there is no choice
                continue
            p = (logits / temperature).softmax(-1)
            entropy = torch.special.entr(p).sum(-1)
            row[:] = (entropy * is_token).sum(-1) / n_tokens
        means.append(of_batch)
    return torch.cat(means, dim=1).double().numpy()


def ratio_of_shares(table: pd.DataFrame, scheme: str, base: str, level: float) -> stats.Estimate:
    """Divide the share that a scheme detects by the share that ``base`` detects, of the same pairs.
    The value is NaN if ``base`` detects nothing.
    """
    hits = table.assign(hit=(table["p_value"] <= level).astype(float))
    text = numbering(table, "text")
    hits = hits.pivot(index=text, columns="scheme", values="hit")  # (pairs, schemes)
    if not hits[base].any():
        return stats.Estimate(np.nan, np.nan, np.nan, len(hits))
    with np.errstate(divide="ignore", invalid="ignore"):  # a draw without a detected text
        return ratio_over_pairs(hits[scheme], hits[base])


def rank_correlation(cool: pd.DataFrame, scheme: str) -> stats.Estimate:
    """Correlate the entropies of texts with their statistics (Spearman), over all temperatures. The
    texts of a pair are resampled together, and in a pooled record the texts of a request.
    """
    rows = cool[cool["scheme"] == scheme]
    *_, cluster = numbering(rows, "text")
    values = rows[["entropy", "statistic"]].to_numpy()  # a row per text and temperature

    def correlation(rows: np.ndarray) -> float:
        return spearmanr(*rows.T).statistic

    estimate = stats.interval(values, correlation, cluster=rows[cluster], n_resamples=1_000)
    return replace(estimate, n=rows["text"].nunique())


def draw_freedom(cool: pd.DataFrame, level: float, caption: str) -> Figure:
    """Draw the share detected by scheme against the mean freedom of a temperature's texts, one
    panel per run. Save it in the record as ``freedom``.
    """
    points = partial(by_freedom, level=level)
    table = answers.beside(points(cool), ENTROPY, "temperatures", lambda run, rows: points(rows))
    figure = panels(
        table,
        "freedom",
        by="scheme",
        panel="run",
        title="Detection rate when the model has little choice",
        caption=f"this run: {caption}; one point per temperature; 95% intervals",
        at={"level": level},
        ylim=(-0.02, 1.02),
        xlabel="freedom (mean entropy per token, nats)",
        ylabel=f"share of texts detected at level {level:g}",
    )
    return record.save_figure(figure, "freedom")


def by_freedom(cool: pd.DataFrame, level: float) -> pd.DataFrame:
    """Return the share detected by scheme and temperature, next to the mean ``freedom``."""
    freedom = cool.groupby(["scheme", "temperature"])["freedom"].mean().reset_index()
    return shares(cool, ["scheme", "temperature"], level).merge(freedom)


def crossings_in_words(temperatures: pd.DataFrame, level: float = LEVELS[0]) -> str:
    """Word the freedom below which GaussMark detects more than each rival that needs a choice."""
    words = {}
    for rival in ("SynthID", "Gumbel-max"):
        if rival in set(temperatures["scheme"]):
            words[rival] = str(crossing(temperatures, "GaussMark", rival, level))
    return (
        f"At level {level:g}, GaussMark detects more than a rival if the freedom is below this many"
        f" nats per token: {listing(words)}."
    )


def crossing(
    cool: pd.DataFrame,
    scheme: str,
    rival: str,
    level: float,
    n_resamples: int = 1_000,
) -> stats.Estimate:
    """Return the freedom (:func:`at_temperatures`) below which a scheme detects more than its
    rival.

    Each temperature gives a point: the mean freedom of the rival's texts and the difference of the
    shares detected. The difference is linear between the points. The result is 0 if the rival
    detects as much at the lowest freedom, and the highest freedom if the rival detects less at
    every freedom.
    """
    hits = cool.assign(hit=(cool["p_value"] <= level).astype(float))
    text = numbering(cool, "text")
    hit = hits.pivot(index=text, columns=["scheme", "temperature"], values="hit")
    # of the same shape as the hits
    freedom = hits.pivot(index=text, columns=["scheme", "temperature"], values="freedom")
    n = len(hit[scheme].columns)  # temperatures
    # side by side, so that a pair is resampled as a whole
    columns = np.hstack([freedom[rival], hit[scheme] - hit[rival]])
    columns = pd.DataFrame(columns, index=hit.index)

    def first_crossing(rows: np.ndarray) -> float:
        freedoms, differences = np.split(rows.mean(0), [n])
        order = np.argsort(freedoms)  # freedom need not rise with the temperature
        x = freedoms[order]
        y = differences[order]
        below = np.flatnonzero(y <= 0)
        if not below.size:
            return float(x[-1])
        i = below[0]
        if i == 0:
            return 0.0
        segment = slice(i - 1, i + 1)
        return float(np.interp(0, -y[segment], x[segment]))  # interp wants rising values

    return over_pairs(columns, first_crossing, n_resamples=n_resamples)


def one_key(
    lm: models.LM,
    tests: Mapping[str, Scheme],
    human: Mapping[str, Human],
    keys: Sequence[Key],
    level: float,
) -> pd.DataFrame:
    """Return the share of the human texts of each kind that one key calls watermarked: ``kind,
    scheme, key, share, n`` (texts).
    """
    rows = []  # a row per kind, test and key
    for (kind, of_kind), (name, scheme) in product(human.items(), tests.items()):
        # (texts, keys)
        p = robustness.p_values(lm, scheme, of_kind.prompts, of_kind.responses, keys)
        for key_number, share in enumerate((p <= level).mean(0)):
            row = {
                "kind": kind,
                "scheme": name,
                "n": len(p),
                "key": key_number,
                "share": share,
            }
            rows.append(row)
    return pd.DataFrame(rows)


def worst_by_chance(n_keys: int, n_texts: int, level: float) -> float:
    """Return the share of texts that the worst of ``n_keys`` keys calls watermarked, or fewer, with
    a probability of at least 95%, if the false alarms were independent.

    >>> worst_by_chance(1, 100, 0.05), worst_by_chance(100, 100, 0.05)
    (0.09, 0.13)
    """
    return float(binom.ppf(0.95 ** (1 / n_keys), n_texts, level) / n_texts)


def stock_generate(
    lm: models.LM,
    scheme: Scheme,
    prompt: list[int],
    key: Key,
    n_tokens: int,
    beams: int = 1,
) -> list[int]:
    """Write by transformers' own ``generate``, without sampling.

    It does not know GaussMark and gets a changed model, as from a released checkpoint. KGW is a
    setting of ``generate``.
    """
    write = partial(  # a deterministic search: one beam is greedy
        continued,
        lm.model,
        prompt,
        n_tokens,
        do_sample=False,
        num_beams=beams,
    )
    if isinstance(scheme, GaussMark):
        with watermarked(lm.model, scheme.wm, key):
            return write()
    return write(watermarking_config=replace(scheme, key=key).config)


def continued(model: PreTrainedModel, prompt: list[int], n_tokens: int, **setting) -> list[int]:
    """Write ``n_tokens`` tokens by transformers' ``generate``."""
    ids = torch.tensor([prompt], device=model.device)  # a batch of one
    text = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=n_tokens,
        eos_token_id=None,  # all tokens, whatever ends the text
        pad_token_id=0,
        **setting,
    )
    return text[0, len(prompt) :].tolist()


def worst_keys(one_key: pd.DataFrame) -> pd.DataFrame:
    """Return the share that the key with the most false alarms calls watermarked: ``scheme, kind,
    value``, the ``n_texts`` of a kind, and ``by_chance``, the :func:`worst_by_chance` of as
    many keys and texts.
    """
    worst = one_key.groupby(["scheme", "kind"], sort=False)["share"].max().rename("value")
    n_texts = one_key["n"].min()
    by_chance = worst_by_chance(one_key["key"].nunique(), n_texts, 0.05)
    return worst.reset_index().assign(n_texts=n_texts, by_chance=by_chance)


def draw_worst_keys(one_key: pd.DataFrame, notebook: str, caption: str) -> Figure:
    """Draw the false alarms of the worst key by test and kind of text, one panel per run."""

    def of_record(run: Run, table: pd.DataFrame) -> pd.DataFrame:
        return worst_keys(table)

    worst = answers.beside(worst_keys(one_key), notebook, "one_key", of_record)
    figure = panels(
        worst,
        "scheme",
        by="kind",
        panel="run",
        title="How many human texts does the worst key call watermarked?",
        caption=f"this run: {caption}; dashed: the level; solid line: the worst key stays below it "
        "with a probability of 95% if texts are independent",
        at={"level 0.05": 0.05},
        ylim=(-0.02, 1.02),
        ylabel="share of the texts of a kind",
    )
    for axes, run_name in zip(figure.axes, worst["run"].unique(), strict=True):
        row = worst[worst["run"] == run_name].iloc[0]
        axes.axvline(row["by_chance"], **style.THIN, linestyle="-")
        axes.set_title(f"{run_name}: {row['n_texts']} texts per kind")
    return record.save_figure(figure, "one_key")


def of_one_key(one_key: pd.DataFrame) -> str:
    """Word the worst key of each test at level 0.05, what chance alone would give, and Gumbel-max's
    two tests on source code, or else on the last kind.
    """
    kinds = [*one_key["kind"].unique()]
    odd = "source" if "source" in kinds else kinds[-1]
    share_by_kind = one_key.groupby(["scheme", "kind"], sort=False)["share"]
    worst = share_by_kind.max()  # over keys
    mean = share_by_kind.agg(stats.interval, share=True)  # with an interval over keys
    words = {
        name: ", ".join(f"{share:.0%} of {kind}" for (_, kind), share in of_scheme.items())
        for name, of_scheme in worst.groupby("scheme", sort=False)
    }
    repeats = mean[EVERY_TOKEN, odd]
    once = mean["Gumbel-max", odd]
    n_keys = one_key["key"].nunique()
    n_texts = one_key["n"].min()  # per kind
    by_chance = worst_by_chance(n_keys, n_texts, 0.05)
    return (
        f"Share of human texts that the worst of {n_keys} keys calls watermarked at level 0.05: "
        f"{listing(words)}. If the false alarms on {n_texts} texts of a kind were independent, "
        f"this share would be at most {by_chance:.0%} with a probability of at least 95%. On "
        f"average over keys, Gumbel-max calls {repeats.value:.0%} ({repeats.low:.0%} to "
        f"{repeats.high:.0%}) of *{odd}* watermarked if it counts every token, and "
        f"{once.value:.0%} ({once.low:.0%} to {once.high:.0%}) if it counts each context once."
    )


def attained(n: int, share: float, level: float, test: str = "exact") -> float:
    """Return the real level of KGW's test at a nominal level: P(p-value ≤ level) over n pairs, if
    the number of green pairs is binomial.

    >>> attained(2, 0.25, 0.07), attained(2, 0.25, 0.06)
    (0.0625, 0.0)
    """
    greens = np.arange(n + 1)  # every possible number of green pairs
    if test == "z":
        p_values = norm.sf(z_score(greens, n, share))
    else:
        p_values = exact_tail(greens, n, share)["p_value"]
    rejects = p_values <= level
    return float(binom.pmf(greens, n, share)[rejects].sum())


def draw_levels(levels: pd.DataFrame, notebook: str, caption: str) -> Figure:
    """Draw the false-alarm rate of each test over keys at level 0.05, of all runs."""
    table = answers.beside(levels, notebook, "levels")
    figure = panels(
        table[table["level"] == 0.05],
        "scheme",
        by="run",
        at={"level 0.05": 0.05},
        ylabel="false-alarm rate over fresh keys",
        title="Does the false-alarm rate over keys equal the level?",
        caption=f"this run: {caption}; exact 99% intervals",
    )
    return record.save_figure(figure, "levels")


def levels_in_words(levels: pd.DataFrame) -> str:
    """Word the false-alarm rates of the two added tests, and name the tests whose interval lies
    above a level.
    """
    added = levels[levels["scheme"].isin(["KGW-2 z-test", EVERY_TOKEN])]
    words = {
        name: " and ".join(
            f"{row.value:.1%} ({row.low:.1%} to {row.high:.1%}) at {row.level:g}"
            for row in rows.itertuples()
        )
        for name, rows in added.groupby("scheme", sort=False)
    }
    above = levels[levels["low"] > levels["level"]]
    names = " and ".join(above["scheme"].unique())
    verdict = f"Too many false alarms: {names}." if names else "No test has too many false alarms."
    return f"{verdict} {listing(words)}; n = {levels['n'].iloc[0]:,}."


def measures(
    lengths: pd.DataFrame,
    costs: pd.DataFrame,
    edits: pd.DataFrame,
    ways: pd.DataFrame,
    one_key: pd.DataFrame,
    equivalent: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Return what decides between the schemes, from the tables of a run: ``measure, note, sign,
    scheme, value, low, high, in_words``. A scheme is better if sign · value is larger.
    """
    needed = needed_by_scheme(lengths, LEVELS[0])
    note = f"until half of {lengths['text'].nunique()} texts are detected at level 0.01"
    note_of_known = f"{note}; GaussMark's test knows the prompt"
    parts = [needed.assign(measure="tokens needed", note=note_of_known, sign=-1)]
    if NO_PROMPT in set(needed["scheme"]):
        is_ours = needed["scheme"].isin(["GaussMark", AT_COST])
        rows = needed[~is_ours].replace({"scheme": {NO_PROMPT: "GaussMark"}})
        parts.append(rows.assign(measure="tokens needed without the prompt", note=note, sign=-1))

    is_change = costs["cost"] == OVER_KEYS
    for name, rows in (("cost over keys", costs[is_change]), (UNDER_ONE_KEY, costs[~is_change])):
        note = f"nats per token, {rows['n'].iloc[0]} texts"
        in_words_of_rows = [
            f"{number(row.value, 2)} ({number(row.low, 2)} to {number(row.high, 2)})"
            for row in rows.itertuples()
        ]
        part = rows.assign(measure=name, note=note, sign=-1, in_words=in_words_of_rows)
        if name == UNDER_ONE_KEY:  # σ was solved for KGW-1's: nothing to compare
            part.loc[part["scheme"] == "KGW-1", ["low", "high"]] = np.nan
        parts.append(part)

    if equivalent is not None:  # older records lack it
        note = f"of plain text that is as surprising, {equivalent['n'].iloc[0]} texts"
        in_words_of_rows = quality.temperatures_with_intervals(equivalent)
        part = equivalent.assign(measure="equivalent temperature", note=note, sign=-1)
        parts.append(part.assign(in_words=in_words_of_rows))

    after = by_version(edits)
    version = after.loc[after["edit"] != UNEDITED, "version"].iloc[0]
    note = f"share of texts after *{version}*"
    rows = after[after["version"] == version]
    parts.append(_shares_in_words(rows, "detection after an edit", note))

    greedy = ways_of(ways).query("way == 'temperature 0'")
    if len(greedy):
        parts.append(_shares_in_words(greedy, GREEDY, "share of texts"))

    worst = worst_keys(one_key)
    worst = worst.sort_values("value", ascending=False).drop_duplicates("scheme")
    in_words_of_rows = [f"{row.value:.0%} of {row.kind}" for row in worst.itertuples()]
    n_keys = one_key["key"].nunique()
    n_texts = one_key["n"].min()
    note = f"share of {n_texts} human texts per kind that the worst of {n_keys} keys calls"
    note = f"{note} watermarked at level 0.05"
    part = worst.assign(measure="false alarms of one key", note=note, sign=-1)
    if n_texts >= FEWEST_HUMAN:
        parts.append(part.assign(in_words=in_words_of_rows, low=np.nan, high=np.nan))
    table = pd.concat(parts, ignore_index=True)
    return table[table["scheme"].isin(COLUMNS)]


def _shares_in_words(rows: pd.DataFrame, measure: str, note: str) -> pd.DataFrame:
    in_words_of_rows = [
        f"{row.value:.0%} ({row.low:.0%} to {row.high:.0%})" for row in rows.itertuples()
    ]
    n_texts = rows["n"].max()
    note = f"{note}, n = {n_texts}"
    return rows.assign(measure=measure, note=note, sign=1, in_words=in_words_of_rows)


def outcomes(of_measure: pd.DataFrame) -> dict[str, str]:
    """Compare GaussMark with each other scheme by one of the :func:`measures`: scheme → "loses to",
    "wins against" or "does not clearly differ from". A scheme is better if the intervals do not
    overlap; without intervals there is no comparison.
    """
    rows = of_measure.dropna(subset=["low", "high"]).set_index("scheme")
    if "GaussMark" not in rows.index:
        return {}
    ours = rows.loc["GaussMark"]
    by_scheme = {}
    for name, theirs in rows.iterrows():
        if name.startswith("GaussMark"):
            continue
        is_above = ours["low"] > theirs["high"]
        is_below = ours["high"] < theirs["low"]
        is_better = is_above if ours["sign"] > 0 else is_below
        is_worse = is_below if ours["sign"] > 0 else is_above
        if is_better:
            by_scheme[name] = "wins against"
        elif is_worse:
            by_scheme[name] = "loses to"
        else:
            by_scheme[name] = "does not clearly differ from"
    return by_scheme


def _joined(names: Sequence[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def at_a_glance(notebook: str) -> HTML:
    """Return one table of the notebook's records: what each scheme needs, costs and survives, and
    where GaussMark loses and wins.
    """
    table = []
    # less and less choice has a record of its own
    of_choice = {answers.title(run): run for run in runs.references(ENTROPY)}
    for run in runs.references(notebook):
        parameters = inspect.signature(measures).parameters
        tables = {name: run.table(name) for name in parameters if answers.has_table(run, name)}
        needed = [
            name for name in parameters if parameters[name].default is inspect.Parameter.empty
        ]
        if not set(needed) <= set(tables):
            continue
        tables["ways"] = of_choice[answers.title(run)].table("ways")
        found = measures(**tables)
        for measure, rows in found.groupby("measure", sort=False):
            by_outcome = {}
            for name, outcome in outcomes(rows).items():
                by_outcome.setdefault(outcome, []).append(name)
            verdict = "; ".join(f"{word} {_joined(names)}" for word, names in by_outcome.items())
            cells = rows.set_index("scheme")["in_words"].to_dict()
            question = f"{measure} ({rows['note'].iloc[0]})".replace("*", "")
            columns = {name: cells.get(name, "") for name in COLUMNS}
            row = {"model": answers.title(run), "what": question, **columns}
            table.append(row | {"so GaussMark": verdict})
    cooperation = dict.fromkeys(COLUMNS[2:], "the sampler, at each token")
    cooperation |= {COLUMNS[0]: "nothing: any engine that runs the weights"}
    wins = f"wins against {_joined(COLUMNS[2:])}"
    what = {"model": "every model", "what": "what must cooperate while a text is written"}
    table.append(what | cooperation | {"so GaussMark": wins})
    frame = pd.DataFrame(table).fillna("")
    is_empty = (frame == "").all()
    with pd.option_context("display.max_colwidth", None):
        return HTML(frame.loc[:, ~is_empty].to_html(index=False, justify="left"))


def against(rivals: Sequence[str], **tables: pd.DataFrame) -> str:
    """Word where GaussMark loses to each rival, where it wins, and what is not decided."""
    found = measures(**tables)
    found = found[found["measure"] != GREEDY]  # section 8 compares it in a record of its own
    # without the intervals
    found = found.assign(short=found["in_words"].str.partition(" (")[0])
    sentences = []
    for rival in rivals:
        by_outcome = {}
        for measure, rows in found.groupby("measure", sort=False):
            outcome = outcomes(rows).get(rival)
            if outcome:
                words = rows.set_index("scheme")["short"]
                numbers = f"{measure} ({words['GaussMark']} and {words[rival]})"
                by_outcome.setdefault(outcome, []).append(numbers)
        parts = [f"{word} {rival} in {_joined(numbers)}" for word, numbers in by_outcome.items()]
        sentences.append(f"GaussMark {'; '.join(parts)}.")
    return " ".join(sentences)


def estimates(
    tables: Tables,
    params: Mapping[str, Any],
) -> dict[str, stats.Estimate]:
    """Return the findings and the headline that the rows of the recorded tables decide, by their
    sentences. An older record has no tables of the correction.
    """
    lengths = tables["lengths"]
    n_tokens = lengths["n_tokens"].max()
    needed = "tokens needed at level 0.01"
    is_whole = lengths["n_tokens"] == n_tokens
    is_ours = lengths["scheme"] == "GaussMark"
    at_end = lengths[is_whole & is_ours]
    p_values = at_end.set_index(numbering(at_end, "text"))["p_value"]
    edited = tables["edits"].rename(columns={"pair": "text"})
    edit = params["edits"][0]
    fraction = params["fractions"][0]
    is_edit = edited["edit"] == edit
    is_strength = edited["fraction"] == fraction
    after_edit = f"share detected at 0.01 after {edit}, {fraction:g}: GaussMark less KGW-1"
    found = {
        f"GaussMark's texts of {n_tokens} tokens detected at level 0.01": over_pairs(
            p_values <= 0.01
        ),
        f"{needed}, GaussMark divided by KGW-1": times_as_many(
            lengths,
            "GaussMark",
            "KGW-1",
            LEVELS[0],
        ),
        after_edit: difference(
            edited[is_edit & is_strength],
            "GaussMark",
            "KGW-1",
            0.01,
        ),
    }
    if params["n_pilot"]:
        ratio = found.pop(f"{needed}, GaussMark divided by KGW-1")
        found[f"{needed} at KGW-1's KL, GaussMark divided by KGW-1"] = ratio
        ratio = times_as_many(lengths, AT_COST, "KGW-1", LEVELS[0])
        found[f"{needed} at KGW-1's cost over keys, GaussMark divided by KGW-1"] = ratio
    return found | of_requests(tables["temperatures"]) | of_correction(tables)


def of_requests(cool: pd.DataFrame) -> dict[str, stats.Estimate]:
    """Return the findings of section 8 on the table of :func:`at_temperatures`."""
    found = {
        "rank correlation of a text's mean entropy with its ψ, all temperatures": rank_correlation(
            cool, "GaussMark"
        )
    }
    greedy = cool[cool["temperature"] == 0]
    if not len(greedy):
        return found
    shares_of = "share of greedy texts detected at 0.01: GaussMark"
    for rival in ("SynthID", "Gumbel-max"):
        found[f"{shares_of} less {rival}"] = difference(greedy, "GaussMark", rival, 0.01)
        sentence = f"freedom below which GaussMark detects more than {rival}, nats per token"
        found[sentence] = crossing(cool, "GaussMark", rival, 0.01)
    ratio = ratio_of_shares(greedy, "GaussMark", "KGW-1", 0.01)
    found[f"{shares_of} divided by KGW-1"] = ratio
    return found


def of_correction(tables: Tables) -> dict[str, stats.Estimate]:
    """Return the findings of section 10, if the tables are there."""
    found: dict[str, stats.Estimate] = {}
    if not {"corrected", "distances"} <= tables.keys():
        return found
    corrected = tables["corrected"]
    far = tables["distances"]
    for name in ("GaussMark", "KGW-2"):
        cost = f"Δ cross-entropy over keys at the temperature that cancels it: {name}"
        found[cost] = change_left(corrected, name)
        kept = f"mean statistic at that temperature divided by that at temperature 1: {name}"
        found[kept] = kept_statistic(corrected, name)
        distance = f"share of the distance over keys that is left at that temperature: {name}"
        found[distance] = distance_left(far, name)
    return found


def summaries(
    tables: Tables,
    params: Mapping[str, Any],
) -> dict[str, pd.DataFrame]:
    """Return the recorded tables that other tables decide: false alarms, and the shares detected by
    temperature. A record with beam search keeps its own table of ways. The first cost names its
    number of texts.
    """
    costs = tables["costs"]
    is_change = costs["cost"] == OVER_KEYS
    n_few = costs.loc[~is_change, "n"].max()
    cost = costs["cost"].where(is_change, f"{UNDER_ONE_KEY} ({n_few} texts)")
    decided = {
        "levels": robustness.recounted(tables["levels"]),
        "costs": costs.assign(cost=cost),
    }
    if not params["n_beams"]:
        by_temperature = shares(tables["temperatures"], ["temperature", "scheme"], 0.01)
        way = by_temperature["temperature"].map("temperature {:g}".format)
        decided["ways"] = by_temperature.assign(way=way)
    return decided


def numbers(
    tables: Tables,
    params: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the other recorded results that the tables decide."""
    lengths = tables["lengths"]
    needed = {
        name: [tokens_needed(lengths, name, level) for level in LEVELS]
        for name in lengths["scheme"].unique()
    }
    at_end = lengths[lengths["n_tokens"] == lengths["n_tokens"].max()]
    detected = shares(at_end, ["scheme"], 0.01).set_index("scheme")["value"]
    costs = tables["costs"]
    change = costs[costs["cost"] == OVER_KEYS].set_index("scheme")["value"]
    return {
        "tokens needed": needed,
        "detected": detected.to_dict(),
        "change of the cross-entropy": change.to_dict(),
    }


def against_kgw(**tables: pd.DataFrame) -> str:
    """Word how GaussMark compares with KGW at both of its strengths (:func:`against`)."""
    return against(("KGW-1", "KGW-2"), **tables)
