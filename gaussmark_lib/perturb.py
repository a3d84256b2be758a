"""The noise that a key stands for, and a model that carries it (paper, Alg. 1).

    θ(ξ) = θ + ξ,   ξ ~ N(0, σ² I)   over one weight matrix θ of shape (d_out, d_in), or several

Let z be the first d numbers of a key's stream, cut into matrices in the order of the weights. Then
ξ = σz, or σPz if rank_dropped > 0, where each weight has its σ and its P. ξ is the same on every
machine to 1e-6, and with P up to the rounding of the SVD.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import gguf
from jaxtyping import Float
from safetensors import SafetensorError
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from gaussmark_lib import files
from gaussmark_lib.engine import gguf_files, gguf_writing
from gaussmark_lib.engine.arithmetic import carried, rounded_sum
from gaussmark_lib.engine.checkpoints import digest, loading
from gaussmark_lib.engine.packages import sha256
from gaussmark_lib.engine.stream import streams
from gaussmark_lib.errors import (
    InvalidModelError,
    InvalidWatermarkError,
    KeyMismatchError,
    PerturbedModelError,
    require_one_of,
)
from gaussmark_lib.errors import kind as kind_of
from gaussmark_lib.keys import Binding, Key, listed, purpose
from gaussmark_lib.weights import PlacedWatermark, Watermark, Weight, require_single

GGUF_TYPES = ("f16", "f32", "q8_0")  # of the marked matrix in a GGUF file
_MARK = "gaussmark"  # on a perturbed model, and in the config of an exported checkpoint


def ready(
    model: PreTrainedModel, wm: Watermark, keys: Sequence[Key]
) -> tuple[PlacedWatermark, list[Key]]:
    """Validate model, watermark and keys for every function that takes keys.

    Raise PerturbedModelError for a watermarked model, and the errors of
    :class:`weights.PlacedWatermark` and :meth:`keys.Key.check`.
    """
    placed = PlacedWatermark(model, wm)  # raises if it is not a model
    refuse_perturbed(model)
    return placed, listed(keys, placed)


def noise(
    model: PreTrainedModel, wm: Watermark, key: Key
) -> Float[Tensor, "d_out d_in"] | list[Tensor]:
    """Return ξ of a key, float32 on the CPU; for several weights a list, in their order.

    >>> from gaussmark_lib import models
    >>> model = models.load("doclm").model
    >>> wm = Watermark(models.default_weight(model), sigma=0.01)
    >>> round(noise(model, wm, Key.from_seed(1)).std().item(), 3)
    0.01
    """
    placed, keys = ready(model, wm, [key])
    xis = [xi[0] for xi in drawn(placed, keys)]
    return xis[0] if len(xis) == 1 else xis


def noises(
    model: PreTrainedModel, wm: Watermark, keys: Sequence[Key]
) -> Float[Tensor, "k d_out d_in"] | list[Tensor]:
    """Return :func:`noise` of each of K keys: one tensor (K, d_out, d_in), float32; for several
    weights a list of such tensors.

    >>> from gaussmark_lib import models
    >>> model = models.load("doclm").model
    >>> wm = Watermark(models.default_weight(model), sigma=0.01)
    >>> noises(model, wm, [Key.from_seed(1), Key.from_seed(2)]).shape
    torch.Size([2, 256, 768])
    """
    placed, keys = ready(model, wm, keys)
    xis = drawn(placed, keys)
    return xis[0] if len(xis) == 1 else xis


def drawn(wm: PlacedWatermark, keys: Sequence[Key]) -> list[Tensor]:
    """Draw ξ of K keys, unchecked: a list of one tensor (K, d_out, d_in) per weight, float32.

    The arguments are those that :func:`ready` returns.
    """
    sigma_z = streams(keys, wm.d, wm.sigmas[0])  # with σ of the first weight, (k, d)
    sizes = [linear.parameter.numel() for linear in wm.linears]
    parts = sigma_z.split(sizes, dim=1)
    xis = [part.unflatten(1, linear.shape) for part, linear in zip(parts, wm.linears, strict=True)]
    # In place: the noises of many keys may fill the memory.
    for i, xi_of_keys in enumerate(xis):
        xi_of_keys *= wm.sigmas[i] / wm.sigmas[0]
        if wm.rank_dropped:
            for xi in xi_of_keys:
                xi.copy_(wm.projectors[i](xi))
    return xis


def bind(model: PreTrainedModel, wm: Watermark, key: Key, file_sha256: str | None = None) -> Key:
    """Return the key with a note of its use: weight, σ, rank, and hashes of the base model.

    A bound key refuses any other use (:meth:`keys.Key.check`).

    Args:
        file_sha256: of the file that the model was read from, if it is one (``LM.file_sha256``).

    Raises:
        InvalidWatermarkError: rounding θ + ξ to the model's dtype removes the noise.
        GaussMarkError: as :func:`ready` raises it.

    >>> from gaussmark_lib import models
    >>> model = models.load("doclm").model
    >>> wm = Watermark(models.default_weight(model), sigma=0.01)
    >>> bind(model, wm, Key.from_seed(1)).watermark == wm
    True
    """
    with watermarked(model, wm, key):
        sigma_carried = getattr(model.config, _MARK)["sigma_carried"]
    binding = Binding(
        **purpose(PlacedWatermark(model, wm)),
        sigma_carried=sigma_carried,
        model_sha256=digest(model),
        file_sha256=file_sha256,
    )
    return replace(key, binding=binding)


@contextmanager
def watermarked(model: PreTrainedModel, wm: Watermark, key: Key) -> Iterator[PreTrainedModel]:
    """Turn the model into p_{θ+ξ} inside the ``with``; after it, it is bit for bit p_θ again:

        with watermarked(model, wm, key):
            responses = generate.sample(model, prompts, n_tokens=100)

    What ``model.save_pretrained`` writes inside is marked as watermarked. ``model.state_dict()``
    cannot be marked: loaded into another model, it is scored as if it were a base model, and the
    mean of ψ is far from 0.

    Raise PerturbedModelError inside another ``with`` of this kind, InvalidWatermarkError if
    rounding removes the noise, and the errors of :func:`ready`.

    >>> from gaussmark_lib import models
    >>> model = models.load("doclm").model
    >>> wm = Watermark(models.default_weight(model), sigma=0.01)
    >>> theta = model.get_parameter(wm.weight).clone()
    >>> with watermarked(model, wm, Key.from_seed(1)):
    ...     round((model.get_parameter(wm.weight) - theta).std().item(), 3)
    0.01
    >>> bool((model.get_parameter(wm.weight) == theta).all())
    True
    """
    placed, keys = ready(model, wm, [key])
    xis = [xi[0] for xi in drawn(placed, keys)]
    with moved(placed, xis, by=key.key_id):
        yield model


@contextmanager
def moved(wm: PlacedWatermark, xis: Sequence[Tensor], by: str = "a given noise") -> Iterator[None]:
    """Turn the weights into θ + ξ, rounded, inside the ``with``, for any given noise.

    No other function exchanges weights.

    Args:
        xis: ξ of each weight, (d_out, d_in).
        by: who moved them; a scorer that refuses the model says so.

    Raises:
        PerturbedModelError: the model carries a watermark already.
        InvalidWatermarkError: rounding removes the noise, or θ + ξ is not finite.
    """
    config = wm.model.config
    sigmas_carried = []
    with flagged_as_perturbed(wm.model, by), ExitStack() as after:
        for linear, xi, sigma in zip(wm.linears, xis, wm.sigmas, strict=True):
            theta = linear.parameter.data
            # The very tensor returns: θ + ξ − ξ would not be θ, bit for bit.
            after.callback(setattr, linear.parameter, "data", theta)
            theta_xi, sigma_carried = rounded_sum(theta, linear.oriented(xi), sigma, linear.name)
            linear.parameter.data = theta_xi
            sigmas_carried.append(sigma_carried)
        is_single = len(sigmas_carried) == 1
        mark = {
            "key_id": by,
            "weight": wm.weight,
            "sigma_carried": sigmas_carried[0] if is_single else tuple(sigmas_carried),
        }
        setattr(config, _MARK, mark)  # save_pretrained writes it
        after.callback(delattr, config, _MARK)
        yield


@contextmanager
def flagged_as_perturbed(model: PreTrainedModel, by: str) -> Iterator[None]:
    """Flag the model inside the ``with``, so that it is refused as a base model."""
    refuse_perturbed(model)
    setattr(model, _MARK, by)
    try:
        yield
    finally:
        delattr(model, _MARK)


def refuse_perturbed(model: PreTrainedModel) -> None:
    """Raise PerturbedModelError for a model inside :func:`watermarked`, or an exported one.

    Only at the base θ does the gradient not depend on the key, and only then is ψ N(0, 1) under the
    null.
    """
    expected = "expected the base model, got"
    if hasattr(model, _MARK):
        leave = "leave the `with` block first: G is taken at θ, never at θ + ξ"
        raise PerturbedModelError(f"{expected} a model inside watermarked() or moved(); {leave}")
    if mark := getattr(model.config, _MARK, None):
        key_id = mark.get("key_id") if isinstance(mark, dict) else mark
        got = f"a checkpoint with the watermark of key {key_id}; load the model it was made from"
        raise PerturbedModelError(f"{expected} {got}")


def export(
    model: PreTrainedModel,
    wm: Watermark,
    key: Key,
    folder: str | Path,
    tokenizer: PreTrainedTokenizerBase | None = None,
) -> Path:
    """Write the watermarked model, and never the key, to a new folder, and return its path.

    The folder is an ordinary checkpoint of transformers (``from_pretrained`` reads it). Its config
    names the weight, the key's public id and σ_carried: the σ that is left of ξ after θ + ξ was
    rounded to the model's dtype.

    Args:
        tokenizer: saved next to the model, so that the folder can be loaded by itself.

    Raises:
        InvalidModelError: the folder exists, or cannot be written.
        GaussMarkError: as :func:`watermarked` raises it.

    Example:
        >>> import tempfile
        >>> from gaussmark_lib import models
        >>> lm = models.load("doclm")
        >>> wm = Watermark(models.default_weight(lm.model), sigma=0.01)
        >>> with tempfile.TemporaryDirectory() as root:
        ...     folder = export(lm.model, wm, Key.from_seed(1), f"{root}/marked", lm.tokenizer)
        ...     sorted(path.name for path in folder.glob("*.safetensors"))
        ['model.safetensors']
    """
    folder = files.as_path(folder, "cannot export the model", InvalidModelError)
    if os.path.lexists(folder):
        raise InvalidModelError(f"expected a new folder to export to, but {folder} exists")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with files.hidden_folder(folder) as partial, watermarked(model, wm, key):
            checkpoint = Path(partial) / "checkpoint"
            model.save_pretrained(checkpoint)
            if tokenizer is not None:
                tokenizer.save_pretrained(checkpoint)
            return checkpoint.rename(folder)
    except (OSError, SafetensorError) as error:
        why = getattr(error, "strerror", None) or error
        raise InvalidModelError(f"cannot export the model to {folder}: {why}") from None


def export_gguf(
    base: str | Path, wm: Watermark, key: Key, path: str | Path, tensor_type: str = "f16"
) -> Path:
    """Write a GGUF file that carries the watermark, and never the key, and return its path.

    GGUF is the file format of llama.cpp: configuration, tokenizer and weights in one file.
    llama.cpp serves the new file like any other. It is the base file, byte for byte, but for

    * one tensor, which becomes θ + ξ. It is stored as ``tensor_type``, because most base files have
      only 4 to 8 bits per number, and so few bits would round ξ away;
    * three new values in the header: the name of that tensor, the key's public id, and σ_carried,
      the σ that is left of ξ after rounding.

    The model is not loaded: no more than the marked matrix is in memory.

    Args:
        base: the GGUF file of the base model.
        wm: on one weight, by transformers' name of it, such as
            ``"model.layers.20.mlp.down_proj.weight"``. In the file the same matrix is called
            ``blk.20.ffn_down.weight``.
        path: the new file, which ends in ``.gguf``.
        tensor_type: the type of the marked matrix: ``"f16"`` or ``"f32"`` (floating point of 16 or
            32 bits), or ``"q8_0"`` (8 bits per number and one scale for 32 numbers).

    Raises:
        InvalidModelError: ``base`` is not the GGUF file of a language model, does not have the
            matrix, or has it in a type that cannot be read; ``path`` exists or cannot be written.
        InvalidWatermarkError: ``wm`` is on several weights, or rounding removes the noise.
        KeyMismatchError: the key was made for another file, or for another state of this file.
        PerturbedModelError: the file is marked already. With the same key it is copied as it is.

    Example (SmolLM2 is installed by ``make models``)::

        base = models.gguf_file("smollm2")
        wm = Watermark("model.layers.20.mlp.down_proj.weight", sigma=0.1)
        perturb.export_gguf(base, wm, key, "marked.gguf")
    """
    require_one_of(tensor_type, "type", GGUF_TYPES, InvalidModelError)
    kind = gguf.GGMLQuantizationType[tensor_type.upper()]
    path = files.as_path(path, "cannot export the model", InvalidModelError)
    base = files.as_path(base, "cannot read the base model", InvalidModelError)
    if not gguf_files.is_gguf(path):
        raise InvalidModelError(f"expected a new file that ends in .gguf, got {path}")
    if os.path.lexists(path):
        raise InvalidModelError(f"expected a new file to export to, but {path} exists")
    if not isinstance(wm, Watermark):
        raise InvalidWatermarkError(f"wm: expected a perturb.Watermark, got {kind_of(wm)}")
    [key] = listed([key])
    require_single(wm, "a GGUF file (a folder can have several)")
    with loading(str(base), is_local=True, advice=gguf_files.ADVICE):
        reader = gguf_files.read(base)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        mark = gguf_files.mark(reader)
        if mark is None:
            _write_marked(reader, wm, key, path, kind)
        else:
            _check_same_mark(reader, wm, key, kind, mark)
            gguf_writing.copy_file(base, path)
    except OSError as error:
        raise InvalidModelError(
            f"cannot export the model to {path}: {error.strerror or error}"
        ) from None
    return path


def _write_marked(
    reader: gguf_files.Reader, wm: Watermark, key: Key, path: Path, kind: gguf_writing.Kind
) -> None:
    """Write a copy of the file in which one tensor is θ + ξ."""
    base = reader.path
    try:
        tensor = gguf_files.tensor(reader, wm.weight)
        theta = gguf_files.matrix(reader, wm.weight)
        gguf_writing.n_bytes(tensor, kind)  # raises if the rows do not fit
    except InvalidModelError as error:
        raise InvalidModelError(f"{base}: {error}") from None
    placed = PlacedWatermark(None, wm, [Weight.alone(wm.weight, theta)])
    listed([key], placed)
    _check_file(key, Path(base))
    [xis] = drawn(placed, [key])  # of the only weight, (1, d_out, d_in)
    xi = xis[0]
    content = gguf_files.encoded(reader, tensor.name, theta + xi, kind)
    stored_theta_xi = gguf_files.decoded(reader, tensor.name, content, kind)
    # θ rounded in the same way: the difference of the two is what is left of ξ.
    theta_content = gguf_files.encoded(reader, tensor.name, theta, kind)
    stored_theta = gguf_files.decoded(reader, tensor.name, theta_content, kind)
    what = f"numbers of {wm.weight}, which are {kind.name}"
    mark = {
        gguf_files.KEY_ID: key.key_id,
        gguf_files.MARKED_TENSOR: tensor.name,
        gguf_files.SIGMA: carried(stored_theta, stored_theta_xi, xi, wm.sigma, what),
    }
    gguf_writing.write(reader, path, {tensor.name: kind}, lambda _: content, mark)


def _check_file(key: Key, base: Path) -> None:
    """Raise KeyMismatchError if the key was made with another file that has the same matrix."""
    expected = key.binding and key.binding.file_sha256
    if not expected:
        return
    actual = sha256(base)
    if actual != expected:
        raise KeyMismatchError(
            f"key {key.key_id} was made with a file of SHA-256 {expected[:12]}…, but {base} has"
            f" {actual[:12]}…: it is another file, or it was changed since. Use the file that the"
            " key was made with, or make a new key"
        )


def _check_same_mark(
    reader: gguf_files.Reader, wm: Watermark, key: Key, kind: gguf_writing.Kind, mark: dict
) -> None:
    """Raise PerturbedModelError unless the file says that it is the one that would be written."""
    base = reader.path
    if mark["key_id"] != key.key_id:
        raise PerturbedModelError(
            f"expected the base model, got {base}, a file with the watermark of key"
            f" {mark['key_id']}; export from the file that it was made from"
        )
    tensor = gguf_files.tensor(reader, wm.weight)
    if (tensor.name, tensor.tensor_type) != (mark["weight"], kind):
        raise PerturbedModelError(
            f"{base} carries the watermark of this key already, on {mark['weight']} as"
            f" {tensor.tensor_type.name}; export from the file that it was made from to change that"
        )
