"""Watermarked GGUF files served by llama.cpp in many ways. Their answers are tested from their
characters, without their prompts.

The engine knows nothing of the watermark. Each key has its own file (``perturb.export_gguf``). Each
file is served in several *ways*: as exported, or with all matrices in another quantisation; with
several sampling settings; with an 8-bit cache; with tokens drafted by the unwatermarked base. The
control is the unwatermarked base file, served in the same way.

Two numbers are known before a file writes anything. Let θ′ and θ be the matrix of the watermarked
and of the base file in the *same* quantisation, and Δ = θ′ − θ:

    share  s = ⟨ξ, Δ⟩/‖ξ‖²,      change = ‖Δ − ξ‖/‖ξ‖.

To first order, the mean ψ of the answers is s times the ψ that ``promise`` predicts from the base's
answers, served in the same way. (``promise`` estimates the temperature from a text.)
"""

import hashlib
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from jaxtyping import Float
from scipy.stats import norm
from torch import Tensor

from gaussmark_lib import gradients, models, perturb, score, stats
from gaussmark_lib.beyond import promise
from gaussmark_lib.beyond.release import provenance, requantised
from gaussmark_lib.engine import gguf_files, gguf_writing, llama_cpp
from gaussmark_lib.engine.llama_cpp import PLAIN
from gaussmark_lib.errors import GaussMarkError, InvalidModelError
from gaussmark_lib.keys import Key
from gaussmark_lib.weights import PlacedWatermark, Watermark, Weight, require_single

EXPORTED = "as exported"
FORMS = (
    "Explain {} in simple words.",
    "Tell me the history of {}.",
    "Write a short story in which {} matters.",
    "What should somebody know who begins with {}?",
    "Why do people care about {}?",
)
TOPICS = (
    *("bread", "glaciers", "chess", "vaccines", "bridges", "honey bees", "sailing", "jazz"),
    *("earthquakes", "paper", "gardens", "the moon", "running", "clocks", "salt", "maps"),
)


class Way(NamedTuple):
    """How a file is served."""

    quantisation: str | None = None  # of all its matrices; None: as exported
    sampling: Mapping[str, float] = PLAIN
    q8_cache: bool = False
    is_drafted: bool = False  # by the unwatermarked base


FILES = {EXPORTED: Way()} | {kind: Way(kind) for kind in requantised.TYPES}
SERVING = {
    "temperature 0.7": Way(sampling=PLAIN | {"temperature": 0.7}),
    "top-p 0.95": Way(sampling=PLAIN | {"top_p": 0.95}),
    "min-p 0.05": Way(sampling=PLAIN | {"min_p": 0.05}),
    "the engine's defaults": Way(sampling={}),
    "speculative": Way(is_drafted=True),
    "8-bit cache": Way(q8_cache=True),
}


def missing(model: str) -> str:
    """Return a sentence that says why this model cannot be served here, or an empty string."""
    if not llama_cpp.is_installed():
        return (
            "llama.cpp is not installed here, so nothing was served: `make .venv/.extra-engine`"
            " installs it."
        )
    try:
        models.gguf_file(model)
    except InvalidModelError:
        return (
            f"llama.cpp serves GGUF files, and {model} is not a GGUF file, so nothing was served:"
            " `-p model smollm2` runs this notebook on a model that is."
        )
    return ""


def questions(n: int, seed: int = 0) -> list[str]:
    """Return n questions for a chat, in the seed's order; they repeat after 80."""
    every = [form.format(topic) for form in FORMS for topic in TOPICS]
    order = np.random.default_rng(seed).permutation(len(every))
    return [every[order[number % len(every)]] for number in range(n)]


def seed_of(way: str, number: int, seed: int) -> int:
    """Return the engine's seed for an answer, which no other answer of a run has."""
    digest = hashlib.sha256(f"{seed}/{way}/{number}".encode()).digest()
    return int.from_bytes(digest[:4], "little") >> 1  # 31 bits: the engine takes a signed integer


@dataclass
class Files:
    """The base file in every quantisation, and its watermarked copies."""

    base: Path
    wm: Watermark
    folder: Path
    keep: bool = False  # the files of each key, until the folder is removed
    readers: dict[Path, gguf_files.Reader] = field(default_factory=dict)

    def reader(self, path: Path) -> gguf_files.Reader:
        """Return a file's header and tensors, parsed once: a header takes most of a second."""
        if path not in self.readers:
            self.readers[path] = gguf_files.read(path)
        return self.readers[path]

    def unmarked(self, quantisation: str | None) -> Path:
        """Return the base file in a quantisation; make it if necessary."""
        if quantisation is None:
            return self.base
        path = self.folder / f"base.{quantisation}.gguf"
        if not path.exists():
            requantised.write(self.reader(self.base), path, quantisation)
        return path

    def marked(self, key: Key, quantisation: str | None) -> Path:
        """Return the watermarked file of a key in a quantisation; make it if necessary.

        Each tensor is quantised by itself. So the file is the base file in this quantisation with
        one tensor replaced, except for three values of the header: only this tensor is computed.
        """
        path = self.folder / f"{key.key_id}.{quantisation}.gguf"
        if path.exists():
            return path
        if quantisation is None:
            return perturb.export_gguf(self.base, self.wm, key, path)
        base = self.unmarked(quantisation)
        place = gguf_files.tensor(self.reader(base), self.wm.weight)
        _, content, _ = self.content(self.marked(key, None), quantisation)
        shutil.copyfile(base, path)
        with path.open("r+b") as file:
            file.seek(place.data_offset)
            file.write(content.tobytes())
        return path

    def change(self, key: Key, quantisation: str | None) -> Float[Tensor, "d_out d_in"]:
        """Return Δ = θ′ − θ, with the watermarked and the base file in the same quantisation."""
        marked = self.theta(self.marked(key, None), quantisation)
        return marked - self.theta(self.base, quantisation)

    def theta(self, path: Path, quantisation: str | None) -> Float[Tensor, "d_out d_in"]:
        """Return the watermark's matrix of a file after the file is quantised (None: as it is).

        Only this tensor is converted. No file is written.
        """
        reader = self.reader(path)
        if quantisation is None:
            return gguf_files.matrix(reader, self.wm.weight)
        name, content, kind = self.content(path, quantisation)
        return gguf_files.decoded(reader, name, content, kind)

    def content(self, path: Path, quantisation: str) -> tuple[str, np.ndarray, gguf_writing.Kind]:
        """Return a file's watermark tensor in a quantisation: its name, bytes and type."""
        tensor = gguf_files.tensor(self.reader(path), self.wm.weight)
        kind = requantised.fitting(tensor, gguf_writing.Kind[quantisation])
        return tensor.name, requantised.converted(tensor, kind), kind

    def forget(self, key: Key) -> None:
        """Remove the files of a key, unless they are to be kept."""
        if self.keep:
            return
        for path in self.folder.glob(f"{key.key_id}.*"):
            self.readers.pop(path, None)  # which holds the file open
            path.unlink()


@contextmanager
def files(base: Path, wm: Watermark, *, keep: bool = False) -> Iterator[Files]:
    """Give the files of a measurement, in a folder that is removed at the end.

    ``keep`` is for a few keys: a second function needs not make their files again. A key has six
    files of the size of the base.

    Raise InvalidWatermarkError if the watermark is on several weights.
    """
    require_single(wm, "files of a release")
    with tempfile.TemporaryDirectory() as folder:
        yield Files(base, wm, Path(folder), keep)


def weights(files: Files, keys: Sequence[Key]) -> pd.DataFrame:
    """Measure how much of each key's noise is in its files.

    Returns:
        One row per file of ``FILES`` and key: ``file``, ``key`` (its number), ``share``,
        ``change``, and ``psi_w``, the ψ of weights (``provenance``) against the base in the same
        quantisation.
    """
    rows = []
    theta = gguf_files.matrix(files.reader(files.base), files.wm.weight)
    placed = PlacedWatermark(None, files.wm, [Weight.alone(files.wm.weight, theta)])
    for number, key in enumerate(keys):
        [[xi]] = perturb.drawn(placed, [key])  # of one weight and one key
        for name, way in FILES.items():
            delta = files.change(key, way.quantisation)
            along = (xi * delta).sum()  # ⟨ξ, Δ⟩
            rows.append(
                {
                    "file": name,
                    "key": number,
                    "share": (along / xi.norm() ** 2).item(),
                    "change": ((delta - xi).norm() / xi.norm()).item(),
                    "psi_w": (along / (files.wm.sigma * delta.norm())).item(),
                }
            )
        files.forget(key)
    return pd.DataFrame(rows)


def answers(
    lm: models.LM,
    files: Files,
    keys: Sequence[Key],
    ways: Mapping[str, Way],
    prompts: Sequence[str],
    n_tokens: int,
    *,
    n_base: int,
    seed: int = 0,
) -> pd.DataFrame:
    """Serve each key's file and the base file in each way, and test their answers.

    Args:
        lm: the base model, as ``models.load`` reads it from ``files.base``.
        prompts: one per key: a question for a chat model, or a text that another model continues.
        n_tokens: length of each answer; the model's end of text is ignored.
        n_base: the base answers the prompts of the first ``n_base`` keys.

    Returns:
        One row per way, key and file: ``way``, ``key`` (its number), ``is_marked``, ``n_tokens``,
        ``psi`` (under the key), ``wrong`` (under another key), and ``promised``: for an answer of
        the base, the mean ψ that a watermarked answer of this kind would have, otherwise NaN.

    Raises:
        GaussMarkError: there are fewer than two keys: another key must test each answer, too.
    """
    if len(keys) < 2:
        raise GaussMarkError(
            "expected at least two keys, so that each answer is also tested under another key,"
            f" got {len(keys)}"
        )
    rows = []
    for number, key in enumerate(keys):
        for name, way in ways.items():
            paths = [files.marked(key, way.quantisation)]
            if number < n_base:
                paths.append(files.unmarked(way.quantisation))
            for path in paths:
                is_marked = path == paths[0]
                # A new server for each answer: it has no cache of an earlier answer.
                draft = files.base if way.is_drafted else None
                server = llama_cpp.serve(path, q8_cache=way.q8_cache, draft=draft)
                [response] = llama_cpp.answers(
                    server,
                    [prompts[number]],
                    n_tokens,
                    seed_of(f"{name}/{is_marked}", number, seed),
                    {**way.sampling, "ignore_eos": True},
                    is_chat=lm.is_chat,
                )
                rows.append((name, number, is_marked, llama_cpp.text(response)))
        files.forget(key)
    table = pd.DataFrame(rows, columns=["way", "key", "is_marked", "text"])
    texts = [lm.encode(text)[:n_tokens] for text in table.pop("text")]
    return tested(lm, files.wm, keys, table.assign(n_tokens=[len(ids) for ids in texts]), texts)


def tested(
    lm: models.LM,
    wm: Watermark,
    keys: Sequence[Key],
    table: pd.DataFrame,
    texts: Sequence[list[int]],
) -> pd.DataFrame:
    """Return the table with the columns ``psi``, ``wrong`` and ``promised`` added."""
    placed = wm.on(lm.model)
    unknown = lm.unknown_prompt()
    psi = np.empty((len(texts), 2))  # under the key, and under another
    lengths = np.empty(len(texts))  # ‖G‖
    prompts = [unknown for _ in texts]
    for gradient in gradients.gradients(lm.model, prompts, texts, wm):
        key = table["key"][gradient.text]
        key_and_other = [keys[key], keys[key - 1]]  # before the first comes the last
        psi[gradient.text] = score.psi([gradient], placed, key_and_other)[0]
        lengths[gradient.text] = gradient.norm
    promised = np.full(len(texts), np.nan)
    of_base = np.flatnonzero(~table["is_marked"])
    if not len(of_base):
        return table.assign(psi=psi[:, 0], wrong=psi[:, 1], promised=promised)
    promises = promise.table(
        lm.model,
        [prompts[i] for i in of_base],
        [texts[i] for i in of_base],
        wm,
        unknown_prompt=unknown,
    )
    promised[of_base] = promise.mean_psi(promises["information"], lengths[of_base], wm.sigmas[0])
    return table.assign(psi=psi[:, 0], wrong=psi[:, 1], promised=promised)


def forecasts(answers: pd.DataFrame, weights: pd.DataFrame) -> pd.DataFrame:
    """Return the table of :func:`answers` with the column ``forecast``.

    It is what each base answer promises, times the mean share of ξ in the files served in this way.
    """
    shares = weights.groupby("file")["share"].mean()
    share = answers["way"].map(shares).fillna(shares[EXPORTED])
    return answers.assign(forecast=answers["promised"] * share)


def measured_by_forecast(table: pd.DataFrame, ways: Sequence[str]) -> stats.Estimate:
    """Estimate mean ψ of watermarked answers in these ways, divided by their mean forecast.

    The interval is over keys.
    """
    rows = table[table["way"].isin(ways)]
    is_marked = rows["is_marked"].to_numpy()
    # Values and counts of both kinds of answers, (n, 4): sums over a resample need no NaN.
    columns = [
        np.where(is_marked, rows["psi"], 0.0),
        is_marked,
        np.where(is_marked, 0.0, rows["forecast"]),
        ~is_marked,
    ]

    def quotient(rows: Float[np.ndarray, "n 4"]) -> float:
        psi, n_marked, forecast, n_base = rows.sum(0)
        if not forecast:  # a resample of keys may have no answer of the base
            return np.inf
        return (psi / n_marked) / (forecast / max(n_base, 1))

    return stats.interval(np.column_stack(columns), quotient, cluster=rows["key"])


def alarms(lm: models.LM, files: Files, keys: Sequence[Key], level: float) -> pd.DataFrame:
    """Test the weights of the unwatermarked base in each quantisation.

    Returns:
        One row per quantisation: ``file``, ``n_hits``, ``n_keys``.
    """
    rows = []
    for kind in requantised.TYPES:
        table = provenance.weights(lm.model, files.unmarked(kind), files.wm, keys)
        is_hit = norm.sf(table["psi"]) <= level
        n_hits = int(is_hit.sum())
        rows.append({"file": kind, "n_hits": n_hits, "n_keys": len(keys)})
    return pd.DataFrame(rows)
