"""How large the house may be."""

import operator

import pytest
from structure import ruler

BUDGETS = {
    ("gaussmark_lib", "all"): ruler.Size(140, 22_300, 142_000),
    ("gaussmark_lib", "core"): ruler.Size(19, 2_850, 19_500),
    ("tests", "all"): ruler.Size(175, 21_500, 185_000),
}
SNIPPET = """
# A comment.
def twice(x):
    '''A docstring is one token.'''

    return 2 * (  # and layout none
        x
    )
"""


@pytest.mark.parametrize(("folder", "room"), BUDGETS)
def test_the_house_is_no_larger_than_its_budget(folder, room):
    rooms = ruler.sizes(ruler.ROOT / folder)
    size = sum(rooms.values(), ruler.Size()) if room == "all" else rooms[room]
    assert all(map(operator.le, size, BUDGETS[folder, room])), (
        f"{folder}, {room}: expected at most {BUDGETS[folder, room]}, got {size}; make something"
        " smaller, do not raise the budget"
    )


@pytest.mark.parametrize("folder", ["gaussmark_lib", "tests"])
def test_no_line_is_wide(folder):
    assert ruler.wide(ruler.ROOT / folder) == []


def test_the_ruler_counts_neither_comments_nor_layout():
    # def twice ( x ) : · the docstring · return 2 * ( x )
    assert ruler.size(SNIPPET) == ruler.Size(1, 8, 6 + 1 + 6)
    dense = "def twice(x):\n 'A docstring is one token.'\n return 2*(x)\n"
    assert ruler.size(dense).tokens == ruler.size(SNIPPET).tokens


def test_the_ruler_finds_a_wide_line(tmp_path):
    (tmp_path / "wide.py").write_text(f"a = 1\n# {'x' * 98}\n# {'x' * 99}\n")
    assert ruler.wide(tmp_path) == ["wide.py:3"]
