"""Edits that need a model: they change the words, as a paraphraser does.

* Resampling: the language model itself draws spans of the text again. Once this module is imported,
  ``corrupt.named`` knows this edit as ``resample spans``.
* Translation there and back, which leaves readable text. It uses Apertium's rules, a Debian package
  that needs no network (``apertium``), or Marian models from a hub (``marian``), as in the paper
  (Sec. "robust": English to French and back, opus-mt-tc-big).
"""

import math
from functools import partial

import torch
from jaxtyping import Bool, Int
from torch import Tensor
from transformers import PreTrainedModel

from gaussmark_lib import corrupt, errors, generate, models
from gaussmark_lib.corrupt import Change, Pairs
from gaussmark_lib.engine import blocks
from gaussmark_lib.errors import GaussMarkError, InvalidModelError
from gaussmark_lib.tokens import Texts
from gaussmark_lib.workbench.rewrite import apertium, marian

Translator = apertium.Apertium | marian.Marian  # of one direction, with ``name`` and ``batch``
# Added to the seed of a resampling: the random numbers that wrote a text would draw the same tokens
# again. NumPy pads (seed, row) with zeros, so that a smaller number is the row of another text.
_FRESH = 1 << 96
# texts that are resampled at a time
_ON_CPU = 64
_ON_GPU = 512


def translator(source: str, target: str, *, device: str | None = None) -> Translator:
    """Return Apertium for the directions of ``apertium.DIRECTIONS``, such as
    ``translator("en", "es")``, and a Marian model on this device for ``marian.PAIRS``.

    Raise InvalidModelError for other languages, if Apertium is not installed, or if a model cannot
    be loaded.
    """
    pair = (source, target)
    if pair in list(apertium.DIRECTIONS):  # compared, not hashed: they may be anything
        return apertium.load(source, target)
    if pair in list(marian.PAIRS):
        return marian.load(source, target, device=device)
    directions = [*apertium.DIRECTIONS, *marian.PAIRS]
    in_words = ", ".join(f"{language}→{other}" for language, other in directions)
    raise InvalidModelError(
        f"translator: expected one of {in_words}, got {errors.shown(source)} →"
        f" {errors.shown(target)}; add a direction to apertium.DIRECTIONS, or a model to"
        " marian.PAIRS"
    )


def round_trip(
    lm: models.LM, responses: Texts, there: Translator, back: Translator
) -> list[list[int]]:
    """Return the ids of each text after translation there and back, without a start token.

    Raise GaussMarkError if a translation is empty.
    """
    originals = [lm.decode(list(ids)) for ids in responses]
    abroad = there.batch(originals)
    returned = back.batch(abroad)
    ids_of_returned = [lm.encode(text) for text in returned]
    if not all(ids_of_returned):
        raise GaussMarkError(
            f"expected a text after translation by {there.name} and {back.name}, got an empty text,"
            " which has no score"
        )
    return ids_of_returned


def translation(lm: models.LM, there: Translator, back: Translator) -> Change:
    """Return the round trip as a corruption, which translates whole texts at every fraction above
    0. It is not registered, because it needs a translator.
    """

    def change(prompts: Texts, responses: Texts, fraction: float, seed: int) -> Pairs:
        copied_prompts = [list(ids) for ids in prompts]
        if fraction == 0:
            return copied_prompts, [list(ids) for ids in responses]
        return copied_prompts, round_trip(lm, responses, there, back)

    return change


def round_trips(lm: models.LM) -> dict[str, Change]:
    """Return the round trip that this machine can do, by its name: through Spanish if Apertium is
    installed, otherwise through French by Marian models, which need a hub.
    """
    language = "fr"
    name = "round trip by French"
    if apertium.is_installed():
        language = "es"
        name = "round trip by Spanish"
    there = translator("en", language)
    back = translator(language, "en")
    return {name: translation(lm, there, back)}


# ---- resampling


@corrupt.register("resample spans")
def _resample_spans(lm, prompts, responses, fraction, seed):
    return prompts, resample(lm.model, prompts, responses, fraction, seed=seed)


def resample(
    model: PreTrainedModel,
    prompts: Texts,
    responses: list[list[int]],
    fraction: float,
    *,
    span: int = 8,
    seed: int = 0,
) -> list[list[int]]:
    """Return each response with ⌊f·T⌉ of its tokens drawn again from p_θ(· | x, all tokens before),
    in spans of consecutive tokens, as a paraphraser would. The last span may be shorter.

    The model may draw the same token again. It must have the tokenizer of the model that wrote the
    texts.
    """
    ids, mask = blocks.padded(responses, "right", model.device)
    is_kept = mask.bool()  # (texts, positions)
    for row, response in enumerate(responses):
        rng = corrupt.generator(seed, row)
        is_kept[row, spans(len(response), fraction, span, rng)] = False

    changed = list(responses)
    # texts of one length at a time, so that each fits into its context
    for length in sorted({len(response) for response in responses}):
        rows = [row for row, response in enumerate(responses) if len(response) == length]
        drawn = generate.sample(
            model,
            [prompts[row] for row in rows],
            length,
            seed=seed + _FRESH,
            rows=rows,
            processor=partial(_keeping, ids[rows], is_kept[rows]),
            batch_size=_ON_GPU if model.device.type == "cuda" else _ON_CPU,
        )
        for row, text in zip(rows, drawn, strict=True):
            changed[row] = text
    return changed


def spans(n_tokens: int, fraction: float, span: int, rng: torch.Generator) -> list[int]:
    """Choose ⌊f·T⌉ of T positions: spans of a grid in random order, the last span perhaps cut."""
    n_spans = math.ceil(n_tokens / span)
    positions = []
    for number in torch.randperm(n_spans, generator=rng).tolist():
        start = number * span
        positions += range(start, min(start + span, n_tokens))
    return positions[: corrupt.count(n_tokens, fraction)]


def _keeping(
    ids: Int[Tensor, "texts positions"], is_kept: Bool[Tensor, "texts positions"], batch: slice
) -> generate.Processor:
    """A processor of a batch's logits that leaves no choice at the positions that are kept."""
    # step by step, each (texts, 1)
    tokens_by_step = ids[batch].T[..., None]
    is_kept_by_step = is_kept[batch].T[..., None]
    steps = zip(tokens_by_step, is_kept_by_step, strict=True)

    def process(_: Tensor, logits: Tensor) -> Tensor:
        token, is_kept_here = next(steps)
        without_choice = torch.full_like(logits, -torch.inf).scatter(-1, token, 0.0)
        return torch.where(is_kept_here, without_choice, logits)

    return process
