"""Time and memory of the paper's models on this device, as ratios with their targets. Weights are
random: times do not depend on what they are.

    python tests/gpu/report.py --out build/gpu-report            # Llama-3.1-8B in bfloat16, its
    preset's weight: some ten minutes on a GPU python tests/gpu/report.py --model
    microsoft/Phi-3.5-mini-instruct --weight model.layers.20.mlp.down_proj.weight

Tasks take turns, and each ratio is the median over repeats, with a 95% interval where there are
enough of them. What fails (for memory, mostly) is reported with its reason, and the others go on.
``--layers 2 --width 64`` makes a small model of the same kind, to try the report itself.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gaussmark_lib import generate, generate_many, perturb, score
from gaussmark_lib.experiments import peak_memory, speed
from gaussmark_lib.stats import Estimate

CONFIGS = {  # what is public about the shapes of the presets' models
    "meta-llama/Llama-3.1-8B": {
        "model_type": "llama",
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 128256,
        "max_position_embeddings": 131072,
    },
    "microsoft/Phi-3.5-mini-instruct": {
        "model_type": "phi3",
        "hidden_size": 3072,
        "intermediate_size": 8192,
        "num_hidden_layers": 32,
        "num_attention_heads": 32,
        "num_key_value_heads": 32,
        "vocab_size": 32064,
        "max_position_embeddings": 131072,
    },
}
Row = dict[str, Any]  # what, value, low, high, n, target


def main(arguments: list[str] | None = None) -> int:
    """Prints the table, and writes it beside JSON where ``--out`` says."""
    asked = _parser().parse_args(arguments)
    torch.manual_seed(0)
    report = Report(asked)
    rows = []
    for part in (
        report.rate,
        report.noise,
        report.detection,
        report.memory,
        report.many_keys,
        report.generation,
        report.column,
        report.loop,
    ):
        try:
            found = list(part())
        except RuntimeError as error:  # torch.OutOfMemoryError is one
            found = [{"what": part.__doc__, "failed": str(error).splitlines()[0]}]
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
        print(*map(_line, found), sep="\n", file=sys.stderr, flush=True)
        rows += found
    about = {
        "device": report.name,
        "torch": torch.__version__,
        "asked": vars(asked) | {"out": str(asked.out)},
    }
    table = "\n".join(
        [f"{asked.model}, {asked.dtype}, {asked.weight} on {report.name}", "", *map(_line, rows)]
    )
    print(table)
    if asked.out:
        asked.out.parent.mkdir(parents=True, exist_ok=True)
        asked.out.with_suffix(".json").write_text(
            json.dumps({"about": about, "rows": rows}, indent=1)
        )
        asked.out.with_suffix(".txt").write_text(table + "\n")
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="meta-llama/Llama-3.1-8B", choices=CONFIGS)
    parser.add_argument("--weight", default="model.layers.28.mlp.up_proj.weight")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--out", type=Path, help="a name without ending: writes NAME.json and NAME.txt"
    )
    sizes = {
        "layers": 0,
        "width": 0,
        "prompt": 200,
        "tokens": 1000,
        "texts": 16,
        "batch": 8,
        "keys": 64,
        "cells": 15,
        "repeats": 6,
    }
    for name, default in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser


class Operations(TorchDispatchMode):
    """Counts the operations of matrix products, forward and backward."""

    total = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        if count := flop_registry.get(function._overloadpacket):
            self.total += count(*args, **(kwargs or {}), out_val=out)
        return out


class Report:
    """One model on one device, and the parts of the report, each a generator of rows."""

    def __init__(self, asked: argparse.Namespace):
        self.asked, self.dtype = asked, getattr(torch, asked.dtype)
        self.device = torch.device(asked.device)
        self.name = (
            torch.cuda.get_device_name()
            if self.device.type == "cuda"
            else f"{torch.get_num_threads()} threads of a processor"
        )
        self.model = _build(asked)
        self.wm = perturb.Watermark(asked.weight, 0.0173)
        self.keys = [perturb.Key.from_seed(i) for i in range(asked.keys)]
        ids = torch.randint(
            3,
            self.model.config.vocab_size,
            (asked.texts, asked.prompt + asked.tokens),
            generator=torch.Generator().manual_seed(0),
        )
        self.x, self.y = ids[:, : asked.prompt].tolist(), ids[:, asked.prompt :].tolist()
        self.flops_a_second = float("nan")

    def rate(self) -> Iterator[Row]:
        """rate of matrix products, TFLOP/s"""
        n = 8192 if self.device.type == "cuda" else 1024
        a = torch.randn(n, n, device=self.device, dtype=self.dtype)
        times = speed.alternating({"product": lambda: a @ a}, self.asked.repeats)["seconds"]
        self.flops_a_second = 2 * n**3 / times.median()
        yield {"what": self.rate.__doc__, "value": self.flops_a_second / 1e12}

    def noise(self) -> Iterator[Row]:
        """a key's noise, s"""
        placed = self.wm.on(self.model)
        times = speed.alternating(
            {"noise": lambda: perturb.noise(self.model, placed, self.keys[0])}, self.asked.repeats
        )["seconds"]
        yield _row(self.noise.__doc__, speed.median(times), "≤ 0.8 on two cores of a processor")

    def detection(self) -> Iterator[Row]:
        """detection"""
        one = speed.alternating(
            {"one": lambda: self._score(1), "all": lambda: self._score(len(self.x))},
            self.asked.repeats,
        )
        seconds = {name: speed.median(of["seconds"]) for name, of in one.groupby("task")}
        yield _row(
            "detection, one text at a time, ms", _scaled(seconds["one"], 1e3), "≤ 120 on an H100"
        )
        each = seconds["all"]
        n = len(self.x)
        yield _row(
            "detection, texts a second",
            Estimate(n / each.value, n / each.high, n / each.low, each.n),
            "≥ 12 on an H100",
        )
        share = self._flops() / self.flops_a_second
        yield _row(
            "detection, share of the rate of matrix products",
            Estimate(share / each.value, share / each.high, share / each.low, each.n),
            "≥ 0.4",
        )

    def memory(self) -> Iterator[Row]:
        """peak memory of detection over that of a forward pass"""
        batch = slice(self.asked.batch)
        own = sum(parameter.nbytes for parameter in self.model.parameters()) / 2**20
        _, forward = peak_memory.measured(
            lambda: speed.forward_only(
                self.model, self.x[batch], self.y[batch], batch_size=self.asked.batch
            )
        )
        _, scoring = peak_memory.measured(
            lambda: score.score(
                self.model,
                self.x[batch],
                self.y[batch],
                self.wm,
                self.keys[:1],
                batch_size=self.asked.batch,
            )
        )
        yield {
            "what": self.memory.__doc__,
            "value": (own + scoring) / (own + forward),
            "target": "≤ 1.15, the model's own weights included",
        }

    def many_keys(self) -> Iterator[Row]:
        """time of many keys over one, their noises drawn anew, eight texts"""
        tasks = {"many": lambda: self._score(8, self.keys), "one": lambda: self._score(8)}
        yield _row(
            f"{self.many_keys.__doc__}, {len(self.keys)} keys",
            speed.ratio(speed.alternating(tasks, self.asked.repeats), "many", "one"),
        )

    def generation(self) -> Iterator[Row]:
        """generation time, watermarked over plain"""
        prompts, n = self.x[:1], min(200, self.asked.tokens)

        def marked() -> None:
            with perturb.watermarked(self.model, self.wm, self.keys[0]):
                generate.sample(self.model, prompts, n)

        tasks = {"marked": marked, "plain": lambda: generate.sample(self.model, prompts, n)}
        tasks |= {
            engine: lambda engine=engine: generate.sample(self.model, prompts, n, engine=engine)
            for engine in ("transformers", "compiled")
        }
        times = speed.alternating(tasks, self.asked.repeats)
        yield _row(
            self.generation.__doc__,
            speed.ratio(times, "marked", "plain"),
            "0.98 to 1.02; making the noise is part of it",
        )
        for engine in ("transformers", "compiled"):
            yield _row(
                f"generation time, engine {engine} over exact", speed.ratio(times, engine, "plain")
            )

    def column(self) -> Iterator[Row]:
        """a map's column: time cell by cell over together"""
        sigmas = [self.wm.sigma * 2 ** (i / 2) for i in range(-2, self.asked.cells // 3 - 2)]
        cells = [
            (perturb.Watermark(self.asked.weight, sigma), key)
            for sigma in sigmas
            for key in self.keys[:3]
        ]
        prompts, n = self.x[:4], min(100, self.asked.tokens)

        def apart() -> None:
            for wm, key in cells:
                with perturb.watermarked(self.model, wm, key):
                    generate.sample(self.model, prompts, n)

        times = speed.alternating(
            {
                "apart": apart,
                "together": lambda: generate_many.sample(self.model, prompts, cells, n),
            },
            max(1, self.asked.repeats // 3),
        )
        yield _row(
            f"{self.column.__doc__}, {len(cells)} cells",
            speed.ratio(times, "apart", "together"),
            "≥ 5",
        )

    def loop(self) -> Iterator[Row]:
        """time of the plain float32 loop over detection's"""
        few = slice(4)
        together = speed.alternating(
            {"scoring": lambda: self._score(len(self.x))}, self.asked.repeats
        )["seconds"].median() / len(self.x)
        wide, xi = self.model.float(), perturb.noise(self.model, self.wm, self.keys[0])
        loop = speed.alternating(
            {"loop": lambda: speed.plain_loop(wide, self.x[few], self.y[few], self.wm, xi)},
            max(1, self.asked.repeats // 3),
        )
        yield {
            "what": self.loop.__doc__,
            "value": loop["seconds"].median() / len(self.x[few]) / together,
            "target": "≥ 6",
        }

    def _score(self, n: int, keys: list[perturb.Key] | None = None) -> None:
        score.score(
            self.model,
            self.x[:n],
            self.y[:n],
            self.wm,
            keys or self.keys[:1],
            dtype=self.asked.dtype,
            batch_size=self.asked.batch,
        )

    def _flops(self) -> float:
        with Operations() as counted:
            self._score(len(self.x))
        return counted.total


def _build(asked: argparse.Namespace) -> PreTrainedModel:
    """The model with random weights, made on the device in its dtype."""
    config = AutoConfig.for_model(**CONFIGS[asked.model])
    if asked.width:
        config.hidden_size, config.intermediate_size, config.vocab_size = (
            asked.width,
            2 * asked.width,
            200,
        )
        config.head_dim, config.num_attention_heads, config.num_key_value_heads = (
            asked.width // 4,
            4,
            2,
        )
        config.pad_token_id = config.bos_token_id = config.eos_token_id = 0
    config.num_hidden_layers = asked.layers or config.num_hidden_layers
    kept = torch.nn.init.normal_
    torch.nn.init.normal_ = lambda tensor, *_, **__: tensor.data.uniform_(
        -0.03, 0.03
    )  # a tenth of the time
    try:
        with torch.device(asked.device):
            return AutoModelForCausalLM.from_config(
                config, dtype=getattr(torch, asked.dtype)
            ).eval()
    finally:
        torch.nn.init.normal_ = kept


def _scaled(estimate: Estimate, factor: float) -> Estimate:
    return Estimate(
        estimate.value * factor, estimate.low * factor, estimate.high * factor, estimate.n
    )


def _row(what: str, estimate: Estimate, target: str = "") -> Row:
    interval = (
        estimate.row()
        if estimate.low == estimate.low
        else {"value": estimate.value, "n": estimate.n}
    )  # too few repeats have none
    return {"what": what, **interval, "target": target}


def _line(row: Row) -> str:
    if "failed" in row:
        return f"{row['what']}: not measured: {row['failed']}"
    interval = f" ({row['low']:.3g} to {row['high']:.3g}), n = {row['n']}" if "low" in row else ""
    return f"{row['what']}: {row['value']:.3g}{interval}" + (
        f"; target {row['target']}" if row.get("target") else ""
    )


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
