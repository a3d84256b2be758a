"""For all tests: one thread per worker, tests that stay together on a worker, no network, their own
records, caches and home, repeatable examples of hypothesis, and a real browser if a test needs it.
"""

import atexit
import os
import shutil
import socket
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import settings

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as many workers as cores; kernels inherit it
# if a plugin imported torch before this file: its threads would not survive in a forked process
if "torch" in sys.modules:
    sys.modules["torch"].set_num_threads(1)
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TOKENIZERS_PARALLELISM"] = "false"  # it warns after a fork otherwise
os.environ.pop("GAUSSMARK_RUN_DIR", None)
ROOT = Path(__file__).resolve().parent.parent
# kernels and commands read this checkout, whichever is installed
_checkout = [str(ROOT), str(ROOT / "notebooks"), *filter(None, [os.environ.get("PYTHONPATH")])]
os.environ["PYTHONPATH"] = os.pathsep.join(_checkout)


def _own_folders() -> None:
    """Read and write no file of the user; workers and kernels inherit these folders."""
    home = Path(tempfile.mkdtemp(prefix="gaussmark-tests-"))
    atexit.register(shutil.rmtree, home, ignore_errors=True)
    cache = home / "cache"
    # the corpus takes a minute to read, and depends only on installed packages
    for corpus in (ROOT / "data" / "cache").glob("docs-*.parquet"):
        cache.mkdir(exist_ok=True)
        (cache / corpus.name).symlink_to(corpus.resolve())
    for name in ("XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME"):
        os.environ.pop(name, None)
    os.environ.setdefault("GIT_CONFIG_GLOBAL", str(Path.home() / ".gitconfig"))  # whom git trusts
    os.environ |= {
        "HOME": str(home),
        "GAUSSMARK_RUNS": str(home / "runs"),
        "GAUSSMARK_CACHE": str(cache),
    }


if "PYTEST_XDIST_WORKER" not in os.environ:
    _own_folders()

settings.register_profile(
    "repeatable", derandomize=True, deadline=None, max_examples=60, database=None
)
settings.load_profile("repeatable")

CHROMIUM = shutil.which("chromium")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With ``--dist loadfile`` a file stays on one worker, and so does a notebook of nbval. Cases
    marked ``spread`` get a file name of their own.

    Notebooks begin: a long notebook that began last would keep one core busy while the other is
    idle.
    """
    for item in items:
        if item.get_closest_marker("browser"):  # a server and a browser take a minute
            item.add_marker("slow")
    items.sort(key=lambda item: not _begins(item))  # False sorts first
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    for item in items:
        if item.get_closest_marker("spread"):
            file, _, test_name = item.nodeid.partition("::")
            item._nodeid = f"{file} {item.name}::{test_name}"


def _begins(item: pytest.Item) -> bool:
    return item.path.suffix == ".ipynb" or bool(item.get_closest_marker("spread"))


def pytest_runtest_setup(item: pytest.Item) -> None:
    if CHROMIUM or not item.get_closest_marker("browser"):
        return
    missing = "needs Debian's package chromium"
    if os.environ.get("GAUSSMARK_REQUIRE_BROWSER"):
        pytest.fail(missing)
    pytest.skip(missing)


@pytest.fixture(scope="session")
def browser():
    """A headless Chromium with its own profile, as a Playwright browser."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--disable-gpu", "--disable-quic"]
        )
        yield chromium
        chromium.close()


@pytest.fixture
def model():
    """A new tiny random Llama for each test."""
    import tiny_models

    return tiny_models.build("llama")


@pytest.fixture(scope="module")
def lm():
    """A tiny model with its tokenizer, shared by the tests of a file."""
    import tiny_lm

    return tiny_lm.build()


@pytest.fixture
def wm():
    from gaussmark_lib.perturb import Watermark

    return Watermark("model.layers.2.mlp.down_proj.weight", sigma=0.05)


@pytest.fixture
def key():
    from gaussmark_lib.perturb import Key

    return Key.from_seed(0)


@pytest.fixture
def wrong_types(monkeypatch):
    """Signatures are not checked, so that a test sees how the library itself answers to a value of
    the wrong type.
    """
    import jaxtyping

    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.fixture
def no_network(monkeypatch):
    """No name can be looked up, which is what a machine without a network sees."""

    def fail(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", fail)


@pytest.fixture
def typed(tmp_path):
    """Puts bytes on standard input, as a terminal would."""
    usual_stdin = os.dup(0)
    path = tmp_path / "typed"

    def put(content: bytes) -> None:
        path.write_bytes(content)
        handle = os.open(path, os.O_RDONLY)
        os.dup2(handle, 0)
        os.close(handle)

    yield put
    os.dup2(usual_stdin, 0)
    os.close(usual_stdin)


@pytest.fixture(scope="module")
def no_table_of_selfhash():
    """transformers' KGW processor draws 1,000,003 numbers each time it is made, 20 ms, for a
    variant that nothing here uses.
    """
    import torch

    usual_randperm = torch.randperm

    def randperm(n, **options):
        return torch.empty(0) if n == 1_000_003 else usual_randperm(n, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "randperm", randperm)
        yield
