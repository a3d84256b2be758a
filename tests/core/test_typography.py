"""Characters that software puts in place of a model's own: their count, and what they become."""

import textwrap
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaussmark_lib.engine import typography

PLAIN = 'He said: "It\'s the first-class office..." - and left – or so.'
WORDS = "The mean of all the values that are in the table is returned as a list of numbers. " * 4
WORDS = WORDS.rstrip()
ORDINARY = tomllib.loads(Path(__file__).with_name("ordinary.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("changed", "name", "n"),
    [
        (PLAIN.replace(" ", "\u00a0"), "non-breaking space", 11),
        (PLAIN.replace(" ", "\u2009"), "unusual space", 11),
        (PLAIN.replace('"', "\u201d").replace("'", "\u2019"), "curly quote", 3),
        (PLAIN.replace("t-c", "t\u2011c"), "special hyphen", 1),
        (PLAIN.replace("...", "\u2026"), "ellipsis character", 1),
        (PLAIN.replace("ffi", "\ufb03").replace("fi", "\ufb01"), "ligature", 2),
        (PLAIN.replace("first", "fi\u00adrst"), "soft hyphen", 1),
        (PLAIN.replace(" ", " \u200b"), "invisible character", 11),
        (PLAIN.replace("st", "s\u200d\u200et"), "invisible character", 2),
    ],
)
def test_each_kind_is_counted_and_becomes_plain(changed, name, n):
    assert typography.unusual(changed) == {name: n}
    assert typography.normalised(changed) == PLAIN


@pytest.mark.parametrize("width", [45, 72, 100])
@pytest.mark.parametrize("n_paragraphs", [1, 3])
def test_wrapped_paragraphs_are_joined(width, n_paragraphs):
    paragraphs = [WORDS[i * 7 :].strip() for i in range(n_paragraphs)]
    wrapped = "\n\n".join(textwrap.fill(text, width) for text in paragraphs)
    text = "\n\n".join(paragraphs)
    assert typography.normalised(wrapped) == text
    n_breaks = wrapped.count("\n") - text.count("\n")
    assert typography.unusual(wrapped) == {"hard line break": n_breaks}


@pytest.mark.parametrize("text", [PLAIN, WORDS, *ORDINARY["texts"]])
def test_plain_text_stays_as_it_is(text):
    assert typography.normalised(text) == text
    assert typography.unusual(text) == {}
    assert typography.remark(text) is None


def test_letters_are_composed_and_line_ends_are_one_line_feed():
    assert typography.normalised("cafe\u0301\r\nau lait\r") == "café\nau lait\n"
    assert typography.normalised("end\n\n \n") == "end\n"


@given(st.text())
def test_normalised_text_is_plain_and_stays_so(text):
    once = typography.normalised(text)
    assert typography.normalised(once) == once
    assert not set(once) & set(typography.PLAIN)
    assert "\r" not in once
