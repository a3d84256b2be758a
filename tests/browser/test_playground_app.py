"""``gaussmark playground``: the same panel, alone on a page, without a line of code."""

import importlib.util
import re
from pathlib import Path

import legibility
import pytest
from playwright.sync_api import Browser, expect

PATIENCE = 180_000  # ms
pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(
        importlib.util.find_spec("voila") is None,
        reason="voila is not installed; `make playground` installs it",
    ),
]


def test_generates_without_code_and_for_nobody_else(app: str, browser: Browser, tmp_path: Path):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    assert page.goto(app.partition("?")[0]).url.partition("?")[0].endswith("/login"), (
        "without its secret, the address opens nothing"
    )
    problems: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on(
        "request",
        lambda asked: (
            problems.append(asked.url)
            if not re.match(r"data:|blob:|(http|ws)s?://127\.0\.0\.1", asked.url)
            else None
        ),
    )
    page.goto(app, timeout=PATIENCE)
    generate = page.get_by_role("button", name="Generate")
    expect(generate).to_be_enabled(timeout=PATIENCE)
    assert not re.search(r"import |Panel\(|doclm: ", page.locator("body").inner_text()), (
        "no code, and nothing printed"
    )
    page.screenshot(path=tmp_path / "opened.png")
    generate.click()
    expect(page.get_by_text("Watermarked text, this key:")).to_be_visible(timeout=PATIENCE)
    page.screenshot(path=tmp_path / "generated.png")
    assert legibility.faint(page) == {}
    assert legibility.small(page) == legibility.clipped(page) == []
    page.locator(".widget-slider .noUi-base").first.click()
    assert page.evaluate("document.activeElement.className").startswith("noUi-handle"), (
        "a click on a slider's track focuses its handle"
    )
    expect(page.get_by_role("button", name="Save the key")).to_be_visible()
    assert not problems
    page.close()
