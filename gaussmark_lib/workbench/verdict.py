"""The verdict on a text, for the command line, the playground and the audit of a key.

    detected            p ≤ level
    too short to tell   p > level, and most watermarked texts like this text are missed: power < 1/2
    not detected        otherwise

power = Φ(E ψ − τ) is the predicted probability that an unedited watermarked text like this text is
detected. τ is the level's threshold, and E ψ = σF/(τ₀‖G‖) at the text's temperature τ₀
(``promise``). A text that is unusual for the model gets a caution instead of a promise. If earlier
answers count, p is the p-value given these answers.
"""

import math
from collections.abc import Mapping
from typing import Any

from gaussmark_lib import stats
from gaussmark_lib.beyond import promise

LEVEL = 0.05  # by default
ENOUGH = 0.5  # with less power, a text that is not detected is too short to tell
# A text of n tokens is unusual from STRANGE + STRANGE_OF_FEW/√n nats per token above the entropy.
# The limit was chosen with these texts, tested without the prompt: none of 450 texts by SmolLM2
# (the first 60 and 200 tokens) and none of 200 texts by doclm (40, 100 and 200 tokens) reached it.
# Human text of kinds that doclm was not trained on had means of 1.3 to 3.2 (12 texts per kind).
# Replacing 10% of the tokens added 1.4 to 1.7.
STRANGE = 0.7
STRANGE_OF_FEW = 5.0
FROZEN = 0.2  # at a lower temperature nearly every token is the most likely token
FIELDS = ["verdict", "level", "power", "temperature", "control_p_value", "warnings"]
UNUSUAL = (
    "This text is unusual for the model. Either it was edited, which weakens the watermark, or it"
    " is a different kind of text, and a single key can flag more texts of one kind than the level"
    " says. `gaussmark audit` measures this for your key and your texts."
)
PREDICTABLE = (
    "No detection probability can be predicted: nearly every token is the model's most likely"
    " token, as at temperature 0. A low score then does not show that the watermark is missing."
)


def of(
    row: Mapping[str, Any], sigma: float, level: float = LEVEL, control: float | None = None
) -> dict[str, Any]:
    """Return the verdict on a text.

    Args:
        row: the text's ``psi``, ``p_value``, ``grad_norm`` and ``n_tokens``; ``p_given``, its
            p-value given earlier answers, or None; and the columns of ``promise.table``.
        sigma: standard deviation of the noise in watermarked texts.
        control: p-value of the same text under an unrelated key.

    Returns:
        The :data:`FIELDS`, as ``gaussmark detect --json`` prints them: ``verdict`` and its
        ``level``; ``power``, the probability that an unedited watermarked text like this text is
        detected, or None if it cannot be predicted; ``temperature``, the most likely sampling
        temperature of the text (1 for fewer than ``promise.FEW`` tokens); ``control_p_value``;
        ``warnings``, sentences.
    """
    p = row["p_value"] if row.get("p_given") is None else row["p_given"]
    warnings = cautions(row)
    power = None if warnings else promised(row, sigma, level)
    is_short = power is not None and power < ENOUGH
    if is_short:
        warnings = [f"{_length(row)}: power {power:.2f} at this length, at level {level:g}"]
    if p <= level:
        verdict = "detected"
    elif is_short:
        verdict = "too short to tell"
    else:
        verdict = "not detected"
    return {
        "verdict": verdict,
        "level": level,
        "power": power,
        "temperature": row["temperature"],
        "control_p_value": control,
        "warnings": warnings,
    }


def promised(row: Mapping[str, Any], sigma: float, level: float = LEVEL) -> float:
    """Return Φ(E ψ − τ), the predicted share of watermarked texts like this that are detected.

    It holds for unedited texts.
    """
    mean = promise.mean_psi(row["information"], row["grad_norm"], sigma)
    return stats.predicted_power([mean], 1.0, level)


def cautions(row: Mapping[str, Any]) -> list[str]:
    """Return at most one sentence that says why no power can be predicted for a text.

    The text is unusual for the model, or almost every token is the most likely token.
    """
    n = row["n_tokens"]
    if n < promise.FEW:
        return []
    if row["excess"] >= STRANGE + STRANGE_OF_FEW / math.sqrt(n):
        return [UNUSUAL]
    if row["temperature"] < FROZEN:
        return [PREDICTABLE]
    return []


def sentences(row: Mapping[str, Any]) -> list[str]:
    """Return the scores and the verdict of a text in sentences.

    They state the verdict, the meaning of the p-value, the power of the test, and its assumptions
    if the row has them. The answer of a codebook names the user with the largest ψ.
    """
    if "user" in row:
        return _user(row) + _assumed(row)
    is_short = row["power"] is not None and row["power"] < ENOUGH
    # The first warning of a short text is its power, which the promise says in a sentence.
    notes = row["warnings"][1:] if is_short else row["warnings"]
    lines = [
        f"{row['verdict'].capitalize()} at level {row['level']:g}: {_scores(row)}",
        "If this key did not write the text, a score this high has a probability of"
        f" {odds(row['log10_p'])}.",
    ]
    lines += row["warnings"] if notes else [_promise(row["power"])]
    control = row["control_p_value"]
    if control is not None:
        lines.append(f"For comparison, an unrelated key gives p = {control:.3g}.")
    return lines + _assumed(row)


def _promise(power: float) -> str:
    """The power in a sentence."""
    return (
        "An unedited text of this key, of this kind and length, would be detected with probability"
        f" {probability(power)}; edits weaken the watermark."
    )


def probability(power: float) -> str:
    """Format a probability; none is printed as 1.

    >>> probability(0.456), probability(0.996)
    ('0.46', 'above 0.99')
    """
    return f"{power:.2f}" if power < 0.995 else "above 0.99"


def _assumed(row: Mapping[str, Any]) -> list[str]:
    if "model" not in row:
        return []
    prompt = "after the given prompt" if row["prompt"] else "with an unknown prompt"
    edits = f"{row['edited']:.0%} replaced tokens" if row["edited"] else "no edits"
    return [
        f"Assumed: {row['model']} wrote it with noise on {row['weight']}, {prompt}. The test is"
        f" tuned for {edits} (--edited). Its p-value is valid either way."
    ]


def _user(row: Mapping[str, Any]) -> list[str]:
    p = f"{row['p_value']:.3g}"
    following = ""
    if row["runner_up"] is not None:
        following = f", the next {row['runner_up']:.3f}"
    return [
        f"user {row['user']}, p = {p} over all users  (ψ = {row['psi']:.3f}{following},"
        f" {_length(row)}, key {row['key_id']})",
        f"If no user's key wrote the text, a score this high has a probability of {p}.",
        *row["warnings"],
    ]


def _scores(row: Mapping[str, Any]) -> str:
    scores = f"ψ = {row['psi']:.3f}, log10 p = {row['log10_p']:.2f}, {_length(row)}"
    p = f"p = {p_value(row['log10_p'])}  ({scores}, key {row['key_id']})"
    if row.get("p_given") is None:
        return p
    return f"p = {row['p_given']:.3g} given earlier answers; alone {p}"


def _length(row: Mapping[str, Any]) -> str:
    unit = "token" if row["n_tokens"] == 1 else "tokens"
    windows = f" in {row['windows']} windows" if "windows" in row else ""
    return f"{row['n_tokens']} {unit}{windows}"


def p_value(log10_p: float) -> str:
    """Format a p-value with three digits, also below the smallest float.

    >>> p_value(-2.0), p_value(-400.5)
    ('0.01', '3.16e-401')
    """
    if log10_p > -300:  # floats end at 1e-308
        return f"{10**log10_p:.3g}"
    return _scientific(log10_p, 3)


def odds(log10_p: float) -> str:
    """Say a probability in words.

    >>> odds(-0.3), odds(-3.18), odds(-12)
    ('50%', 'about one in 1,500', 'about one in 1e12')
    """
    if log10_p > -1:
        return f"{10**log10_p:.0%}"
    number = float(f"{10 ** min(-log10_p, 9):.2g}")
    if number >= 1e9:
        return f"about one in {_scientific(-log10_p, 2)}"
    if number >= 1e6:
        return f"about one in {number / 1e6:g} million"
    return f"about one in {number:,.0f}"


def _scientific(log10: float, n_digits: int) -> str:
    """10 to this power in scientific notation, also outside the range of floats."""
    power = math.floor(log10)
    digits = f"{10 ** (log10 - power):.{n_digits}g}"
    if digits == "10":  # rounded up
        return f"1e{power + 1}"
    return f"{digits}e{power}"
