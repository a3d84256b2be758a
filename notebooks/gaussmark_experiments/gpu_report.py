"""Time and memory of the paper's models on this device, as ratios with their targets. Weights are
random: times do not depend on their values.

    python -m gaussmark_experiments.gpu_report --out build/gpu-report
    python -m gaussmark_experiments.gpu_report --model microsoft/Phi-3.5-mini-instruct
        --weight model.layers.20.mlp.down_proj.weight

The default is Llama-3.1-8B in bfloat16 with its preset's weight: some ten minutes on a GPU. Tasks
take turns, and each ratio is the median over repeats, with a 95% interval if there are enough
repeats. A part that fails (mostly for lack of memory) is reported with its reason, and the other
parts continue. ``--layers 2 --width 64`` makes a small model of the same kind, to try the report.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

from gaussmark_experiments import speed
from gaussmark_lib import generate, perturb, score
from gaussmark_lib.stats import Estimate, median

LLAMA = {
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
}
PHI = {
    "model_type": "phi3",
    "hidden_size": 3072,
    "intermediate_size": 8192,
    "num_key_value_heads": 32,
    "vocab_size": 32064,
}
# The published shapes of the presets' models.
CONFIGS = {"meta-llama/Llama-3.1-8B": LLAMA, "microsoft/Phi-3.5-mini-instruct": LLAMA | PHI}
SIZES = {
    "layers": 0,
    "width": 0,
    "prompt": 200,
    "tokens": 1000,
    "texts": 16,
    "batch": 8,
    "keys": 64,
    "repeats": 6,
}
Row = dict[str, Any]  # what, value, low, high, n, target


def main(arguments: list[str] | None = None) -> int:
    """Print the table, and write it next to JSON if ``--out`` is given."""
    options = _parser().parse_args(arguments)
    torch.manual_seed(0)
    report = Report(options)
    parts = [report.detection, report.memory, report.many_keys, report.generation, report.loop]
    rows = []
    for part in parts:
        rows += _measured(part)
    device = f"{torch.get_num_threads()} threads"
    if options.device == "cuda":
        device = torch.cuda.get_device_name()
    heading = f"{options.model}, {options.dtype}, {options.weight} on {device}"
    table = "\n".join([heading, "", *map(_line, rows)])
    print(table)
    if options.out:
        about = {
            "device": device,
            "torch": torch.__version__,
            "asked": {**vars(options), "out": ""},
        }
        options.out.parent.mkdir(parents=True, exist_ok=True)
        as_json = json.dumps({"about": about, "rows": rows}, indent=1)
        options.out.with_suffix(".json").write_text(as_json)
        options.out.with_suffix(".txt").write_text(table + "\n")
    return 0


def _measured(part: Callable[[], Iterator[Row]]) -> list[Row]:
    try:
        rows = list(part())
    except RuntimeError as error:  # torch.OutOfMemoryError is one
        rows = [{"what": part.__doc__, "failed": str(error).splitlines()[0]}]
        torch.cuda.empty_cache()
    print(*map(_line, rows), sep="\n", file=sys.stderr, flush=True)
    return rows


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="meta-llama/Llama-3.1-8B", choices=CONFIGS)
    parser.add_argument("--weight", default="model.layers.28.mlp.up_proj.weight")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--out", type=Path, help="writes NAME.json and NAME.txt", metavar="NAME")
    for name, default in SIZES.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser


class Report:
    """A model on a device, and the parts of the report, each a generator of rows."""

    def __init__(self, options: argparse.Namespace):
        self.options = options
        self.model = _build(options)
        self.wm = perturb.Watermark(options.weight, 0.0173)  # σ² = 3e-4, as in the paper
        self.keys = [perturb.Key.from_seed(seed) for seed in range(options.keys)]
        shape = (options.texts, options.prompt + options.tokens)
        # ids from 3, because 0 to 2 are special tokens
        ids = torch.randint(3, self.model.config.vocab_size, shape).tolist()
        self.x = [row[: options.prompt] for row in ids]
        self.y = [row[options.prompt :] for row in ids]

    def detection(self) -> Iterator[Row]:
        """detection"""
        n = len(self.x)
        times = self._timed(one=partial(self._score, 1), all=partial(self._score, n))
        seconds = {name: median(rows["seconds"]) for name, rows in times.groupby("task")}
        of_text = seconds["one"]
        milliseconds = Estimate(
            value=1e3 * of_text.value,
            low=1e3 * of_text.low,
            high=1e3 * of_text.high,
            n=of_text.n,
        )
        yield _row("detection, one text at a time, ms", milliseconds, "≤ 120 on an H100")
        of_batch = seconds["all"]
        # the reciprocal exchanges the ends of the interval
        rate = Estimate(
            value=n / of_batch.value,
            low=n / of_batch.high,
            high=n / of_batch.low,
            n=of_batch.n,
        )
        yield _row("detection, texts per second", rate, "≥ 12 on an H100")

    def memory(self) -> Iterator[Row]:
        """peak memory of detection divided by a forward pass's, the model's weights included"""
        n = self.options.batch
        # all in mebibytes
        weights = sum(parameter.nbytes for parameter in self.model.parameters()) / 2**20
        forward = partial(speed.forward_only, self.model, self.x[:n], self.y[:n], batch_size=n)
        _, of_forward = speed.peak_memory(forward)
        _, of_detection = speed.peak_memory(partial(self._score, n))
        value = (weights + of_detection) / (weights + of_forward)
        yield {"what": self.memory.__doc__, "value": value, "target": "≤ 1.15"}

    def many_keys(self) -> Iterator[Row]:
        """time of many keys divided by one, their noises drawn again, eight texts"""
        times = self._timed(many=partial(self._score, 8, self.keys), one=partial(self._score, 8))
        what = f"{self.many_keys.__doc__}, {len(self.keys)} keys"
        yield _row(what, speed.ratio(times, "many", "one"))

    def generation(self) -> Iterator[Row]:
        """generation time, watermarked divided by plain"""
        n = min(200, self.options.tokens)
        plain = partial(generate.sample, self.model, self.x[:1], n)

        def marked() -> None:
            with perturb.watermarked(self.model, self.wm, self.keys[0]):
                plain()

        engines = {name: partial(plain, engine=name) for name in ("transformers", "compiled")}
        times = self._timed(marked=marked, plain=plain, **engines)
        target = "0.98 to 1.02; making the noise is part of it"
        yield _row(self.generation.__doc__, speed.ratio(times, "marked", "plain"), target)
        for name in engines:
            ratio = speed.ratio(times, name, "plain")
            yield _row(f"generation time, engine {name} divided by exact", ratio)

    def loop(self) -> Iterator[Row]:
        """time of the plain float32 loop over detection's"""
        together = self._timed(scoring=partial(self._score, len(self.x)))["seconds"].median()
        model = self.model.float()
        xi = perturb.noise(self.model, self.wm, self.keys[0])
        prompts = self.x[:4]
        responses = self.y[:4]
        plain_loop = partial(speed.plain_loop, model, prompts, responses, self.wm, xi)
        loop = self._timed(loop=plain_loop)["seconds"].median()
        value = (loop / len(prompts)) / (together / len(self.x))
        yield {"what": self.loop.__doc__, "value": value, "target": "≥ 6"}

    def _timed(self, **tasks: Callable[[], object]):
        return speed.alternating(tasks, self.options.repeats)

    def _score(self, n: int, keys: list[perturb.Key] | None = None) -> None:
        score.score(
            self.model,
            self.x[:n],
            self.y[:n],
            self.wm,
            keys or self.keys[:1],
            dtype=self.options.dtype,
            batch_size=self.options.batch,
        )


def _build(options: argparse.Namespace) -> PreTrainedModel:
    """The model with random weights, made on the device in its dtype."""
    config = AutoConfig.for_model(**CONFIGS[options.model])
    if options.width:
        small = {
            "hidden_size": options.width,
            "intermediate_size": 2 * options.width,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": options.width // 4,
            "vocab_size": 200,
            "pad_token_id": 0,
            "bos_token_id": 0,
            "eos_token_id": 0,
        }
        config.update(small)
    config.num_hidden_layers = options.layers or config.num_hidden_layers
    usual_normal = torch.nn.init.normal_
    # a tenth of the usual time
    torch.nn.init.normal_ = lambda tensor, *_, **__: tensor.data.uniform_(-0.03, 0.03)
    try:
        with torch.device(options.device):
            dtype = getattr(torch, options.dtype)
            built = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
            return built.eval()
    finally:
        torch.nn.init.normal_ = usual_normal


# a part that fails has a row without numbers: ``what, failed``
def _row(what: str, estimate: Estimate, target: str = "") -> Row:
    row = estimate.row()
    if estimate.low != estimate.low:  # NaN: too few repeats have no interval
        row = {"value": estimate.value, "n": estimate.n}
    return {"what": what, **row, "target": target}


def _line(row: Row) -> str:
    if "failed" in row:
        return f"{row['what']}: not measured: {row['failed']}"
    line = f"{row['what']}: {row['value']:.3g}"
    if "low" in row:
        line += f" ({row['low']:.3g} to {row['high']:.3g}), n = {row['n']}"
    if row.get("target"):
        line += f"; target {row['target']}"
    return line


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main())
