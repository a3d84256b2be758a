"""Cached texts: the very texts that would be written, kept by everything they depend on."""

from dataclasses import dataclass

import pytest
import tiny_lm
import torch

from gaussmark_lib import generate, perturb
from gaussmark_lib.errors import InvalidTextError, PerturbedModelError
from gaussmark_lib.kgw import KGW
from gaussmark_lib.schemes import GaussMark, TokenKeys, cache

PROMPTS = [[5, 6, 7], [8, 9]]
WM = perturb.Watermark(tiny_lm.WEIGHT, 0.3)
LAST = perturb.Watermark("model.layers.2.mlp.down_proj.weight", 0.3)  # token keys need it
KEY = perturb.Key.from_seed(0)
MARKED = GaussMark(WM, KEY)


@pytest.fixture
def model():
    return tiny_lm.build().model


@pytest.fixture
def ask(model, tmp_path):
    def responses(scheme=MARKED, prompts=PROMPTS, n_tokens=6, seed=0, **sampling):
        return cache.responses(
            model, scheme, prompts, n_tokens, seed=seed, folder=tmp_path / "written", **sampling
        )

    return responses


def kept(tmp_path) -> list:
    return list((tmp_path / "written").rglob("output.pkl"))


@pytest.mark.parametrize("scheme", [None, MARKED, TokenKeys(LAST, KEY)], ids=str)
def test_the_second_time_they_are_read(model, ask, tmp_path, monkeypatch, scheme):
    expected = scheme.generate(model, PROMPTS, 6) if scheme else generate.sample(model, PROMPTS, 6)
    assert ask(scheme) == expected
    monkeypatch.setattr(generate, "sample", None)
    monkeypatch.setattr("gaussmark_lib.token_level.keys.sample", None)
    assert ask(scheme) == expected
    assert len(kept(tmp_path)) == 1


def test_whatever_a_text_depends_on_is_part_of_its_name(ask, tmp_path, model, monkeypatch):
    for question in (
        {},
        {"n_tokens": 7},
        {"seed": 1},
        {"temperature": 0.7},
        {"prompts": [[5, 6], [7, 8, 9]]},
        {"scheme": None},
        {"scheme": GaussMark(perturb.Watermark(tiny_lm.WEIGHT, 0.31), KEY)},
        {"scheme": GaussMark(perturb.Watermark(tiny_lm.WEIGHT, 0.3, 1), KEY)},
        {"scheme": MARKED.rekeyed(1)},
        {"scheme": KGW(1.0, KEY)},
        {"scheme": KGW(2.0, KEY)},
    ):
        ask(**question)
    assert len(kept(tmp_path)) == 11
    with torch.no_grad():
        model.lm_head.weight[0, 0] = torch.nextafter(model.lm_head.weight[0, 0], torch.tensor(9.0))
    ask()
    assert len(kept(tmp_path)) == 12, "another model, if only in one bit"
    monkeypatch.setattr(cache, "_code", lambda name: "another")
    ask()
    assert len(kept(tmp_path)) == 13


def test_the_tokens_that_end_a_text_are_part_of_its_name(ask, model):
    before = ask(until_end=True)
    model.generation_config.eos_token_id = [before[0][2]]
    assert ask(until_end=True) == MARKED.generate(model, PROMPTS, 6, until_end=True) != before


def test_nothing_is_kept_of_what_fails_of_other_schemes_and_of_secrets(ask, model, tmp_path):
    @dataclass(frozen=True)
    class Own(GaussMark):
        pass

    assert ask(Own(WM, KEY)) == MARKED.generate(model, PROMPTS, 6)
    with pytest.raises(InvalidTextError):
        ask(prompts=[[10_000]])
    with perturb.watermarked(model, WM, KEY), pytest.raises(PerturbedModelError):
        ask(None)
    assert not kept(tmp_path)
    ask()
    for path in filter(lambda path: path.is_file(), (tmp_path / "written").rglob("*")):
        assert KEY.secret not in path.read_bytes()
        assert KEY.secret.hex().encode() not in path.read_bytes()


def test_damaged_texts_are_written_again(ask, tmp_path):
    expected = ask()
    [path] = kept(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    assert ask() == expected


def test_texts_that_cannot_be_kept_are_given_all_the_same(model, tmp_path, caplog):
    (tmp_path / "file").touch()
    asked = cache.responses(model, MARKED, PROMPTS, 6, folder=tmp_path / "file" / "written")
    assert asked == MARKED.generate(model, PROMPTS, 6)
    [line] = caplog.messages
    assert line.startswith("texts cannot be kept, and are written each time: ")
