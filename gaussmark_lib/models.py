"""Language models: how they are loaded, and in which arithmetic they compute.

Files of models are loaded without code of theirs, and from the model hub only if it answers within
seconds: the hub's own client tries every file six times and sleeps in between, which takes most of
a minute without a network. What in a model can carry a watermark is said in ``weights``.
"""

import hashlib
import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cache
from itertools import islice
from pathlib import Path
from weakref import WeakKeyDictionary

import psutil
import torch
from huggingface_hub import constants
from huggingface_hub.utils import get_session
from safetensors import safe_open
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerBase,
)
from transformers.utils import (
    CONFIG_NAME,
    SAFE_WEIGHTS_INDEX_NAME,
    SAFE_WEIGHTS_NAME,
    cached_file,
    logging,
)
from transformers.utils.hub import get_checkpoint_shard_files

from gaussmark_lib import files, tokens
from gaussmark_lib.errors import (
    InvalidModelError,
    UnknownWeightError,
    is_int,
    require_one_of,
    shown,
)
from gaussmark_lib.weights import Weight
from gaussmark_lib.weights import names as watermarkable

PATIENCE = 5  # seconds that the hub has to answer
EMBEDDED = "doclm"
_IN_BLOCK = re.compile(r"(.+?)\.(\d+)\.")  # a stack of blocks, and a block's number in it
_MANY = re.compile("layer|expert|label")  # numbers in config.json of what is built one by one
UNFIT = "the checkpoint does not fit its config.json"
MOST_BUILT = 1000  # layers, or one per tensor of the checkpoint where it has more
DTYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32, "float64": torch.float64}


@dataclass(frozen=True)
class LM:
    """A causal language model with its tokenizer."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    name: str

    def encode(self, text: str) -> list[int]:
        """Token ids of a text, without special tokens, also where the text spells one."""
        tokens.check_text(text)
        return self.tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True)

    def decode(self, ids: Sequence[int]) -> str:
        return self.tokenizer.decode(ids, skip_special_tokens=True)

    def prompt(self, text: str) -> list[int]:
        """Token ids of a text to be continued: with the model's start token, and in its chat
        template where it has one.
        """
        tokens.check_text(text, "prompt")
        if self.tokenizer.chat_template:
            turn = [{"role": "user", "content": f"Complete the following prompt: {text}"}]
            try:
                return list(
                    self.tokenizer.apply_chat_template(
                        turn, add_generation_prompt=True, return_dict=False
                    )
                )
            except Exception as error:  # a template is a program of the model's author
                raise InvalidModelError(
                    f"{self.name}: expected a chat template that takes a user's turn, got"
                    f" {type(error).__name__}: {first_line(error)}; mend or remove it in the"
                    " tokenizer's files"
                ) from error
        return self.tokenizer.encode(text, split_special_tokens=True)


def load(
    name: str | Path = EMBEDDED,
    *,
    dtype: str | torch.dtype = "float32",
    device: str | None = None,
    revision: str | None = None,
) -> LM:
    """Loads ``"doclm"`` (the model in this repository), a local folder, or a hub id, ready to
    generate and score. No code of a model is ever run.

    Args:
        dtype: of the weights, e.g. ``"float32"``, ``"bfloat16"``, or ``"auto"`` for the
            checkpoint's own.
        device: by default the GPU if there is one.
        revision: a hub branch, tag or commit.

    Raises:
        InvalidModelError: no such model, no network, a broken or incomplete checkpoint, one that
            needs code of its own, a weight that is not finite, a model that does not fit into
            the free memory.
    """
    if not isinstance(name, str | Path) or not str(name):
        raise InvalidModelError(
            f"name: expected {EMBEDDED!r}, a folder or a hub id, got {shown(name)}"
        )
    require_one_of(
        str(dtype).removeprefix("torch."), "dtype", ("auto", "float16", *DTYPES), InvalidModelError
    )
    device = device_of(device)
    source = files.DATA / EMBEDDED if str(name) == EMBEDDED else name
    local = Path(source).expanduser()
    is_local = os.path.isdir(local)
    if not is_local and (
        isinstance(source, Path) or source.startswith((".", "/", "~")) or source.count("/") > 1
    ):
        raise InvalidModelError(
            f"no model at {local}: expected a folder with config.json and *.safetensors."
            f" models.load('{EMBEDDED}') needs no download"
        )
    source = local if is_local else source
    terms = {"revision": revision, **hub_terms(local=is_local)}
    strict = {"use_safetensors": True, "output_loading_info": True, "ignore_mismatched_sizes": True}
    try:
        _check_size(source, terms, dtype, device)
        tokenizer = AutoTokenizer.from_pretrained(source, **terms)
        with _quiet() if is_local else nullcontext():
            model, info = AutoModelForCausalLM.from_pretrained(
                source, **terms, **strict, dtype=dtype
            )
    except InvalidModelError as error:
        raise InvalidModelError(f"{name}: {error}") from None
    except (
        Exception
    ) as error:  # a broken checkpoint fails in as many ways as there are libraries below
        raise InvalidModelError(_why_not_loaded(str(name), is_local, error)) from error
    for kind in ("missing_keys", "mismatched_keys"):
        if info[kind]:
            first = sorted(map(str, info[kind]))[:5]
            raise InvalidModelError(f"{name}: {UNFIT}, {kind.replace('_', ' ')}: {first}")
    _check_finite(model, str(name))
    return LM(model.to(device).eval(), tokenizer, str(name))


def _check_size(
    source: Path | str, terms: dict, dtype: str | torch.dtype, device: torch.device
) -> None:
    """InvalidModelError, before anything is built, for a config.json that describes more numbers
    than the checkpoint's files hold, or than the free memory takes.
    """
    files = _weight_files(source, terms)
    config = cached_file(source, CONFIG_NAME, _raise_exceptions_for_missing_entries=False, **terms)
    if not files or not config:
        return  # transformers knows other kinds of checkpoints, and says what is missing
    shapes = {name: shape for file in files for name, shape in _header(file)}
    _check_counts(Path(config), len(shapes))
    settings = {} if dtype == "auto" else {"dtype": dtype}
    with torch.device("meta"):  # shapes without numbers
        model = AutoModelForCausalLM.from_config(
            AutoConfig.from_pretrained(source, **terms), trust_remote_code=False, **settings
        )
    parameters = dict(model.named_parameters())
    n_bytes = sum(t.numel() * t.element_size() for t in (*parameters.values(), *model.buffers()))
    n_held = sum(map(math.prod, shapes.values()))
    if getattr(model.config, "quantization_config", None):  # packed: at least a bit per parameter
        n_bytes = sum(map(os.path.getsize, files))
        n_held = 8 * n_bytes
    if sum(p.numel() for p in parameters.values()) > n_held:
        differ = (
            f"{name}: expected {list(p.shape)}, got {shapes.get(name, 'none')}"
            for name, p in parameters.items()
            if list(p.shape) != shapes.get(name)
        )
        raise InvalidModelError(f"{UNFIT}, {'; '.join(islice(differ, 5))}")
    for where, free in _free_memory(device).items():
        if n_bytes > free:
            raise InvalidModelError(
                f"expected {n_bytes / 2**30:.1f} GiB of free memory on {where}, got"
                f" {free / 2**30:.1f} GiB; choose another dtype, or a smaller model"
            )


def _header(file: str) -> list[tuple[str, list[int]]]:
    """Name and shape of each tensor in a safetensors file, whose numbers are not read."""
    with safe_open(file, "pt") as header:
        names = header.keys()
        return [(name, header.get_slice(name).get_shape()) for name in names]


def _check_counts(config: Path, n_tensors: int) -> None:
    """InvalidModelError for a number of layers, experts or labels that would take hours to build,
    anywhere in the file.
    """
    pairs: list[tuple[str, object]] = []
    json.loads(config.read_bytes(), object_pairs_hook=lambda some: pairs.extend(some) or some)
    for name, value in pairs:
        if _MANY.search(name) and type(value) is int and value > max(MOST_BUILT, n_tensors):
            raise InvalidModelError(f"{UNFIT}: {n_tensors} tensors, and {name} = {value}")


def _weight_files(source: Path | str, terms: dict) -> list[str]:
    """The checkpoint's safetensors files; [] without any."""
    missing_is_fine = {"_raise_exceptions_for_missing_entries": False, **terms}
    if file := cached_file(source, SAFE_WEIGHTS_NAME, **missing_is_fine):
        return [file]
    index = cached_file(source, SAFE_WEIGHTS_INDEX_NAME, **missing_is_fine)
    terms = {name: value for name, value in terms.items() if name != "trust_remote_code"}
    return get_checkpoint_shard_files(source, index, **terms)[0] if index else []


def _free_memory(device: torch.device) -> dict[str, int]:
    """Bytes per device that a model passes: it is read into the machine's memory first."""
    free = {"the CPU": psutil.virtual_memory().available}
    if device.type == "cuda":
        free["the GPU"] = torch.cuda.mem_get_info(device)[0]
    return free


_digests: "WeakKeyDictionary[PreTrainedModel, tuple[tuple, str]]" = WeakKeyDictionary()


def digest(model: PreTrainedModel) -> str:
    """SHA-256 of all parameters with their names, floats rounded to bfloat16: a model is the same
    in bfloat16, float32 and float64. Kept until a parameter is exchanged or written to.
    """
    named = sorted(model.named_parameters())
    state = tuple((p.data_ptr(), 0 if p.is_inference() else p._version) for _, p in named)
    if model not in _digests or _digests[model][0] != state:
        with ThreadPoolExecutor(4) as pool:
            each = pool.map(_sha256, (p for _, p in named))
        lines = [f"{name} {sha}\n" for (name, _), sha in zip(named, each, strict=True)]
        _digests[model] = state, hashlib.sha256("".join(lines).encode()).hexdigest()
    return _digests[model][1]


def _sha256(parameter: Tensor) -> str:
    value = parameter.detach()
    value = value.to(torch.bfloat16) if value.is_floating_point() else value
    sha256 = hashlib.sha256(str(tuple(parameter.shape)).encode())
    sha256.update(value.cpu().contiguous().view(-1).view(torch.uint8).numpy())
    return sha256.hexdigest()


def device_of(name: str | torch.device | None) -> torch.device:
    """The device of this name, by default the GPU if there is one. InvalidModelError if this
    machine has none of that name.
    """
    try:
        found = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        torch.zeros(
            1, device=found
        ).item()  # what the name says need not be there; and "meta" holds no numbers
        return found
    except (RuntimeError, AssertionError, TypeError):
        raise InvalidModelError(
            f"device: expected 'cpu', 'cuda' or another that this machine has, got {name!r}"
        ) from None


@contextmanager
def evaluating(model: PreTrainedModel) -> Iterator[None]:
    """Evaluation mode (no dropout) inside the ``with``; after it, each module's own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def native_bfloat16(device: torch.device) -> bool:
    """Whether bfloat16 products are computed by the device itself, and on a CPU also faster than
    float32's: some processors with the instructions are slower with them.
    """
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type != "cpu" or (_has_bfloat16() and _bfloat16_is_faster())


def _has_bfloat16() -> bool:
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


@cache
def _bfloat16_is_faster() -> bool:
    """A trial of some 20 milliseconds, once per process: autocast's product, which rounds one
    factor, against float32's.
    """
    x, w = torch.ones(2, 512, 512)

    def seconds(w: torch.Tensor) -> float:
        started = time.perf_counter()
        x.to(w.dtype).mm(w)
        return time.perf_counter() - started

    trials = [[seconds(w.bfloat16()), seconds(w)] for _ in range(6)][1:]  # the first one compiles
    rounded, exact = map(min, zip(*trials, strict=True))
    return rounded < exact


def arithmetic(model: PreTrainedModel, dtype: str | torch.dtype | None) -> torch.dtype:
    """What to compute in, when ``dtype`` (None: the model's own) is the lowest precision that will
    do: float32 in place of an emulated bfloat16.
    """
    if dtype is None:
        return model.dtype
    wanted = DTYPES.get(str(dtype).removeprefix("torch."))
    if wanted is None:
        raise InvalidModelError(
            f"dtype: expected one of {', '.join(DTYPES)}, or None for the model's own, got"
            f" {dtype!r}"
        )
    return (
        torch.float32 if wanted is torch.bfloat16 and not native_bfloat16(model.device) else wanted
    )


@contextmanager
def computing_in(model: PreTrainedModel, dtype: torch.dtype) -> Iterator[None]:
    """Inside the ``with``, the model computes in a dtype; after it, its weights are the same
    tensors as before.

    A wider dtype widens the weights that are narrower, but not those of 8 bits, which mean nothing
    without their scale. A narrower one means autocast, which rounds only the factors of matrix
    products: half the error of rounding all.
    """
    if torch.finfo(dtype).bits < torch.finfo(model.dtype).bits:
        with torch.autocast(model.device.type, dtype):
            yield
        return
    widened = range(16, torch.finfo(dtype).bits + 1)
    kept = {
        p: p.data
        for p in model.parameters()
        if p.is_floating_point() and p.dtype != dtype and torch.finfo(p.dtype).bits in widened
    }
    experts = model.get_experts_implementation()
    if dtype == torch.float64 and model._can_set_experts_implementation():
        model.set_experts_implementation(
            "eager"
        )  # torch multiplies groups of matrices up to float32 only
    for p in kept:
        p.data = p.data.to(dtype)
    try:
        yield
    finally:
        if experts != model.get_experts_implementation():
            model.set_experts_implementation(experts)
        for p, data in kept.items():
            p.data = data


def default_weight(model: PreTrainedModel, *, block: int | None = None, small: bool = False) -> str:
    """The weight that an experiment takes where none is named.

    Of the matrices in one block that write to the residual stream (d_out is the hidden size): the
    one with the largest d_in, which is the MLP's last.

    Args:
        block: its number, negative from the end; by default the one two thirds of the way up, 4 of
            0 to 5.
        small: instead, the block's smallest matrix (of several, the last), for experiments that
            draw many noises.

    Raises:
        UnknownWeightError: no such block, or no matrix that could carry a watermark.
    """
    places = {name: match for name in watermarkable(model) if (match := _IN_BLOCK.match(name))}
    stack = next(iter(Counter(match[1] for match in places.values()).most_common(1)), ("", 0))[0]
    blocks = sorted({int(match[2]) for match in places.values() if match[1] == stack})
    number = len(blocks) * 2 // 3 if block is None else block
    if not is_int(number) or not -len(blocks) <= number < len(blocks):
        raise UnknownWeightError(
            f"block: expected one of {len(blocks)} that can carry a watermark, got"
            f" {shown(block)}; or name a weight"
        )
    inside = [
        Weight(model, name)
        for name, match in places.items()
        if match[1] == stack and int(match[2]) == blocks[number]
    ]
    if small:
        return min(reversed(inside), key=lambda layer: math.prod(layer.shape)).name
    hidden = model.config.get_text_config().hidden_size
    return max(inside, key=lambda layer: (layer.shape[0] == hidden, layer.shape[1])).name


def linear(model: PreTrainedModel, name: str) -> Weight:
    """Of an earlier version: ``weights.Weight``."""
    return Weight(model, name)


def hub_reachable() -> bool:
    """True if the hub (or the mirror named by ``HF_ENDPOINT``) answers at all; False with
    ``HF_HUB_OFFLINE=1``.
    """
    try:
        get_session().head(constants.ENDPOINT, timeout=PATIENCE)
    except Exception:  # its kind depends on the HTTP library below, and on the proxy
        return False
    return True


def hub_terms(*, local: bool = False) -> dict[str, bool]:
    """What every ``from_pretrained`` of this library is told. A model's own Python is never run,
    whatever its files or the terminal say.
    """
    return {"local_files_only": local or not hub_reachable(), "trust_remote_code": False}


def reason(error: Exception) -> str:
    """Why a model's files could not be loaded, in one line."""
    if "trust_remote_code" in str(error):
        return (
            "it needs Python code of its own (auto_map in its json files), which is never run;"
            " expected an architecture that transformers has"
        )
    return first_line(error)


def _why_not_loaded(name: str, is_local: bool, error: Exception) -> str:
    if is_local:
        expected = (
            "Expected config.json, tokenizer files and whole *.safetensors; copy or download it"
            " again"
        )
        return f"cannot read the model in {name}: {reason(error)}. {expected}"
    return (
        f"cannot get {name!r} from the model hub: {reason(error)}. Check the name and the network"
        " (a gated model also needs your hub token); models.load('doclm') needs no network"
    )


@contextmanager
def _quiet() -> Iterator[None]:
    """No progress bar of transformers while a local file is read."""
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def first_line(error: Exception) -> str:
    """The first line of an error's message, or the error's kind where it has none: clients of the
    hub write pages.
    """
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def _check_finite(model: PreTrainedModel, name: str) -> None:
    """InvalidModelError for a checkpoint with a weight that is not finite."""
    for weight, parameter in model.named_parameters():
        if bad := int((~torch.isfinite(parameter)).sum()):
            raise InvalidModelError(
                f"{name}: expected finite weights, got {bad} NaN or infinite numbers in {weight};"
                " the checkpoint is damaged"
            )
