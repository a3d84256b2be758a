from copy import deepcopy

import numpy as np
import pytest
import tiny_gguf
import tiny_models
import torch
from scipy import stats as scipy_stats

from gaussmark_lib import perturb
from gaussmark_lib.beyond.release import attacks, provenance, suspects
from gaussmark_lib.errors import DegenerateScoreError, InvalidModelError
from gaussmark_lib.perturb import Key, Watermark
from gaussmark_lib.weights import Weight

KEYS = [Key.from_seed(seed) for seed in range(3)]
DOWN = "model.layers.1.mlp.down_proj.weight"  # Llama and Mistral have it
WM = Watermark("model.layers.2.mlp.down_proj.weight", 0.1)


@pytest.fixture(scope="module")
def base():
    return tiny_models.build("llama")


def marked(model, wm, key):
    """A copy that carries the mark, as somebody else finds it."""
    new = deepcopy(model)
    xis = perturb.noise(model, wm, key)
    for name, xi in zip(wm.weights, xis if isinstance(xis, list) else [xis], strict=True):
        Weight(new, name).value().add_(xi)
    return new


def changed(model, seed=0, scale=0.3):
    """A copy in which every matrix is another."""
    new = deepcopy(model)
    generator = torch.Generator().manual_seed(seed)
    for parameter in new.parameters():
        parameter.data += scale * torch.randn(parameter.shape, generator=generator)
    return new


def by_hand(wm, z, deltas):
    """ψ_w and ψ_rows by loops in float64; z and Δ of each weight."""
    total = square = weighted = weights = 0.0
    for sigma, z_s, delta in zip(wm.sigmas, z, deltas, strict=True):
        for z_r, delta_r in zip(z_s.double(), delta.double(), strict=True):
            v, n = delta_r / sigma, len(delta_r)
            inner = sum(float(a) * float(b) for a, b in zip(z_r, v, strict=True))
            length = float(v.norm())
            w = n**0.5 / max(1.0, length / n**0.5)
            total, square = total + inner, square + length**2
            weighted, weights = weighted + w * inner / length, weights + w**2
    return total / square**0.5, weighted / weights**0.5


@pytest.mark.parametrize(
    ("architecture", "wm"),
    [
        ("llama", WM),
        ("llama", Watermark("model.layers.0.self_attn.k_proj.weight", 0.1, rank_dropped=3)),
        ("gpt2", Watermark(tiny_models.WEIGHTS["gpt2"][1:], [0.1, 0.3])),
    ],
)
def test_both_statistics_are_their_formulas(architecture, wm):
    model = tiny_models.build(architecture)
    suspect = changed(model)
    table = provenance.weights(model, suspect, wm, KEYS)
    placed = wm.on(model)
    deltas = [Weight(suspect, w.name).value() - w.value() for w in placed.linears]
    if wm.rank_dropped:
        deltas = [P(delta) for P, delta in zip(placed.projectors, deltas, strict=True)]
    for row, key in zip(table.itertuples(), KEYS, strict=True):
        numbers, z = torch.from_numpy(key.normals(placed.d)), []
        for linear in placed.linears:
            z.append(numbers[: linear.parameter.numel()].reshape(linear.shape))
            numbers = numbers[linear.parameter.numel() :]
        whole, rows = by_hand(wm, z, deltas)
        assert row.psi == pytest.approx(whole, abs=1e-4)
        assert row.psi_rows == pytest.approx(rows, abs=1e-4)
        assert row.p_value == pytest.approx(scipy_stats.norm.sf(row.psi))
        assert row.log10_p_rows == pytest.approx(scipy_stats.norm.logsf(row.psi_rows) / np.log(10))


def test_the_level_is_exact_over_keys_and_a_mark_is_found(base):
    keys = [Key.from_seed(seed) for seed in range(800)]
    plain = provenance.weights(base, changed(base), WM, keys)
    assert scipy_stats.kstest(plain["psi"], "norm").pvalue > 1e-3
    assert scipy_stats.kstest(plain["psi_rows"], "norm").pvalue > 1e-3
    both = changed(marked(base, WM, KEYS[0]), scale=0.2)  # ‖Δ₂‖/√d = 0.2, σ = 0.1
    found = provenance.weights(base, both, WM, KEYS)
    predicted = WM.on(base).d ** 0.5 * 0.1 / np.hypot(0.1, 0.2)
    assert found["psi"][0] == pytest.approx(predicted, rel=0.1)
    assert found["distance"][0] == pytest.approx(np.hypot(0.1, 0.2) / 0.1, rel=0.05)
    assert found["p_value"][1:].min() > 1e-4  # other keys


def test_the_level_holds_for_whatever_was_done_to_an_unmarked_model(base, monkeypatch):
    n = 5_000
    keys = [Key.from_seed(seed) for seed in range(n)]
    z = torch.randn(n, WM.on(base).d, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr(provenance, "streams", lambda *_: z)  # their own take a millisecond each
    texts = [list(range(3, 30)), list(range(40, 70))]
    for suspect in (
        attacks.fine_tuned(base, texts, 10, lr=1e-3),
        attacks.rounded(base, 4),
        attacks.nf4(base, group=16),
        attacks.pruned(base, 0.5),
    ):
        table = provenance.weights(base, suspect, WM, keys)
        for column in ("p_value", "p_rows"):
            for level in (0.05, 0.01):
                low, high = scipy_stats.binom.interval(0.99, n, level)
                assert low <= (table[column] <= level).sum() <= high


def test_a_replaced_part_does_not_drown_the_rest(base):
    half = marked(base, WM, KEYS[0])
    theta = Weight(half, WM.weight).value()
    generator = torch.Generator().manual_seed(0)
    theta[: len(theta) // 2] = 30.0 * torch.randn(*theta[::2].shape, generator=generator)
    found = provenance.weights(base, half, WM, KEYS[:1])
    assert found["psi_rows"][0] == pytest.approx((WM.on(base).d / 2) ** 0.5, rel=0.12)
    assert found["psi"][0] < 4


def test_the_base_itself_has_no_direction(base):
    with pytest.raises(DegenerateScoreError, match=r"down_proj.* equals that of the base"):
        provenance.weights(base, deepcopy(base), WM, KEYS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_files_say_what_the_model_says(base, tmp_path, dtype):
    wm = Watermark("model.layers.1.self_attn.q_proj.weight", 0.1)
    mine = marked(base, wm, KEYS[0])
    known = provenance.weights(base, mine, wm, KEYS)
    mine.to(dtype).save_pretrained(tmp_path, max_shard_size="30KB")
    assert (tmp_path / suspects.INDEX).exists()
    found = provenance.weights(base, tmp_path, wm, KEYS)
    assert np.allclose(found["psi"], known["psi"], rtol=1e-3, atol=1e-2)


@pytest.mark.parametrize("kind", ["F16", "Q8_0"])
@pytest.mark.parametrize("name", ["self_attn.q_proj", "mlp.down_proj"])
def test_a_gguf_file_says_what_the_model_says(tmp_path, kind, name):
    """Also in llama.cpp's order of the rows of q."""
    _, tokenizer = tiny_gguf.model_and_tokenizer()
    base = tiny_gguf.grouped(tokenizer)
    wm = Watermark(f"model.layers.1.{name}.weight", 0.1)
    mine = marked(base, wm, KEYS[0])
    path = tiny_gguf.write(tmp_path / "mine.gguf", mine, tokenizer, tensor_type=kind)
    known = provenance.weights(base, mine, wm, KEYS)
    found = provenance.weights(base, path, wm, KEYS)
    assert np.allclose(found["psi"], known["psi"], rtol=0.01, atol=0.1)


class Packed(torch.Tensor):
    """Whole numbers that a library keeps under the model's own dtype, as torchao's are."""

    def dequantize(self):
        return self.as_subclass(torch.Tensor) / 64


def test_a_packed_matrix_is_unpacked_first(base):
    mine = marked(base, WM, KEYS[0])
    coarse, packed = deepcopy(mine), deepcopy(mine)
    numbers = (Weight(mine, WM.weight).value() * 64).round()
    Weight(coarse, WM.weight).value().copy_(numbers / 64)
    layer = packed.model.layers[2].mlp.down_proj
    layer.weight = torch.nn.Parameter(numbers.as_subclass(Packed), requires_grad=False)
    psi = [provenance.weights(base, suspect, WM, KEYS)["psi"] for suspect in (coarse, packed)]
    assert np.allclose(psi[0], psi[1])


def refused(base, suspect, match):
    with pytest.raises(InvalidModelError, match=match):
        provenance.weights(base, suspect, Watermark(DOWN, 0.1), KEYS)


def test_what_is_no_version_of_the_base_is_refused(base, tmp_path):
    wide = tiny_models.build("mistral")
    wide.model.layers[1].mlp.down_proj = torch.nn.Linear(40, 32, bias=False)
    refused(base, wide, r"expected .* of shape \(32, 48\), got \(32, 40\)")
    refused(base, tiny_models.build("gpt2"), "found none; the suspect has another architecture")
    broken = deepcopy(base)
    broken.model.layers[1].mlp.down_proj.weight.data[0, 0] = torch.nan
    refused(base, broken, "expected finite weights, got 1 NaN")
    refused(base, tmp_path / "nowhere", "cannot read the suspect")
    (tmp_path / "adapter_config.json").write_text("{}")
    refused(base, tmp_path, "merge the low-rank adapter")
    (tmp_path / "config.json").write_text("{}")
    refused(base, tmp_path, "cannot read the suspect")
    (tmp_path / "some.gguf").write_bytes(b"GGUF of a broken copy")
    refused(base, tmp_path / "some.gguf", "cannot read the suspect")


def test_a_gguf_file_of_a_layout_that_is_not_known_is_refused(base, tmp_path):
    """Its numbers could lie in another order, and its mark would not be found."""
    path = tmp_path / "falcon.gguf"
    tiny_gguf.write(path, *tiny_gguf.model_and_tokenizer(), architecture="falcon")
    refused(base, path, r"falcon\.gguf: expected an architecture whose layout")
