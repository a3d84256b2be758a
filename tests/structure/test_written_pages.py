"""Links of the site's written pages lead somewhere. Sphinx checks all links of all pages when the
site is built; this is the fast part.
"""

import re
from pathlib import Path

import pytest

from gaussmark_lib.site import sources, written

LINK = re.compile(
    r"\]\(([^)\s]+)\)| <(/[\w/]+)>$", re.MULTILINE
)  # in prose, and in a table of contents
PAGES = sorted(path.stem for path in written.PAGES.glob("*.md"))


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> Path:
    """All that Sphinx reads."""
    folder = tmp_path_factory.mktemp("sources")
    sources.assemble(folder)
    return folder


@pytest.mark.parametrize("page", PAGES)
def test_links_of_written_pages_lead_somewhere(made, page):
    path = made / "index.md" if page == "index" else made / "notebooks" / "pages" / f"{page}.md"
    found = [
        target
        for pair in LINK.findall(path.read_text(encoding="utf-8"))
        for target in pair
        if target and not target.startswith("http")
    ]
    assert found
    assert [target for target in found if not _exists(made, path.parent, target)] == []


def _exists(made: Path, folder: Path, target: str) -> bool:
    place = made / target[1:] if target.startswith("/") else folder / target
    return any(
        place.with_name(place.name + ending).exists() for ending in ("", ".md", ".rst", ".ipynb")
    )


def test_a_link_to_nowhere_is_noticed(made):
    assert not _exists(made, made, "/notebooks/14_no_such.ipynb")
    assert not _exists(made / "notebooks" / "pages", made, "no_such.md")
    assert {"guarantee", "index", "joint_law", "own_model"} <= set(PAGES)
