"""Token-level keys compared with one key. n pairs of a prompt and a key are continued by both
schemes with the same random numbers, weight and σ, and so at the same price. What does each test
detect, and why?

The Γ_k of a text (``token_keys.per_token``) are computed once. Every length, every α₀ and both
tests, hits and weighted sum, use that table.
"""

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np
import pandas as pd
from IPython.display import Markdown
from matplotlib.figure import Figure
from scipy.stats import norm
from transformers import PreTrainedModel

from gaussmark_lib import corrupt, models, score, stats, weights
from gaussmark_lib.beyond.token_level import (
    gradients as token_gradients,
)
from gaussmark_lib.beyond.token_level import keys as token_keys
from gaussmark_lib.beyond.token_level import quantiles
from gaussmark_lib.corrupt import Change
from gaussmark_lib.perturb import Watermark
from gaussmark_lib.tokens import Texts
from gaussmark_lib.workbench import (
    rewrite,  # noqa: F401 - registers edits that need a model
    runs,
    words,
)
from gaussmark_lib.workbench.answers import THIS_RUN, listed, title
from gaussmark_lib.workbench.pairs import (
    OWN,
    PLAIN,
    Pairs,
    means,
    numbering,
    shares,
    times_wider,
)
from gaussmark_lib.workbench.plots.panels import panels

# Names of tests and changes, as tables and figures show them.
ONE = "one key"
HITS = "token keys, hits"
SUM = "token keys, sum"
UNEDITED = "unedited"
SHIFTED = "middle token deleted"
HIT_RATE = "hit rate of a watermarked token"  # in the results of a record
LOOKS = {
    ONE: {"color": "#0173b2", "marker": "o"},
    HITS: {"color": "#5e3c99", "marker": "X"},
    SUM: {"color": "#9e9ac8", "marker": "D"},
}


def small_weight(model: PreTrainedModel) -> str:
    """Return the smallest matrix of the last block that is local (``token_level.gradients``); if
    several are equally small, the last. Return the block's default matrix if none is local.

    Every token of every text draws a noise of the matrix's size.
    """
    default = models.default_weight(model, block=-1)
    block = re.match(r".+?\.\d+\.", default)[0]  # "model.layers.3." for example
    # all matrices of the last block
    names = [name for name in models.watermarkable(model) if name.startswith(block)]
    linears = [weights.Weight(model, name) for name in names]
    local = [linear for linear in linears if token_gradients.is_local(model, linear)]
    if not local:
        return default
    smallest = min(reversed(local), key=lambda linear: math.prod(linear.shape))
    return smallest.name


def changes(
    lm: models.LM,
    names: Sequence[str],
    fractions: Sequence[float],
    seed: int,
) -> dict[str, Change]:
    """Return the edits by name and fraction, with the unedited texts first, and the deletion of one
    token last.
    """

    def without_middle(prompts: Texts, responses: Texts) -> corrupt.Pairs:
        shortened = []
        for ids in responses:
            middle = len(ids) // 2
            shortened.append(ids[:middle] + ids[middle + 1 :])
        return prompts, shortened

    edits_by_name = corrupt.named(lm, names)  # they still lack their strength
    edits = {UNEDITED: lambda prompts, responses: (prompts, responses)}
    for name, fraction in zip(names, fractions, strict=True):
        edit = partial(edits_by_name[name], fraction=fraction, seed=seed)
        edits[f"{name}, {fraction:g}"] = edit
    edits[SHIFTED] = without_middle
    return edits


def tests(gammas: pd.DataFrame, alpha_0: float) -> pd.DataFrame:
    """Test each text in both ways, from the Γ_k that the table has of it; with ``scheme``."""
    return pd.concat(
        token_keys.from_gammas(gammas, test, alpha_0).assign(scheme=scheme)
        for scheme, test in ((HITS, "hits"), (SUM, "sum"))
    )


def measure(
    model: PreTrainedModel,
    pairs: Pairs,
    wm: Watermark,
    one_key: Texts,
    token_level: Texts,
    plain: Texts,
    edits: Mapping[str, Change],
    alpha_0: float,
    dtype: str | None = None,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Edit the texts of both schemes, and test text i with key i; unedited plain texts too.

    Returns:
        ``change, kind, scheme, text, n_tokens, p_value``, a row per text and test; and the Γ_k:
        ``change, kind`` and the columns of ``token_keys.per_token``.
    """
    # (change, kind, texts of one key, texts of token keys)
    cells = [(change, OWN, one_key, token_level) for change in edits]
    cells += [(UNEDITED, PLAIN, plain, plain)]
    # all at once: a token's noise is drawn once for all versions of the texts of its key
    of_one_key = [edits[change](pairs.prompts, texts) for change, _, texts, _ in cells]
    of_token_keys = [edits[change](pairs.prompts, texts) for change, _, _, texts in cells]
    keys = pairs.keys * len(cells)
    all_scores = score.score(
        model,
        *_joined(of_one_key),
        wm,
        keys,
        dtype=dtype,
        paired=True,
    )
    all_gammas = token_keys.per_token(model, *_joined(of_token_keys), wm, keys)
    tables = []
    gamma_tables = []
    for number, (change, kind, _, _) in enumerate(cells):
        scores = _of_cell(all_scores, number, pairs.n)
        gammas = _of_cell(all_gammas, number, pairs.n)
        tested = pd.concat([scores.assign(scheme=ONE), tests(gammas, alpha_0)])
        tables.append(tested.assign(change=change, kind=kind))
        gamma_tables.append(gammas.assign(change=change, kind=kind))
    columns = [
        "change",
        "kind",
        "scheme",
        "text",
        "n_tokens",
        "p_value",
    ]
    return (
        pd.concat(tables, ignore_index=True)[columns],
        pd.concat(gamma_tables, ignore_index=True),
    )


def _of_cell(table: pd.DataFrame, number: int, n: int) -> pd.DataFrame:
    """The rows of the number-th n texts, with ``text`` counted from 0."""
    rows = table[table["text"] // n == number]
    return rows.assign(text=rows["text"] % n)


def _joined(several: Sequence[corrupt.Pairs]) -> corrupt.Pairs:
    """The prompts and the responses of several lists of pairs, one list after the other."""
    prompts = [x for of_list, _ in several for x in of_list]
    responses = [y for _, of_list in several for y in of_list]
    return prompts, responses


def difference(table: pd.DataFrame, scheme: str, base: str, level: float) -> stats.Estimate:
    """Subtract the share detected by ``base`` from the share detected by ``scheme``, paired by
    text.

    The interval is that of Agresti and Min (Stat. Med. 24, 2005): Wald's, after ½ is added to each
    cell of the 2 × 2 table. It has a width even if the two tests agree on all texts. In a pooled
    record, it is as many times wider as the documents make the interval of the plain mean.
    """
    hits = table.assign(hit=table["p_value"] <= level)
    text = numbering(table, "text")
    hits = hits.pivot(index=text, columns="scheme", values="hit").astype(bool)  # (texts, schemes)
    n = len(hits) + 2  # four cells, ½ each
    more = int((hits[scheme] & ~hits[base]).sum())  # detected by the scheme alone
    less = int((~hits[scheme] & hits[base]).sum())  # detected by the base alone
    middle = (more - less) / n
    error = np.sqrt(((more + less + 1) / n - middle**2) / n)
    error *= times_wider(hits[scheme].astype(float) - hits[base])
    low, high = middle + error * norm.ppf([0.025, 0.975])
    return stats.Estimate((more - less) / len(hits), low, high, len(hits))


def by_length(
    once: pd.DataFrame,
    gammas: pd.DataFrame,
    lengths: Sequence[int],
    level: float,
    alpha_0: float,
) -> pd.DataFrame:
    """Return the share that each test detects of the first n tokens: ``scheme, n_tokens, value,
    low, high, n``.

    Args:
        once: ``score.score`` of the texts of one key at these lengths.
        gammas: of unedited texts.
    """
    tables = [once.assign(scheme=ONE)]
    for n in lengths:
        firsts = gammas[gammas["position"] < n]  # a token's Γ does not depend on later tokens
        tables.append(tests(firsts, alpha_0))
    return shares(pd.concat(tables), ["scheme", "n_tokens"], level)


def levels(
    gammas: pd.DataFrame,
    lengths: Sequence[int],
    quantile: float,
    alpha_0: float,
) -> pd.DataFrame:
    """Return the level of the quantile test at K tokens: exact, bounded by the proposition (NaN:
    not proved), and measured on texts without a watermark: ``what, n_tokens, value, low, high``.
    """
    rows = []
    hits = gammas.assign(hit=gammas["gamma"] >= stats.threshold(alpha_0))
    for n in lengths:
        needed = quantiles.hits_needed(n, quantile)  # hits that the test asks for
        counts = hits[hits["position"] < n].groupby("text")["hit"].sum()  # hits of each text
        measured = stats.interval(counts >= needed)
        predicted = {
            "exact": quantiles.exact_level(n, quantile, alpha_0),
            "proved bound": quantiles.level_bound(n, quantile, alpha_0),
        }
        for what, value in predicted.items():
            rows.append({"what": what, "n_tokens": n, "value": value})
        rows.append({"what": "measured", "n_tokens": n, **measured.row()})
    return pd.DataFrame(rows)


def draw_levels(levels: pd.DataFrame, caption: str) -> Figure:
    """Draw :func:`levels` of each run against K."""
    return panels(
        levels,
        "n_tokens",
        by="what",
        panel="run",
        title="False-alarm rate of the quantile test",
        caption=caption,
        xlabel="tokens of the text, K",
        ylabel="probability of a false alarm",
        ylim=(0, 1),
    )


def draw_power(power: pd.DataFrame, level: float, caption: str) -> Figure:
    """Draw :func:`by_length` of each run, a line per test."""
    return panels(
        power,
        "n_tokens",
        by="scheme",
        panel="run",
        looks=LOOKS,
        title="Detection rate of the three tests, at the same price",
        caption=caption,
        xlabel="tokens of the text",
        ylabel=f"share detected at level {level:g}",
        ylim=(-0.02, 1.02),
    )


def by_alpha(gammas: pd.DataFrame, alphas: Sequence[float], level: float) -> pd.DataFrame:
    """Return the share that counting hits detects at each α₀ with its best λ', and the efficiency
    of the count: ``what, alpha_0, value, low, high``.
    """
    rows = []
    for alpha_0 in alphas:
        # the same Γ, counted at another threshold
        table = token_keys.from_gammas(gammas, "hits", alpha_0)
        detected = stats.interval(table["p_value"] <= level)
        efficiency = {
            "what": "efficiency φ(τ)²/(α₀(1 − α₀))",
            "alpha_0": alpha_0,
            "value": quantiles.efficiency(alpha_0),
        }
        rows.append(
            {
                "what": "share detected",
                "alpha_0": alpha_0,
                **detected.row(),
            }
        )
        rows.append(efficiency)
    return pd.DataFrame(rows)


def bound_in_words(levels: pd.DataFrame) -> str:
    """Compare the exact level with the proved bound (NaN: nothing is proved), at the most tokens of
    one run's :func:`levels`.
    """
    n_tokens = levels["n_tokens"].max()
    at_end = levels[levels["n_tokens"] == n_tokens].set_index("what")["value"]
    exact = at_end["exact"]
    bound = at_end["proved bound"]
    level = f"at {n_tokens} tokens, the exact level is **{exact:.3g}**"
    if math.isnan(bound):
        return f"{level}; the proposition proves no bound"
    return (
        f"{level}; the proved bound is **{bound:.3g}**, which is {bound / exact:.0f} times as large"
    )


def best_in_words(by_alpha: pd.DataFrame) -> str:
    """Say which α₀ of one run's :func:`by_alpha` detects most texts."""
    detected = by_alpha[by_alpha["what"] == "share detected"]
    most = detected["value"].max()
    best = detected.loc[detected["value"] == most, "alpha_0"]
    listed = " and ".join(f"{alpha_0:g}" for alpha_0 in best)
    verb = "detects" if len(best) == 1 else "detect"
    n_texts = detected["n"].iloc[0]
    return f"α₀ = {listed} {verb} most texts: {most:.0%} of {n_texts:.0f}"


def detected_in_words(power: pd.DataFrame) -> str:
    """Say what each test detects at the most tokens of one run's :func:`by_length`, and what the
    sum detects at the longest length of at most 2/π of them.
    """
    n_tokens = power["n_tokens"].max()
    rows = power[power["n_tokens"] == n_tokens]
    listed = "; ".join(f"{row.scheme} **{row.value:.0%}**" for row in rows.itertuples())
    said = f"detected shares of {rows['n'].iloc[0]:.0f} texts of {n_tokens} tokens: {listed}"
    is_short = power["n_tokens"] <= 2 / math.pi * n_tokens
    shorter = power[(power["scheme"] == SUM) & is_short].sort_values("n_tokens")
    if shorter.empty:
        return said
    longest = shorter.iloc[-1]
    return f"{said}; the sum over the first {longest.n_tokens} tokens **{longest.value:.0%}**"


def differences(notebook: str, after: Mapping[str, stats.Estimate]) -> pd.DataFrame:
    """Return the share detected by the sum less the share detected by one key, after each change,
    for each of a notebook's records and this run: ``run, change, value, low, high, n``.
    """
    rows = [{"run": THIS_RUN, "change": name, **by.row()} for name, by in after.items()]
    recorded = [
        {"run": title(run), "change": name, **numbers}
        for run in runs.references(notebook)
        for name, numbers in run.results.get("sum less one key, by change", {}).items()
    ]
    return pd.DataFrame(recorded + rows)


def gains_in_words(differences: pd.DataFrame) -> str:
    """Say after which edits token keys detect more texts than one key, and after which fewer, by
    the intervals of one run's :func:`differences`.
    """
    edits = differences[differences["change"] != UNEDITED]
    decided = {
        "**token keys** detect more": edits["low"] > 0,
        "**one key** detects more": edits["high"] < 0,
        "Undecided": (edits["low"] <= 0) & (edits["high"] >= 0),
    }
    said = []
    for outcome, is_so in decided.items():
        listed = []
        for row in edits[is_so].to_dict("records"):
            value, basis = words.estimate(row)
            listed.append(f"*{row['change']}*: {value} {basis}")
        if listed:
            said.append(f"{outcome} after {'; '.join(listed)}")
    return ". ".join(said)


def proposition_in_words(rate: float, alpha_0: float, level: float, n_tokens: int) -> str:
    """Say what the proposition covers if a watermarked token is a hit with probability ``rate``,
    and compare with the exact level of the best test.
    """
    margin = max(rate - alpha_0, 0)  # λ₀ + β₀ ≤ λ' ≤ 1 − α₀, and β₀ is 1 − rate
    needed = quantiles.tokens_for_level(level, 1 - alpha_0 - margin / 2, alpha_0)
    if math.isinf(needed):
        covered = "So the proposition guarantees nothing."
    else:
        covered = (
            f"So the proposition covers texts with at most {margin:.1%} corrupted tokens. For"
            f" the λ' in the middle of its range, it guarantees level {level:g} from"
            f" **{needed:,} tokens** on."
        )
    best = quantiles.quantile_for(n_tokens, level, alpha_0)
    exact = quantiles.exact_level(n_tokens, best, alpha_0)
    return (
        f"At α₀ = {alpha_0:g}, a token of a watermarked text is a hit with probability"
        f" **{rate:.3f}**. {covered} With {n_tokens} tokens, the exact level of the best test is"
        f" {exact:.3f}."
    )


def proposition_by_run(
    notebook: str,
    rate: float,
    alpha_0: float,
    level: float,
    n_tokens: int,
) -> Markdown:
    """Return :func:`proposition_in_words` for each of a notebook's records, with its own settings,
    and for this run.
    """
    found = {}
    for run in runs.references(notebook):
        recorded_rate = run.results.get(HIT_RATE)
        if recorded_rate is not None:
            found[title(run)] = proposition_in_words(
                recorded_rate,
                run.params["alpha_0"],
                run.params["level"],
                run.params["n_tokens"],
            )
    here = proposition_in_words(rate, alpha_0, level, n_tokens)
    return listed(found, here, model="")


def by_position(gammas: pd.DataFrame, width: int) -> pd.DataFrame:
    """Return the mean Γ_k along the text in stretches of ``width`` tokens: ``change, position``
    (middle), ``value, low, high``. The rows of an interval are texts.
    """
    finite = gammas[np.isfinite(gammas["gamma"])]  # a token without a gradient has no Γ
    stretch = (finite["position"] // width + 0.5) * width  # its middle
    # mean of each text in each stretch
    of_text = finite.groupby(["change", stretch, "text"], sort=False)["gamma"].mean()
    return means(of_text.reset_index(), ["change", "position"], "gamma")


def kept(gammas: pd.DataFrame, change: str) -> pd.DataFrame:
    """Return each text's mean Γ_k ``before`` and ``after`` a change, over the tokens that are the
    same at the same place in both versions.
    """
    finite = gammas[np.isfinite(gammas["gamma"])].set_index("change")
    versions = finite.loc[UNEDITED].merge(  # tokens in both versions
        finite.loc[change],
        on=["text", "position", "token_id"],
        suffixes=("_before", "_after"),
    )
    of_text = versions.groupby("text")[["gamma_before", "gamma_after"]].mean()
    return of_text.set_axis(["before", "after"], axis=1)
