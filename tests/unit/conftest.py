"""Fixtures of the unit tests, and the same examples from hypothesis every time."""

import sys
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.insert(0, str(Path(__file__).parents[1]))  # tiny_models

import tiny_models

from gaussmark_lib.perturb import Key, Watermark

settings.register_profile("repeatable", derandomize=True, deadline=None, max_examples=60, database=None)
settings.load_profile("repeatable")


@pytest.fixture
def model():
    """A tiny random Llama of its own for each test."""
    return tiny_models.build("llama")


@pytest.fixture
def wm() -> Watermark:
    return Watermark("model.layers.2.mlp.down_proj.weight", sigma=0.05)


@pytest.fixture
def key() -> Key:
    return Key.from_seed(0)
