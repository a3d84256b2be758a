"""08: five watermarks on the same n pairs of a prompt and a key. How many tokens does each need,
what does it cost, what does one fixed key do, and what is detected without sampling?

Schemes are compared by exact p-values only. There are two costs. The divergence KL(q ‖ p) under the
key that wrote a text is large for a scheme that is certain of its next token, however the text
reads. The change of the cross-entropy −(1/T) log p_θ(y | x), over keys, is what a reader could
notice; it is 0 for every scheme that keeps the distribution of texts over keys.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from scipy.stats import binom, norm, spearmanr
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_experiments import robustness
from gaussmark_experiments.one_key_in_production import Human
from gaussmark_lib import (
    divergence,
    generate,
    likelihood,
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
from gaussmark_lib.workbench import record
from gaussmark_lib.workbench.pairs import Pairs, means, shares
from gaussmark_lib.workbench.plots.panels import panels

LEVELS = (1e-2, 1e-6)
# Names of contenders, as tables and figures show them.
CONTROL = "plain, drawn again"
EVERY_TOKEN = "Gumbel-max, every token"
NO_PROMPT = "GaussMark, no prompt"
SHARPER = robustness.SHARPER
UNEDITED = robustness.UNEDITED
AT_COST = "GaussMark at KGW-1's cost"
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
        for q in _marked_logits(lm, scheme, key, inputs, p):
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
) -> list[Float[Tensor, "_ tokens vocabulary"]]:
    """Logits under the key: for noise, of the model at θ + ξ and at θ − ξ."""
    n_tokens = plain_logits.shape[1]
    if isinstance(scheme, GaussMark):
        placed = scheme.wm.on(lm.model)
        xi = perturb.noise(lm.model, scheme.wm, key)
        marked = []
        for sign in (1, -1):
            with perturb.moved(placed, [sign * xi]):
                marked.append(divergence.logits(lm.model, inputs, n_tokens))
        return marked
    process = scheme.processor_of_rows(lm.model, [key])
    ids = inputs["input_ids"]
    start = ids.shape[1] - n_tokens
    # a processor sees the tokens so far, and changes the logits of the next one
    steps = [process(ids[:, : start + t], plain_logits[:, t]) for t in range(n_tokens)]
    return [torch.stack(steps, dim=1)]


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
    prompts = texts.prompts(lm, text, n, prompt_tokens, split="pilot")
    first_seed = 1_000_000 * seed + 900_000  # beyond the keys of the pairs of this seed
    keys = [Key.from_seed(first_seed + i) for i in range(n)]
    pilot = Pairs(prompts, keys)
    plain = generate.sample(lm.model, prompts, n_tokens, seed=seed, **sampling)
    rival = KGW(bias, keys[0])
    at_kl = at_equal_price(lm, wm, rival, pilot, plain, "kl")
    # starts from the solution for KL, which is near
    at_change = at_equal_price(lm, at_kl, rival, pilot, plain, "change")
    return at_kl, at_change


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
    pairs.
    """
    of_scheme = _texts_by_length(table, scheme)
    of_base = _texts_by_length(table, base)
    lengths = of_scheme.columns

    def ratio(rows: np.ndarray) -> float:
        medians = np.median(rows, axis=0)  # over the resampled pairs
        ours, theirs = np.hsplit(medians, 2)
        return first_below(ours, lengths, level) / first_below(theirs, lengths, level)

    # side by side, so that both texts of a pair are resampled together
    return stats.interval(np.hstack([of_scheme, of_base]), ratio)


def _texts_by_length(table: pd.DataFrame, scheme: str) -> pd.DataFrame:
    """log₁₀ p of a scheme: a row per text, a column per length."""
    rows = table[table["scheme"] == scheme]
    return rows.pivot(index="text", columns="n_tokens", values="log10_p")


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


def draw_lengths(table: pd.DataFrame, level: float, caption: str, name: str) -> Figure:
    """Draw the share detected at this level against the number of tokens. Save it in the record as
    ``name``.
    """
    words = {1e-2: "0.01", 1e-6: "10⁻⁶"}[level]  # the figure's title says the level
    figure = panels(
        shares(table, ["scheme", "n_tokens"], level),
        "n_tokens",
        by="scheme",
        title=f"How many tokens does each scheme need at level {words}?",
        caption=caption,
        at={"one half": 0.5},
        ylim=(-0.02, 1.02),
        xlabel="tokens of the text",
        ylabel="share of texts detected",
        xscale="log",
    )
    return record.save_figure(figure, name)


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
        "GaussMark needs significantly more tokens than:"
        f" {', '.join(fewer) or 'no scheme in this run'}.",
    ]
    if incomparable:
        sentences.append(
            f"GaussMark's number and that of {' and '.join(incomparable)} are both lower limits,"
            " so their ratio says nothing."
        )
    if min(ratio.n for ratio in times.values()) < FEW_PAIRS:
        sentences.append("With so few pairs, the ratios are imprecise; compare the curves.")
    return " ".join(sentences)


def price_in_words(change: ArrayLike, needed: float, longest: int) -> str:
    """Word the price of one detection: the mean cost per token, in nats, times the tokens needed.

    The price is a lower limit if more than the ``longest`` number of tokens is needed. There is no
    price if the cost is not significantly above 0.

    >>> price_in_words([0.18, 0.2, 0.22], 40.0, 96), price_in_words([0.18, 0.2, 0.22], 97.0, 96)
    ('8.0 nats', 'more than 19.2 nats')
    >>> price_in_words([-0.1, 0.1, 0.3], 40.0, 96)
    'cost not significantly above 0'
    """
    cost = stats.interval(change)
    if not cost.low > 0:
        return "cost not significantly above 0"
    prefix = "more than " if needed > longest else ""
    return f"{prefix}{cost.value * min(needed, longest):.1f} nats"


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
    nats = [_cross_entropy(lm, pairs, texts) for texts in contenders.values()]
    base = [_cross_entropy(lm, pairs, texts) for texts in references]  # one row per reference draw
    return dict(zip(contenders, nats - np.mean(base, axis=0), strict=True))


def _cross_entropy(lm: models.LM, pairs: Pairs, texts: Texts) -> np.ndarray:
    """−(1/T) log p_θ of each text after its pair's prompt."""
    return likelihood.cross_entropy(lm.model, texts, prompts=pairs.prompts)


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
        f"KL under one key ({len(kl[CONTROL])} texts)": kl,
        "Δ cross-entropy over keys": change,
    }
    costs = pd.concat(  # long: a row per text and scheme
        pd.DataFrame(nats).melt(var_name="scheme", value_name="nats").assign(cost=cost)
        for cost, nats in sides.items()
    )
    return means(costs, ["cost", "scheme"], "nats")


def by_version(edited: pd.DataFrame) -> pd.DataFrame:
    """Return the share detected at level 0.01 after each edit, and in ``version`` the edit in
    words.
    """
    detected = shares(edited, ["scheme", "edit", "fraction"], 0.01)
    # the unedited texts have no strength
    strength = detected["fraction"].map(", {:g}".format).where(detected["fraction"] > 0, "")
    return detected.assign(version=detected["edit"] + strength)


def losses_in_words(after: pd.DataFrame, names: Sequence[str], version: str) -> str:
    """Word the shares detected without an edit and after one edit (:func:`by_version`), and say
    whose share falls most.
    """
    share = after.set_index(["scheme", "version"])["value"]
    before_and_after = {name: (share[name, UNEDITED], share[name, version]) for name in names}
    words = {name: f"{before:.2f}, {left:.2f}" for name, (before, left) in before_and_after.items()}
    losses = {name: before - left for name, (before, left) in before_and_after.items()}
    largest = max(losses.values())
    if largest <= 0:
        most = "No share falls."
    else:
        losers = [name for name, loss in losses.items() if np.isclose(loss, largest)]
        most = f"In this run, the share falls most for {' and '.join(losers)}, by {largest:.2f}."
    return f"Share detected, unedited and after *{version}*: {listing(words)}. {most}"


def draw_left(table: pd.DataFrame, x: str, title: str, caption: str, name: str) -> Figure:
    """Draw the share detected at level 0.01 by scheme and column x. Save it in the record as
    ``name``.
    """
    figure = panels(
        table,
        x,
        by="scheme",
        title=title,
        caption=caption,
        at={"level": 0.01},
        ylim=(-0.02, 1.02),
        ylabel="share of texts detected at level 0.01",
    )
    return record.save_figure(figure, name)


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
    hits = hits.pivot(index="text", columns="scheme", values="hit")  # (pairs, schemes)
    if not hits[base].any():
        return stats.Estimate(np.nan, np.nan, np.nan, len(hits))
    with np.errstate(divide="ignore", invalid="ignore"):  # a draw without a detected text
        return stats.ratio(hits[scheme], hits[base])


def rank_correlation(cool: pd.DataFrame, scheme: str) -> stats.Estimate:
    """Correlate the entropies of texts with their statistics (Spearman), over all temperatures. The
    texts of a pair are resampled together.
    """
    rows = cool[cool["scheme"] == scheme]
    values = rows[["entropy", "statistic"]].to_numpy()  # a row per text and temperature

    def correlation(rows: np.ndarray) -> float:
        return spearmanr(*rows.T).statistic

    return stats.interval(values, correlation, cluster=rows["text"], n_resamples=1_000)


def draw_freedom(cool: pd.DataFrame, level: float, caption: str) -> Figure:
    """Draw the share detected by scheme against the mean freedom of a temperature's texts. Save it
    in the record as ``freedom``.
    """
    # the x of each point
    freedom = cool.groupby(["scheme", "temperature"])["freedom"].mean().reset_index()
    table = shares(cool, ["scheme", "temperature"], level).merge(freedom)
    figure = panels(
        table,
        "freedom",
        by="scheme",
        title="Detection rate when the model has little choice",
        caption=f"{caption}; one point per temperature",
        at={"level": level},
        ylim=(-0.02, 1.02),
        xlabel="freedom (mean entropy per token, nats)",
        ylabel=f"share of texts detected at level {level:g}",
    )
    return record.save_figure(figure, "freedom")


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
    hit = hits.pivot(index="text", columns=["scheme", "temperature"], values="hit")
    # of the same shape as the hits
    freedom = hits.pivot(index="text", columns=["scheme", "temperature"], values="freedom")
    n = len(hit[scheme].columns)  # temperatures
    # side by side, so that a pair is resampled as a whole
    columns = np.hstack([freedom[rival], hit[scheme] - hit[rival]])

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

    return stats.interval(columns, first_crossing, n_resamples=n_resamples)


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
        for number, share in enumerate((p <= level).mean(0)):
            row = {
                "kind": kind,
                "scheme": name,
                "n": len(p),
                "key": number,
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


def of_one_key(table: pd.DataFrame, odd: str) -> str:
    """Word the worst key of each test at level 0.05, what chance alone would give, and Gumbel-max's
    two tests on the kind ``odd``.
    """
    share_by_kind = table.groupby(["scheme", "kind"], sort=False)["share"]
    worst = share_by_kind.max()  # over keys
    mean = share_by_kind.agg(stats.interval, share=True)  # with an interval over keys
    words = {
        name: ", ".join(f"{share:.0%} of {kind}" for (_, kind), share in of_scheme.items())
        for name, of_scheme in worst.groupby("scheme", sort=False)
    }
    repeats = mean[EVERY_TOKEN, odd]
    once = mean["Gumbel-max", odd]
    n_keys = table["key"].nunique()
    n_texts = table["n"].min()  # per kind
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
