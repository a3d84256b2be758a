"""The verdict on one text, in one place for the command line, the playground and a key's audit.

    detected            p ≤ level
    too short to tell   p > level, and a marked text like this one is mostly missed: power < 1/2
    not detected        otherwise

power = Φ(E ψ − τ) is promised to unedited marked texts like this one, with τ the level's threshold
and E ψ = σF/(τ₀‖G‖) at the text's temperature τ₀ (``promise``). A text that the model would hardly
write gets a caution in place of a promise. Where earlier answers count, p is the one given them.
"""

import math
from collections.abc import Mapping
from typing import Any

from gaussmark_lib import stats
from gaussmark_lib.beyond import promise

LEVEL = 0.05  # by default
ENOUGH = 0.5  # power below which a text that is not detected is too short to tell
# Limit in nats per token above the entropy: STRANGE + STRANGE_OF_FEW/√n for a text of n tokens. No
# text of the models reached it, tested without the prompt: 0 of 450 by SmolLM2 (the first 60 and
# 200 tokens), 0 of 200 by doclm (40, 100 and 200); the limit was chosen with these texts in view.
# Human text of kinds that doclm was not trained on had means of 1.3 to 3.2 (12 texts per kind).
# Replacing 10% of the tokens added 1.4 to 1.7.
STRANGE, STRANGE_OF_FEW = 0.7, 5.0
FROZEN = 0.2  # temperature below which hardly a token was drawn
FIELDS = ["verdict", "level", "power", "temperature", "control_p_value", "warnings"]
UNUSUAL = (
    "This text is unusual for the model. Either it was edited, which weakens the watermark, or it"
    " is a different kind of text; on some kinds a single key flags most texts. `gaussmark audit`"
    " measures this for your key and your texts."
)
PREDICTABLE = (
    "No detection probability can be promised: nearly every token is the one that the model finds"
    " most likely, as at temperature 0, where the score says nothing about a missing watermark."
)


def of(
    row: Mapping[str, Any], sigma: float, level: float = LEVEL, control: float | None = None
) -> dict[str, Any]:
    """What to say of a text beside its scores.

    Args:
        row: the text's ``psi``, ``p_value``, ``grad_norm`` and ``n_tokens``; ``p_given``, its
            p-value given earlier answers, or None; and the columns of ``promise.table``.
        sigma: standard deviation of the noise that a marked text would carry.
        control: p-value of the same text under a key that nobody writes with.

    Returns:
        The :data:`FIELDS`, as ``gaussmark detect --json`` prints them: ``verdict`` and its
        ``level``; ``power``, the probability that an unedited marked text like this one is
        detected, or None where no promise can be made; ``temperature``, the most likely sampling
        temperature of the text (of fewer than ``promise.FEW`` tokens 1); ``control_p_value``;
        ``warnings``, sentences.
    """
    p = row["p_value"] if row.get("p_given") is None else row["p_given"]
    warnings = cautions(row)
    power = None if warnings else promised(row, sigma, level)
    is_short = power is not None and power < ENOUGH
    if is_short:
        length = f"{row['n_tokens']} tokens"
        warnings = [f"{length}: power {power:.2f} at this length, at level {level:g}"]
    missed = "too short to tell" if is_short else "not detected"
    return {
        "verdict": "detected" if p <= level else missed,
        "level": level,
        "power": power,
        "temperature": row["temperature"],
        "control_p_value": control,
        "warnings": warnings,
    }


def promised(row: Mapping[str, Any], sigma: float, level: float = LEVEL) -> float:
    """Φ(E ψ − τ): the share of unedited marked texts like this one that are detected."""
    mean = promise.mean_psi(row["information"], row["grad_norm"], sigma)
    return stats.predicted_power([mean], 1.0, level)


def cautions(row: Mapping[str, Any]) -> list[str]:
    """Why nothing can be promised of a text, in at most one sentence: the model would not write it,
    or would write it without choosing.
    """
    if row["n_tokens"] < promise.FEW:
        return []
    if row["excess"] >= STRANGE + STRANGE_OF_FEW / math.sqrt(row["n_tokens"]):
        return [UNUSUAL]
    return [PREDICTABLE] if row["temperature"] < FROZEN else []


def sentences(row: Mapping[str, Any]) -> list[str]:
    """A text's scores and verdict in sentences: the verdict, what its p-value means, what to expect
    of the test, and what it assumed, where the row says so. Of a codebook's answer, the user that
    the text leans to most.
    """
    if "user" in row:
        return _user(row) + _assumed(row)
    control = row["control_p_value"]
    is_short = row["power"] is not None and row["power"] < ENOUGH
    notes = row["warnings"][1:] if is_short else row["warnings"]
    comparison = []
    if control is not None:
        comparison = [f"For comparison, an unrelated key gives p = {control:.3g}."]
    return [
        f"{row['verdict'].capitalize()} at level {row['level']:g}: {_scores(row)}",
        "If this key did not write the text, a score this high has a probability of"
        f" {odds(row['log10_p'])}.",
        *(row["warnings"] if notes else [_promise(row["power"])]),
        *comparison,
        *_assumed(row),
    ]


def _promise(power: float) -> str:
    return (
        "An unedited text of this key, of this kind and length, would be detected with probability"
        f" {probability(power)}; edits remove the mark."
    )


def probability(power: float) -> str:
    """
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
    p, runner_up = f"{row['p_value']:.3g}", row["runner_up"]
    following = "" if runner_up is None else f", the next {runner_up:.3f}"
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
    return f"p = {row['p_given']:.3g} given what was answered before; alone {p}"


def _length(row: Mapping[str, Any]) -> str:
    unit = "token" if row["n_tokens"] == 1 else "tokens"
    windows = f" in {row['windows']} windows" if "windows" in row else ""
    return f"{row['n_tokens']} {unit}{windows}"


def p_value(log10_p: float) -> str:
    """With three digits, also where no float is so small.

    >>> p_value(-2.0), p_value(-400.5)
    ('0.01', '3.16e-401')
    """
    return f"{10**log10_p:.3g}" if log10_p > -300 else _scientific(log10_p, 3)


def odds(log10_p: float) -> str:
    """
    >>> odds(-0.3), odds(-3.18), odds(-12)
    ('50%', 'about one in 1,500', 'about one in 1e12')
    """
    if log10_p > -1:
        return f"{10**log10_p:.0%}"
    number = float(f"{10 ** min(-log10_p, 9):.2g}")
    if number >= 1e9:
        return f"about one in {_scientific(-log10_p, 2)}"
    return "about one in " + (f"{number / 1e6:g} million" if number >= 1e6 else f"{number:,.0f}")


def _scientific(log10: float, n_digits: int) -> str:
    """10 to this power, also where no float is so large or so small."""
    power = math.floor(log10)
    digits = f"{10 ** (log10 - power):.{n_digits}g}"
    return f"1e{power + 1}" if digits == "10" else f"{digits}e{power}"
