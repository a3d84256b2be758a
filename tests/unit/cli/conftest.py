"""The tiny model, which every ``--model`` loads here, and key files for it."""

import pytest
import tiny_lm

from gaussmark_lib import models, perturb
from gaussmark_lib.perturb import Key, Watermark


@pytest.fixture
def lm(monkeypatch):
    lm = tiny_lm.build()
    monkeypatch.setattr(models, "load", lambda name: lm)
    return lm


@pytest.fixture
def keys(lm, tmp_path) -> list[str]:
    wm = Watermark(tiny_lm.WEIGHT, 0.2)
    return [
        str(perturb.bind(lm.model, wm, Key.from_seed(seed)).save(tmp_path / f"key{seed}.json"))
        for seed in (1, 2)
    ]


@pytest.fixture
def detect(keys) -> list[str]:
    return ["detect", "--key", keys[0]]
