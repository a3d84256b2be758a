"""``gaussmark bench``: one table for a model, watermarks by what happens to their texts.

n pairs of a prompt and a key; each scheme writes a text of each pair, and its own exact test reads
this text after each change. The prices of the schemes differ, except for GaussMark: σ is solved so
that its KL under one key, on plain texts of the pilot, is that of KGW-1.

A *cell* is one piece of work, such as a scheme's texts or the tests of one column. It is written
into a file once it is complete, so that an interrupted command continues, and a further scheme
costs its own cells alone.

``gaussmark bench --rewriting`` is a second table with the same schemes at the same prices. Its
columns are the ways of ``rewriting``.
"""

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from gaussmark_experiments import kgw_baseline, rewriting, robustness
from gaussmark_lib import corrupt, files, generate, likelihood, models, stats, texts
from gaussmark_lib.beyond.release import attacks
from gaussmark_lib.beyond.schemes import KGW, GaussMark
from gaussmark_lib.engine import checkpoints, packages
from gaussmark_lib.perturb import Watermark
from gaussmark_lib.scheme import Scheme, makers
from gaussmark_lib.tokens import Texts
from gaussmark_lib.workbench import begin, rewrite
from gaussmark_lib.workbench import pairs as several
from gaussmark_lib.workbench.pairs import Pairs
from gaussmark_lib.workbench.rewrite import apertium
from gaussmark_lib.workbench.runs import notebook

SCHEMES = ("GaussMark", "GaussMark, sharper", "KGW-1", "KGW-2", "SynthID", "Gumbel-max")
# Columns of the table. The last two are controls: texts without the mark that is tested for.
CLEAN = "clean"
PASTED = "copy-paste 25%"
TRIP = "round trip"
REWRITTEN = "rewritten"
TUNED = "LoRA, 200 steps"
PLAIN = "plain text"
WRONG = "wrong key"
SUBSTITUTED = {"10% substituted": 0.1, "30% substituted": 0.3}
QUICK = (CLEAN, *SUBSTITUTED, PASTED, PLAIN, WRONG)
COLUMNS = (CLEAN, *SUBSTITUTED, PASTED, TRIP, REWRITTEN, TUNED, PLAIN, WRONG)
# Columns of the table of rewriting. The last two are controls: plain text that is rewritten, too.
UNMARKED = "plain text, by SmolLM2"
REWRITING = (CLEAN, *rewriting.WAYS, UNMARKED, WRONG)
LEVELS = (0.01, 0.001)
SIZE_LEVEL = 0.02  # of "tokens needed", as Mark My Words has it
MARKED = 0.25  # share of the marked text in a copy-paste text
PROMPT_TOKENS = 32
START_PSI = 4.0  # where the search for an equal price begins
MOST_PILOT = 48  # texts of the pilot on which the price is solved
REQUEST = "Please rewrite the following text: "  # that of MarkLLM's GPTParaphraser
# of LoRA: each release is trained on the pilot's human texts
N_RELEASES = 8
STEPS = 200
LORA_RANK = 8
N_TRAINING = 48
TRAINING_TOKENS = 128
TRAINING_BATCH = 1
LEAST_TOKENS = 5  # of a text that every built-in scheme tests; a shorter one is not detected
# Two tests of the same texts share the forward pass.
FAMILY = ("GaussMark", "GaussMark, sharper")


@dataclass(frozen=True)
class Setting:
    """What every cell depends on: the table without its schemes and columns."""

    model: str
    text: str
    n_pairs: int
    n_tokens: int
    seed: int = 0


def chosen(names: Sequence[str]) -> dict[str, str]:
    """Return name → name as typed, of registered schemes. ``"my_module:my scheme"`` imports the
    module.

    Raise InvalidWatermarkError if there is no such scheme.
    """
    return {plain: typed for typed in names for plain in makers.chosen([typed])}


def identity(content: Mapping[str, Any]) -> str:
    """Return 12 hexadecimal digits that identify what JSON can hold."""
    as_json = json.dumps(content, sort_keys=True)
    return hashlib.sha256(as_json.encode()).hexdigest()[:12]


def id_of(setting: Setting) -> str:
    """Return the id of a setting, which also covers the code, the model's file and the texts."""
    code = notebook.code_of(["from gaussmark_experiments import bench"], files.NOTEBOOKS)
    inputs = notebook.inputs_of(asdict(setting), Path.cwd())
    return identity({"setting": asdict(setting), "code": code, "inputs": inputs})


class Bench:
    """The cells of a table in a folder. The model is loaded when it is first needed.

    Args:
        names: of the schemes, as typed (:func:`chosen`).
        columns: of ``COLUMNS``.
        folder: of the cells, which is made if it does not exist.
    """

    def __init__(
        self,
        setting: Setting,
        names: Sequence[str],
        columns: Sequence[str],
        folder: Path,
    ):
        self.setting = setting
        self.names = chosen(names)
        self.columns = list(columns)
        self.folder = folder
        self._others: dict[str, models.LM] = {}

    def cells(self) -> Iterator[tuple[str, Callable[[], dict[str, Any]]]]:
        """Yield each cell: its name, and a function that returns its content."""
        yield "equal price", self.price
        yield PLAIN, self.plain
        for family in self.families():
            yield f"{family[0]}: texts", lambda family=family: self.texts(family)
            yield f"{family[0]}: price", lambda family=family: self.costs(family)
            for column in self.columns:
                yield (
                    f"{family[0]}: {column}",
                    lambda family=family, column=column: self.tests(family, column),
                )
        for way in self.ways():
            yield f"likeness {way}", lambda way=way: self.likeness(way)

    def families(self) -> list[list[str]]:
        """Return the names of the schemes, in groups that test the same texts."""
        groups: dict[str, list[str]] = {}
        for name in self.names:
            writer = FAMILY[0] if name in FAMILY else name
            groups.setdefault(writer, []).append(name)
        return list(groups.values())

    def kept(self, name: str, family: Sequence[str], make: Callable[[], Any]) -> dict[str, Any]:
        """Return the content of a cell, from its file or from ``make``. The file's name covers the
        modules that users registered their schemes in.
        """
        typed = [self.names[scheme] for scheme in family]
        modules = notebook.inputs_of({"schemes": typed}, Path.cwd())
        about = {"cell": name, "schemes": list(family), "modules": modules}
        path = self.folder / f"{identity(about)}.json"
        if path.exists():
            return json.loads(path.read_text(encoding="utf-8"))
        content = about | make()
        self.folder.mkdir(parents=True, exist_ok=True)
        files.write_json(path, content)
        return content

    # ---- what all schemes share

    @cached_property
    def lm(self) -> models.LM:
        """The model, loaded at first use."""
        return models.load(self.setting.model)

    @cached_property
    def pairs(self) -> Pairs:
        """Held-out prompts, each with a key of its own."""
        setting = self.setting
        return several.draw(self.lm, setting.text, setting.n_pairs, PROMPT_TOKENS, setting.seed)

    @cached_property
    def n_tokens(self) -> int:
        """The tokens of each text: the wanted number, or those that fit with a host around them."""
        wanted = self.setting.n_tokens
        return texts.fit(self.lm, self.pairs.prompts, wanted, growth=1 / MARKED)

    @cached_property
    def pilot_prompts(self) -> list[list[int]]:
        """Prompts of the pilot, on whose plain texts the price is solved: about half as many
        as pairs.
        """
        n = min(MOST_PILOT, max(begin.N_TEXTS, self.setting.n_pairs // 2))
        if self.setting.text not in texts.KINDS:
            n = min(n, self.setting.n_pairs)  # a small file has no more texts
        return texts.prompts(self.lm, self.setting.text, n, PROMPT_TOKENS, split="pilot")

    def price(self) -> dict[str, Any]:
        """Return ``sigma`` of GaussMark, and ``nats``, the price per token of KGW-1 for which it is
        solved, on plain texts of the pilot.
        """
        return self.kept("equal price", [], self._solved)

    def _solved(self) -> dict[str, Any]:
        lm = self.lm
        prompts = self.pilot_prompts
        pilot = Pairs(prompts, several.pilot_keys(len(prompts)))
        plain = generate.sample(lm.model, prompts, self.n_tokens)
        rival = KGW(1.0, pilot.keys[0])
        nats = kgw_baseline.prices_along(lm, rival, pilot, plain)["kl"].mean()
        wm = Watermark(models.default_weight(lm.model), 1.0)
        wm = begin.solved(lm, prompts, self.n_tokens, wm, START_PSI)
        wm = kgw_baseline.at_equal_price(lm, wm, rival, pilot, plain, "kl")
        return {
            "weight": wm.weight,
            "sigma": wm.sigma,
            "nats": float(nats),
            "n_pilot": pilot.n,
            "n_tokens": self.n_tokens,
            "title": lm.title,
            "weights": {"parameters": checkpoints.digest(lm.model), "file": lm.file_sha256},
        }

    @cached_property
    def tried(self) -> dict[str, Scheme]:
        """The schemes by name. The rank-reduced one has a σ for the same price, to first order."""
        price = self.price()
        wm = Watermark(price["weight"], price["sigma"])
        psi = float(np.sqrt(2 * self.n_tokens * price["nats"]))
        return robustness.candidates(
            self.lm,
            list(self.names),
            wm,
            self.pairs,
            self.n_tokens,
            psi=psi,
            pilot=self.pilot_prompts,
        )

    def plain(self) -> dict[str, Any]:
        """Return ``ids`` of a plain text for each prompt, and its cross-entropy ``nats``."""

        def written() -> dict[str, Any]:
            prompts = self.pairs.prompts
            seed = self.setting.seed
            ids = generate.sample(self.lm.model, prompts, self.n_tokens, seed=seed)
            return {"ids": ids, "nats": self._cross_entropy(ids)}

        return self.kept(PLAIN, [], written)

    def _cross_entropy(self, ids: Texts) -> list[float]:
        return likelihood.cross_entropy(self.lm.model, ids, prompts=self.pairs.prompts).tolist()

    # ---- the cells of a scheme, or of schemes that test the same texts

    def texts(self, family: Sequence[str]) -> dict[str, Any]:
        """Return ``ids`` of a text of each pair, written under its key."""

        def written() -> dict[str, Any]:
            scheme = {family[0]: self.tried[family[0]]}
            seed = self.setting.seed
            ids = robustness.texts_by_scheme(self.lm, scheme, self.pairs, self.n_tokens, seed=seed)
            return {"ids": ids[family[0]]}

        return self.kept("texts", family[:1], written)

    def costs(self, family: Sequence[str]) -> dict[str, Any]:
        """Return the prices of each text in nats per token: ``kl``, under its key, and ``change``
        of the cross-entropy, which over keys is what a reader could notice.
        """

        def measured() -> dict[str, Any]:
            scheme = self.tried[family[0]]
            ids = self.texts(family)["ids"]
            kl = scheme.divergences(self.lm.model, self.pairs.prompts, ids, self.pairs.keys)
            n_tokens = [len(text) for text in ids]
            change = np.subtract(self._cross_entropy(ids), self.plain()["nats"])
            return {"kl": (kl / n_tokens).tolist(), "change": change.tolist()}

        return self.kept("price", family[:1], measured)

    def tests(self, family: Sequence[str], column: str) -> dict[str, Any]:
        """Return ``rows``, a test of each text after the change of a column; or ``missing``, the
        reason why there is none.
        """
        reason = self.reason(family, column)
        if reason:
            return {"missing": reason}
        if column == TUNED:
            return self._tuned(family)
        return self.kept(column, family, lambda: {"rows": self._tested(family, column)})

    def reason(self, family: Sequence[str], column: str) -> str:
        """Return why a column cannot be measured, or nothing."""
        way = _way(column)
        needs_apertium = column == TRIP or way in rewriting.LANGUAGES
        if needs_apertium and not apertium.is_installed():
            return f"{column}: the program apertium is not installed"
        if way in rewriting.WRITERS and not _has_model(rewriting.WRITERS[way]):
            return f"{column}: the package of this model is not installed"
        if column == REWRITTEN and not self.lm.is_chat:
            return f"rewritten: {self.lm.name} is not a chat model"
        if column == TUNED and not isinstance(self.tried[family[0]], GaussMark):
            return "LoRA: only a mark in the weights can survive training"
        if column == TUNED and find_spec("peft") is None:
            return "LoRA: the package peft is not installed"
        return ""

    def _tested(self, family: Sequence[str], column: str) -> list[dict[str, Any]]:
        prompts, responses = self._changed(family, column)
        owner = list(range(self.pairs.n))
        if column == WRONG:
            owner = [*owner[1:], 0]  # the next pair's key
        if column == CLEAN:
            table = self._by_length(family, responses)
        else:
            table = self._by_own_keys(family, prompts, responses, owner)
        return table.assign(release=table["text"]).to_dict("records")

    def _by_own_keys(
        self,
        family: Sequence[str],
        prompts: Texts,
        responses: Texts,
        owner: Sequence[int],
    ) -> pd.DataFrame:
        """The tests of whole texts. A rewritten text can be too short; it has p = 1."""
        is_long = np.array([len(ids) >= LEAST_TOKENS for ids in responses])
        tested = np.flatnonzero(is_long)
        table = pd.DataFrame()
        if tested.size:
            tables = robustness.under_own_keys(
                self.lm,
                [self.tried[name] for name in family],
                self.pairs.keys,
                [prompts[i] for i in tested],
                [responses[i] for i in tested],
                [owner[i] for i in tested],
            )
            table = _joined(family, tables)
            table["text"] = tested[table["text"]]
        too_short = [
            {
                "text": i,
                "n_tokens": len(responses[i]),
                "log10_p": 0.0,
                "scheme": name,
            }
            for name in family
            for i in np.flatnonzero(~is_long)
        ]
        if too_short:
            table = pd.concat([table, pd.DataFrame(too_short)], ignore_index=True)
        return table

    def _by_length(self, family: Sequence[str], responses: Texts) -> pd.DataFrame:
        """The unedited texts and their beginnings, for the number of tokens that is needed."""
        lengths = _lengths(self.n_tokens)
        if isinstance(self.tried[family[0]], GaussMark):
            schemes = [self.tried[name] for name in family]  # in a single pass
            owner = range(self.pairs.n)
            tables = robustness.under_own_keys(
                self.lm,
                schemes,
                self.pairs.keys,
                self.pairs.prompts,
                responses,
                owner,
                lengths,
            )
            return _joined(family, tables)
        scheme = {family[0]: self.tried[family[0]]}
        return kgw_baseline.by_length(
            self.lm,
            scheme,
            self.pairs,
            {family[0]: responses},
            lengths,
        ).drop(columns="p_value")

    def _changed(self, family: Sequence[str], column: str) -> tuple[Texts, Texts]:
        """Prompts as the detector knows them, and the responses of a column."""
        lm = self.lm
        seed = self.setting.seed
        prompts = self.pairs.prompts
        if column == PLAIN:
            return prompts, self.plain()["ids"]
        way = _way(column)
        if way:
            writer = "" if column == UNMARKED else family[0]
            return prompts, [self.lm.encode(copy) for copy in self.rewritten(writer, way)]
        responses = self.texts(family)["ids"]
        unknown = [lm.unknown_prompt()] * self.pairs.n
        if column in SUBSTITUTED:
            substitute = corrupt.named(lm, ["substitute at random"])["substitute at random"]
            return substitute(prompts, responses, SUBSTITUTED[column], seed)
        if column == PASTED:
            paste = robustness.quoted(self.hosts)
            return unknown, paste(prompts, responses, 1 - MARKED, seed)[1]
        if column == TRIP:
            [translate] = rewrite.round_trips(lm).values()
            return translate(prompts, responses, 1.0, seed)
        if column == REWRITTEN:
            requests = [lm.prompt(REQUEST + lm.decode(ids)) for ids in responses]
            # other random numbers than those that wrote the texts
            rewritten = generate.sample(
                lm.model,
                requests,
                self.n_tokens,
                seed=seed + 1,
                until_end=True,
            )
            return unknown, rewritten
        return prompts, responses

    @cached_property
    def hosts(self) -> list[list[int]]:
        """Human texts around the marked ones, of other passages than those of the prompts."""
        n = self.pairs.n
        n_host = PROMPT_TOKENS + round(self.n_tokens * (1 - MARKED) / MARKED) + 1
        passages = texts.human(self.lm, self.setting.text, 2 * n, n_host, seed=self.setting.seed)
        return [ids[PROMPT_TOKENS:] for ids in passages[n:]]

    # ---- rewriting

    def ways(self) -> list[str]:
        """Return the ways of rewriting among the columns that can be measured."""
        family = self.families()[0]
        measured = [column for column in self.columns if not self.reason(family, column)]
        return [column for column in measured if column in rewriting.WAYS]

    def rewritten(self, writer: str, way: str) -> list[str]:
        """Return each text of a scheme after a way of rewriting. ``""`` stands for plain text."""

        def made() -> dict[str, Any]:
            ids = self.texts([writer])["ids"] if writer else self.plain()["ids"]
            originals = [self.lm.decode(text) for text in ids]
            # other random numbers than those that wrote the texts
            seed = self.setting.seed + 1
            if way in rewriting.LANGUAGES:
                return {"copies": rewriting.round_trips(originals, rewriting.LANGUAGES[way])}
            if way == rewriting.SHUFFLED:
                return {"copies": rewriting.shuffled(originals, seed)}
            lm = self._loaded(rewriting.WRITERS[way])
            return {"copies": rewriting.in_other_words(lm, originals, seed)}

        return self.kept(f"rewritten {way}", [writer] if writer else [], made)["copies"]

    def _loaded(self, name: str) -> models.LM:
        """A model that rewrites or judges, loaded at first use."""
        if name not in self._others:
            self._others[name] = models.load(name)
        return self._others[name]

    @cached_property
    def judge(self) -> rewriting.Judge:
        """The judge of the first scheme's texts."""
        ids = self.texts(self.families()[0])["ids"]
        originals = [self.lm.decode(text) for text in ids]
        return rewriting.Judge(self._loaded(rewriting.JUDGE), originals)

    def likeness(self, way: str) -> dict[str, Any]:
        """Return ``rows``: what stays of each text of the first scheme (``rewriting.Judge``)."""
        writer = self.families()[0][0]
        if not _has_model(rewriting.JUDGE):
            return {"rows": []}

        def judged() -> dict[str, Any]:
            likeness = self.judge.likeness(self.rewritten(writer, way))
            return {"rows": likeness.to_dict("records")}

        return self.kept(f"likeness {way}", [writer], judged)

    # ---- LoRA: releases, each with a key of its own

    def _tuned(self, family: Sequence[str]) -> dict[str, Any]:
        """The texts of fine-tuned releases. Each release is a file of its own."""
        groups = np.array_split(np.arange(self.pairs.n), min(N_RELEASES, self.pairs.n))
        rows = []
        for number, group in enumerate(groups):
            name = f"{TUNED}, release {number}"
            cell = self.kept(
                name,
                family,
                lambda group=group, number=number: {"rows": self._release(family, group, number)},
            )
            rows += cell["rows"]
        return {"rows": rows}

    def _release(
        self,
        family: Sequence[str],
        group: np.ndarray,
        number: int,
    ) -> list[dict[str, Any]]:
        lm = self.lm
        key = self.pairs.keys[group[0]]
        prompts = [self.pairs.prompts[i] for i in group]
        training = texts.human(lm, self.setting.text, N_TRAINING, TRAINING_TOKENS, split="pilot")
        release = attacks.released(lm.model, self.tried[family[0]].wm, key)
        suspect = attacks.fine_tuned(
            release,
            training,
            STEPS,
            batch_size=TRAINING_BATCH,
            lora_rank=LORA_RANK,
            seed=self.setting.seed + number,
        )
        written = generate.sample(
            suspect,
            prompts,
            self.n_tokens,
            seed=self.setting.seed,
            rows=group.tolist(),
        )
        schemes = [self.tried[name] for name in family]
        owner = [0 for _ in group]
        tables = robustness.under_own_keys(lm, schemes, [key], prompts, written, owner)
        table = _joined(family, tables)
        return table.assign(text=group[table["text"]], release=number).to_dict("records")

    # ---- the finished table

    @property
    def id(self) -> str:
        """The id of the record: of the setting, the schemes with their modules, and the columns."""
        typed = list(self.names.values())
        modules = notebook.inputs_of({"schemes": typed}, Path.cwd())
        question = {"setting": id_of(self.setting), "schemes": typed, "columns": self.columns}
        return identity(question | {"modules": modules})

    def tables(self) -> dict[str, pd.DataFrame]:
        """Return the tables of the record, a row per text: ``tests``, of each scheme and column,
        ``prices`` in nats per token, and ``likeness`` of rewritten texts.
        """
        tests = []
        prices = []
        for family in self.families():
            costs = self.costs(family)
            nats = pd.DataFrame({"kl": costs["kl"], "change": costs["change"]})
            prices += [nats.assign(scheme=name) for name in family]
            for column in self.columns:
                rows = self.tests(family, column).get("rows")
                if rows:
                    tests.append(pd.DataFrame(rows).assign(column=column))
        found = {
            "tests": pd.concat(tests, ignore_index=True),
            "prices": pd.concat(prices, ignore_index=True),
        }
        likeness = [pd.DataFrame(self.likeness(way)["rows"]).assign(way=way) for way in self.ways()]
        if likeness:
            found["likeness"] = pd.concat(likeness, ignore_index=True)
        return found

    def missing(self) -> list[dict[str, str]]:
        """Return the cells that cannot be measured: ``scheme, column, why``."""
        reasons = []
        for family in self.families():
            for column in self.columns:
                why = self.reason(family, column)
                names = family if why else []
                reasons += [{"scheme": name, "column": column, "why": why} for name in names]
        return reasons

    def results(self) -> dict[str, Any]:
        """Return the results of complete cells: ``price`` (of GaussMark and KGW-1), ``rates``,
        ``prices``, ``tokens``, what is ``missing``, and ``likeness`` after rewriting.
        """
        tables = self.tables()
        price = self.price()
        return {
            "schemes": list(self.names),
            "columns": self.columns,
            "price": {name: price[name] for name in PRICE_FIELDS},
            "rates": rates(tables["tests"]),
            "prices": price_rows(tables["prices"]),
            "tokens": token_rows(tables["tests"]),
            "missing": self.missing(),
            "likeness": likeness_rows(tables.get("likeness")),
        }


ABOVE = "meaning above shuffled words"
PRICE_FIELDS = ("title", "weight", "sigma", "nats", "n_pilot", "n_tokens")


def _joined(names: Sequence[str], tables: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """The tests of several schemes as one table."""
    columns = ["text", "n_tokens", "log10_p"]
    parts = [table[columns].assign(scheme=name) for name, table in zip(names, tables, strict=True)]
    return pd.concat(parts, ignore_index=True)


def _lengths(n_tokens: int) -> list[int]:
    """The tokens of the beginnings that are tested: an eighth, a quarter, half, and all."""
    return sorted({max(5, n_tokens // part) for part in (8, 4, 2)} | {n_tokens})


def rates(tests: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the share of whole texts that are detected, by scheme, column and level, with its
    exact interval: ``scheme, column, level, value, low, high, n``. Texts of one release are a
    cluster.
    """
    longest = tests.groupby(["scheme", "column", "text"])["n_tokens"].transform("max")
    whole = tests[tests["n_tokens"] == longest]
    rows = []
    for level in LEVELS:
        detected = whole.assign(detected=whole["log10_p"] <= np.log10(level), level=level)
        by = ["scheme", "column", "level"]
        rows.append(several.means(detected, by, "detected", cluster="release"))
    return _plain(pd.concat(rows, ignore_index=True))


def price_rows(nats: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the mean of both prices by scheme: ``scheme, price, value, low, high, n``."""
    long = nats.melt("scheme", var_name="price", value_name="nats")
    return _plain(several.means(long, ["scheme", "price"], "nats"))


def token_rows(tests: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the tokens until half of the texts are detected at ``SIZE_LEVEL``, by scheme, as
    ``kgw_baseline.needed_by_scheme``.
    """
    clean = tests[tests["column"] == CLEAN]
    return _plain(kgw_baseline.needed_by_scheme(clean, SIZE_LEVEL))


def likeness_rows(likeness: pd.DataFrame | None) -> list[dict[str, Any]]:
    """Return what stays of the texts, by way and quantity (length, copied, meaning, and *meaning
    above shuffled words*): ``way, quantity, value, low, high, n``.
    """
    if likeness is None or "gained" not in likeness:
        return []
    rows = []
    of_shuffled = likeness[likeness["way"] == rewriting.SHUFFLED]["gained"].to_numpy()
    for way, of_way in likeness.groupby("way", sort=False):
        most = of_way["most"].to_numpy()
        gained = of_way["gained"].to_numpy()
        estimates = {
            "length": stats.mean(of_way["length"]),
            "copied": stats.mean(of_way["copied"]),
            "meaning": stats.ratio(gained, most),
            ABOVE: stats.ratio(gained - of_shuffled, most),
        }
        rows += [
            {"way": way, "quantity": quantity} | estimate.row()
            for quantity, estimate in estimates.items()
        ]
    return _plain(pd.DataFrame(rows))


def _way(column: str) -> str | None:
    """The way of rewriting in a column's name."""
    return next((way for way in rewriting.WAYS if column.endswith(way)), None)


def _has_model(name: str) -> bool:
    return packages.is_installed(packages.MODELS[name])


def _plain(table: pd.DataFrame) -> list[dict[str, Any]]:
    """The rows as JSON holds them: no NaN and no infinity."""
    finite = table.astype(object).where(table.notna() & (table != np.inf), None)
    return json.loads(json.dumps(finite.to_dict("records"), default=lambda value: value.item()))
