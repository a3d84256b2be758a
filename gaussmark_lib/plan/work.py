"""What the notebooks do, from their parameters: which texts are written, read and scored, and how
many noises are held. One function a notebook.

They follow the notebooks' calls, section by section, and count what takes time or memory on a large
model; a few texts here and there are left out. tests/oracle/plan counts the same while a notebook's
cells run.
"""

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

from gaussmark_lib.plan.cost import Read, Score, Write
from gaussmark_lib.plan.shapes import Weight
from gaussmark_lib.plan.steps import Setting, Step

MANY = 128  # rows of generate_many at a time, where nothing else is said
READ = 16  # texts of a cross-entropy or divergence at a time
CHOICES = 4  # of an item of the tasks made from text
HARNESS = {  # task → requests, tokens of one, tokens generated; about, from the tasks' own sizes
    "boolq": (6540, 150, 0),
    "cb": (168, 110, 0),
    "copa": (200, 25, 0),
    "multirc": (9696, 330, 0),
    "record": (113000, 260, 0),
    "rte": (554, 85, 0),
    "wic": (1276, 45, 0),
    "wsc": (208, 60, 0),
    "gsm8k_cot": (1319, 1000, 256),
    "gsm8k": (1319, 900, 256),
}

Of = Callable[["SimpleNamespace", Setting], list[Step]]
NOTEBOOKS: dict[str, Of] = {}


def steps(number: str, values: Mapping[str, Any], setting: Setting) -> list[Step] | None:
    """The work of the notebook of this number with these parameters, in its order; None for a
    notebook that is not known here.
    """
    if number not in NOTEBOOKS:
        return None
    found = NOTEBOOKS[number](SimpleNamespace(**values), setting)
    return [step for step in found if step.texts or step.drawn or step.held]


def of(number: str) -> Callable[[Of], Of]:
    def add(function: Of) -> Of:
        NOTEBOOKS[number] = function
        return function

    return add


def fitting(setting: Setting, prompt: int, tokens: int, growth: float = 1.0) -> int:
    """``tokens``, or as many as the model's context has room for after the prompt
    (``experiments.setting.fitting``).
    """
    context = setting.shape.context
    return tokens if context is None else max(1, min(tokens, int(context / growth) - prompt - 1))


def solved(p: SimpleNamespace, prompt: int, tokens: int, times: int = 1) -> list[Step]:
    """σ for a wanted ψ, from eight plain texts, where none is given."""
    n = 8 * times if p.sigma is None else 0
    return [
        Write("texts to solve σ on", n, prompt, tokens),
        Score("their gradients", n, prompt, tokens),
    ]


def written_and_scored(
    what: str,
    p: SimpleNamespace,
    texts: int,
    prompt: int,
    tokens: int,
    cells: int,
    batch: int = MANY,
    parts: int = 1,
    **more,
):
    """``written_and_scored.of_cells``: so many texts by ``cells`` keys' noises in one batch, each
    tested for as many keys.
    """
    many = Write(
        f"{what}, written",
        texts,
        prompt,
        tokens,
        batch,
        keys=cells,
        drawn=cells,
        by={"n_keys": 1},
        **more,
    )
    return [
        many,
        Score(
            f"{what}, scored",
            texts,
            prompt,
            tokens,
            keys=p.n_keys,
            drawn=p.n_keys,
            parts=parts,
            by={"n_keys": 1},
            **more,
        ),
    ]


def moved(what: str, texts: int, prompt: int, tokens: int, keys: int, **more) -> Write:
    """Texts written under ``keys`` keys, one after the other, whose noise is put into the
    weight.
    """
    return Write(what, texts, prompt, tokens, drawn=keys, **more)


def harness(
    setting: Setting, tasks: list[str], n_items: int, models: int, limit: int | None = None
) -> list[Step]:
    """lm-evaluation-harness on tasks that it knows by name, or on items made from text."""
    found: list[Step] = []
    for task in tasks:
        requests, tokens, generated = HARNESS.get(task, (CHOICES * n_items, 60, 0))
        requests = min(
            requests, (limit or requests) * max(1, requests // max(1, limit or requests))
        )
        name = f"{task}, asked by the harness"
        more = {"batch": READ, "drawn": models - 1}
        found.append(
            Write(name, models * requests, tokens, generated, **more)
            if generated
            else Read(name, models * requests, tokens, 4, **more)
        )
    return found


def default(setting: Setting, name: str | None = None, **which) -> tuple[Weight]:
    return (setting.shape.weight(name, **which),)
