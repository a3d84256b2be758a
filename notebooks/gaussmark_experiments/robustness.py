"""What an edit removes of a watermark, and why (paper, Sec. "Is GaussMark robust?").

    ψ = ⟨ξ, G⟩ / (σ‖G‖):   signal  = ⟨ξ, G⟩/σ = ψ‖G‖,   norm = ‖G‖

A deleted token removes its part of both. If all tokens were alike and context did not matter,
deleting a share f of them would leave 1 − f of the signal and √(1 − f) of the norm and of ψ. An
inserted random token adds nothing to the signal; but it is very unlikely, so its gradient is large
and adds to the norm. It also changes the context of every later token.

An edit does not know the key, so the level holds over keys.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from scipy.stats import binom, norm
from torch import Tensor

from gaussmark_lib import (
    corrupt,
    generate,
    gradients,
    models,
    perturb,
    score,
    stats,
)
from gaussmark_lib.beyond import channel, schemes
from gaussmark_lib.beyond.schemes import GaussMark
from gaussmark_lib.corrupt import Change
from gaussmark_lib.engine.blocks import HELD, in_lists
from gaussmark_lib.engine.decoding import Processor
from gaussmark_lib.engine.stream import streams
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.scheme import Scheme
from gaussmark_lib.tokens import Texts
from gaussmark_lib.weights import PlacedWatermark
from gaussmark_lib.workbench import (
    record,
    rewrite,  # noqa: F401 - registers edits that need a model
    runs,
)
from gaussmark_lib.workbench.answers import title
from gaussmark_lib.workbench.begin import solved
from gaussmark_lib.workbench.pairs import (
    Pairs,
    Tables,
    numbering,
    over_pairs,
    ratio_over_pairs,
    shares,
)
from gaussmark_lib.workbench.plots.panels import panels

# Names of schemes, edits and predictions, as tables and figures show them.
PAPERS = "GaussMark"  # with the paper's test
SHARPER = "GaussMark, sharper"
UNEDITED = "unedited"
LOST = "predicted"
PARTS = {
    "signal": "signal ⟨ξ, G⟩/σ",
    "norm": "norm ‖G‖",
    "psi": "ψ",
}  # column → label
LEVELS = (0.05, 0.01)
# Random edits of notebook 06, and edits that people make.
DELETE = "delete at random"
INSERT = "insert at random"
SUBSTITUTE = "substitute at random"
CUT = "truncate"
RESAMPLE = "resample spans"
PEOPLE = ("retokenise", RESAMPLE, "substitute own tokens")


def unedited(prompts: Texts, responses: Texts, fraction: float, seed: int) -> corrupt.Pairs:
    """Return the texts as they are: the corruption that does nothing."""
    return prompts, responses


def quoted(hosts: Texts) -> Change:
    """Return a corruption that puts each response, unchanged, into a gap of a human text, its host.
    The given fraction of the result is the host's, which must be long enough.
    """

    def change(prompts: Texts, responses: Texts, fraction: float, seed: int) -> corrupt.Pairs:
        quotations = []
        for i, (response, host) in enumerate(zip(responses, hosts, strict=True)):
            n_host = round(len(response) * fraction / (1 - fraction))
            random = corrupt.generator(seed, i)
            gap = int(torch.randint(n_host + 1, (1,), generator=random))
            quotations.append([*host[:gap], *response, *host[gap:n_host]])
        return [list(ids) for ids in prompts], quotations

    return change


def candidates(
    lm: models.LM,
    names: Sequence[str],
    wm: Watermark,
    pairs: Pairs,
    n_tokens: int,
    *,
    psi: float,
    pilot: Texts,
    rank_dropped: int | None = None,
    dtype: str | None = None,
    **options,
) -> dict[str, Scheme]:
    """Return the registered schemes of these names.

    The rank-reduced scheme, by default without half of all directions, has a σ for the same ψ,
    solved on prompts of the pilot. Token keys mark a small late matrix.
    """
    small = models.default_weight(lm.model, block=-1, small=True)
    marks = {name: Watermark(small, wm.sigma) for name in names if name.startswith("token keys")}
    if "rank-reduced" in names:
        n_dropped = rank_dropped or min(wm.on(lm.model).linear.shape) // 2
        reduced = replace(wm, rank_dropped=n_dropped)
        marks["rank-reduced"] = solved(lm, pilot, n_tokens, reduced, psi, **options)
    tried = {}
    for name in names:
        mark = marks.get(name, wm)  # most schemes take the common watermark
        scheme = schemes.named(mark, pairs.keys[0], [name])[name]
        if isinstance(scheme, GaussMark):
            scheme = replace(scheme, dtype=dtype)
        tried[name] = scheme
    return tried


def texts_by_scheme(
    lm: models.LM,
    tried: Mapping[str, Scheme],
    pairs: Pairs,
    n_tokens: int,
    **options,
) -> dict[str, Texts]:
    """Write a text of each pair by each scheme, pair i with the same random numbers. Options are
    those of ``generate.sample``.

    Two tests of one watermark have the same texts. The schemes write in one batch, except for those
    that write in a way of their own, and those whose noises would be the second noises of a pair: a
    batch has room for one noise per pair.
    """
    written: dict[str, Texts] = {}
    together = []  # names of schemes that share a batch
    with_noise: dict[Watermark, str] = {}  # watermark → the first scheme that writes with it
    for name, scheme in tried.items():
        if not isinstance(scheme, GaussMark):
            if type(scheme).generate is Scheme.generate:
                together.append(name)
                continue
            # a way of their own has no batches
            unbatched = {
                option: value for option, value in options.items() if option != "batch_size"
            }
            written[name] = scheme.generate(
                lm.model,
                pairs.prompts,
                n_tokens,
                keys=pairs.keys,
                **unbatched,
            )
        elif scheme.wm not in with_noise:
            if with_noise:
                [written[name]] = _written_at_once(lm, [scheme], pairs, n_tokens, **options)
            else:
                together.append(name)
            with_noise[scheme.wm] = name
    if together:
        schemes = [tried[name] for name in together]
        texts = _written_at_once(lm, schemes, pairs, n_tokens, **options)
        written.update(zip(together, texts, strict=True))
    for name, scheme in tried.items():
        if name not in written:
            written[name] = written[with_noise[scheme.wm]]
    return {name: written[name] for name in tried}  # in the order of the schemes


def _written_at_once(
    lm: models.LM,
    schemes: Sequence[Scheme],
    pairs: Pairs,
    n_tokens: int,
    **options,
) -> list[Texts]:
    """A text of each pair by each scheme, scheme after scheme in one batch."""
    n_schemes = len(schemes)
    is_greedy = options.get("temperature") == 0
    parts = [
        scheme.writing(lm.model, pairs.n, pairs.keys, is_greedy=is_greedy) for scheme in schemes
    ]
    marks = [mark for part in parts for mark in part.get("marks", [None] * pairs.n)]
    processors = [part.get("processor") for part in parts]
    texts = generate.sample(
        lm.model,
        pairs.prompts * n_schemes,
        n_tokens,
        marks=marks if any(marks) else None,
        processor=_of_parts(processors, pairs.n) if any(processors) else None,
        rows=[*range(pairs.n)] * n_schemes,  # which random numbers: those of the pair
        **options,
    )
    return [*in_lists(texts, pairs.n)]


def _of_parts(processors: Sequence[Callable | None], n: int) -> Callable[[slice], Processor]:
    """A processor of all texts: rows i·n to (i + 1)·n belong to processor i, if it is not None."""

    def of_batch(rows: slice) -> Processor:
        of_rows = []  # (rows of the batch, their processor)
        for i, processor in enumerate(processors):
            first = max(rows.start, i * n)
            end = min(rows.stop, (i + 1) * n)
            if processor is None or first >= end:
                continue
            in_batch = slice(first - rows.start, end - rows.start)
            in_part = slice(first - i * n, end - i * n)
            of_rows.append((in_batch, processor(in_part)))

        def process(ids: Tensor, logits: Tensor) -> Tensor:
            changed = logits.clone()
            for in_batch, process_rows in of_rows:
                changed[in_batch] = process_rows(ids[in_batch], logits[in_batch])
            return changed

        return process

    return of_batch


def edited(
    lm: models.LM,
    tried: Mapping[str, Scheme],
    pairs: Pairs,
    texts: Mapping[str, Texts],
    changes: Mapping[str, Change],
    fractions: Sequence[float],
    *,
    seed: int = 0,
) -> pd.DataFrame:
    """Test each scheme's own texts under their keys, after each edit at each strength.

    Returns:
        ``scheme, edit, fraction, pair, p_value, psi`` (the scheme's statistic), ``norm`` and
        ``signal`` (NaN if a scheme has none). Without an edit, the fraction is 0 and the edit
        ``UNEDITED``.
    """
    change_of = {UNEDITED: unedited, **changes}
    strengths = [(UNEDITED, 0.0), *product(changes, fractions)]
    tables = {}
    for names in _with_common_texts(tried, texts):
        versions = [  # one (prompts, responses) per strength
            change_of[edit](pairs.prompts, texts[names[0]], fraction, seed)
            for edit, fraction in strengths
        ]
        # text after text, so that what belongs to a key is made once
        prompts = [x[i] for i in range(pairs.n) for x, _ in versions]
        responses = [y[i] for i in range(pairs.n) for _, y in versions]
        owner = [i for i in range(pairs.n) for _ in versions]
        schemes = [tried[name] for name in names]
        scheme_tables = under_own_keys(lm, schemes, pairs.keys, prompts, responses, owner)
        tables.update(zip(names, scheme_tables, strict=True))
    of_schemes = [_by_version(name, tables[name], strengths) for name in tried]
    return pd.concat(of_schemes, ignore_index=True)


def _by_version(
    name: str, table: pd.DataFrame, strengths: Sequence[tuple[str, float]]
) -> pd.DataFrame:
    """A scheme's part of :func:`edited`, from its tests of all versions, text after text."""
    size = table.get("grad_norm", np.nan)
    statistic = table["statistic"]
    # texts of a pair are neighbours
    pair, version = np.divmod(table["text"].to_numpy(), len(strengths))
    edit, fraction = zip(*(strengths[number] for number in version), strict=True)
    columns = {
        "scheme": name,
        "edit": edit,
        "fraction": fraction,
        "pair": pair,
        "p_value": table["p_value"],
        "psi": statistic,
        "norm": size,
    }
    of_scheme = pd.DataFrame(columns).assign(signal=statistic * size)
    return of_scheme.iloc[np.lexsort([pair, version])]  # version by version


def _with_common_texts(tried: Mapping[str, Scheme], texts: Mapping[str, Texts]) -> list[list[str]]:
    """The names of the schemes, in groups that test the same texts along the gradient of the same
    weight.
    """
    groups: list[list[str]] = []
    for name, scheme in tried.items():
        for names in groups:
            first = tried[names[0]]  # stands for its group
            are_gradients = isinstance(scheme, GaussMark) and isinstance(first, GaussMark)
            if are_gradients and first.wm == scheme.wm and texts[names[0]] == texts[name]:
                names.append(name)
                break
        else:
            groups.append([name])
    return groups


def under_own_keys(
    lm: models.LM,
    schemes: Sequence[Scheme],
    keys: Sequence[Key],
    prompts: Texts,
    responses: Texts,
    owner: Sequence[int],
    lengths: Sequence[int] | None = None,
) -> list[pd.DataFrame]:
    """Test text i under the key ``keys[owner[i]]`` by each scheme: a table per scheme, as
    ``Scheme.score`` has it.

    If there are several schemes, all are ``GaussMark`` on one weight. They share each text's
    forward pass, and each key's noise is drawn once. Only ``GaussMark`` takes ``lengths``.
    """
    first = schemes[0]
    if not isinstance(first, GaussMark):
        own_keys = [keys[i] for i in owner]
        return [first.score(lm.model, prompts, responses, own_keys)]
    wm, keys = perturb.ready(lm.model, first.wm, keys)  # on the model, and checked
    noise_of = held_noises(wm, keys)
    weighings = [channel.weights(lm.model, scheme.edited) for scheme in schemes]
    of_texts = gradients.gradients(
        lm.model,
        prompts,
        responses,
        first.wm,
        token_weights=weighings,
        lengths=lengths,
        dtype=first.dtype,
    )
    rows: list[list[tuple]] = [[] for _ in schemes]
    # each text has one gradient per scheme, next to each other
    for of_text in in_lists(of_texts, len(schemes)):
        for of_scheme, gradient in zip(rows, of_text, strict=True):
            psi = along_noise(gradient, noise_of(owner[gradient.text]))
            of_scheme.append((gradient.text, gradient.n_tokens, psi, gradient.norm))
    return [_table(of_scheme) for of_scheme in rows]


def held_noises(wm: PlacedWatermark, keys: Sequence[Key]) -> Callable[[int], Float[Tensor, " d"]]:
    """Return a function of i: ξ/σ of ``keys[i]``, flat, on the model's device. It keeps the noises
    that were used last, as many as fit in ``HELD`` bytes.
    """
    n_noises = max(4, HELD // (4 * wm.d))  # of four bytes per number

    @lru_cache(n_noises)
    def noise_of(i: int) -> Float[Tensor, " d"]:
        return streams([keys[i]], wm.d, 1.0, wm.model.device)[0]

    return noise_of


def along_noise(gradient: gradients.TextGradient, z: Float[Tensor, " d"]) -> float:
    """Return ψ = ⟨z, u⟩ of a text's direction u. P is in u already."""
    u = gradient.unit()
    return torch.dot(u, z.to(u)).item()


def _table(rows: Sequence[tuple]) -> pd.DataFrame:
    """A table of texts with their ψ, ‖G‖ and p-values, in the order of texts and lengths."""
    table = pd.DataFrame(rows, columns=["text", "n_tokens", "statistic", "grad_norm"])
    psi = table["statistic"].to_numpy()
    table = table.assign(p_value=norm.sf(psi), log10_p=norm.logsf(psi) / np.log(10))
    return table.sort_values(["text", "n_tokens"], kind="stable", ignore_index=True)


def with_start(table: pd.DataFrame) -> pd.DataFrame:
    """Repeat the unedited texts as fraction 0 of each edit, for lines that begin there."""
    start = table[table["edit"] == UNEDITED]
    # in the order of the table
    edits = [edit for edit in table["edit"].unique() if edit != UNEDITED]
    starts = [start.assign(edit=edit) for edit in edits]
    return pd.concat([*starts, table[table["edit"] != UNEDITED]], ignore_index=True)


def power_figure(
    table: pd.DataFrame,
    name: str,
    x: str,
    caption: str,
    title: str,
    *,
    level: float = 0.05,
    **options,
) -> Figure:
    """Draw the share of texts detected at the level against the column x, with a panel for each run
    of ``answers.beside``. Save the figure in the record as ``name``. Options are those of
    ``panels``.
    """
    drawn = panels(
        shares(table, ["run", "scheme", "edit", "fraction"], level),
        x,
        panel="run",
        at={"level": level},
        ylabel=f"share of texts detected at level {level:g}",
        ylim=(-0.03, 1.03),
        title=title,
        caption=caption,
        **options,
    )
    return record.save_figure(drawn, name)


def at_one_strength(table: pd.DataFrame, fraction: float, tried: Sequence[str]) -> pd.DataFrame:
    """Return the rows of these schemes without an edit and with edits of this strength."""
    is_strength = table["fraction"].isin([0.0, fraction])
    return table[is_strength & table["scheme"].isin(tried)]


def auc_in_words(auc: pd.DataFrame) -> str:
    """Return the area under the ROC curve of each scheme, with its interval, as Markdown.

    >>> auc_in_words(pd.DataFrame([{"scheme": "KGW-1", "value": 0.97, "low": 0.95, "high": 1.01}]))
    '**KGW-1** 0.97 (0.95 to 1.00)'
    """
    return "; ".join(
        f"**{row.scheme}** {row.value:.2f} ({row.low:.2f} to {min(row.high, 1):.2f})"
        for row in auc.itertuples()
    )


def of_other_watermarks() -> pd.DataFrame:
    """Return notebook 08's records of edited texts by all its watermarks, with ``run``. The table
    is empty if there is no such record.
    """
    tables = [pd.DataFrame()]
    for run in runs.references("08_kgw_baseline"):
        if (run.dir / "edits.parquet").exists():
            table = run.table("edits")
            strength = table["fraction"].map(", {:.0%}".format).where(table["fraction"] > 0, "")
            tables.append(table.assign(run=title(run), edit=table["edit"] + strength))
    return pd.concat(tables, ignore_index=True)


def falls_most_in_words(table: pd.DataFrame, level: float) -> str:
    """Say which scheme's detection rate falls most after the first edit, from the rows of one run
    of :func:`of_other_watermarks`, and how far the others fall.
    """
    share = shares(table, ["edit", "scheme"], level)
    share = share.pivot(index="scheme", columns="edit", values="value")
    edit = next(name for name in table["edit"] if name != UNEDITED)
    fall = (share[UNEDITED] - share[edit]).sort_values(ascending=False)
    names = [
        f"{scheme} from {share.loc[scheme, UNEDITED]:.0%} to {share.loc[scheme, edit]:.0%}"
        for scheme in fall.index
    ]
    return f"after *{edit}*, **{names[0]}** falls most; {'; '.join(names[1:])}"


def psi_after(table: pd.DataFrame, fraction: float, column: str = "psi") -> pd.DataFrame:
    """Return ψ by the paper's test, as (pairs, edits), without an edit and with edits of this
    strength. Another ``column`` is ``norm`` or ``signal``.
    """
    rows = at_one_strength(table, fraction, [PAPERS])
    return rows.pivot(
        index=numbering(rows, "pair"),
        columns="edit",
        values=column,
    )


def by_test(table: pd.DataFrame, edit: str, fraction: float) -> pd.DataFrame:
    """Return ψ after an edit, as (pairs, schemes)."""
    is_edit = table["edit"] == edit
    is_strength = table["fraction"] == fraction
    rows = table[is_edit & is_strength]
    return rows.pivot(
        index=numbering(rows, "pair"),
        columns="scheme",
        values="psi",
    )


def detected_after(table: pd.DataFrame, edit: str, fraction: float, level: float) -> stats.Estimate:
    """Return the share of texts that the paper's test detects after an edit."""
    is_edit = table["edit"] == edit
    is_strength = table["fraction"] == fraction
    is_papers = table["scheme"] == PAPERS
    rows = table[is_edit & is_strength & is_papers]
    p_values = rows.set_index(numbering(rows, "pair"))["p_value"]
    return over_pairs(p_values <= level)


def estimates(
    tables: Tables,
    params: Mapping[str, Any],
) -> dict[str, stats.Estimate]:
    """Return the findings of notebook 06, and its headline, by their sentences.

    Args:
        tables: ``random_edits``, ``prompts`` and ``people``, as the notebook records them.
        params: ``strength, fractions, n_tokens`` of the notebook.
    """
    strength = params["strength"]
    most = max(strength, *params["fractions"])
    table = tables["random_edits"]
    psi = psi_after(table, strength)
    psi_at_most = psi_after(table, most)
    norm_at_most = psi_after(table, most, "norm")
    signal = psi_after(table, most, "signal")
    # (pairs, edits)
    by_prompt = psi_after(tables["prompts"], strength)
    by_people = psi_after(tables["people"], strength)
    substituted = f"{strength:.0%} of their tokens substituted"
    detected = detected_after(table, SUBSTITUTE, strength, 0.05)
    found = {
        # random edits
        "ψ after deletion less ψ after substitution of as many tokens": over_pairs(
            psi_at_most[DELETE] - psi_at_most[SUBSTITUTE]
        ),
        "ψ after deletion at the end less ψ after deletion of as many tokens at random": over_pairs(
            psi_at_most[CUT] - psi_at_most[DELETE]
        ),
        # signal and norm
        "norm after insertion, divided by √(1 + f) of the norm before": ratio_over_pairs(
            norm_at_most[INSERT] / np.sqrt(1 + most),
            norm_at_most[UNEDITED],
        ),
        "signal after substitution less signal after insertion, divided by the signal before": (
            ratio_over_pairs(
                signal[SUBSTITUTE] - signal[INSERT],
                signal[UNEDITED],
            )
        ),
        # an unknown prompt, and edits that people make
        "ψ with no prompt, divided by ψ with the right prompt": ratio_over_pairs(
            by_prompt["no prompt"],
            by_prompt[UNEDITED],
        ),
        "ψ after the model's own words less ψ after as many random words": over_pairs(
            by_people[RESAMPLE] - psi[SUBSTITUTE]
        ),
        # detection, a finding and the headline
        f"texts detected at level 0.05 with {substituted}, by the paper's test": detected,
        f"texts of {params['n_tokens']} tokens detected at level 0.05 with {substituted}": detected,
    }
    psis = by_test(table, SUBSTITUTE, strength)
    if SHARPER in psis:
        sentence = (
            f"ψ with {strength:.0%} of the tokens substituted: sharper divided by the paper's"
        )
        found[sentence] = ratio_over_pairs(psis[SHARPER], psis[PAPERS])
    return found


def summaries(
    tables: Tables,
    params: Mapping[str, Any],
) -> dict[str, pd.DataFrame]:
    """Return the recorded tables that other tables decide."""
    table = tables["random_edits"]
    of_paper = table[table["scheme"] == PAPERS]
    return {"signal_and_norm": parts(of_paper), "levels": recounted(tables["levels"])}


def numbers(
    tables: Tables,
    params: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the other recorded results that the tables decide: ψ by the paper's test after each
    everyday edit, and after random edits of the same strength.
    """
    table = tables["random_edits"]
    of_strength = table[table["fraction"] == params["strength"]]
    everyday = pd.concat([tables["people"], of_strength])
    of_paper = everyday[everyday["scheme"] == PAPERS]
    by_edit = of_paper.groupby("edit", sort=False)["psi"].mean()
    return {"psi by everyday edit": by_edit.to_dict()}


def mean_psi(table: pd.DataFrame, fraction: float) -> pd.DataFrame:
    """Return the mean ψ by the paper's test for each run of ``answers.beside``: (runs, edits)."""
    rows = at_one_strength(table, fraction, [PAPERS])
    means_of_runs = rows.pivot_table("psi", "run", "edit", sort=False)
    return means_of_runs.rename_axis(index=None, columns=f"mean ψ, f = {fraction:g}").round(2)


def recovered(table: pd.DataFrame, edit: str, fraction: float) -> stats.Estimate:
    """Return the share of the mean ψ that an edit removes and the sharper test brings back: (ψ by
    the sharper test − ψ by the paper's) / (ψ without the edit − ψ by the paper's).
    """
    after = by_test(table, edit, fraction)
    before = psi_after(table, fraction)[UNEDITED]
    return ratio_over_pairs(after[SHARPER] - after[PAPERS], before - after[PAPERS])


def quoted_in_words(table: pd.DataFrame, fraction: float) -> str:
    """Say what a quotation leaves of the mean ψ of one run, and what the norm alone would leave."""
    psi = psi_after(table, fraction)
    if "quoted" not in psi:
        return "no quotations at this strength"
    left = psi["quoted"].mean() / psi[UNEDITED].mean()
    return (
        f"a quotation leaves {left:.0%} of the mean ψ (n = {len(psi)}). If the other tokens only"
        f" added their share of the norm, {(1 - fraction) ** 0.5:.0%} would be left"
    )


def less_worst(psi: pd.DataFrame, edit: str, others: Sequence[str]) -> stats.Estimate:
    """Subtract ψ after ``edit`` from ψ after that one of the others which leaves the least, over
    the same pairs. It is positive if ``edit`` hurts most.
    """
    worst = psi[list(others)].mean().idxmin()
    return over_pairs(psi[worst] - psi[edit])


def parts(table: pd.DataFrame) -> pd.DataFrame:
    """Divide mean signal, norm and ψ of one scheme's texts by their means without an edit.

    Returns:
        ``edit, fraction, part, value, low, high, n``; and as the edit ``LOST`` what these would be
        if tokens were lost and nothing else happened.
    """
    rows = []
    pair = numbering(table, "pair")
    start = table[table["edit"] == UNEDITED].set_index(pair)
    for (edit, fraction), of_edit in with_start(table).groupby(["edit", "fraction"], sort=False):
        by_pair = of_edit.set_index(pair)  # in the order of the unedited texts
        for part, label in PARTS.items():
            share = ratio_over_pairs(by_pair[part], start[part])
            rows.append(
                {
                    "edit": edit,
                    "fraction": fraction,
                    "part": label,
                    **share.row(),
                }
            )
    fractions = sorted({0.0, *table["fraction"]})
    for fraction, (part, label) in product(fractions, PARTS.items()):
        power = 1 if part == "signal" else 0.5
        value = (1 - fraction) ** power
        rows.append(
            {
                "edit": LOST,
                "fraction": fraction,
                "part": label,
                "value": value,
            }
        )
    return pd.DataFrame(rows)


def draw_parts(table: pd.DataFrame, fraction: float, caption: str) -> Figure:
    """Draw :func:`parts` of each run at one strength, next to the prediction."""
    rows = table[table["fraction"] == fraction]
    is_law = rows["edit"] == LOST
    law = rows[is_law].groupby("part")["value"].first()  # the same in all runs
    measured = rows[~is_law]
    predicted = measured.drop_duplicates(["edit", "part"])
    predicted = predicted.assign(value=predicted["part"].map(law), low=None, high=None, run=LOST)
    return panels(
        pd.concat([measured, predicted.astype({"low": float, "high": float})]),
        "edit",
        by="run",
        panel="part",
        title=f"What {fraction:.0%} edited tokens leave of signal, norm and ψ",
        caption=caption,
        ylabel="divided by its value without an edit",
    )


def closest_in_words(table: pd.DataFrame, fraction: float) -> str:
    """Say after which edit ψ is closest to its prediction, and after which the norm grows, from the
    rows of one run in :func:`parts`.
    """
    rows = table[table["fraction"] == fraction]
    if not len(rows):
        return f"no edits of {fraction:.0%} of the tokens"
    values = rows.pivot(index="edit", columns="part", values="value")
    psi = values[PARTS["psi"]]
    size = values[PARTS["norm"]].drop(LOST)
    law = psi[LOST]
    closest = (psi.drop(LOST) - law).abs().idxmin()
    growing = size[size > 1]
    grown = ", ".join(f"*{edit}* × {factor:.2f}" for edit, factor in growing.items()) or "no edit"
    return (
        f"closest to the prediction is *{closest}* (ψ × {psi[closest]:.2f}, predicted {law:.2f});"
        f" the norm grows after {grown}"
    )


def toy(lost: float, added: float, surprise: float) -> float:
    """Return ψ after an edit divided by ψ before it, for a toy text of 100 tokens.

    Each token's gradient is a random vector, all tokens have the same part of the signal, and
    there are no contexts. A share ``lost`` of the tokens is deleted, and ``added`` · 100 other
    tokens are inserted. An inserted token has no signal on average, and its squared norm is
    ``surprise`` times that of an original token.
    """
    n_tokens = 100
    dimension = 20_000
    n_lost = round(lost * n_tokens)
    n_added = round(added * n_tokens)
    rng = np.random.default_rng(0)
    # a row per token
    tokens = rng.normal(size=(n_tokens, dimension)) / dimension**0.5
    inserted = rng.normal(size=(n_added, dimension)) * (surprise / dimension) ** 0.5
    unedited = tokens.sum(0)
    changed = tokens[n_lost:].sum(0) + inserted.sum(0)
    xi = unedited  # up to a factor: ψ does not depend on it
    psi_unedited = xi @ unedited / np.linalg.norm(unedited)
    psi_changed = xi @ changed / np.linalg.norm(changed)
    return float(psi_changed / psi_unedited)


def false_alarms(
    lm: models.LM,
    tried: Mapping[str, Scheme],
    prompts: Texts,
    human: Texts,
    changes: Mapping[str, Change],
    fraction: float,
    *,
    keys_per_text: int = 1,
    seed: int = 0,
) -> pd.DataFrame:
    """Measure the level after each edit of unwatermarked texts, under keys that no other text has.
    For a given text, the keys' false alarms are independent, so the count over all pairs is
    binomial.

    Returns:
        ``scheme, edit, level, value, low, high, n`` (exact 99% interval), and ``p_excess`` =
        P(Binomial(n, level) ≥ alarms). Rows share texts and keys.
    """
    versions = {edit: change(prompts, human, fraction, seed) for edit, change in changes.items()}
    rows = []
    for name, scheme in tried.items():
        p_of_texts = []  # for each text (edits, keys)
        for i in range(len(human)):
            edited_prompts = [x[i] for x, _ in versions.values()]
            edited_responses = [y[i] for _, y in versions.values()]
            # beyond the keys of the pairs of this seed
            first = 1_000_000 * seed + 500_000 + i * keys_per_text
            # keys of this text alone
            fresh = [Key.from_seed(first + j) for j in range(keys_per_text)]
            p_of_texts.append(p_values(lm, scheme, edited_prompts, edited_responses, fresh))
        p_by_edit = np.concatenate(p_of_texts, axis=1)
        for edit, p in zip(versions, p_by_edit, strict=True):
            for level in LEVELS:
                row = {"scheme": name, "edit": edit, "level": level}
                rows.append(row | _counted(int((p <= level).sum()), p.size, level))
    return pd.DataFrame(rows)


def _counted(n_alarms: int, n: int, level: float) -> dict[str, float]:
    """The columns of :func:`false_alarms` for so many alarms among n independent keys."""
    alarms = np.arange(n) < n_alarms
    share = stats.interval(alarms, confidence=0.99)
    return {"p_excess": binom.sf(n_alarms - 1, n, level), **share.row()}


def recounted(alarms: pd.DataFrame) -> pd.DataFrame:
    """Add up the rows of :func:`false_alarms` for the same scheme, edit and level: their keys are
    independent, whatever the texts.
    """
    rows = []
    names = ["scheme", "edit", "level"]
    # a share is a count divided by n, up to rounding
    counts = (alarms["value"] * alarms["n"]).round()
    for cell_name, cell in alarms.assign(count=counts).groupby(names, sort=False):
        row = dict(zip(names, cell_name, strict=True))
        n_alarms = int(cell["count"].sum())
        n = int(cell["n"].sum())
        rows.append(row | _counted(n_alarms, n, row["level"]))
    return pd.DataFrame(rows)


def draw_levels(alarms: pd.DataFrame, caption: str) -> Figure:
    """Draw :func:`false_alarms` of each run at the first of the levels, an edit per row. Schemes
    have a panel each.
    """
    level = LEVELS[0]
    return panels(
        alarms[alarms["level"] == level],
        "edit",
        by="run",
        panel="scheme",
        at={f"the level, {level:g}": level},
        title="Does any edit change the false-alarm rate?",
        caption=caption,
        ylabel="false alarms, share of texts and keys",
    )


def missed_in_words(alarms: pd.DataFrame) -> str:
    """Say how many intervals of one run exclude their level (:func:`false_alarms`)."""
    n_missed = (~alarms["level"].between(alarms["low"], alarms["high"])).sum()
    n_rows = len(alarms)
    return (
        f"{n_missed} of {n_rows} intervals exclude their level ({alarms['n'].iloc[0]:,} pairs"
        f" each); by chance, at most {0.01 * n_rows:.1f} would on average"
    )


def p_values(
    lm: models.LM,
    scheme: Scheme,
    prompts: Texts,
    responses: Texts,
    keys: Sequence[Key],
) -> np.ndarray:
    """Return the p-values of the texts under each key, as (texts, keys)."""
    if isinstance(scheme, GaussMark):
        # all keys share the gradients
        table = score.score(
            lm.model,
            prompts,
            responses,
            scheme.wm,
            keys,
            dtype=scheme.dtype,
        )
        return table["p_value"].to_numpy().reshape(len(responses), len(keys))
    n = len(responses)
    k = len(keys)
    of_each = [key for key in keys for _ in range(n)]  # all texts of a key together
    table = scheme.score(lm.model, list(prompts) * k, list(responses) * k, of_each)
    return table["p_value"].to_numpy().reshape(k, n).T
