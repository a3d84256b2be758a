"""A stream of answers that a model wrote for several users, each with a separate key. Whose key is
found, and after how many answers?

The answer of another user is watermarked, but not with your key. It does not depend on your key. So
your key's innovation on it is N(0, 1), as on a human text: exactly if no earlier text has your key,
and otherwise to first order.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float, Int
from matplotlib.figure import Figure

from gaussmark_experiments import streams
from gaussmark_experiments.one_key_in_production import gradients, units
from gaussmark_lib import generate, models, perturb, score, stats
from gaussmark_lib.beyond import joint
from gaussmark_lib.errors import ParameterError
from gaussmark_lib.tokens import Texts
from gaussmark_lib.workbench import answers, record
from gaussmark_lib.workbench.pairs import means
from gaussmark_lib.workbench.plots.panels import panels

USERS = "streams_users"  # the record of this section
FOUND = "one key: E ≥ 20"
NAMED = "all keys: E ≥ 20 times the number of users"


class Answers(NamedTuple):
    """Answers of several users, those of the first user first.

    Attributes:
        author: the number of the user who has each answer.
        psi: ψ under the keys of the users, and then of people who have no answer.
        K: cosines between the gradients.
        strength: σ‖G‖.
    """

    author: Int[np.ndarray, " answers"]
    psi: Float[np.ndarray, "answers keys"]
    K: Float[np.ndarray, "answers answers"]
    strength: Float[np.ndarray, " answers"]


def written(
    lm: models.LM,
    prompts: Texts,
    wm: perturb.Watermark,
    keys: Sequence[perturb.Key],
    n_users: int,
    n_each: int,
    n_tokens: int,
    *,
    dtype: str | None = None,
    seed: int = 0,
) -> Answers:
    """Write ``n_each`` answers with each of the first ``n_users`` keys, and test them under all
    keys. The prompts are repeated if there are too few.
    """
    author = np.repeat(np.arange(n_users), n_each)
    repeated = [prompts[i % len(prompts)] for i in range(len(author))]
    marks = [(wm, keys[user]) for user in author]
    responses = generate.sample(lm.model, repeated, n_tokens, marks=marks, seed=seed)
    of_answers = gradients(lm, repeated, responses, wm, dtype)
    u = units(of_answers)
    return Answers(
        author=author,
        psi=score.psi(of_answers, wm.on(lm.model), keys),
        K=joint.directions.inner(u, u),
        strength=wm.sigma * np.array([gradient.norm for gradient in of_answers]),
    )


def until_found(texts: Answers, n_users: int, *, seed: int = 0) -> pd.DataFrame:
    """Mix the answers of ``n_users`` users into a stream, in a random order, and follow the wealth
    of eight bets (``joint.bets``) for each key. Do so for as many groups of users as there are.

    Returns:
        ``users`` (how many), ``stream, key, is_user``, and for each of two rules how many answers
        of its own user a key had seen (infinite if it was never found): ``found``, when the wealth
        reached 20, and ``named``, when it reached 20 times the number of users.

    >>> strong = Answers(np.array([0, 0, 1, 1]), np.zeros((4, 3)), np.eye(4), np.full(4, 4.0))
    >>> strong.psi[:2, 0] = 5.0  # the first user's key sees its answers, and the second's does not
    >>> until_found(strong, 2)[["key", "is_user", "found", "named"]]
       key  is_user  found  named
    0    0     True    1.0    1.0
    1    1     True    inf    inf
    2    2    False    inf    inf
    """
    rng = np.random.default_rng(seed)
    n_all = texts.author.max() + 1
    if n_users > n_all:
        raise ParameterError(f"users_per_stream: expected at most {n_all} users, got {n_users}")
    tables = []
    for first in range(0, n_all - n_users + 1, n_users):
        users = np.arange(first, first + n_users)
        order = rng.permutation(np.flatnonzero(np.isin(texts.author, users)))
        key = np.append(users, np.arange(n_all, texts.psi.shape[1]))
        stream = texts.K[np.ix_(order, order)], texts.strength[order]
        psi = texts.psi[np.ix_(order, key)].T  # (keys, answers)
        log_e = streams.log_evidence(psi, *stream, share=None)
        is_own = texts.author[order] == key[:, None]
        columns = {
            "users": n_users,
            "stream": first // n_users,
            "key": key,
            "is_user": key < n_all,
            "found": _own_until(log_e >= np.log(streams.ACCUSED), is_own),
            "named": _own_until(log_e >= np.log(streams.ACCUSED * n_users), is_own),
        }
        tables.append(pd.DataFrame(columns))
    return pd.concat(tables, ignore_index=True)


def _own_until(is_rich: np.ndarray, is_own: np.ndarray) -> Float[np.ndarray, " keys"]:
    """How many of its own answers a key has seen when it is first rich; infinite if it never is."""
    first = is_rich.argmax(1)
    n_own = np.take_along_axis(is_own.cumsum(1), first[:, None], axis=1)[:, 0]
    return np.where(is_rich.any(1), n_own, np.inf)


def shares(found: pd.DataFrame, n_each: int) -> pd.DataFrame:
    """Return the share of users whose key is found after so many of their own answers: ``rule,
    users, answers, value, low, high, n``.
    """
    of_users = found[found["is_user"]]
    tables = []
    for rule, column in {FOUND: "found", NAMED: "named"}.items():
        for n_answers in range(1, n_each + 1):
            is_found = of_users.assign(is_found=of_users[column] <= n_answers)
            table = means(is_found, ["users"], "is_found")
            tables.append(table.assign(rule=rule, answers=n_answers))
    return pd.concat(tables, ignore_index=True)


def alarms(found: pd.DataFrame) -> stats.Estimate:
    """Return the share of the streams in which the key of a person without an answer is found at a
    wealth of 20; over keys.
    """
    others = found[~found["is_user"]]
    return stats.interval(np.isfinite(others["found"]), cluster=others["key"])


def draw(points: pd.DataFrame, caption: str) -> Figure:
    """Draw the :func:`shares` of the record and of this run."""
    table = answers.beside(points, USERS, "shares_of_users")
    figure = panels(
        table.assign(
            panel=table["run"] + ": " + table["rule"],
            users=table["users"].map("{} users".format),
        ),
        "answers",
        by="users",
        panel="panel",
        ylim=(-0.02, 1.02),
        xlabel="answers of the user so far",
        ylabel="share of users found",
        title="Whose key is found in a stream of several users?",
        caption=f"this run: {caption}",
    )
    return record.save_figure(figure, "users")


def in_words(users: pd.DataFrame) -> str:
    """Word how many users are found by the end of their streams, and how many other keys.

    Args:
        users: of :func:`until_found`.
    """
    sentences = []
    for n_users, rows in users[users["is_user"]].groupby("users"):
        found, named = (stats.interval(np.isfinite(rows[rule])) for rule in ("found", "named"))
        sentences.append(
            f"**{n_users} users** in a stream: the share of users found is {found} users at a"
            f" wealth of 20, and {named} users at {streams.ACCUSED * n_users:,}."
        )
    alarm = alarms(users)
    return (
        f"{' '.join(sentences)} Keys without an answer reach 20 in a share of **{alarm}** keys of"
        " their streams; at most 0.05 is allowed."
    )
