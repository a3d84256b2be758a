"""The examples in docstrings are true."""

import doctest
import importlib
import re
from pathlib import Path

import pytest

import gaussmark_lib

ROOT = Path(gaussmark_lib.__file__).parent
EXAMPLE = re.compile(r"^ *>>> ", re.MULTILINE)
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for path in ROOT.rglob("*.py")
    if EXAMPLE.search(path.read_text())
)


def test_some_modules_have_examples():
    assert {"stats", "score", "keys"} & set(WITH_EXAMPLES)
    assert len(WITH_EXAMPLES) > 5


@pytest.mark.parametrize("name", WITH_EXAMPLES)
def test_examples(name):
    found = doctest.testmod(importlib.import_module(f"gaussmark_lib.{name}"))
    assert found.attempted > 0
    assert found.failed == 0
