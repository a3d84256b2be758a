"""The loop that the experiments share: write under each key, then score under each key.

A *cell* is a watermark with a key, and many cells of one weight are written in one batch
(``generate_many``); a *scheme* writes its own texts, which are kept (``schemes.cache``). A text
tested for the key it was written under is ``OWN``, for another key ``WRONG``, and a text of the
base model is ``PLAIN``: the positive and the two negative controls.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd
from transformers import PreTrainedModel

from gaussmark_lib import generate_many, models, score
from gaussmark_lib.generate_many import Cell
from gaussmark_lib.keys import Key
from gaussmark_lib.scheme import Scheme
from gaussmark_lib.schemes import cache
from gaussmark_lib.tokens import Texts

OWN, WRONG, PLAIN = "own key", "wrong key", "plain text"


def of_cells(
    lm: models.LM,
    prompts: Texts,
    cells: Sequence[Cell],
    keys: Sequence[Key],
    n_tokens: int,
    *,
    seeds: Sequence[int],
    batch_size: int = 128,
    sampling: Mapping[str, float | bool] | None = None,
    **options,
) -> tuple[pd.DataFrame, list[list[list[int]]]]:
    """Continues every prompt in every cell, all in one batch, and tests every text for every key:
    :func:`scored`'s table, and the responses by cell.

    Args:
        cells: (watermark, key) pairs of one weight; None stands for the base model. seeds: of the
            sampling, one a cell.
        sampling: ``top_p, temperature, until_end`` of ``generate.sample``. options: ``lengths,
            dtype`` of ``score.score``.
    """
    responses = generate_many.sample(
        lm.model, prompts, cells, n_tokens, seed=seeds, batch_size=batch_size, **(sampling or {})
    )
    return scored(lm.model, prompts, responses, cells, keys, **options), responses


def scored(
    model: PreTrainedModel,
    prompts: Texts,
    responses: Sequence[Texts],
    cells: Sequence[Cell],
    keys: Sequence[Key],
    **options,
) -> pd.DataFrame:
    """Tests every cell's text for every key. Cells with the same projection are tested together.

    Args:
        responses: for each cell its texts, one a prompt. options: ``lengths, dtype, batch_size`` of
            ``score.score``.

    Returns:
        One row a text × length × key: ``score.score``'s columns (``text`` counts over all cells),
        ``prompt``, ``written`` (the id of the key the text was written under, missing for plain
        text), ``kind``, and ``weight, sigma, rank_dropped, side`` of the watermark it is tested
        for: its own, or the first one for plain text.
    """
    marks = [cell[0] if cell else next(filter(None, cells))[0] for cell in cells]
    alike = defaultdict(list)
    for number, wm in enumerate(marks):
        alike[wm.rank_dropped, wm.side].append(number)
    tables = []
    for numbers in alike.values():
        wm = marks[numbers[0]]
        if len({marks[number].sigma for number in numbers}) > 1:
            wm = replace(wm, sigma=1.0)  # σ cancels in ψ
        flat = [text for number in numbers for text in responses[number]]
        table = score.score(model, list(prompts) * len(numbers), flat, wm, keys, **options)
        cell, prompt = (
            np.array(numbers)[table["text"] // len(prompts)],
            table["text"] % len(prompts),
        )
        tables.append(table.assign(text=cell * len(prompts) + prompt, prompt=prompt, cell=cell))
    facts = [
        {
            "written": cell and cell[1].key_id,
            "weight": wm.weight,
            "sigma": wm.sigma,
            "rank_dropped": wm.rank_dropped,
            "side": wm.side,
        }
        for cell, wm in zip(cells, marks, strict=True)
    ]
    table = pd.concat(tables, ignore_index=True).join(
        pd.DataFrame(facts).astype({"written": object}), on="cell"
    )
    kind = np.select(
        [table["written"] == table["key_id"], table["written"].notna()], [OWN, WRONG], PLAIN
    )
    return table.assign(kind=kind).drop(columns="cell")


def own_rows(table: pd.DataFrame, keys: Sequence[Key]) -> pd.DataFrame:
    """Of :func:`scored`'s table, the rows of each text under its own key, with its ψ under the next
    key of the list as ``wrong_psi``.
    """
    following = {key.key_id: keys[(i + 1) % len(keys)].key_id for i, key in enumerate(keys)}
    own, psi = table[table["kind"] == OWN], table.set_index(["text", "n_tokens", "key_id"])["psi"]
    wrong = psi.loc[
        list(zip(own["text"], own["n_tokens"], own["key_id"].map(following), strict=True))
    ].to_numpy()
    return own.assign(wrong_psi=wrong if len(keys) > 1 else np.nan).drop(
        columns=["text", "written", "kind"]
    )


def rekeyed(candidates: Sequence[Scheme], n_keys: int, first_seed: int = 0) -> list[Scheme]:
    """Every scheme under each of the same n_keys keys."""
    return [
        scheme.rekeyed(first_seed + number) for scheme in candidates for number in range(n_keys)
    ]


def key_numbers(keyed: Sequence[Scheme]) -> list[int]:
    """For each scheme, the number of its key among those of the list, counted from 0 in the order
    of their first appearance.
    """
    return pd.factorize(np.array([scheme.key.key_id for scheme in keyed]))[0].tolist()


def written(
    lm: models.LM,
    keyed: Sequence[Scheme],
    prompts: Texts,
    n_tokens: int,
    *,
    seed: int = 0,
    **sampling,
) -> list[list[list[int]]]:
    """The responses of each scheme; text i under key j has the same random numbers in all schemes.
    They are kept: see ``schemes.cache``.

    Args:
        sampling: ``top_p, temperature, until_end`` of ``generate.sample``.
    """
    numbers = key_numbers(keyed)
    return [
        cache.responses(lm.model, scheme, prompts, n_tokens, seed=seed + number, **sampling)
        for scheme, number in zip(keyed, numbers, strict=True)
    ]


def own_scores(
    lm: models.LM, keyed: Sequence[Scheme], prompts: Texts, texts: Sequence[Texts]
) -> pd.DataFrame:
    """Each scheme's test of its own texts: the scheme's columns, ``scheme, key_id, prompt``."""
    pairs = zip(keyed, texts, strict=True)
    return pd.concat(
        [labelled(scheme, scheme.score(lm.model, prompts, own)) for scheme, own in pairs],
        ignore_index=True,
    )


def prices(
    lm: models.LM, keyed: Sequence[Scheme], prompts: Texts, texts: Sequence[Texts]
) -> pd.DataFrame:
    """The divergence from the base model along each scheme's own texts, nats a token: ``scheme,
    key_id, prompt, n_tokens, price``.
    """
    tables = []
    for scheme, own in zip(keyed, texts, strict=True):
        lengths = np.array([len(text) for text in own])
        nats = scheme.divergences(lm.model, prompts, own)
        tables.append(
            labelled(
                scheme,
                pd.DataFrame(
                    {"text": range(len(own)), "n_tokens": lengths, "price": nats / lengths}
                ),
            )
        )
    return pd.concat(tables, ignore_index=True)


def labelled(scheme: Scheme, table: pd.DataFrame) -> pd.DataFrame:
    """A scheme's table of one row a text, with ``scheme, key_id`` and the text's number as
    ``prompt``.
    """
    return table.rename(columns={"text": "prompt"}).assign(
        scheme=scheme.name, key_id=scheme.key.key_id
    )
