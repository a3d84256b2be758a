"""A stream of texts under one key: evidence that you may look at after every text
(``joint.stream``), what marked texts teach the memory, and what an attacker gains who queries a
detector.

What the memory knows of z after n marked texts, to second order: text i with Fisher information
F_i says as much as an observation of precision σ²F_i, so z has the precision I + σ²ΣF_i. If all
directions of F were alike, a further marked text would keep the share 1/(1 + nc) of its ψ, with
c = σ² tr F²/tr F. Any other spectrum of F keeps more (1/(1 + x) is convex).
"""

from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from IPython.display import Markdown
from jaxtyping import Bool, Float
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from gaussmark_experiments import intervals
from gaussmark_experiments.one_key_in_production import (
    TAU,
    Human,
    units,
)
from gaussmark_experiments.whose_text import gradients
from gaussmark_lib import generate, models, perturb, score, stats
from gaussmark_lib.beyond import joint
from gaussmark_lib.beyond.attacks import learning
from gaussmark_lib.gradients import TextGradient
from gaussmark_lib.workbench import answers, record, runs
from gaussmark_lib.workbench.plots import style
from gaussmark_lib.workbench.plots.panels import panels
from gaussmark_lib.workbench.words import number

NOTEBOOK = "18_streams"
BETS = "streams_bets"  # the record on doclm that has eight bets at once
SHARE = 0.1  # π, the share of marked texts that the evidence bets on
# Names of stopping rules, as tables show them.
BET = "E ≥ 20 at any time"
MIXTURE = "mixture ≥ 20 at any time"
KNOWN = "p ≤ 0.05 at any time"
NAIVE = "p ≤ 0.05, ψ taken for independent"
LABELS = {  # of stopping rules in a legend
    BET: "wealth of one bet ≥ 20 at any time",
    MIXTURE: "wealth of eight bets ≥ 20 at any time",
    KNOWN: f"{KNOWN}, exact spread",
    NAIVE: "p ≤ 0.05 at any time, ψ treated as independent",
}
N_TRIED = 8  # queries per step of an attack
SINGLE = "one bet (1 text in 10)"
EIGHT = "mixture of eight bets"
RARITIES = (5, 20, 100)  # one text in so many is watermarked
HORIZON = 1_000  # texts of a stream after which a key counts as not found
N_PATHS = 20  # streams drawn from the texts of each key
ACCUSED = 20  # wealth E at which a key is accused: an innocent key reaches it with p ≤ 1/20


def log_evidence(
    psi: Float[np.ndarray, "keys n"],
    K: Float[np.ndarray, "n n"],
    strength: Float[np.ndarray, " n"],
    share: float | None = SHARE,
) -> Float[np.ndarray, "keys n"]:
    """Return log E after each text, for ``strength`` σ‖G‖ of the texts and one bet on ``share``
    (None: the mixture).
    """
    r, residuals = joint.law.innovations(psi, K)
    r = np.nan_to_num(r)  # a text that says nothing new has no innovation, and wins nothing
    return joint.bets.log_evidence(r, strength * residuals, joint.bets.of(share))


def peeked(
    psi: Float[np.ndarray, "keys n"],
    K: Float[np.ndarray, "n n"],
) -> Bool[np.ndarray, " keys"]:
    """Tell for each key whether Σ_{j ≤ i} ψ_j is significant by itself at level 0.05 after any text
    i. The standard deviation of this sum is √(Σ_{j,l ≤ i} K_jl).
    """
    variances = np.diag(K.cumsum(0).cumsum(1))
    z = psi.cumsum(1) / np.sqrt(variances)
    return (z >= TAU).any(1)


def accused(
    innocent: Mapping[str, tuple[np.ndarray, np.ndarray, Mapping[str, np.ndarray]]],
) -> pd.DataFrame:
    """Return the share of innocent keys that are accused at any time, by stopping rule: ``kind, who
    stops, value, low, high, n``. Each kind of text has (ψ, K, log E by the rule's name).
    """
    rows = []
    for kind, (psis, K, wealths) in innocent.items():
        hits = {rule: log_e.max(1) >= np.log(ACCUSED) for rule, log_e in wealths.items()}
        hits |= {
            KNOWN: peeked(psis, K),
            NAIVE: peeked(psis, np.eye(len(K))),
        }
        for rule, hit in hits.items():
            rows.append(
                {
                    "kind": kind,
                    "who stops": rule,
                    **stats.interval(hit).row(),
                }
            )
    return pd.DataFrame(rows)


def largest(watched: pd.DataFrame, rules: Mapping[str, str]) -> str:
    """Word the largest share of keys with a false alarm, over the kinds of text, by stopping rule.

    Args:
        watched: of :func:`accused`. Older records lack some rules, which are left out.
        rules: stopping rule → how the sentence calls it.
    """
    rows = watched.sort_values("value").drop_duplicates("who stops", keep="last")
    by_rule = rows.set_index("who stops")
    shares = []
    for rule, name in rules.items():
        if rule in by_rule.index:
            row = by_rule.loc[rule]
            interval = f"{row['low']:.1%} to {row['high']:.1%}"
            shares.append(f"**{row['value']:.1%}** ({interval}; {row['kind']}) {name}")
    n_keys = watched["n"].iloc[0]
    return (
        f"Largest share of the {n_keys:,} keys with a false alarm, over the kinds of text:"
        f" {', '.join(shares)}."
    )


def watched_in_words(watched: pd.DataFrame) -> str:
    """Word the false alarms of watching p-values, and of the single bet."""
    rules = {
        KNOWN: "with the exact spread",
        NAIVE: "with ψ treated as independent",
        BET: "with the bet",
    }
    return largest(watched, rules)


def draw_watched(watched: pd.DataFrame, caption: str) -> Figure:
    """Draw the false alarms by stopping rule, of the notebook's records and of this run. The
    mixture, which some records lack, is left out.
    """
    table = answers.beside(watched, NOTEBOOK, "watched")
    table = table[table["who stops"] != MIXTURE]
    figure = panels(
        table.replace({"who stops": LABELS}),
        "kind",
        by="who stops",
        panel="run",
        at={"level 0.05": 0.05},
        ylabel="share of keys with a false alarm",
        title="False alarms when you test after every text",
        caption=f"this run: {caption}",
        sharey=False,
    )
    return record.save_figure(figure, "watched")


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
    """Replace every k-th of the human texts by a text that the key wrote, for each key and each k
    of ``every``, and follow the evidence along the stream.

    Streams of one key share their marked texts; all streams share the human texts.

    Returns:
        ``key_id, every, place, marked, psi, innovation, promised, log_e, log_mixture``: λ of each
        text, and the logarithms of the wealth of one bet and of the mixture.
    """
    n = len(human.prompts)
    n_tokens = len(human.responses[0])
    n_marked = n // min(every)  # the densest stream needs the most
    plain = gradients(lm, human.prompts, human.responses, wm, dtype)
    psi_plain = score.psi(plain, wm.on(lm.model), keys)  # (texts, keys)
    u = units(plain)
    K_plain = joint.directions.inner(u, u)
    tables = []
    for i, key in enumerate(keys):
        prompts = [human.prompts[(i + j) % n] for j in range(n_marked)]
        marked = marked_gradients(lm, prompts, wm, key, n_tokens, dtype=dtype, seed=seed + i)
        v = units(marked)
        across = joint.directions.inner(v, u)  # (marked, plain)
        # K, ψ and σ‖G‖ of all texts of the key's streams, the human texts first
        K = np.block(
            [
                [K_plain, across.T],
                [across, joint.directions.inner(v, v)],
            ]
        )
        psi = np.append(psi_plain[:, i], score.psi(marked, wm.on(lm.model), [key]))
        strength = wm.sigma * np.array([gradient.norm for gradient in [*plain, *marked]])
        for k in every:
            stream = _stream(psi, K, strength, n, k)
            tables.append(stream.assign(key_id=key.key_id, every=k))
    return pd.concat(tables, ignore_index=True)


def _stream(
    psi: Float[np.ndarray, " texts"],
    K: Float[np.ndarray, "texts texts"],
    strength: Float[np.ndarray, " texts"],
    n_plain: int,
    k: int,
) -> pd.DataFrame:
    """The stream in which every k-th of the plain texts, which come first, is replaced by the next
    marked text.
    """
    place = np.arange(n_plain)
    is_marked = (place + 1) % k == 0
    texts = np.where(is_marked, n_plain + place // k, place)
    psi_of_stream = psi[None, texts]  # of one key
    K_of_stream = K[np.ix_(texts, texts)]
    r, residuals = joint.law.innovations(psi_of_stream, K_of_stream)  # of one key
    stream = psi_of_stream, K_of_stream, strength[texts]
    columns = {
        "place": place,
        "marked": is_marked,
        "psi": psi[texts],
        "innovation": r[0],
        "promised": strength[texts] * residuals,
        "log_e": log_evidence(*stream)[0],
        "log_mixture": log_evidence(*stream, share=None)[0],
    }
    return pd.DataFrame(columns)


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
    """Return gradients of texts that one key writes after these prompts."""
    with perturb.watermarked(lm.model, wm, key):
        responses = generate.sample(lm.model, prompts, n_tokens, seed=seed)
    return gradients(lm, prompts, responses, wm, dtype)


def found_by(streams: pd.DataFrame) -> pd.DataFrame:
    """Return the share of the streams whose E has reached 20 after so many texts: ``every, texts,
    value, low, high, n``.
    """
    # E may fall again: its highest value counts
    highest = streams.groupby(["key_id", "every"])["log_e"].cummax()
    is_found = highest >= np.log(ACCUSED)
    rows = []
    for (every, place), hits in is_found.groupby([streams["every"], streams["place"]]):
        share = stats.interval(hits)
        rows.append(
            {
                "every": f"1 in {every}",
                "texts": place + 1,
                **share.row(),
            }
        )
    return pd.DataFrame(rows)


def draw_found(streams: pd.DataFrame, caption: str) -> Figure:
    """Draw :func:`found_by` of the notebook's records and of this run."""

    def of_record(_: runs.Run, table: pd.DataFrame) -> pd.DataFrame:
        return found_by(table)

    table = answers.beside(found_by(streams), NOTEBOOK, "streams", of_record)
    figure = panels(
        table.assign(stream=table["run"] + ", " + table["every"] + " watermarked"),
        "texts",
        panel="stream",
        ylim=(-0.02, 1.02),
        title="After how many texts is a key detected?",
        caption=f"this run: {caption}",
        xlabel="texts of the stream",
        ylabel="share of streams with E ≥ 20 so far",
    )
    return record.save_figure(figure, "found")


def found_in_words(streams: pd.DataFrame) -> str:
    """Word the share of the streams in which the key is found by the end."""
    found = found_by(streams)
    n_texts = found["texts"].max()
    ends = [
        f"**{row.value:.0%}** ({row.low:.0%} to {row.high:.0%}) if {row.every} is watermarked"
        for row in found[found["texts"] == n_texts].itertuples()
    ]
    return (
        f"Share of streams in which the key is detected within {n_texts} texts: {'; '.join(ends)};"
        f" n = {found['n'].iloc[0]} streams."
    )


def marked_until_found(streams: pd.DataFrame) -> stats.Estimate:
    """Return the median number of watermarked texts until E of the single bet reaches 20, over the
    streams with the most watermarked texts. A stream without an end counts one text more than it
    has.
    """
    densest = streams[streams["every"] == streams["every"].min()]
    counts = []
    for _, stream in densest.groupby("key_id"):
        marked = stream["marked"].cumsum().to_numpy()
        is_found = stream["log_e"].to_numpy() >= np.log(ACCUSED)
        counts.append(marked[is_found.argmax()] if is_found.any() else marked[-1] + 1)
    return stats.median(np.array(counts, dtype=float))


def until_found(
    streams: pd.DataFrame,
    rarities: Sequence[int] = RARITIES,
    *,
    n_paths: int = N_PATHS,
    horizon: int = HORIZON,
    seed: int = 0,
) -> pd.DataFrame:
    """Count the texts until E reaches 20, for one bet and for the mixture, in longer streams than
    those that were measured (``mixed``).

    The watermarked texts of a long stream are drawn from the measured ones of one key, with their
    innovations and λ. The innovations of human texts have their law, N(0, 1), and the λ of measured
    human texts. Both kinds of bets see the same streams.

    Returns:
        ``key_id, every, bet, texts``, one row per path. ``texts`` is infinite if E stays below 20
        for ``horizon`` texts.
    """
    rng = np.random.default_rng(seed)
    densest = streams[streams["every"] == streams["every"].min()]
    of_humans = densest.loc[~densest["marked"], "promised"].to_numpy()
    tables = []
    for key_id, marked in densest[densest["marked"]].groupby("key_id"):
        of_marked = marked[["innovation", "promised"]].fillna(0.0).to_numpy()
        for every in rarities:
            r = rng.standard_normal((n_paths, horizon))
            promised = rng.choice(of_humans, r.shape)
            places = np.arange(every - 1, horizon, every)
            drawn = rng.integers(len(of_marked), size=(n_paths, len(places)))
            r[:, places] = of_marked[drawn, 0]
            promised[:, places] = of_marked[drawn, 1]
            for bet, share in {SINGLE: SHARE, EIGHT: None}.items():
                log_e = joint.bets.log_evidence(r, promised, joint.bets.of(share))
                is_found = log_e >= np.log(ACCUSED)
                n_texts = np.where(is_found.any(1), 1.0 + is_found.argmax(1), np.inf)
                columns = {"key_id": key_id, "every": every, "bet": bet, "texts": n_texts}
                tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def medians(found: pd.DataFrame, horizon: int = HORIZON) -> pd.DataFrame:
    """Return the median number of texts until a key is found (at most ``horizon``) and the share
    that is found by then, with intervals over keys: ``every, bet, value, low, high, n, share,
    share_low, share_high``.
    """
    rows = []
    for (every, bet), paths in found.groupby(["every", "bet"], sort=False):
        median = stats.median(paths["texts"].clip(upper=horizon), cluster=paths["key_id"])
        share = stats.interval(np.isfinite(paths["texts"]), cluster=paths["key_id"])
        names = {"every": f"1 in {every}", "bet": bet}
        rows.append(names | median.row() | share.row("share"))
    return pd.DataFrame(rows)


def relative(found: pd.DataFrame, every: int, horizon: int = HORIZON) -> stats.Estimate:
    """Divide the mean number of texts until the mixture finds a key by that of the single bet.
    Streams without an end count ``horizon`` texts.
    """
    paths = found[found["every"] == every]
    capped = paths.assign(texts=paths["texts"].clip(upper=horizon))
    mixture, single = (capped[capped["bet"] == bet] for bet in (EIGHT, SINGLE))
    return stats.ratio(
        mixture["texts"].to_numpy(),
        single["texts"].to_numpy(),
        cluster=mixture["key_id"],
    )


def relative_of_all_keys(
    streams: pd.DataFrame,
    every: int,
    *,
    n_paths: int = 400,
    n_draws: int = 200,
    seed: int = 0,
) -> stats.Estimate:
    """Return :func:`relative` for streams whose watermarked texts are drawn from those of all keys.

    The few texts of one key can all have little evidence by chance. Then every stream that is drawn
    from them has little, and such keys decide the means of :func:`until_found`.

    Each draw of the interval takes as many keys, with repetition, the texts of these keys, and new
    streams. The value has ten times as many streams as a draw.
    """
    densest = streams[streams["every"] == streams["every"].min()]
    of_keys = [rows for _, rows in densest.groupby("key_id")]

    def ratio(numbers: np.ndarray, n_paths: int, seed: int) -> float:
        pool = pd.concat([of_keys[number] for number in numbers])
        found = until_found(pool.assign(key_id="any"), [every], n_paths=n_paths, seed=seed)
        return relative(found, every).value

    n_keys = len(of_keys)
    rng = np.random.default_rng(seed)
    ratios = [
        ratio(rng.integers(n_keys, size=n_keys), n_paths, seed + 1 + draw)
        for draw in range(n_draws)
    ]
    value = ratio(np.arange(n_keys), 10 * n_paths, seed)
    return stats.Estimate(value, *np.quantile(ratios, [0.025, 0.975]), n_keys)


def draw_gained(gained: pd.DataFrame, caption: str) -> Figure:
    """Draw the :func:`medians` of the notebook's records and of this run."""
    table = answers.beside(gained, BETS, "gained")
    figure = panels(
        table.assign(every=table["every"] + " watermarked"),
        "every",
        by="bet",
        panel="run",
        title="Texts until a key is found, single bet and mixture",
        caption=f"this run: {caption}",
        ylabel=f"median number of texts (at most {HORIZON:,})",
        yscale="log",
    )
    return record.save_figure(figure, "gained")


def gained_in_words(until: pd.DataFrame, watched: pd.DataFrame) -> str:
    """Word how many texts the mixture and the single bet need, and how often each of them raises a
    false alarm.

    Args:
        until: of :func:`until_found`.
        watched: of :func:`accused`.
    """
    table = medians(until).set_index(["every", "bet"])
    sentences = []
    for every in until["every"].unique():
        name = f"1 in {every}"
        mixture, single = (table.loc[(name, bet)] for bet in (EIGHT, SINGLE))
        ratio = relative(until, every)
        sentences.append(
            f"**{name}** watermarked: the median is {_median_in_words(mixture)} texts with the"
            f" mixture and {_median_in_words(single)} with the single bet. The mean with the"
            f" mixture divided by the mean with the single bet is **{number(ratio.value, 2)}**"
            f" ({number(ratio.low, 2)} to {number(ratio.high, 2)}). Within {HORIZON:,} texts, the"
            f" key is found in {mixture['share']:.0%} of the streams with the mixture and in"
            f" {single['share']:.0%} with the single bet."
        )
    alarms = largest(watched, {MIXTURE: "with the mixture", BET: "with the single bet"})
    n_keys = until["key_id"].nunique()
    means = (
        f"In a mean, a stream in which the key is not found counts {HORIZON:,} texts;"
        f" n = {n_keys} keys."
    )
    return f"{' '.join(sentences)} {means} {alarms} 5% is allowed."


def _median_in_words(row: pd.Series) -> str:
    """The median number of texts, with its interval."""
    if row["value"] >= HORIZON:
        return f"more than {HORIZON:,}"
    return f"{row['value']:,.0f} ({row['low']:,.0f} to {row['high']:,.0f})"


def kept(
    marked: Sequence[TextGradient],
    key: perturb.Key,
    wm: perturb.PlacedWatermark,
    ends: Sequence[int],
) -> pd.DataFrame:
    """Divide innovation by ψ of one key's marked texts, by their place in a stream of marked texts
    alone.

    Returns:
        ``texts`` (the middle of a segment that ends at one of ``ends``), ``measured``, and ``first
        order``: L⁻¹m over m, for m = σ‖G‖ and K = LLᵀ.
    """
    u = units(marked)
    m = wm.sigma * np.array([gradient.norm for gradient in marked])
    measured = score.psi(marked, wm, [key])[:, 0]
    psi = np.stack([measured, m])  # (measured and first order, texts)
    r, _ = joint.law.innovations(psi, joint.directions.inner(u, u))
    starts = [0, *ends[:-1]]
    r_of_segments = np.split(np.nan_to_num(r), ends[:-1], axis=1)
    psi_of_segments = np.split(psi, ends[:-1], axis=1)
    shares = [
        new.sum(1) / whole.sum(1) for new, whole in zip(r_of_segments, psi_of_segments, strict=True)
    ]
    table = pd.DataFrame(shares, columns=["measured", "first order"])
    return table.assign(texts=(np.array(starts) + ends) / 2, key_id=key.key_id)


def draw_kept(long: pd.DataFrame, c: float, caption: str) -> Figure:
    """Draw the measured share of ψ that is still new (rows of :func:`kept`, several keys), and two
    theories: the first order, and 1/(1 + nc).
    """
    rows = []
    confidence = 1 - 0.05 / long["texts"].nunique()  # all points together, 95%
    n_keys = long["texts"].value_counts().min()
    for middle, segment in long.groupby("texts"):
        measured = stats.interval(segment["measured"], confidence=confidence)
        rows.append({"texts": middle, "what": "measured", **measured.row()})
        theories = {
            "first order: L⁻¹m / m": segment["first order"].mean(),
            "second order, all directions alike": 1 / (1 + middle * c),
        }
        for theory, value in theories.items():
            rows.append({"texts": middle, "what": theory, "value": value})
    return panels(
        intervals.rows_of_enough(pd.DataFrame(rows)),
        "texts",
        by="what",
        title="Share of ψ that is new in the n-th watermarked text",
        caption=f"{caption}; {intervals.note(n_keys, 'keys')}, for all points together",
        xlabel="earlier watermarked texts",
        ylabel="innovation divided by ψ",
        ylim=(0, 1.05),
    )


def flat_information(plain: Sequence[TextGradient], sigma: float) -> float:
    """Return c = σ² tr F²/tr F = σ²κ tr F/d (``learning.unevenness``), from texts of the base
    model.
    """
    d = plain[0].unit().numel()
    trace = np.mean([gradient.norm**2 for gradient in plain])
    return sigma**2 * learning.unevenness(plain) * trace / d


def loss_in_words(c: float, model: str) -> Markdown:
    """Say for each record and for this run after how many watermarked texts half of ψ is gone."""

    def half_gone(c: float) -> str:
        n_texts = f"{1 / c:,.0f}"
        return (
            f"c = {c:.5f}, so in theory half of ψ is gone after 1/c = {n_texts} watermarked texts."
        )

    found = {answers.title(run): half_gone(run.results["c"]) for run in runs.references(NOTEBOOK)}
    return answers.listed(found, half_gone(c), model)


def forged_in_words(forged: pd.DataFrame) -> str:
    """Word ψ and the innovation of the forged texts (rows of :func:`forged`), and how many keys
    reached a wealth of 20 during the queries. Older records lack the wealth.
    """
    psi, innovation = (
        intervals.of_enough(stats.interval(forged[name])) for name in ("psi", "innovation")
    )
    sentence = f"Forged texts (n = keys): mean ψ **{psi}**; mean innovation **{innovation}**."
    if "log_e" not in forged:
        return sentence
    n_rich = int((forged["log_e"] >= np.log(ACCUSED)).sum())
    return (
        f"{sentence} The wealth of the mixture reached {ACCUSED} during the queries for {n_rich} of"
        f" {len(forged)} keys."
    )


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
    """Edit a human text in ``n_steps`` steps, each towards the largest ψ that a detector answers.

    Each step tries eight texts with one token exchanged, and keeps the best of them. The *forged*
    text has one more edit, and the detector was not asked about it.

    Returns:
        Its ``psi`` and ``innovation`` (given all queries), ``climb``, the best ψ of each step, and
        ``log_e``, the largest log E of the mixture after any query.
    """
    rng = np.random.default_rng(seed)
    state = joint.State()  # the detector's memory of all queries
    prompts = [prompt] * N_TRIED
    best = list(response)
    climb = []
    highest = 0.0
    for _ in range(n_steps):
        # each is the best text so far with one more edit
        tries = [edited(best, rng) for _ in range(N_TRIED)]
        answers = joint.sequence(
            lm.model,
            prompts,
            tries,
            wm,
            [key],
            state=state,
            batch_size=N_TRIED,
        )
        best = tries[answers["psi"].argmax()]
        climb.append(answers["psi"].max())
        highest = max(highest, answers["log_e"].max())
    last = joint.sequence(
        lm.model,
        [prompt],
        [edited(best, rng)],
        wm,
        [key],
        state=state,
        batch_size=N_TRIED,
    )
    return {
        "psi": last["psi"][0],
        "innovation": last["innovation"][0],
        "climb": climb,
        "log_e": max(highest, last["log_e"][0]),
    }


def edited(ids: Sequence[int], rng: np.random.Generator) -> list[int]:
    """Exchange one token of the text for another token of the text."""
    ids = list(ids)
    place = int(rng.integers(len(ids)))
    candidates = sorted(set(ids) - {ids[place]})
    if not candidates:  # all tokens are the same
        return ids
    ids[place] = int(rng.choice(candidates))
    return ids


def wealth(lines: dict[str, Float[np.ndarray, "keys n"]], caption: str, title: str) -> Figure:
    """Draw log₁₀ E against the number of texts: a line per key, a colour per kind of stream."""
    figure, axes = plt.subplots()
    for colour, (name, log_e) in zip((style.PLAIN, style.WATERMARKED), lines.items(), strict=False):
        places = np.arange(1, log_e.shape[1] + 1)
        axes.plot(
            places,
            log_e.T / np.log(10),
            color=colour,
            alpha=min(0.7, 12 / len(log_e)),  # many lines are paler
        )
        axes.plot([], [], color=colour, label=name)
    axes.axhline(
        np.log10(ACCUSED),
        **style.DASHED,
        label="20: at most 1 key in 20 ever reaches it",
    )
    axes.set(xlabel="texts so far", ylabel="log₁₀ wealth (initial stake 1)")
    return style.caption(figure, caption, title)
