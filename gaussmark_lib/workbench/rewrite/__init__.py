"""Edits that need a model: they change the words, as a paraphraser does.

* Resampling: the language model itself draws spans of the text anew. Where this module is
  imported, ``corrupt.named`` knows it, as ``resample spans``.
* Translation there and back, which leaves readable text: by Apertium's rules, which Debian packages
  and which need no network (``apertium``), or by Marian models from a hub (``marian``), as in the
  paper (Sec. "robust": English to French and back, opus-mt-tc-big).
"""

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
# Added to a resampling's seed: the random numbers that wrote a text would draw the same tokens
# again. NumPy pads (seed, row) with zeros, so that a smaller number is the row of another text.
_FRESH = 1 << 96
_ON_CPU, _ON_GPU = 64, 512  # texts that are resampled at a time


def translator(source: str, target: str, *, device: str | None = None) -> Translator:
    """Apertium for ``translator("en", "es")`` and the other directions of ``apertium.DIRECTIONS``;
    a Marian model, on this device, for those of ``marian.PAIRS``.

    Raises InvalidModelError for other languages, if Apertium is not installed, or if a model cannot
    be had.
    """
    pair = (source, target)
    if pair in list(apertium.DIRECTIONS):  # compared, not hashed: they may be anything
        return apertium.load(source, target)
    if pair in list(marian.PAIRS):
        return marian.load(source, target, device=device)
    known = ", ".join(f"{a}→{b}" for a, b in [*apertium.DIRECTIONS, *marian.PAIRS])
    raise InvalidModelError(
        f"translator: expected one of {known}, got {errors.shown(source)} →"
        f" {errors.shown(target)}; add a direction to apertium.DIRECTIONS, or a model to"
        " marian.PAIRS"
    )


def round_trip(
    lm: models.LM, responses: Texts, there: Translator, back: Translator
) -> list[list[int]]:
    """The ids of each text after translation there and back, without a start token.

    Raises GaussMarkError if nothing is left of a text.
    """
    originals = [lm.decode(list(ids)) for ids in responses]
    again = [lm.encode(text) for text in back.batch(there.batch(originals))]
    if not all(again):
        raise GaussMarkError(
            f"expected a text after translation by {there.name} and {back.name}, got an empty one;"
            " nothing is left to score"
        )
    return again


def translation(lm: models.LM, there: Translator, back: Translator) -> Change:
    """The round trip as a corruption, done in full at every fraction above 0. It is not registered,
    since it needs a translator.
    """

    def change(prompts: Texts, responses: Texts, fraction: float, seed: int) -> Pairs:
        if not fraction:
            return [list(ids) for ids in prompts], [list(ids) for ids in responses]
        return [list(ids) for ids in prompts], round_trip(lm, responses, there, back)

    return change


def round_trips(lm: models.LM) -> dict[str, Change]:
    """The round trip that this machine can do, by its name: through Spanish if Apertium is
    installed, or else through French by Marian models, which need a hub.
    """
    language = "es" if apertium.is_installed() else "fr"
    name = {"es": "round trip by Spanish", "fr": "round trip by French"}[language]
    there, back = translator("en", language), translator(language, "en")
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
    """Each response with ⌊f·T⌉ of its tokens drawn anew from p_θ(· | x, all before it), in spans of
    consecutive tokens (the last one drawn may be shorter), as a paraphraser would.

    The model may draw the token that was there. Its tokenizer must be that of the model that wrote.
    """
    ids, mask = blocks.padded(responses, "right", model.device)
    kept = mask.bool()  # (texts, positions)
    for i, row in enumerate(kept):
        row[spans(len(responses[i]), fraction, span, corrupt.generator(seed, i))] = False
    out = list(responses)
    for n in sorted({len(ids) for ids in responses}):  # those of one length fit their context
        rows = [i for i, response in enumerate(responses) if len(response) == n]
        before, process = [prompts[i] for i in rows], partial(_keeping, ids[rows], kept[rows])
        settings = {"seed": seed + _FRESH, "rows": rows, "processor": process}
        settings["batch_size"] = _ON_GPU if model.device.type == "cuda" else _ON_CPU
        drawn = generate.sample(model, before, n, **settings)
        for i, text in zip(rows, drawn, strict=True):
            out[i] = text
    return out


def spans(n_tokens: int, fraction: float, span: int, rng: torch.Generator) -> list[int]:
    """⌊f·T⌉ of T positions, as spans of a grid in random order; of the last span its beginning."""
    starts = torch.randperm(-(-n_tokens // span), generator=rng).tolist()
    places = [i for start in starts for i in range(n_tokens)[start * span :][:span]]
    return places[: corrupt.count(n_tokens, fraction)]


def _keeping(
    ids: Int[Tensor, "texts positions"], kept: Bool[Tensor, "texts positions"], batch: slice
) -> generate.Processor:
    """A processor of a batch's logits that leaves no choice at the positions that are kept."""
    positions = zip(ids[batch].T[..., None], kept[batch].T[..., None], strict=True)

    def process(_: Tensor, logits: Tensor) -> Tensor:
        token, is_kept = next(positions)  # both (texts, 1)
        only = torch.full_like(logits, -torch.inf).scatter(-1, token, 0.0)
        return torch.where(is_kept, only, logits)

    return process
