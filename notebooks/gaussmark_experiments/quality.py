"""What the watermark costs, by every measure in use: one row per item, with its change from the
base model, so that each measure is summarised and drawn alike.

Items are dealt to the keys: item i (a passage, a question, a prompt) belongs to key i mod K. So no
measure speaks for one key, and an interval that clusters by key speaks for other keys, too.

The base model writes several draws. All contenders are compared with the same references; one more
draw, ``CONTROL``, is a contender itself, and no measure may find it. ``STRONG`` is a mark that each
measure should find: one that does not is blind, and says nothing of the others.

The exchange rate is the price of a unit of ψ. To second order in σ a mean ψ over T tokens costs
ψ²/(2T) nats per token of the model's own text, whatever the weight. One key's change of the
cross-entropy also has a part linear in ξ, with mean 0 over keys; (Δ(ξ) + Δ(−ξ))/2 has the same
expectation without it. Prices follow the mean of ψ², and ψ differs from text to text with ‖G‖: over
(mean ψ)²/(2T), even the law itself gives 1 + cv², with cv the spread of ‖G‖ over its mean.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from gaussmark_lib import generate, likelihood, models, perturb, stats, texts
from gaussmark_lib.beyond import schemes
from gaussmark_lib.beyond.schemes import GaussMark
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.scheme import Scheme
from gaussmark_lib.tokens import Texts
from gaussmark_lib.workbench import record
from gaussmark_lib.workbench.begin import solved
from gaussmark_lib.workbench.pairs import Pairs, under_own_keys
from gaussmark_lib.workbench.plots.panels import panels
from gaussmark_lib.workbench.quality import compare, harness, tasks, text_measures
from gaussmark_lib.workbench.quality import judge as judges
from gaussmark_lib.workbench.quality.compare import CONTROL, GAUSSMARK, STRONG


def contenders(
    lm: models.LM,
    wm: Watermark,
    key: Key,
    prompts: Texts,
    n_tokens: int,
    *,
    rank_dropped: int,
    psi: float,
    strong_psi: float,
    **options,
) -> dict[str, Scheme]:
    """GaussMark, KGW-1 and KGW-2, GaussMark with ``rank_dropped`` directions left out (if any) at
    a σ for the same ψ, and ``STRONG``. Options are those of ``begin.solved``.
    """
    made = dict(schemes.named(wm, key, [GAUSSMARK, "KGW-1", "KGW-2"]))
    if rank_dropped:
        reduced = replace(wm, rank_dropped=rank_dropped)
        reduced = solved(lm, prompts, n_tokens, reduced, psi, **options)
        made["rank-reduced"] = GaussMark(reduced, key, "rank-reduced")
    strong = solved(lm, prompts, n_tokens, wm, strong_psi, **options)
    return made | {STRONG: GaussMark(strong, key, STRONG)}


def questions(text: str, n: int, least: int, seed: int) -> dict[str, dict]:
    """Tasks of ``least`` to n items from this text, or where it yields none from documentation."""
    for kind in (text, "docs"):
        n_pages, min_chars = 4 * n if kind == "c4" else None, 400 * (kind in texts.KINDS)
        corpus = texts.load(kind, n=n_pages, min_chars=min_chars)
        if made := tasks.build(corpus, n, least=least, seed=seed):
            break
    return made


def offline_judge(lm: models.LM, text: str) -> judges.LikelihoodJudge:
    """The n-gram judge, fitted on human text that is not the prompts' where there is such."""
    split = "train" if text in ("docs", "c4") else "heldout"
    human = texts.load(text, split=split, n=600 if text == "c4" else None)["text"][:600]
    vocabulary = max(len(lm.tokenizer), len(lm.model.get_output_embeddings().weight))
    return judges.LikelihoodJudge(
        judges.Ngram([lm.encode(page) for page in human], vocabulary), lm.encode
    )


def likelihoods(
    lm: models.LM, marks: dict[str, Scheme], keys: Sequence[Key], passages: Texts, batch_size: int
) -> tuple[np.ndarray, pd.DataFrame]:
    """The base model's nats per token of each human passage; and the changes under each mark on
    the weights (KGW acts in the sampler alone).
    """
    base = likelihood.cross_entropy(lm.model, passages, batch_size=batch_size)
    rows = [
        compare.changes(
            "cross-entropy",
            name,
            j,
            likelihood.cross_entropy(lm.model, passages[part], batch_size=batch_size) - base[part],
        )
        for name, j, part in _under_each(lm, marks, keys)
    ]
    return base, pd.concat(rows, ignore_index=True)


def answers(
    lm: models.LM, marks: dict[str, Scheme], keys: Sequence[Key], asked: harness.Asked
) -> tuple[dict[str, pd.Series], pd.DataFrame]:
    """Each item's score under the base model, by task; and its changes under each mark on the
    weights.
    """
    base = harness.evaluate(asked)
    rows = [
        compare.changes(task, name, j, scores - base[task][scores.index])
        for name, j, part in _under_each(lm, marks, keys)
        for task, scores in harness.evaluate(asked, part).items()
    ]
    return base, pd.concat(rows, ignore_index=True)


def churn(answered: pd.DataFrame, base: Mapping[str, pd.Series], drop: float) -> pd.DataFrame:
    """How many of GaussMark's answers changed, by task: ``task, base`` (accuracy), the numbers of
    ``compare.lost_and_gained``, and the power with which this many items show a loss of ``drop``.
    """
    rows, ours = [], answered[answered["model"] == GAUSSMARK]
    for task, change in ours.groupby("measure", sort=False)["change"]:
        row = {"task": task, "base": base[task].mean()} | compare.lost_and_gained(change)
        share = min(0.5, (row["lost"] + row["gained"] + 1) / (row["items"] + 1))
        power = compare.mcnemar_power(row["items"], drop, share)
        rows.append(row | {f"power for {100 * drop:g} points": power})
    return pd.DataFrame(rows)


def references_and_texts(
    lm: models.LM,
    marks: dict[str, Scheme],
    keys: Sequence[Key],
    prompts: Texts,
    n_tokens: int,
    *,
    n_base: int,
    seed: int,
    **sampling,
) -> tuple[list[list[list[int]]], dict[str, list[list[int]]]]:
    """``n_base`` − 1 reference draws of the base model, and each contender's texts: ``CONTROL`` is
    one more draw. All have random numbers of their own.
    """
    seeds = iter(range(10_000 * seed, 10_000 * (seed + 1)))
    draws = [
        generate.sample(lm.model, prompts, n_tokens, seed=next(seeds), **sampling)
        for _ in range(n_base)
    ]
    own = {CONTROL: draws.pop()}
    for name, scheme in marks.items():
        own[name] = [[]] * len(prompts)
        for j, key in enumerate(keys):
            mine, keyed = slice(j, None, len(keys)), replace(scheme, key=key)
            own[name][mine] = keyed.generate(
                lm.model, prompts[mine], n_tokens, seed=next(seeds), **sampling
            )
    return draws, own


def told_apart(
    lm: models.LM, prompts: Texts, references: Sequence[Texts], own: dict[str, Texts], n_keys: int
) -> pd.DataFrame:
    """One classifier per contender and key (``text_measures.told_apart``): for each held-out text,
    the share of right answers, less ½.
    """
    x, rows = [text_measures.embed(lm.model, prompts, draw) for draw in references], []
    for name, responses in own.items():
        y = text_measures.embed(lm.model, prompts, responses)
        for j in range(n_keys):
            right = text_measures.told_apart([draw[j::n_keys] for draw in x], y[j::n_keys])
            rows.append(compare.changes("classifier", name, j, right - 0.5))
    return pd.concat(rows, ignore_index=True)


def varied(
    lm: models.LM, references: Sequence[Texts], own: dict[str, Texts], n_keys: int
) -> pd.DataFrame:
    """The changes of ``text_measures.diversity`` from the mean of the references, text by text."""
    ends = generate.end_tokens(lm.model)
    base, rows = np.mean([text_measures.diversity(draw, ends) for draw in references], axis=0), []
    for name, responses in own.items():
        change = text_measures.diversity(responses, ends) - base
        keys = np.arange(len(responses)) % n_keys
        rows += [compare.changes(measure, name, keys, change[measure]) for measure in change]
    return pd.concat(rows, ignore_index=True)


def judged(
    lm: models.LM,
    prompts: Texts,
    references: Sequence[Texts],
    own: dict[str, Texts],
    n_keys: int,
    judge: judges.Judge,
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """The win rate of each text against the references, less ½; and the judge's answers
    (``judges.compare``, with ``model``). Texts are read up to their end tokens.
    """
    ends = generate.end_tokens(lm.model)
    asked = [lm.decode(prompt) for prompt in prompts]

    def read(responses: Texts) -> list[str]:
        return [lm.decode(text_measures.until_end(ids, ends)) for ids in responses]

    base, tables = [read(draw[: len(asked)]) for draw in references], []
    for name, responses in own.items():
        candidates = read(responses[: len(asked)])
        tables += [
            judges.compare(judge, asked, candidates, draw).assign(model=name) for draw in base
        ]
    table = pd.concat(tables, ignore_index=True)
    wins = table.groupby(["model", "item"], sort=False)["score"].mean().dropna().reset_index()
    return compare.changes(
        "win rate", wins["model"], wins["item"] % n_keys, wins["score"] - 0.5
    ), table


def exchange(
    lm: models.LM,
    pairs: Pairs,
    human: Texts,
    wms: Sequence[Watermark],
    *,
    seed: int = 0,
    dtype: str | None = None,
) -> pd.DataFrame:
    """One row per weight, kind of text (``"own"`` or ``"human"``) and pair: ``weight, text``, the
    columns of ``score.score`` for a text under the pair's key, and ``change``, (Δ(ξ) + Δ(−ξ))/2 of
    the cross-entropy of the model's own plain text, or of how the author went on.
    """
    n_tokens, tables = len(human[0]), []
    plain = generate.sample(lm.model, pairs.prompts, n_tokens, seed=seed)
    for wm in wms:
        _, scores = under_own_keys(lm, pairs, [wm], n_tokens, seed=seed, dtype=dtype)
        change = [
            even_change(lm, prompt, both, wm, key)
            for *both, prompt, key in zip(plain, human, *pairs, strict=True)
        ]
        for text, changes in zip(("own", "human"), np.transpose(change), strict=True):
            tables.append(scores.assign(text=text, change=changes))
    return pd.concat(tables, ignore_index=True)


def even_change(
    lm: models.LM, prompt: list[int], continuations: Texts, wm: Watermark, key: Key
) -> np.ndarray:
    """(Δ(ξ) + Δ(−ξ))/2 of each text's cross-entropy after the prompt, nats per token."""
    wm, keys = perturb.ready(lm.model, wm, [key])
    prompts, xis = [prompt] * len(continuations), perturb.drawn(wm, keys)
    base = likelihood.cross_entropy(lm.model, continuations, prompts=prompts)
    marked = []
    for sign in (1, -1):
        with perturb.moved(wm, [sign * xi[0] for xi in xis]):
            marked.append(likelihood.cross_entropy(lm.model, continuations, prompts=prompts))
    return np.mean(marked, axis=0) - base


def rates(table: pd.DataFrame, n_tokens: int) -> pd.DataFrame:
    """The price of :func:`exchange` over the law's, mean Δ / (mean ψ)²/(2T), per weight and kind of
    text: ``weight, text, psi, change, law, value, low, high, n``; ``law`` is 1 + cv².
    """

    def rate(rows: np.ndarray) -> float:
        psi, change = rows.mean(0)
        return change / stats.predicted_price(psi, n_tokens)

    rows = []
    for (weight, text), group in table.groupby(["weight", "text"], sort=False):
        measured, norm = group[["psi", "change"]], group["grad_norm"]
        law = {"law": (norm**2).mean() / norm.mean() ** 2}
        estimate = stats.interval(measured.to_numpy(), rate).row()
        rows.append({"weight": weight, "text": text, **measured.mean()} | law | estimate)
    return pd.DataFrame(rows)


def rates_in_words(rates: pd.DataFrame) -> str:
    """The sentence of the smallest and the largest rate on each kind of text."""
    by_text = rates.pivot(index="weight", columns="text", values="value")
    low, high, law = by_text.min(), by_text.max(), rates["law"]
    n_less = (by_text["human"] < by_text["own"]).sum()
    return (
        f"The measured price is **{low['own']:.2f}** to **{high['own']:.2f}** times the predicted"
        f" one on the model's own text, and **{low['human']:.2f}** to **{high['human']:.2f}** times"
        f" on human text (smallest and largest of {len(by_text)} weights). The law itself gives"
        f" 1 + cv² = {law.min():.2f} to {law.max():.2f}. The price on human text is the lower one"
        f" for {n_less} of {len(by_text)} weights."
    )


def figure(
    changes: pd.DataFrame, name: str, measures: dict[str, str], caption: str, title: str
) -> Figure:
    """The mean change of each of these measures (name → axis label), a row per model; kept in the
    record as ``name``. The caption ends with keys × items.
    """
    rows = changes[changes["measure"].isin(list(measures))]
    table = compare.summary(rows)
    several = len(measures) > 1
    drawn = panels(
        table.assign(measure=table["measure"].map(measures)),
        "model",
        panel="measure" if several else None,
        at={"no change": 0},
        ylabel="change" if several else next(iter(measures.values())),
        title=title,
        caption=f"{caption}; {compare.sizes(rows)} per contender; 95% intervals, clustered by key",
    )
    return record.save_figure(drawn, name)


def _under_each(
    lm: models.LM, marks: dict[str, Scheme], keys: Sequence[Key]
) -> Iterator[tuple[str, int, slice]]:
    """Each mark on the weights with each key: its name, the key's number, the key's items. The
    model carries the mark until the next one is asked for.
    """
    for name, scheme in marks.items():
        if isinstance(scheme, GaussMark):
            for j, key in enumerate(keys):
                with perturb.watermarked(lm.model, scheme.wm, key):
                    yield name, j, slice(j, None, len(keys))
