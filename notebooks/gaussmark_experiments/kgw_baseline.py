"""08: five watermarks on the same n pairs of a prompt and a key. How many tokens does each need,
what does it cost, what does one fixed key do, and what is left where nobody samples?

Schemes are compared by exact p-values only. Two costs are kept apart. The divergence KL(q ‖ p)
under the key that wrote a text is large for a scheme that is certain of its next token, whatever
the text reads like. The change of the cross-entropy −(1/T) log p_θ(y | x), over keys, is what a
reader could notice; it is 0 for every scheme that keeps the distribution of texts over keys.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from itertools import product

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from numpy.typing import ArrayLike
from scipy.stats import binom, norm, spearmanr
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
from gaussmark_lib.beyond.schemes import GaussMark, GumbelMax, SynthID
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
CONTROL = "plain, drawn again"
EVERY_TOKEN = "Gumbel-max, every token"
NO_PROMPT = "GaussMark, no prompt"
SHARPER = robustness.SHARPER
AT_COST = "GaussMark at KGW-1's cost"
TASKS = {  # of several kinds of answer: what to ask, and for what
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
ITERATIONS = 3  # of σ² times a price that was wanted over the price that was found


def contenders(
    wm: Watermark,
    key: Key,
    *,
    context: int,
    depth: int,
    dtype: str | None = None,
) -> dict[str, Scheme]:
    """The schemes that write. ``context`` is Gumbel-max's, ``depth`` SynthID's."""
    return {
        "GaussMark": GaussMark(wm, key, dtype=dtype),
        "KGW-1": KGW(1.0, key),
        "KGW-2": KGW(2.0, key),
        "SynthID": SynthID(key, depth, weighted=True),
        "Gumbel-max": GumbelMax(key, context),
    }


def tests_of(tried: Mapping[str, Scheme]) -> dict[str, Scheme]:
    """The different tests: KGW-1 and KGW-2 have one, and two schemes a common inexact one."""
    exact = {name: scheme for name, scheme in tried.items() if name != "KGW-1"}
    return exact | {
        "KGW-2 z-test": replace(tried["KGW-2"], test="z"),
        EVERY_TOKEN: replace(tried["Gumbel-max"], once=False),
    }


@torch.no_grad()
def prices_along(lm: models.LM, scheme: Scheme, pairs: Pairs, plain: Texts) -> pd.DataFrame:
    """What each pair's key would cost a plain text of the model, nats per token: ``kl``, the mean
    of KL(q ‖ p) over its places, and ``change``, that of −Σ_v q(v) log p(v) less the entropy of p.
    Both sums are exact over the next token. For noise they are means over ξ and −ξ, which removes
    the part that is linear in ξ.
    """
    rows = []
    for x, y, key in zip(pairs.prompts, plain, pairs.keys, strict=True):
        inputs, _ = divergence.laid_out(lm.model, [(x, y)])
        p = divergence.logits(lm.model, inputs, len(y))
        several = []
        if isinstance(scheme, GaussMark):
            xi = perturb.noise(lm.model, scheme.wm, key)
            for sign in (1, -1):
                with perturb.moved(scheme.wm.on(lm.model), [sign * xi]):
                    several.append(divergence.logits(lm.model, inputs, len(y)))
        else:
            process = scheme.processor_of_rows(lm.model, [key])
            ids = inputs["input_ids"]
            start = ids.shape[1] - len(y)
            steps = [process(ids[:, : start + t], p[:, t]) for t in range(len(y))]
            several.append(torch.stack(steps, dim=1))
        log_p = wide(p).log_softmax(-1)
        entropy = torch.special.entr(log_p.exp()).sum()
        found = []
        for q in several:
            log_q = wide(q).log_softmax(-1)
            crossed = -(log_q.exp() * log_p).sum()
            kl = (log_q.exp() * (log_q - log_p)).sum()
            found.append([kl.item(), (crossed - entropy).item()])
        kl, change = np.mean(found, axis=0) / len(y)
        rows.append({"kl": kl, "change": change})
    return pd.DataFrame(rows)


def at_equal_price(
    lm: models.LM,
    wm: Watermark,
    rival: Scheme,
    pilot: Pairs,
    plain: Texts,
    price: str,
) -> Watermark:
    """``wm`` with the σ at which it has the rival's mean price (a column of :func:`prices_along`)
    along the pilot's plain texts: price ∝ σ² to first order, and a few steps of that.
    """
    wanted = prices_along(lm, rival, pilot, plain)[price].mean()
    for _ in range(ITERATIONS):
        scheme = GaussMark(wm, pilot.keys[0])
        found = prices_along(lm, scheme, pilot, plain)[price].mean()
        wm = replace(
            wm,
            sigma=float(wm.sigma * np.sqrt(np.clip(wanted / found, 0.1, 10))),
        )
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
    """``wm`` with the σ of KGW's KL, and with the σ of KGW's change of the cross-entropy over keys
    (:func:`prices_along`), both on n prompts of the pilot and keys of their own.
    """
    prompts = texts.prompts(lm, text, n, prompt_tokens, split="pilot")
    keys = [Key.from_seed(1_000_000 * seed + 900_000 + i) for i in range(n)]
    plain = generate.sample(lm.model, prompts, n_tokens, seed=seed, **sampling)
    asked = KGW(bias, keys[0]), Pairs(prompts, keys), plain
    at_kl = at_equal_price(lm, wm, *asked, "kl")
    return at_kl, at_equal_price(lm, at_kl, *asked, "change")


def plain_texts(lm: models.LM, pairs: Pairs, n_tokens: int, n_draws: int, **options) -> list[Texts]:
    """Several draws of plain texts for each prompt; options are those of ``generate.sample``."""
    prompts = pairs.prompts * n_draws
    return [
        *in_lists(
            generate.sample(lm.model, prompts, n_tokens, **options),
            pairs.n,
        )
    ]


def by_length(
    lm: models.LM,
    tried: Mapping[str, Scheme],
    pairs: Pairs,
    written: Mapping[str, Texts],
    lengths: Sequence[int],
) -> pd.DataFrame:
    """Each scheme's test of the first n tokens of its texts, each under its own key: ``scheme,
    text, n_tokens, p_value, log10_p``.
    """
    tables = []
    owner = range(pairs.n)
    for name, scheme in tried.items():
        if isinstance(scheme, GaussMark):
            tested = (
                lm,
                [scheme],
                pairs.keys,
                pairs.prompts,
                written[name],
                owner,
            )
            [table] = robustness.under_own_keys(*tested, lengths=lengths)
        else:  # text after text, so that what belongs to a key is made once
            firsts = [ids[:n] for ids in written[name] for n in lengths]
            prompts = [x for x in pairs.prompts for _ in lengths]
            keys = [key for key in pairs.keys for _ in lengths]
            table = scheme.score(lm.model, prompts, firsts, keys)
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
    """:func:`by_length`, and GaussMark's texts once more, for a detector that was not told their
    prompts; the other schemes' tests never look at a prompt.
    """
    blind = Pairs([[] for _ in pairs.keys], pairs.keys)
    again = (
        {NO_PROMPT: tried["GaussMark"]},
        blind,
        {NO_PROMPT: written["GaussMark"]},
    )
    tables = [by_length(lm, *one, lengths) for one in ((tried, pairs, written), again)]
    return pd.concat(tables, ignore_index=True)


def first_below(log10_p: ArrayLike, lengths: ArrayLike, level: float) -> float:
    """The first length at which log₁₀ p, linear between lengths, reaches log₁₀ of the level: the
    first one if it does so there (an upper bound), one token beyond the last if it never does.

    >>> first_below([-1.0, -3.0], [10, 20], 1e-2), first_below([-1.0, -3.0], [10, 20], 1e-4)
    (15.0, 21.0)
    """
    y = np.asarray(log10_p, float)
    x = np.asarray(lengths, float)
    wanted = np.log10(level)
    below = np.flatnonzero(y <= wanted)
    if not below.size:
        return float(x[-1] + 1)
    i = below[0]
    return float(np.interp(-wanted, -y[i - 1 : i + 1], x[i - 1 : i + 1]) if i else x[0])


def tokens_needed(table: pd.DataFrame, scheme: str, level: float) -> float:
    """The tokens at which half of a scheme's texts are detected: where the median of log p reaches
    log of the level (:func:`first_below`).
    """
    log10_p = _texts_by_length(table, scheme)
    return first_below(log10_p.median(), log10_p.columns, level)


def times_as_many(table: pd.DataFrame, scheme: str, base: str, level: float) -> stats.Estimate:
    """Tokens that a scheme needs over those that another one needs, on the same pairs."""
    both = [_texts_by_length(table, name) for name in (scheme, base)]
    lengths = both[0].columns

    def ratio(rows: np.ndarray) -> float:
        ours, theirs = np.hsplit(np.median(rows, axis=0), 2)
        return first_below(ours, lengths, level) / first_below(theirs, lengths, level)

    return stats.interval(np.hstack(both), ratio)


def _texts_by_length(table: pd.DataFrame, scheme: str) -> pd.DataFrame:
    rows = table[table["scheme"] == scheme]
    return rows.pivot(index="text", columns="n_tokens", values="log10_p")


def listing(words: Mapping[str, str]) -> str:
    """
    >>> listing({"KGW-1": "39", "KGW-2": "13"})
    '**KGW-1** 39; **KGW-2** 13'
    """
    return "; ".join(f"**{name}** {word}" for name, word in words.items())


def in_words(needed: float, lengths: Sequence[int]) -> str:
    """A number of :func:`first_below` with what is known of it.

    >>> in_words(33.6, [8, 96]), in_words(8.0, [8, 96]), in_words(97, [8, 96])
    ('34', 'at most 8', 'more than 96')
    """
    if needed > lengths[-1]:
        return f"more than {lengths[-1]}"
    return f"{needed:.0f}" if needed > lengths[0] else f"at most {lengths[0]}"


def draw_lengths(table: pd.DataFrame, level: float, caption: str, name: str) -> Figure:
    """The share detected at this level against the tokens, kept in the record as ``name``."""
    words = {1e-2: "0.01", 1e-6: "10⁻⁶"}[level]
    figure = panels(
        shares(table, ["scheme", "n_tokens"], level),
        "n_tokens",
        by="scheme",
        title=f"How many tokens does each scheme need at level {words}?",
        caption=caption,
        at={"one half": 0.5},
        ylim=(-0.02, 1.02),
        xlabel="tokens of the text",
        ylabel="share detected",
        xscale="log",
    )
    return record.save_figure(figure, name)


def in_tokens(
    needed: Mapping[str, Sequence[float]],
    times: Mapping[str, stats.Estimate],
    lengths: Sequence[int],
) -> str:
    """The sentence of the tokens that each scheme needs (at two levels), and of those that need
    fewer than GaussMark.
    """
    words = {name: in_words(numbers[0], lengths) for name, numbers in needed.items()}
    least = "at least " * (needed["GaussMark"][0] > lengths[-1])
    fewer = [f"{name} ({least}{one.value:.1f} times)" for name, one in times.items() if one.low > 1]
    return (
        f"Tokens for half of the texts: {listing(words)}. GaussMark needs more, by an interval "
        f"that excludes 1, than: {', '.join(fewer) or 'none'}."
    )


def changes(
    lm: models.LM,
    pairs: Pairs,
    written: Mapping[str, Texts],
    plain: Sequence[Texts],
) -> dict[str, np.ndarray]:
    """Δ cross-entropy of each text, nats per token, by scheme: less the mean of plain texts for the
    same prompt. The first draw of plain texts is the control, and the others are subtracted.
    """
    texts = {CONTROL: plain[0], **written}
    nats, base = (
        [likelihood.cross_entropy(lm.model, y, prompts=pairs.prompts) for y in several]
        for several in (texts.values(), plain[1:])
    )
    return dict(zip(texts, nats - np.mean(base, axis=0), strict=True))


def divergences(
    lm: models.LM,
    tried: Mapping[str, Scheme],
    pairs: Pairs,
    written: Mapping[str, Texts],
) -> dict[str, np.ndarray]:
    """KL(q ‖ p) of each text under the key that wrote it, nats per token, by scheme: of the first
    texts, as many as there are pairs. A plain text costs nothing.
    """
    nats = {CONTROL: np.zeros(pairs.n)}
    for name, scheme in tried.items():
        own = written[name][: pairs.n]
        sums = scheme.divergences(lm.model, pairs.prompts, own, pairs.keys)
        nats[name] = sums / [len(ids) for ids in own]
    return nats


def both_costs(kl: Mapping[str, np.ndarray], change: Mapping[str, np.ndarray]) -> pd.DataFrame:
    """Means of :func:`divergences` and :func:`changes`: ``cost, scheme, value, low, high, n``."""
    sides = {
        f"KL under one key ({len(kl[CONTROL])} texts)": kl,
        "Δ cross-entropy over keys": change,
    }
    costs = pd.concat(
        pd.DataFrame(nats).melt(var_name="scheme", value_name="nats").assign(cost=cost)
        for cost, nats in sides.items()
    )
    return means(costs, ["cost", "scheme"], "nats")


def by_version(edited: pd.DataFrame) -> pd.DataFrame:
    """The share detected at level 0.01 after each edit, with ``version``: the edit in words."""
    after = shares(edited, ["scheme", "edit", "fraction"], 0.01)
    strength = after["fraction"].map(", {:g}".format).where(after["fraction"] > 0, "")
    return after.assign(version=after["edit"] + strength)


def draw_left(table: pd.DataFrame, x: str, title: str, caption: str, name: str) -> Figure:
    """The share detected at level 0.01 by scheme and column x, kept in the record as ``name``."""
    look = {
        "at": {"level": 0.01},
        "ylim": (-0.02, 1.02),
        "ylabel": "share detected at level 0.01",
    }
    figure = panels(table, x, by="scheme", title=title, caption=caption, **look)
    return record.save_figure(figure, name)


def requests(lm: models.LM, n: int) -> tuple[list[str], list[list[int]]]:
    """Kinds and prompts of n requests (``TASKS``), by turns; InvalidTextError beyond all."""
    asked = [
        [(kind, form.format(subject)) for form in forms for subject in subjects]
        for kind, (forms, subjects) in TASKS.items()
    ]
    by_turns = [request for several in zip(*asked, strict=True) for request in several]
    if n > len(by_turns):
        raise InvalidTextError(f"expected at most {len(by_turns)} requests, got {n}; ask for fewer")
    kinds, wordings = zip(*by_turns[:n], strict=True)
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
    """Each scheme's texts at each temperature, tested under their own keys: ``temperature, scheme,
    text, statistic, p_value``, ``entropy``, the mean over the text of the entropy of the model's
    next token (as in notebook 03), and ``freedom``, the same of what its tokens were drawn from, at
    its temperature and before any mark; both in nats.
    """
    tables = []
    for temperature in temperatures:
        options = {
            "temperature": temperature,
            "batch_size": batch_size,
            "seed": seed,
        }
        written = robustness.texts_by_scheme(lm, tried, pairs, n_tokens, **options)
        for name, scheme in tried.items():
            owner = range(pairs.n)
            tested = (
                lm,
                [scheme],
                pairs.keys,
                pairs.prompts,
                written[name],
                owner,
            )
            [table] = robustness.under_own_keys(*tested)
            entropy, freedom = entropies(lm, pairs.prompts, written[name], (1.0, temperature))
            table = table[["text", "statistic", "p_value"]].assign(entropy=entropy, freedom=freedom)
            tables.append(table.assign(temperature=temperature, scheme=name))
    return pd.concat(tables, ignore_index=True)


@torch.no_grad()
def entropies(
    lm: models.LM,
    prompts: Texts,
    texts: Texts,
    temperatures: Sequence[float],
    batch_size: int = 8,
) -> Float[np.ndarray, "temperatures texts"]:
    """The mean entropy of the model's next token over each text, at each temperature, nats."""
    means = []
    for batch in in_lists(zip(prompts, texts, strict=True), batch_size):
        inputs, is_token = divergence.laid_out(lm.model, batch)
        logits = wide(divergence.logits(lm.model, inputs, is_token.shape[1]))
        n = is_token.sum(-1)
        of_batch = torch.zeros(len(temperatures), len(batch))
        for row, temperature in zip(of_batch, temperatures, strict=True):
            if temperature:
                entropy = torch.special.entr((logits / temperature).softmax(-1)).sum(-1)
                row[:] = (entropy * is_token).sum(-1) / n
        means.append(of_batch)
    return torch.cat(means, dim=1).double().numpy()


def ratio_of_shares(table: pd.DataFrame, scheme: str, base: str, level: float) -> stats.Estimate:
    """The share that a scheme detects over the share that another one detects, of the same pairs;
    without a value where the other one detects nothing.
    """
    hits = table.assign(hit=(table["p_value"] <= level).astype(float))
    hits = hits.pivot(index="text", columns="scheme", values="hit")
    if not hits[base].any():
        return stats.Estimate(np.nan, np.nan, np.nan, len(hits))
    with np.errstate(divide="ignore", invalid="ignore"):  # a draw without a detected text
        return stats.ratio(hits[scheme], hits[base])


def rank_correlation(cool: pd.DataFrame, scheme: str) -> stats.Estimate:
    """Spearman's, of a text's entropy with its statistic, over all temperatures; a pair's texts
    stay together.
    """
    rows = cool[cool["scheme"] == scheme]
    both = rows[["entropy", "statistic"]].to_numpy()

    def correlation(rows: np.ndarray) -> float:
        return spearmanr(*rows.T).statistic

    return stats.interval(both, correlation, cluster=rows["text"], n_resamples=1_000)


def draw_freedom(cool: pd.DataFrame, level: float, caption: str) -> Figure:
    """The share detected by scheme against the mean freedom of the texts of a temperature, kept in
    the record as ``freedom``.
    """
    freedom = cool.groupby(["scheme", "temperature"])["freedom"].mean().reset_index()
    table = shares(cool, ["scheme", "temperature"], level).merge(freedom)
    figure = panels(
        table,
        "freedom",
        by="scheme",
        title="What is left where the model has little choice?",
        caption=f"{caption}; a point per temperature",
        at={"level": level},
        ylim=(-0.02, 1.02),
        xlabel="freedom: mean entropy of what tokens were drawn from, nats",
        ylabel=f"share detected at level {level:g}",
    )
    return record.save_figure(figure, "freedom")


def crossing(
    cool: pd.DataFrame,
    scheme: str,
    rival: str,
    level: float,
    n_resamples: int = 1_000,
) -> stats.Estimate:
    """The freedom (:func:`at_temperatures`) below which a scheme detects more than its rival.

    Per temperature, the mean freedom of the rival's texts and the difference of the shares
    detected; linear between these points. 0 where the rival detects as much at the lowest one, and
    the highest one where it nowhere does.
    """
    hits = cool.assign(hit=(cool["p_value"] <= level).astype(float))
    hit = hits.pivot(index="text", columns=["scheme", "temperature"], values="hit")
    freedom = hits.pivot(index="text", columns=["scheme", "temperature"], values="freedom")
    n = len(hit[scheme].columns)
    columns = np.hstack([freedom[rival], hit[scheme] - hit[rival]])

    def first_crossing(rows: np.ndarray) -> float:
        freedoms, differences = np.split(rows.mean(0), [n])
        order = np.argsort(freedoms)
        x = freedoms[order]
        y = differences[order]
        below = np.flatnonzero(y <= 0)
        if not below.size:
            return float(x[-1])
        i = below[0]
        return float(np.interp(0, -y[i - 1 : i + 1], x[i - 1 : i + 1]) if i else 0.0)

    return stats.interval(columns, first_crossing, n_resamples=n_resamples)


def one_key(
    lm: models.LM,
    tests: Mapping[str, Scheme],
    human: Mapping[str, Human],
    keys: Sequence[Key],
    level: float,
) -> pd.DataFrame:
    """The share of the human texts of each kind that one key calls watermarked: ``kind, scheme,
    key, share, n`` (texts).
    """
    rows = []
    for (kind, of_kind), (name, scheme) in product(human.items(), tests.items()):
        p = robustness.p_values(lm, scheme, of_kind.prompts, of_kind.responses, keys)
        columns = {"kind": kind, "scheme": name, "n": len(p)}
        rows += [columns | {"key": i, "share": s} for i, s in enumerate((p <= level).mean(0))]
    return pd.DataFrame(rows)


def worst_by_chance(n_keys: int, n_texts: int, level: float) -> float:
    """The share of texts that the worst of so many keys calls watermarked in one case of 20, if
    all texts were independent coins.

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
    """transformers' own ``generate`` without sampling. Of GaussMark it knows nothing: it gets a
    changed model, as from a released checkpoint. KGW is a setting of its.
    """
    inside = nullcontext()
    setting = {"do_sample": False, "num_beams": beams}
    if isinstance(scheme, GaussMark):
        inside = watermarked(lm.model, scheme.wm, key)
    else:
        setting["watermarking_config"] = replace(scheme, key=key).config
    with inside:
        return continued(lm.model, prompt, n_tokens, **setting)


def continued(model: PreTrainedModel, prompt: list[int], n_tokens: int, **setting) -> list[int]:
    """So many tokens by transformers' ``generate``."""
    ids = torch.tensor([prompt], device=model.device)
    text = model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        max_new_tokens=n_tokens,
        eos_token_id=None,
        pad_token_id=0,
        **setting,
    )
    return text[0, len(prompt) :].tolist()


def of_one_key(table: pd.DataFrame, odd: str) -> str:
    """The sentence of the worst key of each test, and of Gumbel-max's two tests on the kind
    ``odd``.
    """
    per_key = table.groupby(["scheme", "kind"], sort=False)["share"]
    worst = per_key.max()
    mean = per_key.agg(stats.interval, share=True)
    words = {
        name: ", ".join(f"{share:.0%} of {kind}" for (_, kind), share in shares_of_it.items())
        for name, shares_of_it in worst.groupby("scheme", sort=False)
    }
    repeats, once = (mean[name, odd] for name in (EVERY_TOKEN, "Gumbel-max"))
    return (
        f"The worst of {table['key'].nunique()} keys calls watermarked, at level 0.05: "
        f"{listing(words)}. In the mean over keys, Gumbel-max calls {repeats.value:.0%} "
        f"({repeats.low:.0%} to {repeats.high:.0%}) of *{odd}* watermarked if it counts every "
        f"token, and {once.value:.0%} ({once.low:.0%} to {once.high:.0%}) if it counts each "
        "context once."
    )


def attained(n: int, share: float, level: float, test: str = "exact") -> float:
    """The level that KGW's test at a nominal one has: P(p-value ≤ level) over n pairs, if the
    number of green ones is binomial.

    >>> attained(2, 0.25, 0.07), attained(2, 0.25, 0.06)
    (0.0625, 0.0)
    """
    greens = np.arange(n + 1)
    normal = norm.sf(z_score(greens, n, share))
    exact = exact_tail(greens, n, share)["p_value"]
    rejects = (normal if test == "z" else exact) <= level
    return float(binom.pmf(greens, n, share)[rejects].sum())
