"""The table of tests/robustness/test_bad_inputs.py: a working call of each public function, and
which kind of thing each argument is.

Doors refuse and rooms trust: a new door needs a row in :func:`doors`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tiny_lm
import torch
from hypothesis import strategies as st

from gaussmark_lib import (
    corrupt,
    divergence,
    evidence,
    generate,
    gradients,
    kgw,
    likelihood,
    models,
    perturb,
    rewrite,
    scheme,
    score,
    stats,
    texts,
)
from gaussmark_lib.joint import stream
from gaussmark_lib.keys import Key
from gaussmark_lib.token_level import divergence as token_divergence
from gaussmark_lib.token_level import keys as token_keys
from gaussmark_lib.tracing import Codebook, attribution, authors, spans
from gaussmark_lib.weights import Watermark

NAN, INF = float("nan"), float("inf")
LM = tiny_lm.build()
MODEL = LM.model
WM, KEY = Watermark(tiny_lm.WEIGHT, 0.05), Key.from_seed(0)
LAST = Watermark("model.layers.2.mlp.down_proj.weight", 0.05)  # token-level keys need it
BOOK = Codebook(KEY, 9, 3)
SECRET = bytes.fromhex("0f1e2d3c4b5a69788796a5b4c3d2e1f0")  # one that was given in place of its key
X, Y = [[5, 6, 7], [8]], [[9, 10, 11, 12, 13, 14], [15, 16, 17, 18, 19, 20]]
CORPUS = [
    {
        "text": (
            f"The {i} first words of a long line are here.\n\nAnd that one is the second part of"
            f" the text {i}, quite long."
        ),
        "source": str(i),
    }
    for i in range(9)
]
EMBEDDED = np.random.default_rng(0).normal(size=(12, 3))

# What is wrong with each kind of thing: values out of range, and nearly right ones of another type.
BAD: dict[str, list] = {
    "model": [None, "doclm", 5, LM, torch.nn.Linear(2, 2)],
    "lm": [None, "doclm", 5, MODEL],
    "ids": [
        "text",
        b"ab",
        {3: 4},
        {3, 4},
        [1.5],
        [True],
        ["3"],
        [None],
        [NAN],
        [[3]],
        torch.tensor([1.5]),
        [[1, 2], [3]],
        5,
        None,
    ],
    "known ids": [[-1], [97], [10**30], np.array([97])],  # of another vocabulary
    "texts": [
        "text",
        b"ab",
        {0: [3]},
        {3, 4},
        5,
        None,
        [3, 4],
        ["text"],
        [b"ab"],
        [[1.5], [3]],
        [{3}, {4}],
    ],
    "list": ["text", b"ab", {0: "x"}, {3, 4}, 5, None],
    "count": [0, -1, 2.5, NAN, "3", None, True, [1]],
    "seed": [-1, 2.5, "3", [1], {}],
    "share": [10**5000, 0, 1, -0.1, 1.1, NAN, INF, "0.5", None, True, [0.5]],
    "fraction": [-0.1, 1.1, NAN, INF, "0.5", None, True],
    "positive": [10**5000, 0, -1.0, NAN, INF, "1", None, True, [1.0]],
    "sigma": [10**5000, 0, -1.0, NAN, INF, "1", None, True, [], ["1"]],
    "numbers": [
        10**5000,
        [10**5000],
        ["a", "b"],
        "abc",
        ["1", "2"],
        [None, 1.0],
        [NAN, 1.0],
        object(),
        [[1.0, 2.0], [3.0]],
        {"a": 1},
        None,
    ],
    "some numbers": [[], np.empty((0, 3))],
    "finite numbers": [[1.0, INF], [-INF, 0.0]],
    "p-values": [[-0.1], [0.5, 1.5], [2]],
    "not negative": [-1, NAN, INF, "1", None],
    "inside": [np.array([0.0]), np.array([0.5, 1.0]), np.array([NAN])],
    "noises": [
        5,
        "xi",
        [[1.0]],
        torch.zeros(2, 3),
        torch.full((1, 32, 48), NAN),
        torch.full((1, 32, 48), INF),
    ],
    "word": ["none of them", "", None, 5, True],
    "weight": ["model.layers.9.mlp.down_proj.weight", "", None, 5],
    "text": [None, 5, b"text", ["text"], "half \ud83d", "\udcff"],
    "wm": [
        None,
        tiny_lm.WEIGHT,
        0.05,
        KEY,
        (tiny_lm.WEIGHT, 0.05),
        {"weight": tiny_lm.WEIGHT},
        Watermark,
    ],
    "key": [None, 7, SECRET, SECRET.hex(), WM, [KEY], Key],
    "keys": [
        [],
        KEY,
        [None],
        [KEY, None],
        [7],
        [SECRET],
        [SECRET.hex()],
        SECRET,
        SECRET.hex(),
        [WM],
        [[KEY]],
        {KEY},
        {KEY: 1},
        3,
        None,
    ],
    "marks": [
        [],
        [WM],
        [KEY],
        [(WM,)],
        [(WM, KEY, 1)],
        [(KEY, WM)],
        ["ab"],
        [{}],
        [5],
        [(None, KEY)],
        [(WM, SECRET)],
    ],
    "dtype": ["float3", 5, "int8"],
    "device": ["gpu", "cuda:99", 5.5, "meta", ["cpu"]],
}
_NOTHING = st.none() | st.binary() | st.dictionaries(st.integers(), st.integers(), max_size=2)
# Values of other types, drawn at random.
WRONG: dict[str, st.SearchStrategy] = {
    **dict.fromkeys(
        ("model", "lm"), _NOTHING | st.text() | st.integers() | st.lists(st.integers(), max_size=2)
    ),
    **dict.fromkeys(
        ("ids", "texts", "list"),
        _NOTHING | st.text() | st.integers() | st.floats() | st.sets(st.integers(), max_size=3),
    ),
    "count": (
        _NOTHING
        | st.text()
        | st.floats()
        | st.booleans()
        | st.lists(st.integers(), max_size=2)
        | st.integers(max_value=0)
    ),
    "seed": _NOTHING | st.text() | st.floats() | st.integers(max_value=-1),
    **dict.fromkeys(
        ("share", "fraction", "positive"),
        _NOTHING | st.text() | st.booleans() | st.lists(st.floats(), max_size=2),
    ),
    "numbers": (
        _NOTHING
        | st.text()
        | st.lists(st.text(max_size=3), min_size=1, max_size=3)
        | st.just([NAN])
    ),
    "word": _NOTHING | st.integers() | st.floats() | st.text(max_size=3),
    "text": _NOTHING | st.integers() | st.lists(st.text(), max_size=2),
}


class Door(NamedTuple):
    """A function, arguments that it takes, and of what kinds some of them are. ``runs`` is False
    where the working call takes too long here.
    """

    function: Callable
    good: dict[str, Any]
    kinds: dict[str, str]
    runs: bool = True

    @property
    def cases(self) -> list[tuple[str, str]]:
        """(argument, kind); a ? after a kind says that None is fine."""
        return [
            (argument, kind)
            for argument, kinds in self.kinds.items()
            for kind in kinds.split(" + ")
        ]

    def call(self, **bad: Any) -> None:
        """Calls it to the end: a context manager is entered and left, an iterator is read."""
        result = self.function(**self.good | bad)
        if isinstance(result, AbstractContextManager):
            with result:
                pass
        elif isinstance(result, Iterator):
            list(result)


def doors(folder: Path) -> dict[str, Door]:
    """Every public function that checks what it is given, by its module and name. ``folder`` is for
    files.
    """
    jsonl = folder / "texts.jsonl"
    jsonl.write_text(
        '{"text": "one text that is long enough"}\n{"text": "and another one of them"}\n'
    )
    both = {"prompts": X, "responses": Y}
    of_both = {"model": "model", "prompts": "texts", "responses": "texts"}
    xis = perturb.noises(MODEL, WM, [KEY])

    def door(
        function: Callable, good: dict[str, Any], kinds: dict[str, str], runs: bool = True
    ) -> tuple[str, Door]:
        return f"{function.__module__.removeprefix('gaussmark_lib.')}.{function.__name__}", Door(
            function, good, kinds, runs
        )

    def marked(**more: Any) -> dict[str, Any]:
        return {"model": MODEL, **both, "wm": WM, "key": KEY} | more

    return dict(
        [
            door(
                models.load, {"device": "cpu"}, {"device": "device", "dtype": "dtype"}, runs=False
            ),
            door(models.watermarkable, {"model": MODEL}, {"model": "model"}),
            door(models.default_weight, {"model": MODEL}, {"model": "model", "block": "word?"}),
            door(
                Codebook,
                {"key": KEY, "n_users": 9, "n_base": 3},
                {"key": "key", "n_users": "count", "n_base": "count"},
            ),
            door(
                attribution.attribute,
                {"model": MODEL, **both, "wm": WM, "book": BOOK},
                of_both | {"wm": "wm", "batch_size": "count"},
            ),
            door(
                authors.author,
                {"model": MODEL, **both, "wm": WM, "keys": [KEY]},
                of_both | {"wm": "wm", "keys": "list + keys", "batch_size": "count"},
            ),
            door(
                spans.scan,
                {"model": MODEL, **both, "wm": WM, "keys": [KEY], "block": 3, "n_draws": 9},
                of_both | {"wm": "wm", "keys": "list + keys"},
            ),
            door(
                texts.load,
                {"kind": jsonl, "n": 1},
                {"n": "count?", "min_chars": "seed?", "kind": "word"},
            ),
            door(
                texts.prompts,
                {"lm": LM, "kind": jsonl, "n": 1, "n_tokens": 2},
                {"lm": "lm", "n": "count", "n_tokens": "count", "kind": "word"},
            ),
            door(perturb.refuse_perturbed, {"model": MODEL}, {"model": "model"}),
            door(
                perturb.noise,
                {"model": MODEL, "wm": WM, "key": KEY},
                {"model": "model", "wm": "wm", "key": "key"},
            ),
            door(
                perturb.noises,
                {"model": MODEL, "wm": WM, "keys": [KEY]},
                {"model": "model", "wm": "wm", "keys": "list + keys"},
            ),
            door(
                perturb.bind,
                {"model": MODEL, "wm": WM, "key": KEY},
                {"model": "model", "wm": "wm", "key": "key"},
            ),
            door(
                perturb.watermarked,
                {"model": MODEL, "wm": WM, "key": KEY},
                {"model": "model", "wm": "wm", "key": "key"},
            ),
            door(
                perturb.moved,
                {"model": MODEL, "wm": WM, "xi": xis[0]},
                {"model": "model", "wm": "wm"},
            ),
            door(
                generate.sample,
                {"model": MODEL, "prompts": X, "n_tokens": 2, "top_p": 1.0, "temperature": 1.0},
                {
                    "model": "model",
                    "prompts": "texts",
                    "n_tokens": "count",
                    "top_p": "positive",
                    "temperature": "numbers",
                    "seed": "seed",
                    "batch_size": "count",
                    "engine": "word",
                    "marks": "list? + marks",
                },
            ),
            door(
                likelihood.cross_entropy,
                {"model": MODEL, "passages": Y},
                {"model": "model", "passages": "texts", "prompts": "texts?", "batch_size": "count"},
            ),
            door(likelihood.entropies, {"model": MODEL, **both}, of_both | {"batch_size": "count"}),
            door(
                gradients.gradients,
                {"model": MODEL, **both, "wm": WM},
                of_both | {"wm": "wm", "lengths": "list?", "dtype": "dtype", "batch_size": "count"},
            ),
            door(
                gradients.norms,
                {"model": MODEL, **both, "weights": [tiny_lm.WEIGHT]},
                of_both | {"weights": "list", "batch_size": "count"},
            ),
            door(
                score.score,
                {"model": MODEL, **both, "wm": WM, "keys": [KEY]},
                of_both
                | {
                    "wm": "wm",
                    "keys": "list + keys",
                    "lengths": "list?",
                    "xis": "noises",
                    "dtype": "dtype",
                    "batch_size": "count",
                    "on_error": "word",
                },
            ),
            door(
                stream.sequence,
                {"model": MODEL, **both, "wm": WM, "keys": [KEY]},
                of_both
                | {
                    "wm": "wm",
                    "keys": "list + keys",
                    "share": "share",
                    "dtype": "dtype",
                    "batch_size": "count",
                    "on_error": "word",
                },
            ),
            door(
                evidence.per_token,
                {"model": MODEL, "prompt": X[0], "response": Y[0], "wm": WM, "key": KEY},
                {
                    "model": "model",
                    "prompt": "ids + known ids",
                    "response": "ids + known ids",
                    "wm": "wm",
                    "key": "key",
                },
            ),
            door(
                divergence.per_text,
                marked(),
                of_both | {"wm": "wm", "key": "key", "batch_size": "count"},
            ),
            door(
                divergence.per_text_of_processor,
                {"model": MODEL, **both, "processor": lambda rows: lambda ids, logits: logits},
                of_both | {"batch_size": "count"},
            ),
            door(
                scheme.named,
                {"wm": WM, "key": KEY, "names": ["KGW-2"]},
                {"wm": "wm", "key": "key", "names": "list?"},
            ),
            door(
                kgw.KGW,
                {"bias": 2.0, "key": KEY},
                {"bias": "positive", "key": "key", "green_share": "share", "test": "word"},
            ),
            door(stats.threshold, {"level": 0.05}, {"level": "share"}),
            door(corrupt.named, {"lm": LM, "names": ["truncate"]}, {"lm": "lm", "names": "list?"}),
            door(
                change_of,
                {**both, "fraction": 0.5, "seed": 0},
                {
                    "prompts": "texts",
                    "responses": "texts",
                    "fraction": "fraction",
                    "seed": "seed",
                },
            ),
            door(
                rewrite.translator,
                {"source": "en", "target": "fr"},
                {"source": "word", "device": "device"},
                runs=False,
            ),
            door(
                Watermark,
                {"weight": "w", "sigma": 0.1},
                {"sigma": "sigma", "rank_dropped": "seed", "side": "word"},
            ),
            door(
                token_divergence.per_text,
                {"model": MODEL, **both, "wm": LAST, "keys": [KEY, KEY]},
                of_both | {"wm": "wm", "keys": "list + keys"},
            ),
            door(
                token_keys.sample,
                {"model": MODEL, "prompts": X, "n_tokens": 2, "wm": LAST, "keys": [KEY, KEY]},
                {
                    "model": "model",
                    "prompts": "texts",
                    "n_tokens": "count",
                    "wm": "wm",
                    "keys": "list + keys",
                    "seed": "seed",
                },
            ),
            door(
                token_keys.per_token,
                {"model": MODEL, **both, "wm": LAST, "keys": [KEY, KEY]},
                of_both | {"wm": "wm", "keys": "list + keys"},
            ),
        ]
    )


def change_of(prompts: Any, responses: Any, fraction: Any, seed: Any) -> Any:
    """The corruption "delete at random"."""
    change = corrupt.named(LM, ["delete at random"])["delete at random"]
    return change(prompts, responses, fraction, seed)
