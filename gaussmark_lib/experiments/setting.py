"""What every experiment begins with: a model, a weight, and a σ that suits them, where the reader
has named none.

σ is solved for a wanted ψ: to first order a text of T tokens has mean ψ = σ‖G‖, and ‖G‖ is measured
on plain texts of the model (``stats``).
"""

from datasets import Dataset

from gaussmark_lib import errors, generate, models, score, stats, texts
from gaussmark_lib.errors import CorpusError, InvalidWatermarkError
from gaussmark_lib.weights import Watermark

N_TEXTS = 8  # for the median of ‖G‖, which differs little from text to text


def watermark(
    lm: models.LM,
    text: str,
    *,
    weight: str | None = None,
    sigma: float | None = None,
    psi: float | None = None,
    n_tokens: int = 200,
    n_prompt: int = 32,
    rank_dropped: int = 0,
    dtype: str | None = None,
    seed: int = 0,
    **sampling,
) -> Watermark:
    """The watermark of an experiment on this model.

    Args:
        text: kind of text that prompts come from, or a .jsonl file (``texts.load``).
        weight: None for ``models.default_weight``.
        sigma: None for the σ at which texts of ``n_tokens`` have the median predicted ψ ``psi``.
        sampling: ``top_p, temperature, until_end`` of ``generate.sample``.

    Raises:
        UnknownWeightError, CorpusError: no such weight, too little text. InvalidWatermarkError:
            neither σ nor ψ, or one out of range.
    """
    weight = weight or models.default_weight(lm.model)
    if sigma is not None:
        return Watermark(weight, sigma, rank_dropped)
    errors.require_positive(
        psi, "psi, the wanted mean, where no sigma is given", InvalidWatermarkError
    )
    asked = prompts(lm, text, N_TEXTS, n_prompt)
    plain = generate.sample(lm.model, asked, n_tokens, seed=seed, **sampling)
    norms = [
        gradient.norm
        for gradient in score.gradients(
            lm.model, asked, plain, Watermark(weight, 1.0, rank_dropped), dtype=dtype
        )
    ]
    return Watermark(weight, stats.sigma_for_psi(norms, psi), rank_dropped)


passages, prompts, fitting = texts.human, texts.prompts, texts.fit  # go with their last caller


def pages(text: str, n: int, *, min_chars: int = 400) -> Dataset:
    """At most n human texts (``texts.load``), each of ``min_chars`` or more where there are such
    texts.
    """
    if text == "c4":
        return texts.load(text, n=n, min_chars=min_chars)
    try:
        found = texts.load(text, min_chars=min_chars)
    except CorpusError:
        found = texts.load(text)
    return found.take(min(n, len(found)))


def said(lm: models.LM, wm: Watermark) -> str:
    """One line: the model, the weight with its shape, and σ beside the weight's own standard
    deviation.
    """
    linear = wm.on(lm.model).linear
    size = (
        f"{lm.model.num_parameters() / 1e6:,.1f} M parameters in"
        f" {str(lm.model.dtype).removeprefix('torch.')}"
    )
    spread = (
        f"{' × '.join(map(str, linear.shape))}, whose entries have the standard deviation"
        f" {linear.value().float().std():.3g}"
    )
    return f"{lm.name}: {size}; noise of σ = {wm.sigma:.3g} on {wm.weight}, {spread}"
