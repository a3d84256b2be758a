"""Cached texts: the very texts that would be written, kept by everything they depend on."""

import errno
import json
from dataclasses import dataclass

import numpy as np
import pytest
import tiny_lm
import torch

from gaussmark_lib import generate, perturb
from gaussmark_lib.errors import InvalidTextError, PerturbedModelError
from gaussmark_lib.kgw import KGW
from gaussmark_lib.runs import identity
from gaussmark_lib.schemes import GaussMark, TokenKeys, cache

PROMPTS = [[5, 6, 7], [8, 9]]
WM = perturb.Watermark(tiny_lm.WEIGHT, 0.3)
KEY = perturb.Key.from_seed(0)
MARKED = GaussMark(WM, KEY)


@pytest.fixture(autouse=True)
def code_read_anew():
    """As in a process that has just begun."""
    cache._code.cache_clear()
    yield
    cache._code.cache_clear()


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


def kept(tmp_path) -> int:
    return len(list((tmp_path / "written").glob("*.json")))


@pytest.mark.parametrize(
    "scheme",
    [None, MARKED, KGW(1.0, KEY), TokenKeys(WM, KEY)],
    ids=["plain", "GaussMark", "KGW", "token keys"],
)
def test_the_second_time_they_are_read(model, ask, tmp_path, monkeypatch, scheme):
    expected = scheme.generate(model, PROMPTS, 6) if scheme else generate.sample(model, PROMPTS, 6)
    assert ask(scheme) == expected
    monkeypatch.setattr(generate, "sample", None)
    monkeypatch.setattr("gaussmark_lib.token_level.keys.sample", None)
    assert ask(scheme) == expected
    assert kept(tmp_path) == 1


def test_whatever_a_text_depends_on_is_part_of_its_name(ask, tmp_path, model, monkeypatch):
    ask()
    ask(n_tokens=7)
    ask(seed=1)
    ask(temperature=0.7)
    ask(prompts=[[5, 6], [7, 8, 9]])
    ask(None)
    ask(GaussMark(perturb.Watermark(tiny_lm.WEIGHT, 0.31), KEY))
    ask(GaussMark(perturb.Watermark(tiny_lm.WEIGHT, 0.3, 1), KEY))
    ask(MARKED.rekeyed(1))
    ask(KGW(1.0, KEY))
    ask(KGW(2.0, KEY))
    assert kept(tmp_path) == 11
    with torch.no_grad():
        model.lm_head.weight[0, 0] = torch.nextafter(model.lm_head.weight[0, 0], torch.tensor(9.0))
    ask()
    assert kept(tmp_path) == 12, "another model, if only in one bit"
    monkeypatch.setattr(identity, "of_module", lambda name: "another")
    ask()
    assert kept(tmp_path) == 12, (
        "a process goes on with the code that it began with, even if the files change"
    )
    cache._code.cache_clear()
    ask()
    assert kept(tmp_path) == 13


def test_the_tokens_that_end_a_text_are_part_of_its_name(ask, model, tmp_path):
    whole = ask(until_end=True)
    model.generation_config.eos_token_id = [whole[0][2]]
    assert ask(until_end=True) == MARKED.generate(model, PROMPTS, 6, until_end=True) != whole


@pytest.mark.usefixtures("wrong_types")
def test_numbers_of_numpy_and_texts_from_an_iterator_are_asked_as_any_other(ask, tmp_path):
    expected = ask(temperature=0.5)
    assert (
        ask(
            prompts=iter(PROMPTS),
            n_tokens=np.int64(6),
            seed=np.int64(0),
            temperature=np.float32(0.5),
        )
        == expected
    )
    assert kept(tmp_path) == 1


def test_texts_of_a_scheme_outside_the_library_are_written_each_time(ask, tmp_path):
    @dataclass(frozen=True)
    class Own(GaussMark):
        pass

    assert ask(Own(WM, KEY)) == MARKED.generate(tiny_lm.build().model, PROMPTS, 6)
    assert not (tmp_path / "written").exists()


def test_nothing_is_kept_of_what_fails_and_no_secret_of_what_does_not(ask, model, tmp_path):
    with pytest.raises(InvalidTextError):
        ask(prompts=[[10_000]])
    with perturb.watermarked(model, WM, KEY), pytest.raises(PerturbedModelError):
        ask(None)
    assert not (tmp_path / "written").exists()
    ask()
    [path] = (tmp_path / "written").iterdir()
    assert json.loads(path.read_text())["texts"] == ask()
    assert KEY.secret.hex() not in path.name + path.read_text()


@pytest.mark.parametrize(
    "damage",
    [
        "[]",
        "null",
        "{}",
        "",
        "[" * 100_000,
        '{"texts": [[1]]}',
        '{"sha256": "0", "texts": [[1]]}',
        "one digit",
    ],
)
def test_damaged_texts_are_written_again_and_that_is_said(ask, tmp_path, caplog, damage):
    expected = ask()
    [path] = (tmp_path / "written").iterdir()
    whole = path.read_text()
    digit = str(expected[0][0])
    path.write_text(whole.replace(f"[[{digit}", f"[[{digit}0") if damage == "one digit" else damage)
    assert ask() == expected
    assert caplog.messages == [f"the texts kept in {path} are damaged, and are written again"]
    assert path.read_text() == whole


@pytest.mark.parametrize("fault", ["full", "file"])
def test_texts_that_cannot_be_kept_are_given_all_the_same(
    ask, tmp_path, monkeypatch, caplog, fault
):
    if fault == "full":
        monkeypatch.setattr(
            type(tmp_path),
            "replace",
            lambda *paths: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")),
        )
    else:
        (tmp_path / "written").touch()
    assert ask() == MARKED.generate(tiny_lm.build().model, PROMPTS, 6)
    [line] = caplog.messages
    assert line.startswith(f"texts cannot be kept in {tmp_path / 'written'}: ")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == (
        [] if fault == "full" else [tmp_path / "written"]
    )
