"""The calibration card of a key: what its owner should know before using it. It holds nothing that
gives the key away.
"""

import numpy as np
import pandas as pd
from jaxtyping import Float

from gaussmark_lib import perturb, stats
from gaussmark_lib.experiments import one_key_in_production as production

COLUMNS = {  # of a card's table of kinds
    "this key, ψ": "share of the kind's texts that this key calls marked, each text by its own ψ",
    "this key, r": "the same by innovations, the texts as one stream",
    "n": "texts of the kind",
    "keys": (
        "other keys, drawn at random and tried on the same texts; mean, sd, q95 and max are over"
        " them"
    ),
    "mean cosine": "mean cosine of two texts' gradients",
    "one factor": "share of the gradients' variance along their first common direction",
    "residual": (
        "median length of the part of a text's unit direction outside the span of the earlier"
        " texts'"
    ),
    "mean": "mean over the other keys of the share that one key calls marked by ψ",
    "sd": "its standard deviation",
    "sd predicted": "that standard deviation from the cosines alone",
    "q95 ψ": "its 95th percentile",
    "max ψ": "its greatest value",
    "q95 r": (
        "95th percentile over the other keys of the share that one key calls marked by innovations"
    ),
    "max r": "its greatest value",
    "sd r": "its standard deviation",
    "sd binomial": "that standard deviation for independent tests",
}


def of_key(
    psi: Float[np.ndarray, "1 n"], K: Float[np.ndarray, "n n"], level: float = 0.05
) -> dict[str, float]:
    """What one given key does to texts of a kind: its share of false alarms by ψ, and by
    innovations.
    """
    both = {"this key, ψ": psi, "this key, r": production.innovations(psi, K)[0]}
    return {name: float(production.false_alarms(values, level)[0]) for name, values in both.items()}


def card(
    wm: perturb.Watermark,
    key_id: str,
    audit: pd.DataFrame,
    norms: dict[int, np.ndarray],
    level: float = 0.05,
) -> dict:
    """The calibration card of a key as data: its predicted power by length, and false alarms by
    kind of text.

    ``audit`` has a row a kind. The columns of :func:`of_key` are of this key; those of
    ``one_key_in_production.audited`` are of other keys, and say what a key drawn at random does.
    ``columns`` of the card says what each is. ``power by tokens`` is predicted from the norms of
    human text.
    """
    columns = {name: COLUMNS[name] for name in audit if name in COLUMNS}
    power = {str(n): stats.predicted_power(values, wm.sigma, level) for n, values in norms.items()}
    about = {
        "key_id": key_id,
        "weight": wm.weight,
        "sigma": wm.sigma,
        "level": level,
        "power by tokens": power,
    }
    return about | {"columns": columns, "kinds": audit.to_dict("index")}


def page(found: dict) -> str:
    """The card as a page of HTML that needs nothing else."""
    kinds = pd.DataFrame(found["kinds"]).T.to_html(float_format="{:.3f}".format)
    power = (
        pd.Series(found["power by tokens"], name="predicted power")
        .to_frame()
        .rename_axis("tokens")
        .to_html(float_format="{:.2f}".format)
    )
    title = f"Key {found['key_id']}: false alarms of this key, and of others, on human text"
    head = (
        f"<h1>{title}</h1><p>{found['weight']}, σ = {found['sigma']:.3g}, level"
        f" {found['level']}</p>"
    )
    meaning = "".join(f"<dt>{name}</dt><dd>{what}</dd>" for name, what in found["columns"].items())
    body = f"<body>{head}{power}{kinds}<dl>{meaning}</dl></body>"
    return (
        "<!doctype html><html><head><meta"
        f" charset='utf-8'><title>{title}</title></head>{body}</html>"
    )
