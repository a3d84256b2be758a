"""What the library answers to input that it cannot use: one of its own errors, which says what was
expected and what came.

The table is ``tests/bad_inputs.py``. Types are checked by nobody else here.
"""

import re

import bad_inputs
import pytest
from bad_inputs import BAD, Door

from gaussmark_lib import errors
from gaussmark_lib.errors import GaussMarkError

# the beginnings, because a message may be cut off
SECRET = [bad_inputs.SECRET.hex()[:12], repr(bad_inputs.SECRET)[2:20]]
pytestmark = pytest.mark.usefixtures("no_types_checked")


@pytest.fixture(scope="module")
def table(tmp_path_factory, no_types_checked) -> dict[str, Door]:
    return Table(bad_inputs.doors(tmp_path_factory.mktemp("files")))


class Table(dict):
    def __repr__(self) -> str:
        return "the table"  # hypothesis shows a failure's arguments, and models are long


def complaint(door: Door, argument: str, value: object) -> str:
    """What is wrong with the answer to this value; "" if nothing is."""
    try:
        door.call(**{argument: value})
    except GaussMarkError as error:
        text = str(error)
        if any(form in text for form in SECRET):
            return f"shows a secret that came as {argument}"
        says_what_came = "got" in text or errors.shown(value).strip("'") in text
        is_clear = says_what_came and re.search("expected|needs|nearest names", text)
        return "" if is_clear else f"says too little: {text}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "was accepted"


def test_bad_values_are_refused_by_name(table):
    """The control first: with good values each function works, so that it is the bad one that is
    refused.
    """
    found, n = [], 0
    for name, door in table.items():
        if door.runs:
            door.call()
        for argument, kind in door.cases:
            for value in BAD[kind.removesuffix("?")]:
                if value is None and kind.endswith("?"):
                    continue
                n += 1
                if wrong := complaint(door, argument, value):
                    found.append(f"{name}({argument}={errors.shown(value)}): {wrong}")
    assert n >= 500
    assert not found, f"{len(found)} of {n}:\n" + "\n".join(found)
