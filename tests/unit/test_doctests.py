"""The examples in docstrings are true."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

import gaussmark_lib
from gaussmark_lib.files import EXPERIMENTS

PACKAGES = (Path(gaussmark_lib.__file__).parent, EXPERIMENTS)
EXAMPLE = re.compile(r"^ *>>> ", re.MULTILINE)
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(package.parent).with_suffix("").parts).removesuffix(".__init__")
    for package in PACKAGES
    for path in package.rglob("*.py")
    if EXAMPLE.search(path.read_text())
)


def test_some_modules_have_examples():
    assert {f"gaussmark_lib.{name}" for name in ("stats", "corrupt")} <= set(WITH_EXAMPLES)
    assert len(WITH_EXAMPLES) > 5


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name):
    found = doctest.testmod(importlib.import_module(name))
    assert found.attempted > 0
    assert found.failed == 0
