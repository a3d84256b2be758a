"""Many watermarks of one weight in one batch: each row of it is written by a model of its own.

A map over σ and keys perturbs the same matrix again and again. The layer is linear, so a row that
belongs to key k and to σ needs

    y = (θ + σ z_k)·x = θ·x + σ (z_k·x),      z_k ~ N(0, I)

and a hook can add the second term row by row. All cells then share every other multiplication of
the model, in a batch large enough to be fast. The text is sampled from exactly p_{θ+ξ}; only the
rounding differs from a model whose weight is θ + ξ. In float32 that changes less than one token in
300 (measured on two processors: 0 of 1,600 and 1 of 1,542). A bfloat16 weight θ + ξ rounds a part
of ξ away, which this file does not: most texts are then others (measured: one token in 7 is the
first to differ), of nearly the same distribution. The bounds are tested in
tests/oracle/test_batch_invariance.py.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import groupby, islice

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn.functional import linear as matmul
from transformers import PreTrainedModel

from gaussmark_lib import checks, generate, keys, perturb, tokens, watermark
from gaussmark_lib.errors import InvalidWatermarkError
from gaussmark_lib.tokens import Texts

NOISE_BYTES = 1 << 30  # of noises that are held while a block of rows is written
Cell = tuple[perturb.Watermark, perturb.Key] | None  # None is the base model


def sample(
    model: PreTrainedModel,
    prompts: Texts,
    cells: Sequence[Cell],
    n_tokens: int,
    *,
    seed: int | Sequence[int] = 0,
    top_p: float = 1.0,
    temperature: float = 1.0,
    until_end: bool = False,
    batch_size: int = 128,
) -> list[list[list[int]]]:
    """Continues every prompt under every watermark; the arguments not named below are those of
    ``generate.sample``.

    Args:
        model: the base model.
        cells: (watermark, key) pairs, all of one weight; None stands for the base model.
        seed: one for all cells, which then have the same random numbers, or one per cell.
        batch_size: rows, i.e. prompts × cells, at a time.

    Returns:
        For each cell its responses, one per prompt: those of ``generate.sample`` under
        ``watermarked(model, wm, key)`` with the same seed, up to rounding (above), whatever
        ``batch_size`` and the cells beside it.

    Raises:
        InvalidWatermarkError: no cells, or cells of several weights; and the errors of
            ``generate.sample`` and ``perturb.noise``.
    """
    prompts = generate.checked(model, prompts, n_tokens, top_p, temperature, batch_size)
    cells = tokens.listed(cells, "cells: expected a list of (watermark, key) pairs or None")
    seeds = (
        [seed] * len(cells)
        if checks.is_whole(seed)
        else tokens.listed(seed, "seed: expected one for all cells, or a list of them")
    )
    if len(seeds) != len(cells):
        raise InvalidWatermarkError(
            f"seed: expected one for all, or one for each of {len(cells)} cells, got {len(seeds)}"
        )
    noises = Noises(model, cells)
    order = sorted(
        range(len(cells)), key=lambda i: (noises.number[i], i)
    )  # rows of one key side by side
    uniforms = np.concatenate([generate.uniform(seeds[i], len(prompts), n_tokens) for i in order])
    owner = np.repeat(order, len(prompts))

    def around(rows: slice) -> AbstractContextManager:
        return watermarked_rows(model, noises, owner[rows].tolist())

    texts = generate.continued(
        model, prompts * len(cells), uniforms, top_p, temperature, batch_size, around=around
    )
    flat = iter(generate.cut(model, texts) if until_end else texts)
    found = {i: list(islice(flat, len(prompts))) for i in order}
    return [found[i] for i in range(len(cells))]


def sample_marked(
    model: PreTrainedModel,
    prompts: Sequence[list[int]],
    marks: Sequence[Cell],
    uniforms: np.ndarray,
    top_p: float,
    temperature: float,
    batch_size: int,
    on_step: Callable[[int, int], None] | None = None,
) -> list[list[int]]:
    """Row i is written under ``marks[i]``: blocks of rows whose noises fit ``NOISE_BYTES``."""
    if all(mark is None for mark in marks):
        return generate.continued(
            model, list(prompts), uniforms, top_p, temperature, batch_size, on_step=on_step
        )
    first = next(mark for mark in marks if mark)
    of_noise = 4 * math.prod(first[0].on(model).linear.shape)
    at_once = max(4, NOISE_BYTES // of_noise)
    texts: list[list[int]] = []
    for rows in blocks(marks, at_once):
        noises = Noises(model, marks[rows] + [first])  # never without a watermark
        owner = range(rows.start, rows.stop)

        def around(batch: slice, noises: Noises = noises, n: int = len(owner)):
            return watermarked_rows(model, noises, range(n)[batch])

        texts += generate.continued(
            model,
            list(prompts[rows]),
            uniforms[rows],
            top_p,
            temperature,
            batch_size,
            around=around,
            on_step=on_step,
        )
    return texts


def blocks(marks: Sequence[Cell], at_once: int) -> Iterator[slice]:
    """Consecutive rows that need at most ``at_once`` different noises."""
    start, names = 0, set()
    for row, mark in enumerate(marks):
        name = mark and (mark[1].fingerprint, mark[0].rank_dropped, mark[0].side)
        if name and name not in names and len(names) == at_once:
            yield slice(start, row)
            start, names = row, set()
        names |= {name} - {None}
    yield slice(start, len(marks))


def _check(cell: Cell, what: str) -> None:
    if cell is not None and (
        not isinstance(cell, Sequence) or isinstance(cell, str | bytes) or len(cell) != 2
    ):
        raise InvalidWatermarkError(
            f"{what}: expected a pair of watermark and key, or None, got {checks.kind(cell)}"
        )
    if cell is not None:
        watermark.checked(cell[0])
        keys.checked(cell[1])


class Noises:
    """The noises of some cells of one weight, each key's held once at unit standard deviation.

    Args:
        number: for each cell, the index of its key's noise in ``unit``; −1 for the base model.
        sigma: for each cell, what to multiply it by.
    """

    def __init__(self, model: PreTrainedModel, cells: Sequence[Cell]):
        for i, cell in enumerate(cells):
            _check(cell, f"cells, number {i}")
        weights = sorted({cell[0].weight for cell in cells if cell})
        if len(weights) != 1:
            raise InvalidWatermarkError(
                f"expected watermarks of one weight, got {weights or 'none'}; make a group for each"
                " weight"
            )
        placed = {cell[0]: cell[0].on(model) for cell in cells if cell}
        self.linear = next(iter(placed.values())).linear
        known: dict[tuple[str, int, str], int] = {}
        self.unit: list[Float[Tensor, "d_out d_in"]] = []
        self.number = [-1] * len(cells)
        self.sigma = [cell[0].sigma if cell else 0.0 for cell in cells]
        for i, cell in enumerate(cells):
            if cell is None:
                continue
            wm, key = cell
            name = (key.fingerprint, wm.rank_dropped, wm.side)
            if name not in known or key.binding:  # a bound key is checked at each use
                xi = perturb.noise(model, placed[wm], key)
                if name not in known:
                    known[name] = len(self.unit)
                    self.unit.append((xi.double() / wm.sigma).to(self.linear.parameter))
            self.number[i] = known[name]
            perturb.rounded(
                placed[wm], self.unit[known[name]].float() * wm.sigma
            )  # says so where a model with this weight would carry no watermark


@contextmanager
def watermarked_rows(
    model: PreTrainedModel, noises: Noises, owner: Sequence[int]
) -> Iterator[PreTrainedModel]:
    """Inside the ``with``, row i of a batch of ``len(owner)`` rows is computed by p_{θ+ξ} of cell
    ``owner[i]``; after it, all rows by p_θ.

    Raises:
        PerturbedModelError: if the model carries a watermark already.
        InvalidModelError: in the forward pass, if the layer does not see the batch row by row.
    """
    sigma = torch.tensor([noises.sigma[i] for i in owner], dtype=torch.float64).to(noises.unit[0])[
        :, None, None
    ]
    shape = [len(owner), 0]
    spans = [(number, len(list(rows))) for number, rows in groupby(noises.number[i] for i in owner)]

    def measure(_, inputs, output):
        shape[:] = output.shape[:2]

    def add(_, inputs, output):
        x = tokens.by_text(inputs[0], (len(owner), shape[1]), noises.linear.name)
        parts = zip(spans, x.split([n for _, n in spans]), strict=True)
        extra = [
            (
                matmul(rows, noises.unit[k])
                if k >= 0
                else x.new_zeros(*rows.shape[:-1], output.shape[-1])
            )
            for (k, _), rows in parts
        ]
        moved = torch.addcmul(output.view(*x.shape[:-1], -1), sigma, torch.cat(extra))
        return moved.view(output.shape)

    with (
        perturb.marked(model, f"{len(set(owner))} keys"),
        model.get_input_embeddings().register_forward_hook(measure),
        noises.linear.hooked(add),
    ):
        yield model
