"""The table of tests/robustness/test_bad_inputs.py: a working call of each door, and which kind of
thing each argument is.

Doors refuse and rooms trust: a new door needs a row in :func:`doors`.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, NamedTuple

import tiny_lm
import torch

from gaussmark_lib import corrupt, generate, kgw, models, perturb, score, texts
from gaussmark_lib.beyond import joint, schemes, tracing
from gaussmark_lib.keys import Key
from gaussmark_lib.weights import Watermark

NAN = float("nan")
INF = float("inf")
LM = tiny_lm.build()
MODEL = LM.model
WM = Watermark(tiny_lm.WEIGHT, 0.05)
KEY = Key.from_seed(0)
SECRET = bytes.fromhex("0f1e2d3c4b5a69788796a5b4c3d2e1f0")  # given instead of its key
# prompts and responses
X = [[5, 6, 7], [8]]
Y = [[9, 10, 11, 12, 13, 14], [15, 16, 17, 18, 19, 20]]

# What is wrong with each kind of thing: values out of range, and nearly right ones of another type.
BAD: dict[str, list] = {
    "model": [None, "doclm", 5, LM, torch.nn.Linear(2, 2)],
    "lm": [None, "doclm", 5, MODEL],
    "texts": ["text", b"ab", {0: [3]}, {3, 4}, 5, None, [3, 4], ["text"], [b"ab"], [[1.5], [3]]],
    "list": ["text", b"ab", {0: "x"}, {3, 4}, 5, None],
    "count": [0, -1, 2.5, NAN, "3", None, True, [1]],
    "seed": [-1, 2.5, "3", [1], {}],
    "share": [10**5000, 0, 1, -0.1, 1.1, NAN, INF, "0.5", None, True, [0.5]],
    "share or none": [10**5000, 0, 1, -0.1, 1.1, NAN, INF, "0.5", True, [0.5]],
    "fraction": [-0.1, 1.1, NAN, INF, "0.5", None, True],
    "positive": [10**5000, 0, -1.0, NAN, INF, "1", None, True, [1.0]],
    "sigma": [10**5000, 0, -1.0, NAN, INF, "1", None, True, [], ["1"]],
    "numbers": [10**5000, ["a", "b"], "abc", [None, 1.0], [NAN, 1.0], object(), {"a": 1}, None],
    "noises": [5, "xi", [[1.0]], torch.zeros(2, 3), torch.full((1, 32, 48), NAN)],
    "word": ["none of them", "", None, 5, True],
    "wm": [None, tiny_lm.WEIGHT, 0.05, KEY, (tiny_lm.WEIGHT, 0.05), Watermark],
    "key": [None, 7, SECRET, SECRET.hex(), WM, [KEY], Key],
    "keys": [[], KEY, [None], [KEY, None], [7], [SECRET], SECRET, SECRET.hex(), [WM], {KEY}, None],
    "marks": [[], [WM], [KEY], [(WM,)], [(WM, KEY, 1)], [(KEY, WM)], ["ab"], [5], [(WM, SECRET)]],
    "dtype": ["float3", 5, "int8"],
    "device": ["gpu", "cuda:99", 5.5, "meta", ["cpu"]],
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
        """Call the function to the end: enter and leave a context manager, read an iterator."""
        result = self.function(**self.good | bad)
        if isinstance(result, AbstractContextManager):
            with result:
                pass
        elif isinstance(result, Iterator):
            list(result)


def doors(folder: Path) -> dict[str, Door]:
    """Return every function that checks its arguments, by its name. ``folder`` is for files."""
    jsonl = folder / "texts.jsonl"
    jsonl.write_text('{"text": "one text that is long enough"}\n{"text": "another of them"}\n')
    marked = {"model": MODEL, "wm": WM, "key": KEY}
    tested = {"model": MODEL, "prompts": X, "responses": Y, "wm": WM, "keys": [KEY]}
    of_marked = {"model": "model", "wm": "wm", "key": "key"}
    of_texts = {"model": "model", "prompts": "texts", "responses": "texts", "wm": "wm"}
    of_tested = of_texts | {"keys": "list + keys"}
    settings = {"dtype": "dtype", "batch_size": "count", "on_error": "word"}
    of_sampling = {"n_tokens": "count", "top_p": "positive", "temperature": "numbers"}
    of_sampling |= {"seed": "seed", "batch_size": "count", "engine": "word"}
    change = corrupt.named(LM, ["delete at random"])["delete at random"]
    book = tracing.Codebook(KEY, 9, 3)
    of_book = {name: tested[name] for name in of_texts} | {"book": book}
    return {
        "models.load": Door(
            models.load, {"device": "cpu"}, {"device": "device", "dtype": "dtype"}, runs=False
        ),
        "texts.load": Door(
            texts.load, {"kind": jsonl}, {"n": "count?", "min_chars": "seed?", "kind": "word"}
        ),
        "Watermark": Door(
            Watermark,
            {"weight": "w", "sigma": 0.1},
            {"sigma": "sigma", "rank_dropped": "seed", "side": "word"},
        ),
        "perturb.noise": Door(perturb.noise, marked, of_marked),
        "perturb.bind": Door(perturb.bind, marked, of_marked),
        "perturb.watermarked": Door(perturb.watermarked, marked, of_marked),
        "generate.sample": Door(
            generate.sample,
            {"model": MODEL, "prompts": X, "n_tokens": 2},
            {"model": "model", "prompts": "texts", "marks": "list? + marks"} | of_sampling,
        ),
        "score.score": Door(
            score.score, tested, of_tested | settings | {"lengths": "list?", "xis": "noises"}
        ),
        "joint.sequence": Door(
            joint.sequence, tested, of_tested | settings | {"share": "share or none"}
        ),
        "tracing.Codebook": Door(
            tracing.Codebook,
            {"key": KEY, "n_users": 9, "n_base": 3},
            {"key": "key", "n_users": "count", "n_base": "count"},
        ),
        "tracing.attribute": Door(tracing.attribute, of_book, of_texts),
        "tracing.scan": Door(tracing.scan, tested | {"block": 3, "n_draws": 9}, of_tested),
        "schemes.named": Door(
            schemes.named,
            {"wm": WM, "key": KEY, "names": ["KGW-2"]},
            {"wm": "wm", "key": "key", "names": "list?"},
        ),
        "KGW": Door(
            kgw.KGW,
            {"bias": 2.0, "key": KEY},
            {"bias": "positive", "key": "key", "green_share": "share", "test": "word"},
        ),
        "corrupt.named": Door(
            corrupt.named, {"lm": LM, "names": ["truncate"]}, {"lm": "lm", "names": "list?"}
        ),
        "a corruption": Door(
            lambda prompts, responses, fraction, seed: change(prompts, responses, fraction, seed),
            {"prompts": X, "responses": Y, "fraction": 0.5, "seed": 0},
            {"prompts": "texts", "responses": "texts", "fraction": "fraction", "seed": "seed"},
        ),
    }
