"""Results as sentences, without HTML."""

import numpy as np
import pandas as pd

from gaussmark_lib.experiments.played import ENOUGH, THIS_KEY, Edited, Given, Verdict
from gaussmark_lib.widgets.curve import power_of_ten

LEVEL = 0.05


def probability(p: float, log10_p: float) -> str:
    """A p-value with two digits, also where a float64 underflows."""
    if p >= 1e-3:
        return f"{p:.2g}"
    exponent = int(np.floor(log10_p))
    return f"{10 ** (log10_p - exponent):.1f}·{power_of_ten(exponent)}"


def verdict_sentence(row: pd.Series, level: float = LEVEL, n_windows: int = 1) -> str:
    """What a p-value says, in words, and nothing more."""
    once_in = float(
        f"{10 ** min(-row['log10_p'], 9):.2g}"
    )  # more than two digits would mean nothing
    often = f", about once in {once_in:,.0f}" if 10 < once_in < 1e9 else ""
    outcome = (
        f"Detected at level {level}."
        if row["p_value"] <= level
        else f"Not detected at level {level}: that is no proof of absence."
    )
    caution = (
        " One token: the p-value is exact, but there is almost no evidence."
        if row["n_tokens"] == 1
        else ""
    )
    n, p = int(row["n_tokens"]), probability(row["p_value"], row["log10_p"])
    in_windows = f" in {n_windows} windows" if n_windows > 1 else ""
    return (
        f"p = {p} (ψ = {signed(row['psi'])}, {n} {plural('token', n)}{in_windows}). If the text had"
        " nothing to do with the key, a key drawn at random would lean this much to it with that"
        f" probability{often}. {outcome}{caution}"
    )


def expectation(result: Verdict, level: float = LEVEL) -> str:
    """How likely a text like this one is detected if it carries the key, at its σ; and where that
    is unlikely, that the text is too short to tell.
    """
    power, this = result.power(level), result.row(THIS_KEY)
    likely = (
        f"about {power:.2f}"
        if 0.005 <= power < 0.995
        else "above 0.99"
        if power > 0.5
        else "below 0.01"
    )
    sentence = (
        f"What to expect: a watermarked text of this kind and length is detected at level {level}"
        f" with probability {likely} (σ = {result.sigma:.3g})."
    )
    if power >= ENOUGH:
        return sentence
    short = (
        "such a text is mostly too short to tell"
        if this["p_value"] <= level
        else "this text is too short to tell"
    )
    return f"{sentence} At this σ, {short}."


def earlier(given: Given, level: float = LEVEL) -> str:
    """What is new in a text after those that were tested before; nothing where there were none."""
    if not given.n_before:
        return ""
    p, texts = (
        probability(given.p_value, np.log10(max(given.p_value, 1e-307))),
        plural("text", given.n_before),
    )
    tested = f"the {given.n_before} {texts} you tested before with this key and weight"
    if given.repeats >= 0:
        return (
            f"You tested this text before, or nearly the same: it is text {given.repeats + 1} of"
            f" {tested}. Its p-value is the greater of that text's and its own: p = {p}."
        )
    if np.isnan(given.innovation):
        return (
            f"Together, {tested} have said all that this text says: nothing in it is new, and p"
            " = 1."
        )
    outcome = f"{'Detected' if given.p_value <= level else 'Not detected'} at level {level}"
    return (
        f"Given {tested}: p = {p}. {outcome} by what is new in it: that is independent of the"
        " earlier answers."
    )


def after_edit(result: Edited, level: float = LEVEL) -> str:
    """p before and after an edit."""
    before, after = (verdict.row(THIS_KEY) for verdict in (result.before, result.after))
    old, new = (
        f"p = {probability(row['p_value'], row['log10_p'])} (ψ = {signed(row['psi'])},"
        f" {row['n_tokens']} tokens)"
        for row in (before, after)
    )
    outcome = f"{'Detected' if after['p_value'] <= level else 'Not detected'} at level {level}."
    return (
        f"{result.how}, {result.share:.0%} of the tokens: {new}; before the edit, {old}. {outcome}"
    )


def signed(number: float) -> str:
    return f"{number:.2f}".replace("-", "−")


def plural(word: str, n: int) -> str:
    return word if n == 1 else f"{word}s"
