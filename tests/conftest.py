"""For all tests: one thread a worker, no network, and a real browser where one is asked for."""

import os
import shutil

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as many workers as cores; kernels inherit it
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # it warns after a fork otherwise
os.environ.pop("GAUSSMARK_RUN_DIR", None)

CHROMIUM = shutil.which("chromium")


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("browser") and not CHROMIUM:
        missing = "needs Debian's package chromium"
        pytest.fail(missing) if os.environ.get("GAUSSMARK_REQUIRE_BROWSER") else pytest.skip(missing)


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium with a profile of its own, as a Playwright browser."""
    from playwright.sync_api import sync_playwright

    quiet = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update"]
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=[*quiet, "--disable-sync"])
        yield chromium
        chromium.close()
