"""The examples in the docstrings of the core are true."""

import doctest
import importlib

import pytest

CORE = [
    "cross_entropy",
    "docs_corpus",
    "errors",
    "generate",
    "hub",
    "keys",
    "models",
    "muon",
    "normal",
    "perturb",
    "plots.quality",
    "quality.accuracy",
    "quality.diversity",
    "quality.judge",
    "quality.verdict",
    "rank_reduce",
    "score",
    "stats",
    "texts",
    "tokens",
    "train",
]


@pytest.mark.parametrize("name", CORE)
def test_examples(name):
    assert doctest.testmod(importlib.import_module(f"gaussmark_lib.{name}")).failed == 0
