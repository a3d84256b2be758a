"""Loading a model: the real code path on a tiny saved one, and every way a checkpoint can be
missing or broken.
"""

import ast
import io
import json
import re
import shutil
import time
from pathlib import Path

import pytest
import tiny_models
import torch
from safetensors.torch import load_file, save_file

from gaussmark_experiments.doclm import train
from gaussmark_lib import files, models
from gaussmark_lib.engine import arithmetic, checkpoints
from gaussmark_lib.errors import InvalidModelError, InvalidTextError, InvalidWatermarkError
from gaussmark_lib.files import EXPERIMENTS, ROOT

WEIGHTS = "model.safetensors"
TEXTS = ["The quick brown fox jumps over the lazy dog. " * 5]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """A checkpoint like doclm's: byte-level BPE, Llama, tied embeddings, bfloat16."""
    folder = tmp_path_factory.mktemp("models") / "tiny"
    tokenizer = train.train_tokenizer(TEXTS, 300)
    recipe = train.Recipe(
        vocab=len(tokenizer), hidden=32, blocks=2, heads=4, intermediate=48, context=64
    )
    train.new_model(recipe).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def copy(saved, tmp_path):
    return shutil.copytree(saved, tmp_path / "broken")


@pytest.fixture
def lm(saved) -> models.LM:
    return models.load(saved)


@pytest.fixture
def chat(lm) -> models.LM:
    lm.tokenizer.chat_template = (
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}{% if"
        " add_generation_prompt %}<assistant>{% endif %}"
    )
    return lm


def refused(name, message: str) -> str:
    with pytest.raises(InvalidModelError, match=message) as error:
        models.load(name)
    return str(error.value)


class TestAWholeCheckpoint:
    def test_it_is_loaded_without_a_network_in_float32_on_the_cpu(self, saved, no_network):
        lm = models.load(saved, device="cpu")
        assert {p.dtype for p in lm.model.parameters()} == {torch.float32}
        assert not lm.model.training
        assert lm.name == str(saved)
        assert lm.file_sha256 is None
        stored = load_file(saved / WEIGHTS)
        for name, p in lm.model.named_parameters():
            assert torch.equal(p, stored[name].float())

    @pytest.mark.parametrize(
        ("dtype", "expected"),
        [("bfloat16", torch.bfloat16), (torch.float64, torch.float64), ("auto", torch.bfloat16)],
    )
    def test_in_the_precision_asked_for(self, saved, dtype, expected):
        assert models.load(saved, dtype=dtype).model.dtype == expected

    def test_from_a_string_with_a_tilde_or_without_a_slash(self, saved, monkeypatch):
        monkeypatch.setenv("HOME", str(saved.parent))
        monkeypatch.chdir(saved.parent)
        assert models.load("~/tiny").encode("fox") == models.load("tiny").encode("fox")
        assert models.load("tiny").name == "tiny"

    def test_text_goes_to_ids_and_back(self, lm):
        for text in ("The quick brown fox", " naïve ξ∇θ 日本\n\n", ""):
            assert lm.decode(lm.encode(text)) == text
        assert lm.decode([lm.tokenizer.eos_token_id, *lm.encode("fox")]) == "fox"

    def test_without_a_chat_template_a_prompt_is_the_text(self, lm):
        ids = lm.encode("The quick")
        assert lm.prompt("The quick") == lm.continuation("The quick") == ids
        assert lm.prompt("") == lm.unknown_prompt() == []

    def test_with_one_it_is_the_user_turn_as_typed(self, chat):
        ids = chat.prompt("The quick")
        assert all(type(i) is int for i in ids)
        assert chat.decode(ids) == "<user>The quick<assistant>"
        assert chat.decode(chat.unknown_prompt()) == "<assistant>"

    def test_a_templated_prompt_is_not_templated_again(self, chat):
        ids = chat.prompt("The quick")
        assert chat.prompt("<user>The quick<assistant>") == ids
        assert chat.prompt("See <user>The quick") != ids  # which only mentions it

    @pytest.mark.parametrize("text", ["", " \n"])
    def test_an_empty_turn_is_refused(self, chat, text):
        with pytest.raises(InvalidTextError, match="expected the user's turn of a chat"):
            chat.prompt(text)

    @pytest.mark.parametrize(
        "template",
        ["{{ raise_exception('no') }}", "{{ ''.__class__.__mro__ }}", "{{ range(10**9) }}"],
    )
    def test_a_chat_template_that_raises_is_named(self, lm, template):
        lm.tokenizer.chat_template = template
        with pytest.raises(InvalidModelError, match="expected a chat template that takes a user's"):
            lm.prompt("The quick")


def test_an_empty_name_is_not_the_current_folder(saved, monkeypatch):
    monkeypatch.chdir(saved)
    refused("", "name: expected 'doclm', 'smollm2', .* a folder, a .gguf file or a hub id, got ''")
    assert models.load(".").name == "."


def test_the_embedded_model_is_found_from_any_folder(saved, tmp_path, monkeypatch):
    shutil.copytree(saved, tmp_path / "data" / "doclm")
    monkeypatch.setattr(models.files, "DATA", tmp_path / "data")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "doclm").mkdir()  # a folder that happens to have its name
    assert models.load().name == models.load("doclm").name == "doclm"


PATHS = ["/no/such/model", "./model", "../model", "~/no-such-model", "runs/of/mine", "README.md"]


@pytest.mark.parametrize("name", [*PATHS, Path("some-org/some-model")], ids=repr)
def test_a_path_that_does_not_exist(name, monkeypatch):
    monkeypatch.chdir(files.ROOT)  # README.md is there, and is no model
    refused(
        name,
        r"no model at .*: expected a folder with config\.json and \*\.safetensors, or a"
        r" \.gguf file\. models\.load\('doclm'\) needs no download",
    )


@pytest.mark.parametrize("name", ["some-org/some-model", "gpt2-that-nobody-has"])
@pytest.mark.parametrize("offline", [False, True])
def test_a_hub_id_without_a_network(name, offline, no_network, monkeypatch, tmp_path):
    """Says so, names what works without one, and comes back at once, where the hub's client alone
    takes 46 s of retries.
    """
    if offline:
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    start = time.monotonic()
    message = refused(
        name,
        rf"cannot get '{name}' from the model hub: .*Check the name and the"
        r" network.*models\.load\('doclm'\) needs no network",
    )
    assert "connect" in message
    assert time.monotonic() - start < 10


def test_the_hub_is_reachable_if_it_answers_anything(monkeypatch):
    class Client:
        def head(self, url, timeout):
            assert url.startswith("http")
            assert timeout <= 10

    monkeypatch.setattr(checkpoints, "get_session", Client)
    assert checkpoints.hub_reachable()


BROKEN = {
    "truncated": lambda folder: cut(folder / WEIGHTS, 0.5),
    "empty": lambda folder: (folder / WEIGHTS).write_bytes(b""),
    "garbage": lambda folder: (folder / WEIGHTS).write_bytes(bytes(range(256)) * 40),
    "no weights": lambda folder: (folder / WEIGHTS).unlink(),
    "no config": lambda folder: (folder / "config.json").unlink(),
    "config cut": lambda folder: cut(folder / "config.json", 0.5),
    "config is a list": lambda folder: (folder / "config.json").write_text("[]"),
    "unknown architecture": lambda folder: configure(folder, model_type="no-such"),
    "no language model": lambda folder: configure(folder, model_type="t5"),
    "a word for a number": lambda folder: configure(folder, hidden_size="many"),
    "heads that do not fit": lambda folder: configure(folder, num_attention_heads=5),
    "no heads": lambda folder: configure(folder, num_attention_heads=0),
    "no tokenizer": lambda folder: [file.unlink() for file in folder.glob("tokenizer*")],
    "no tokenizer.json": lambda folder: (folder / "tokenizer.json").unlink(),
    "tokenizer cut": lambda folder: cut(folder / "tokenizer.json", 0.5),
    "tokenizer is empty": lambda folder: (folder / "tokenizer.json").write_text("{}"),
}


@pytest.mark.parametrize("how", BROKEN)
def test_a_broken_checkpoint(copy, how):
    BROKEN[how](copy)
    message = refused(
        copy,
        r"cannot read the model in .*broken: .*Expected config\.json, tokenizer files and whole"
        r" \*\.safetensors",
    )
    assert str(copy) in message


UP = "model.layers.1.mlp.up_proj.weight"


@pytest.mark.parametrize("shape", [None, [47, 32], [48, 31]])
def test_weights_that_are_missing_or_of_another_shape_are_named_and_not_made_up(copy, shape):
    weights = load_file(copy / WEIGHTS)
    del weights[UP]
    if shape:
        weights[UP] = torch.zeros(shape)
    save_file(weights, copy / WEIGHTS, {"format": "pt"})
    refused(copy, rf"does not fit its config\.json, .*{UP}")


@pytest.mark.parametrize("config", ["hidden_size", "intermediate_size"])
def test_a_size_that_no_memory_holds_is_refused_before_anything_is_built(copy, config, monkeypatch):
    """As of an attacker's config.json over small weights: transformers would draw the rest."""
    configure(copy, **{config: 10**11})
    monkeypatch.setattr(models.AutoTokenizer, "from_pretrained", pytest.fail)
    refused(copy, r"expected [\d.]+ GiB of free memory")


COUNTS = ["num_hidden_layers", "n_layer", "num_labels", "num_local_experts", "text_config"]


@pytest.mark.parametrize("count", COUNTS)
def test_a_number_of_layers_that_would_take_hours_is_refused_at_once(copy, count):
    is_nested = count == "text_config"
    configure(copy, **{count: {"num_hidden_layers": 10**9} if is_nested else 10**9})
    start = time.monotonic()
    refused(copy, r"does not fit its config\.json: expected \w+ ≤ 1000, got 1000000000")
    assert time.monotonic() - start < 10


@pytest.mark.parametrize("architecture", tiny_models.ARCHITECTURES)
@pytest.mark.parametrize("shards", [1, 3])
def test_every_architecture_fits_its_own_files(saved, tmp_path, architecture, shards):
    model = tiny_models.build(architecture)
    size = sum(p.numel() for p in model.parameters()) * 4
    model.save_pretrained(tmp_path, max_shard_size=size if shards == 1 else size // 2)
    assert (len(list(tmp_path.glob("*.safetensors"))) > 1) == (shards > 1)
    for path in saved.glob("tokenizer*"):
        shutil.copy(path, tmp_path)
    loaded = models.load(tmp_path, device="cpu").model.state_dict()
    assert all(torch.equal(p, loaded[name]) for name, p in model.state_dict().items())


def test_a_model_of_the_hub_is_checked_in_the_cache_too(copy, tmp_path, monkeypatch):
    snapshots = tmp_path / "models--some--model"
    (snapshots / "refs").mkdir(parents=True)
    (snapshots / "refs" / "main").write_text("0" * 40)
    (snapshots / "snapshots").mkdir()
    copy.rename(snapshots / "snapshots" / ("0" * 40))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert models.load("some/model").name == "some/model"
    configure(snapshots / "snapshots" / ("0" * 40), hidden_size=10**6)
    refused("some/model", "does not fit its")


@pytest.mark.parametrize(("dtype", "n"), [("float32", 4), ("bfloat16", 2), ("auto", 2)])
def test_a_model_needs_its_bytes_of_free_memory(saved, monkeypatch, dtype, n):
    model = models.load(saved).model
    expected = n * sum(p.numel() for p in model.parameters())
    expected += sum(b.numel() * b.element_size() for b in model.buffers())
    free = {"the CPU": expected}
    monkeypatch.setattr(checkpoints, "_free_memory", lambda device: free)
    models.load(saved, dtype=dtype)
    free["the CPU"] -= 1
    with pytest.raises(InvalidModelError, match="GiB of free memory on the CPU, got"):
        models.load(saved, dtype=dtype)


def test_a_gpu_with_too_little_memory(saved, monkeypatch):
    """Although the machine has enough."""
    terms, gpu = checkpoints.hub_terms(local=True), torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (10**9, 10**12))
    checkpoints.check_size(saved, terms, "float32", gpu)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1000, 10**12))
    with pytest.raises(InvalidModelError, match=r"free memory on the GPU, got 0\.0 GiB"):
        checkpoints.check_size(saved, terms, "float32", gpu)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_checkpoint_with_a_weight_that_is_not_finite(copy, value):
    weights = load_file(copy / WEIGHTS)
    weights[UP][3, :5] = value
    save_file(weights, copy / WEIGHTS, {"format": "pt"})
    refused(copy, rf"expected finite weights, got 5 NaN or infinite numbers in {UP}; .* damaged")


CODE = """
import pathlib
pathlib.Path({ran!r}).write_text("ran")
from transformers import {base}
class Mine({base}):
    model_type = "mine"
"""
CONFIG, OF_TOKENIZER = "config.json", "tokenizer_config.json"
MINE = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}
MINE_TOO = {"architectures": ["Mine"], "auto_map": {"AutoModelForCausalLM": "mine.Mine"}}
MY_TOKENIZER = {"tokenizer_class": "Mine", "auto_map": {"AutoTokenizer": [None, "mine.Mine"]}}
NEEDS_CODE = (
    r"it needs Python code of its own \(auto_map in its json files\), which is never run;"
    r" expected an architecture that transformers"
)
# the model's model_type is unknown, before its code is asked for
ASKS = {
    "config": (CONFIG, MINE, "PreTrainedConfig", NEEDS_CODE),
    "model": (CONFIG, MINE | MINE_TOO, "PreTrainedModel", "cannot read the model in"),
    "tokenizer": (OF_TOKENIZER, MY_TOKENIZER, "PreTrainedTokenizerFast", NEEDS_CODE),
}


@pytest.mark.parametrize("asks", ASKS)
def test_a_models_own_code_is_never_run_even_if_a_user_says_yes(copy, tmp_path, monkeypatch, asks):
    file, changes, base, complaint = ASKS[asks]
    (copy / "mine.py").write_text(CODE.format(ran=str(tmp_path / "ran"), base=base))
    configure(copy, file, **changes)
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("nobody is asked"))
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n" * 100))
    refused(copy, complaint)
    assert not (tmp_path / "ran").exists()


def test_a_folder_with_code_that_it_does_not_need_is_loaded_without(copy, tmp_path):
    """As Phi-3's: transformers has had its architecture for long."""
    (copy / "mine.py").write_text(CODE.format(ran=str(tmp_path / "ran"), base="PreTrainedConfig"))
    configure(copy, auto_map={"AutoConfig": "mine.Mine", "AutoModelForCausalLM": "mine.Mine"})
    assert type(models.load(copy).model).__module__.startswith("transformers.")
    assert not (tmp_path / "ran").exists()


def test_every_load_in_the_library_is_on_these_terms():
    """Also those that no test can make without a network."""
    loads = [
        (file.name, ast.unparse(node))
        for folder in (ROOT / "gaussmark_lib", EXPERIMENTS)
        for file in folder.rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call)
        and getattr(node.func, "attr", "") in ("from_pretrained", "from_config", "pipeline")
    ]
    assert len(loads) >= 4
    for file, call in loads:
        told = "trust_remote_code=False" if "from_config" in call else "**terms"
        assert told in call, f"{file}: {call} does not say checkpoints.hub_terms()"
    terms = {"local_files_only": True, "trust_remote_code": False}
    assert checkpoints.hub_terms(local=True) == terms


def test_weights_that_can_run_code_are_not_loaded(copy):
    torch.save(load_file(copy / WEIGHTS), copy / "pytorch_model.bin")
    (copy / WEIGHTS).unlink()
    refused(copy, r"whole \*\.safetensors")


def cut(path, share: float) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])


def configure(folder, file="config.json", **changes) -> None:
    path = folder / file
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


@pytest.mark.parametrize(
    ("architecture", "middle", "small"),
    [
        ("llama", "model.layers.2.mlp.down_proj.weight", "model.layers.2.self_attn.v_proj.weight"),
        ("phi3", "model.layers.1.mlp.down_proj.weight", "model.layers.1.self_attn.o_proj.weight"),
        ("gpt2", "transformer.h.1.mlp.c_proj.weight", "transformer.h.1.attn.c_proj.weight"),
    ],
)
def test_a_weight_left_out_is_chosen_by_a_rule(architecture, middle, small):
    model = tiny_models.build(architecture)
    assert models.default_weight(model) == middle
    assert models.default_weight(model, small=True) == small
    first = models.default_weight(model, block=0)
    assert first == re.sub(r"[.]\d+[.]", ".0.", middle, count=1)
    # of two or three blocks, the last is two thirds of the way up
    assert models.default_weight(model, block=-1) == middle


@pytest.mark.parametrize("block", [3, -4])
def test_a_block_that_is_not_there(block):
    complaint = f"one of 3 that can carry a watermark.* got {block}"
    with pytest.raises(InvalidWatermarkError, match=complaint):
        models.default_weight(tiny_models.build("llama"), block=block)


class TestBfloat16:
    @pytest.mark.parametrize("flag", [True, False])
    @pytest.mark.parametrize("faster", [True, False])
    def test_a_cpu_needs_the_instructions_and_has_to_win_the_trial(self, monkeypatch, flag, faster):
        monkeypatch.setattr(arithmetic, "_has_bfloat16", lambda: flag)
        monkeypatch.setattr(arithmetic, "_bfloat16_is_faster", lambda: faster)
        assert models.native_bfloat16(torch.device("cpu")) is (flag and faster)

    def test_the_trial_is_made_once_and_draws_no_random_number(self):
        arithmetic._bfloat16_is_faster.cache_clear()
        state = torch.get_rng_state()
        first = arithmetic._bfloat16_is_faster()
        assert torch.equal(torch.get_rng_state(), state)
        assert arithmetic._bfloat16_is_faster() is first
        assert arithmetic._bfloat16_is_faster.cache_info().misses == 1
