"""What every experiment begins with: a model, a weight, and a σ that suits them, where the reader
has named none.

σ is solved for a wanted ψ: to first order a text of T tokens has mean ψ = σ‖G‖, and ‖G‖ is measured
on plain texts of the model (``stats``).
"""

from datasets import Dataset

from gaussmark_lib import checks, generate, models, score, stats, texts, tokens
from gaussmark_lib.errors import CorpusError, InvalidTextError, InvalidWatermarkError
from gaussmark_lib.tokens import Texts
from gaussmark_lib.watermark import Watermark

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
    checks.positive(psi, "psi, the wanted mean, where no sigma is given", InvalidWatermarkError)
    asked = prompts(lm, text, N_TEXTS, n_prompt)
    plain = generate.sample(lm.model, asked, n_tokens, seed=seed, **sampling)
    norms = [
        gradient.norm
        for gradient in score.gradients(
            lm.model, asked, plain, Watermark(weight, 1.0, rank_dropped), dtype=dtype
        )
    ]
    return Watermark(weight, stats.sigma_for_psi(norms, psi), rank_dropped)


def passages(lm: models.LM, text: str, n: int, n_tokens: int) -> list[list[int]]:
    """n human texts of ``n_tokens`` each: the beginnings of texts, or, where those are too short,
    texts joined by blank lines and cut into pieces.
    """
    try:
        return texts.beginnings(lm, text, n, n_tokens)
    except CorpusError:
        if not str(text).endswith((".jsonl", ".jsonl.gz")):
            raise
        ids = lm.encode("\n\n".join(texts.load(text)["text"]))
        if len(ids) < n * n_tokens:
            raise
        return [ids[i * n_tokens : (i + 1) * n_tokens] for i in range(n)]


def prompts(lm: models.LM, text: str, n: int, n_tokens: int) -> list[list[int]]:
    """:func:`passages` as the model wants to be asked (``LM.prompt``)."""
    return [lm.prompt(lm.decode(ids)) for ids in passages(lm, text, n, n_tokens)]


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


def fitting(lm: models.LM, prompts: Texts, n_tokens: int, *, growth: float = 1.0) -> int:
    """``n_tokens``, or as many as the context has room for after the longest prompt, where edits
    make a text up to ``growth`` times as long.

    Raises:
        InvalidTextError: no room for at least 8 tokens.
    """
    context = tokens.context(lm.model)
    if context is None:
        return n_tokens
    room = int(context / growth) - max(map(len, prompts)) - 1
    if room < 8:
        raise InvalidTextError(
            f"expected room for at least 8 tokens after the prompt, got {room} of a context of"
            f" {context}; take shorter prompts"
        )
    return min(n_tokens, room)


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
