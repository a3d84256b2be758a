"""The beginning of each notebook: the look of its figures, a model, pairs of a prompt and a key,
and a σ that suits them.

    lm, wm, pairs, n_tokens = begin(model, text, n_pairs=n_pairs, n_tokens=n_tokens, psi=psi)

If the reader gives no σ, it is solved for a wanted ψ: to first order, a text has the mean ψ = σ‖G‖,
and ‖G‖ is measured on plain texts of the model (``stats``). Their prompts come from the pilot,
which no measurement uses, so σ is the same for every seed.
"""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np
from transformers import PreTrainedModel

from gaussmark_lib import generate, models, score, stats, texts
from gaussmark_lib.beyond import channel, promise
from gaussmark_lib.perturb import Watermark
from gaussmark_lib.tokens import Texts
from gaussmark_lib.workbench import record
from gaussmark_lib.workbench.pairs import Pairs, draw
from gaussmark_lib.workbench.plots import style

# the default σ of a new key: the median predicted ψ of texts of this length
KEY_PSI = 4.0
KEY_TOKENS = 200
# of these texts: a common temperature to serve at, where a small chat model still writes sentences
KEY_TEMPERATURE = 0.7
KEY_PROMPT_TOKENS = 32
N_TEXTS = 8  # for the median of ‖G‖, which differs little from text to text


class Setting(NamedTuple):
    """The result of :func:`begin`."""

    lm: models.LM
    wm: Watermark
    pairs: Pairs
    n_tokens: int  # per text: the wanted number, or the number that fits into the context


def begin(
    model: str,
    text: str,
    *,
    n_pairs: int,
    n_tokens: int,
    prompt_tokens: int = 32,
    weight: str | Callable[[PreTrainedModel], str] | None = None,
    sigma: float | None = None,
    psi: float = 3.0,
    rank_dropped: int = 0,
    model_dtype: str = "float32",
    device: str | None = None,
    dtype: str | None = None,
    growth: float = 1.0,
    seed: int = 0,
    **sampling,
) -> Setting:
    """Load a model, draw pairs, solve for σ, and print three lines about them.

    Args:
        text: kind of text that prompts come from, or a file of texts (``texts.load``).
        prompt_tokens: tokens per prompt.
        growth: how much longer edits make a text (``texts.fit``).
        weight: its name, or a function that chooses it; None for ``models.default_weight``.
        sigma: None for the σ at which texts of ``n_tokens`` have the median predicted ψ ``psi``,
            on prompts of the pilot.
        seed: decides the keys, and the documents outside the pilot that prompts come from.
        model_dtype: of the model's weights.
        dtype: the lowest precision of scoring.
        sampling: ``top_p, temperature, until_end`` of ``generate.sample``.
    """
    style.use()
    lm = models.load(model, dtype=model_dtype, device=device)
    record.weights(lm)
    pairs = draw(lm, text, n_pairs, prompt_tokens, seed)
    is_solved = sigma is None
    reserved = pilot_prompts(lm, text, prompt_tokens, n_pairs) if is_solved else []
    n_fit = texts.fit(lm, pairs.prompts + reserved, n_tokens, growth)

    weight = weight or models.default_weight
    weight_name = weight(lm.model) if callable(weight) else weight
    wm = Watermark(weight_name, sigma or 1.0, rank_dropped)
    if is_solved:
        wm = solved(lm, reserved, n_fit, wm, psi, dtype=dtype, **sampling)

    size = (
        f"Size: {n_pairs:,} pairs of a key and a prompt of {prompt_tokens} tokens; each text has"
        f" {n_fit} tokens"
    )
    if n_fit < n_tokens:
        size += f", because {n_tokens} do not fit into the context"
    print(describe_setup(lm, wm))
    print(size)
    return Setting(lm, wm, pairs, n_fit)


def pilot_prompts(
    lm: models.LM, kind: str | Path, prompt_tokens: int, most_of_file: int = N_TEXTS
) -> list[list[int]]:
    """Return the prompts on which σ is solved: the first ``N_TEXTS`` of the pilot. From a file,
    return at most ``most_of_file`` prompts, because a small file reserves no pilot and may have no
    more texts.
    """
    n = N_TEXTS if kind in texts.KINDS else min(N_TEXTS, most_of_file)
    return texts.prompts(lm, kind, n, prompt_tokens, split="pilot")


def solved(
    lm: models.LM,
    prompts: Texts,
    n_tokens: int,
    wm: Watermark,
    psi: float,
    *,
    dtype: str | None = None,
    seed: int = 0,
    **sampling,
) -> Watermark:
    """Return ``wm`` with the σ at which texts of ``n_tokens`` have the median predicted ψ ``psi``,
    measured on plain continuations of the first prompts (:func:`pilot_prompts`).
    """
    prompts = prompts[:N_TEXTS]
    plain = generate.sample(lm.model, prompts, n_tokens, seed=seed, **sampling)
    gradients = score.gradients(lm.model, prompts, plain, wm, dtype=dtype)
    norms = [gradient.norm for gradient in gradients]
    sigma = stats.sigma_for_psi(norms, psi)
    return Watermark(wm.weight, sigma, wm.rank_dropped, wm.side)


def solved_for_key(lm: models.LM, wm: Watermark, exchanged: float = 0.0) -> Watermark:
    """Return ``wm`` with the σ at which the median predicted ψ of plain text is ``KEY_PSI``.

    The model writes plain texts of ``KEY_TOKENS`` tokens at ``KEY_TEMPERATURE``. If the context is
    shorter, the wanted ψ is scaled by the square root of the length. The texts are tested as
    ``detect`` tests a copied text: with an unknown prompt, and along the direction that allows for
    a share ``exchanged`` of replaced tokens.

    The prompts come from the pilot of the model's default kind of text.
    """
    prompts = pilot_prompts(lm, texts.default_kind(lm), KEY_PROMPT_TOKENS)
    n_tokens = texts.fit(lm, prompts, KEY_TOKENS)
    plain = generate.sample(lm.model, prompts, n_tokens, temperature=KEY_TEMPERATURE)

    unknown = lm.unknown_prompt()
    unknown_prompts = [unknown] * len(plain)
    unit_wm = replace(wm, sigma=1.0)
    weigh = channel.weights(lm.model, exchanged)
    gradients = score.gradients(lm.model, unknown_prompts, plain, unit_wm, token_weights=weigh)
    norms = [gradient.norm for gradient in gradients]
    promised = promise.table(
        lm.model,
        unknown_prompts,
        plain,
        unit_wm,
        token_weights=weigh,
        sampled=promise.Sampled(temperature=KEY_TEMPERATURE),
        unknown_prompt=unknown,
    )
    predicted = promise.mean_psi(promised["information"], norms, 1.0)  # one per text, at σ = 1
    wanted_psi = KEY_PSI * (n_tokens / KEY_TOKENS) ** 0.5
    return replace(wm, sigma=float(wanted_psi / np.median(predicted)))


def describe_setup(lm: models.LM, wm: Watermark) -> str:
    """Describe the model, and the weight with its shape and with σ next to its own standard
    deviation, in two lines.
    """
    linear = wm.on(lm.model).linear
    shape = " × ".join(str(size) for size in linear.shape)
    spread = linear.value().float().std()
    millions = lm.model.num_parameters() / 1e6
    dtype = str(lm.model.dtype).removeprefix("torch.")
    return (
        f"Model: {lm.title}, {millions:,.1f} million parameters in {dtype}\n"
        f"Watermarked matrix: {wm.weight} ({shape}); its entries have a standard deviation of"
        f" {spread:.3g}, and the noise has σ = {wm.sigma:.3g}"
    )
