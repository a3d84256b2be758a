"""Words of the panel in a page of Chromium that are too faint, too small, or cut off."""

from pathlib import Path
from typing import Any

from playwright.sync_api import Page

# minima: WCAG 2's AA, and the height of a letter's box
CONTRAST = 4.5
PIXELS = 11
SCRIPT = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")


def faint(page: Page, parts: str = ".gaussmark-panel *") -> dict[str, float]:
    """Return words with too little contrast to their background; disabled and dimmed words are
    exempt.
    """
    return {
        words: round(contrast, 2)
        for words, contrast in _asked(page, "contrasts", parts).items()
        if contrast < CONTRAST
    }


def small(page: Page) -> list[str]:
    return [words for words, size in _asked(page, "sizes") if size < PIXELS]


def clipped(page: Page) -> list[str]:
    return _asked(page, "clipped")


def _asked(page: Page, question: str, parts: str = "") -> Any:
    return page.evaluate(f"parts => ({SCRIPT}).{question}(parts)", parts)
