"""``gaussmark key new`` and ``show``: a key in one line."""

import dataclasses
import json
import re

import numpy as np
import pytest
from command_lines import answer

from gaussmark_lib import models, score, texts
from gaussmark_lib.beyond import channel, promise
from gaussmark_lib.engine import packages
from gaussmark_lib.keys import Key
from gaussmark_lib.workbench import begin

PRINTED = re.compile(r"weight (\S+), sigma (\S+)\n")


@pytest.fixture
def without_speeches(monkeypatch):
    """The text that the tiny model reads is the same, whatever is installed."""
    monkeypatch.setattr(packages, "is_installed", lambda entry: False)


@pytest.mark.usefixtures("without_speeches")
def test_weight_and_sigma_are_chosen_where_nobody_names_them(lm, tmp_path, capsys):
    code, out, _ = answer(capsys, "key", "new", str(tmp_path / "my.key"))
    assert code == 0
    key = Key.load(tmp_path / "my.key")
    weight, sigma = PRINTED.search(out).groups()
    assert weight == key.watermark.weight == models.default_weight(lm.model)
    assert float(sigma) == pytest.approx(key.watermark.sigma, rel=1e-3)
    assert "predicted ψ of 4 after 200 tokens" in out
    # the same σ by hand: what `detect` would expect of eight texts that were copied somewhere
    prompts = begin.pilot_prompts(lm, "docs", begin.KEY_PROMPT_TOKENS)
    n_tokens = texts.fit(lm, prompts, begin.KEY_TOKENS)
    plain = begin.generate.sample(lm.model, prompts, n_tokens, temperature=0.7)
    tested = lm.model, [lm.unknown_prompt()] * len(plain), plain, key.watermark
    weights = channel.weights(lm.model, 0.1)
    table = score.score(*tested, [Key.from_seed(0)], token_weights=weights)
    sampled = promise.Sampled(temperature=0.7)
    promised = promise.table(*tested, token_weights=weights, sampled=sampled, unknown_prompt=[])
    means = promise.mean_psi(promised["information"], table["grad_norm"], key.watermark.sigma)
    assert np.median(means) * (200 / n_tokens) ** 0.5 == pytest.approx(4.0, rel=1e-3)


@pytest.mark.usefixtures("lm", "without_speeches")
def test_what_is_named_stays(tmp_path, capsys):
    name = "model.layers.0.mlp.up_proj.weight"
    _, out, _ = answer(capsys, "key", "new", str(tmp_path / "a.key"), "--weight", name)
    assert PRINTED.search(out)[1] == name
    _, out, _ = answer(capsys, "key", "new", str(tmp_path / "b.key"), "--sigma", "0.25")
    assert PRINTED.search(out)[2] == "0.25"
    assert "solved" not in out


def test_a_key_names_the_file_of_its_model(lm, tmp_path, capsys, monkeypatch):
    of_file = dataclasses.replace(lm, file_sha256="ab" * 32)
    monkeypatch.setattr(models, "load", lambda name: of_file)
    path = str(tmp_path / "my.key")
    assert answer(capsys, "key", "new", path, "--sigma", "0.1")[0] == 0
    _, out, _ = answer(capsys, "key", "show", path)
    assert json.loads(out)["file_sha256"] == "ab" * 32
