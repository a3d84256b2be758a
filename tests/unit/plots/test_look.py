"""The look of figures: words of a diagram do not overlap, colours have one meaning, and a saved
figure comes with its description.
"""

from base64 import b64decode
from io import BytesIO
from itertools import combinations

import numpy as np
import pytest
from IPython import InteractiveShell
from matplotlib import pyplot as plt
from matplotlib.colors import to_hex
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from gaussmark_lib.workbench.plots import diagrams, show, style


@pytest.mark.parametrize("draw", [diagrams.block, diagrams.roles])
def test_words_do_not_overlap(draw):
    figure = draw()
    figure.canvas.draw()
    [axes] = figure.axes
    boxes = {text.get_text(): text.get_window_extent() for text in axes.texts if text.get_text()}
    assert len(boxes) >= 6
    for (first, box), (second, other) in combinations(boxes.items(), 2):
        assert not box.overlaps(other), f"{first!r} and {second!r} overlap"
    width = figure.get_window_extent().width
    for words, box in boxes.items():
        assert 0 <= box.x0 < box.x1 <= width, words
    plt.close(figure)


def test_what_is_no_scheme_never_has_a_schemes_colour():
    schemes = {to_hex(colour) for colour, _ in style.SCHEMES.values()} | {to_hex(style.PLAIN)}
    assert not schemes & set(map(to_hex, style.OTHERS))
    assert len(set(style.OTHERS)) == len(style.OTHERS)


def test_an_interrupted_cell_shows_one_sentence(capsys, monkeypatch):
    shell = InteractiveShell()
    monkeypatch.setattr(style, "get_ipython", lambda: shell)
    style.use()
    assert isinstance(shell.run_cell("raise KeyboardInterrupt").error_in_exec, KeyboardInterrupt)
    assert capsys.readouterr().out.startswith("Interrupted. Run the cell again")


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.02, 0.6, [0.02, 0.05, 0.1, 0.2, 0.5]), (1e-3, 1.0, [0.001, 0.01, 0.1, 1.0])],
)
def test_a_narrow_logarithmic_axis_has_ticks_between_the_powers_of_ten(low, high, ticks):
    _, axes = plt.subplots()
    axes.set(xscale="log", xlim=(low, high))
    style.few_log_ticks(axes.xaxis)
    shown = [tick for tick in axes.get_xticks() if low * 0.999 <= tick <= high * 1.001]
    assert np.allclose(shown, ticks)
    plt.close("all")


def test_texts_are_escaped_and_in_order():
    html = show.side_by_side({"a": "<b>bold?</b>", "b & c": "fine"}).data
    assert "<b>" not in html
    assert "&lt;b&gt;bold?" in html
    assert html.index("bold") < html.index("b &amp; c") < html.index("fine")


def test_a_saved_figure_is_inside_the_page_with_its_description(tmp_path):
    words = PngInfo()
    words.add_text("Description", "Power  against\ntokens.")
    path = tmp_path / "power.png"
    Image.new("RGB", (40, 30), "orange").save(path, pnginfo=words)
    for colours in (None, 4):
        picture = show.saved(path, colours)
        assert (picture.alt, picture.width, picture.height) == ("Power against tokens.", 40, 30)
        data = picture.source.removeprefix("data:image/webp;base64,")
        with Image.open(BytesIO(b64decode(data))) as shown:
            assert shown.getpixel((1, 1)) == (255, 165, 0)
