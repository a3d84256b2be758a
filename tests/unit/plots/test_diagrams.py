"""The diagrams can be read: their words lie inside the picture and do not overlap."""

from itertools import combinations

import pytest
from matplotlib import pyplot as plt

from gaussmark_lib.workbench.plots import diagrams


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
        assert box.x0 >= 0, words
        assert box.x1 <= width, words
    plt.close(figure)
