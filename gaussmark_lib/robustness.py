"""What detection survives: every scheme × every corruption, on the same prompts with the same luck (paper, Sec. "Is GaussMark robust?").

Texts are written once (``written``) and then corrupted more and more; plain texts go through the same corruptions, as the negative control and
for the ROC. Schemes meet only in their p-values, which are exact for each of them. A corruption never asks for the key, so the level stays what it
is on any text; what falls is the power.
"""

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pandas as pd
from tqdm.auto import tqdm

from gaussmark_lib import corrupt, models, rewrite, stats, text_cache
from gaussmark_lib.schemes import Scheme, Texts

LEVELS = (0.05, 0.01)
OWN, PLAIN = "own key", "plain text"

Pairs = tuple[list[list[int]], list[list[int]]]  # prompts as the detector believes them, responses
Change = Callable[[Texts, Texts, float, int], Pairs]  # (prompts, responses, fraction, seed)


def changes(lm: models.LM) -> dict[str, Change]:
    """The corruptions by name; each takes (prompts, responses, fraction, seed). Those without a strength do nothing at 0 and all at 1.

    Edits ``at random`` are of the response, with tokens from the vocabulary (``own tokens``: from the text). Edits ``at the start`` are of prompt and
    response in one piece, for a detector that knows neither where one ends nor what the other was.
    """
    pool = range(lm.model.config.vocab_size)
    drawn = {"insert": corrupt.insert, "substitute": corrupt.substitute}
    found: dict[str, Change] = {"delete at random": partial(_edited, edit=corrupt.delete)}
    for name, edit in drawn.items():
        found[f"{name} at random"] = partial(_edited, edit=partial(edit, pool=pool))
        found[f"{name} own tokens"] = partial(_edited, edit=partial(_from_itself, edit=edit))
        found[f"{name} at the start"] = partial(_edited_whole, edit=partial(edit, pool=pool, at="start"))
    found["delete at the start"] = partial(_edited_whole, edit=partial(corrupt.delete, at="start"))
    found["resample spans"] = partial(_resampled, model=lm.model)
    found["no prompt"] = lambda x, y, fraction, seed: ([[] for _ in x] if corrupt.count(1, fraction) else _copy(x), _copy(y))
    found["wrong prompt"] = lambda x, y, fraction, seed: (corrupt.wrong_prompts(x) if corrupt.count(1, fraction) else _copy(x), _copy(y))
    found["retokenise"] = lambda x, y, fraction, seed: (
        _copy(x),
        [corrupt.retokenise(lm, ids) for ids in y] if corrupt.count(1, fraction) else _copy(y),
    )
    return found


def translation(lm: models.LM, there: rewrite.Translator, back: rewrite.Translator) -> Change:
    """Translation there and back as a corruption, beside those of :func:`changes`."""
    return lambda x, y, fraction, seed: (
        _copy(x),
        [rewrite.round_trip(lm, ids, there, back) for ids in y] if corrupt.count(1, fraction) else _copy(y),
    )


def spliced(hosts: Texts) -> Change:
    """Each response put whole into other text, one host a response, of which so much is taken that it makes up the given fraction of the result."""

    def change(prompts: Texts, responses: Texts, fraction: float, seed: int) -> Pairs:
        out = []
        for i, (response, host) in enumerate(zip(responses, hosts, strict=True)):
            corrupt.count(1, fraction)
            n = round(len(response) * fraction / (1 - fraction)) if fraction < 1 else len(host) + 1
            around = corrupt.truncate(host, n) if n else []
            out.append(corrupt.splice(response, around, corrupt.generator(seed, i)))
        return _copy(prompts), out

    return change


def _copy(texts: Texts) -> list[list[int]]:
    return [list(ids) for ids in texts]


def _edited(prompts: Texts, responses: Texts, fraction: float, seed: int, *, edit: Callable) -> Pairs:
    return _copy(prompts), corrupt.each(lambda ids, rng: edit(ids, fraction, rng), responses, seed)


def _edited_whole(prompts: Texts, responses: Texts, fraction: float, seed: int, *, edit: Callable) -> Pairs:
    pairs = [
        corrupt.of_whole(x, y, lambda ids, rng: edit(ids, fraction, rng), corrupt.generator(seed, i))
        for i, (x, y) in enumerate(zip(prompts, responses, strict=True))
    ]
    return [x for x, _ in pairs], [y for _, y in pairs]


def _from_itself(ids: Sequence[int], fraction: float, rng, *, edit: Callable) -> list[int]:
    return edit(ids, fraction, rng, pool=ids)


def _resampled(prompts: Texts, responses: Texts, fraction: float, seed: int, *, model) -> Pairs:
    return _copy(prompts), rewrite.resample(model, prompts, responses, fraction, seed=seed)


def rekeyed(schemes: Sequence[Scheme], n_keys: int, first_seed: int = 0) -> list[tuple[int, Scheme]]:
    """(number of its key, scheme) for every scheme under each of n_keys keys, the same keys for all."""
    return [(number, scheme.rekeyed(first_seed + number)) for scheme in schemes for number in range(n_keys)]


def written(
    keyed: Sequence[tuple[int, Scheme]], lm: models.LM, prompts: Texts, n_tokens: int, *, seed: int = 0, progress: bool = False
) -> list[list[list[int]]]:
    """The responses of each keyed scheme; text i under key j has the same luck in all schemes. They are kept: see ``text_cache``."""
    bar = tqdm(keyed, desc="writing", unit="scheme × key", disable=not progress)
    return [text_cache.responses(lm.model, scheme, prompts, n_tokens, seed=seed + number) for number, scheme in bar]


def measure(
    keyed: Sequence[tuple[int, Scheme]],
    lm: models.LM,
    prompts: Texts,
    texts: Sequence[Texts],
    plain: Texts,
    chosen: dict[str, Change],
    fractions: Sequence[float],
    *,
    seed: int = 0,
    progress: bool = False,
) -> pd.DataFrame:
    """Corrupts the texts of each keyed scheme, and plain texts, and tests them for their key.

    Args:
        texts: from :func:`written`. plain: one response a prompt that no key has touched.
        chosen: some of :func:`changes`, and others like them.

    Returns:
        One row a scheme × key × corruption × fraction × kind × prompt: ``scheme, key, corruption, fraction, kind`` (``own key`` or ``plain text``),
        ``prompt, n_tokens, statistic, p_value, log10_p``.
    """
    tables = []
    cells = [(name, fraction) for name in chosen for fraction in fractions]
    with tqdm(total=len(cells) * len(keyed), desc="corrupting and testing", unit="cell", disable=not progress) as bar:
        for (number, scheme), own in zip(keyed, texts, strict=True):
            for name, fraction in cells:
                for kind, responses in ((OWN, own), (PLAIN, plain)):
                    x, y = chosen[name](prompts, responses, fraction, seed)
                    facts = {"scheme": scheme.name, "key": number, "corruption": name, "fraction": fraction, "kind": kind}
                    found = scheme.score(lm.model, x, y)[["text", "n_tokens", "statistic", "p_value", "log10_p"]]
                    tables.append(found.rename(columns={"text": "prompt"}).assign(**facts))
                bar.update()
    columns = ["scheme", "key", "corruption", "fraction", "kind", "prompt", "n_tokens", "statistic", "p_value", "log10_p"]
    return pd.concat(tables, ignore_index=True)[columns]


def by_fraction(table: pd.DataFrame, *, n_resamples: int = 500, seed: int = 0) -> pd.DataFrame:
    """Each figure of detection at each strength, with a 95% interval over prompts and keys.

    Returns:
        One row a scheme × corruption × fraction × figure: ``scheme, corruption, fraction, figure, value, low, high, n_prompts, n_keys``; the
        figures are ``median p``, ``AUC``, ``TPR at α`` and ``false positives at α``.
    """
    rows = []
    for (scheme, name, fraction), cell in table.groupby(["scheme", "corruption", "fraction"], sort=False):
        own, plain = (cell[cell["kind"] == kind].pivot(index="prompt", columns="key", values="log10_p").to_numpy() for kind in (OWN, PLAIN))
        figures = {"median p": (_median_p, (own,)), "AUC": (_auc, (plain, own))}
        for level in LEVELS:
            figures[f"TPR at {level}"] = (partial(_share, level=level), (own,))
            figures[f"false positives at {level}"] = (partial(_share, level=level), (plain,))
        for figure, (statistic, matrices) in figures.items():
            interval = stats.crossed_interval(statistic, *matrices, n_resamples=n_resamples, seed=seed)
            rows.append({"scheme": scheme, "corruption": name, "fraction": fraction, "figure": figure} | interval)
    return pd.DataFrame(rows)


def _median_p(log10_p: np.ndarray) -> float:
    return float(10 ** np.median(log10_p))


def _auc(plain: np.ndarray, own: np.ndarray) -> float:
    return stats.auc(-plain, -own)


def _share(log10_p: np.ndarray, level: float) -> float:
    return float((10**log10_p <= level).mean())


def null_levels(
    schemes: Sequence[Scheme],
    lm: models.LM,
    prompts: Texts,
    human: Texts,
    chosen: dict[str, Change],
    fraction: float,
    *,
    first_seed: int = 0,
    confidence: float = 0.99,
    progress: bool = False,
) -> pd.DataFrame:
    """The realised level of each scheme after each corruption of texts that no key has touched, with a fresh key for every text.

    Returns:
        One row a scheme × corruption × level: ``scheme, corruption, level, rate, low, high, n`` (exact interval), and ``exceeds``: whether the
        nominal level lies below the interval. A discrete test's level may lie below the nominal one, never above.
    """
    rows = []
    for name in tqdm(chosen, desc="null levels", unit="corruption", disable=not progress):
        x, y = chosen[name](prompts, human, fraction, first_seed)
        for scheme in schemes:
            p = np.array([scheme.rekeyed(first_seed + i).score(lm.model, [x[i]], [y[i]])["p_value"][0] for i in range(len(y))])
            for level in LEVELS:
                found = stats.rate(p <= level, confidence)
                rows.append({"scheme": scheme.name, "corruption": name, "level": level, **found, "exceeds": found["low"] > level})
    return pd.DataFrame(rows)
