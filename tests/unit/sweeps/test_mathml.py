"""Formulas as MathML: well-formed, without a trace of LaTeX, and right where a browser was looked
at.
"""

import re
from xml.dom import minidom

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gaussmark_lib import paths
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.sweeps.mathml import mathml

FORMULA = re.compile(r"\$\$(.+?)\$\$|\$([^$]+)\$", re.DOTALL)
CODE = re.compile(r"```.*?```|`[^`]*`", re.DOTALL)


@pytest.mark.parametrize(
    ("latex", "elements"),
    [
        (r"\psi\approx3", "<mi>ψ</mi><mo>≈</mo><mn>3</mn>"),
        (
            r"\tfrac12\sigma^2",
            "<mfrac><mn>1</mn><mn>2</mn></mfrac><msup><mi>σ</mi><mn>2</mn></msup>",
        ),
        (r"p_{\theta+\xi}", "<msub><mi>p</mi><mrow><mi>θ</mi><mo>+</mo><mi>ξ</mi></mrow></msub>"),
        (r"v_{<k}", "<msub><mi>v</mi><mrow><mo>&lt;</mo><mi>k</mi></mrow></msub>"),
        (r"\sqrt T", "<msqrt><mi>T</mi></msqrt>"),
        (r"\mathbb E", "<mi>𝔼</mi>"),
        (r"\text{nats a text}", "<mtext>nats\u00a0a\u00a0text</mtext>"),
        (r"\mathrm{KL}", "<mi>KL</mi>"),
        (r"\log p", '<mi>log</mi><mspace width="0.17em"/><mi>p</mi>'),
        (
            r"\exp(x)",
            (
                '<mi>exp</mi><mo form="prefix" stretchy="false">(</mo><mi>x</mi><mo form="postfix"'
                ' stretchy="false">)</mo>'
            ),
        ),
        (r"\lambda'", "<msup><mi>λ</mi><mo>′</mo></msup>"),
        (r"K_{<i}^{-1}", "<msubsup><mi>K</mi><mrow><mo>&lt;</mo><mi>i</mi></mrow><mrow>"),
        (r"\nosuchname x", "<mtext>nosuchname</mtext><mi>x</mi>"),
    ],
)
def test_what_a_formula_becomes(latex, elements):
    assert mathml(latex).startswith(f"<math>{elements}")


def test_sums_of_a_formula_on_its_own_line_have_their_limits_above_and_below():
    assert mathml(r"\sum_{j=1}^m", display=True).startswith(
        '<math display="block"><munderover><mo>∑</mo>'
    )
    assert mathml(r"\sum_{j=1}^m").startswith("<math><msubsup><mo>∑</mo>")


def test_every_formula_of_the_notebooks_is_set():
    n = 0
    for file in notebooks.numbered():
        for cell in notebooks.load(file).cells:
            for match in FORMULA.finditer(
                CODE.sub("", cell.source) if cell.kind == "markdown" else ""
            ):
                element = mathml(match[1] or match[2], display=bool(match[1]))
                minidom.parseString(element)
                unknown = [
                    word
                    for word in re.findall(r"<mtext>([^<]*)</mtext>", element)
                    if word != "." and "\\text" not in match[0]
                ]
                assert not unknown + re.findall(r"[\\$]", element), (file.name, match[0])
                n += 1
    assert n > 300, f"formulas in {paths.NOTEBOOKS}"


PIECES = [
    *r"\{}_^'()[]|<>&. a1",
    r"\frac",
    r"\left",
    r"\right",
    r"\sqrt",
    r"\text",
    r"\bar",
    r"\sum",
    r"\log",
    r"\underbrace",
]


@given(st.lists(st.sampled_from(PIECES), max_size=12).map("".join))
def test_no_formula_breaks_the_page(latex):
    minidom.parseString(mathml(latex))
    minidom.parseString(mathml(latex, display=True))
