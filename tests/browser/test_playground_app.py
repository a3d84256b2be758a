"""``gaussmark playground``: the same panel, alone on a page, without a line of code."""

import re
from pathlib import Path

import legibility
import pytest
from playwright.sync_api import Browser, expect

PATIENCE = 180_000  # ms
SILENCE = 5_000  # ms after which the page says that it hears nothing
pytestmark = pytest.mark.browser
pytest.importorskip("voila", reason="voila is not installed; `make playground` installs it")


def test_generates_without_code_and_for_nobody_else(app: str, browser: Browser, tmp_path: Path):
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    opened = page.goto(app.partition("?")[0]).url
    assert opened.partition("?")[0].endswith("/login"), "without its secret it opens nothing"
    problems: list[str] = []
    fetched: list[str] = []
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: fetched.append(request.url))
    page.goto(app, timeout=PATIENCE)
    generate = page.get_by_role("button", name="Generate")
    expect(generate).to_be_enabled(timeout=PATIENCE)
    words = page.locator("body").inner_text()
    assert not re.search(r"import |Panel\(|doclm: ", words), "no code, and nothing printed"
    page.screenshot(path=tmp_path / "opened.png")
    generate.click()
    expect(page.get_by_text("Watermarked text, this key:")).to_be_visible(timeout=PATIENCE)
    page.screenshot(path=tmp_path / "generated.png")
    assert legibility.faint(page) == {}
    assert legibility.small(page) == legibility.clipped(page) == []
    page.wait_for_timeout(SILENCE)
    expect(page.locator("#unreachable")).to_be_hidden()
    page.locator(".widget-slider .noUi-base").first.click()
    # a click on a slider's track focuses its handle
    assert page.evaluate("document.activeElement.className").startswith("noUi-handle")
    expect(page.get_by_role("combobox", name="Model")).to_have_value("doclm")
    assert problems == []
    assert all(re.match(r"data:|blob:|(http|ws)s?://127\.0\.0\.1", url) for url in fetched)
    page.close()


NOTICE = "This page cannot reach its kernel"


@pytest.mark.parametrize("app", ["light"], indirect=True)
def test_says_that_websockets_are_blocked(app: str, browser: Browser, tmp_path: Path):
    """By a proxy that closes them, until it lets them through."""
    page = browser.new_page(viewport={"width": 1280, "height": 800})
    is_blocked = True
    page.route_web_socket(
        "**", lambda socket: socket.close() if is_blocked else socket.connect_to_server()
    )
    page.goto(app, timeout=PATIENCE)
    notice = page.get_by_role("alert").filter(has_text=NOTICE)
    expect(notice).to_be_visible(timeout=4 * SILENCE)
    expect(notice).to_contain_text("blocks WebSockets: a proxy, a firewall")
    page.screenshot(path=tmp_path / "blocked.png")
    assert legibility.faint(page) == {}
    is_blocked = False
    expect(notice).to_be_hidden(timeout=PATIENCE)  # the page tries again by itself
    expect(page.get_by_role("button", name="Generate")).to_be_enabled(timeout=PATIENCE)
    page.close()


@pytest.mark.parametrize("app", ["dark"], indirect=True)
def test_says_that_websockets_carry_nothing(app: str, browser: Browser):
    """Through a proxy that opens them and never answers."""
    page = browser.new_page()
    page.route_web_socket("**", lambda socket: None)
    page.goto(app, timeout=PATIENCE)
    expect(page.get_by_role("alert").filter(has_text=NOTICE)).to_be_visible(timeout=4 * SILENCE)
    assert legibility.faint(page) == {}
    page.close()
