"""What is declared is what is used: dependencies, the conda environment, the Makefile, and the
shape of the tree.
"""

import ast
import os
import pwd
import re
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
import tracked
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from gaussmark_lib import files, paths
from gaussmark_lib.paths import ROOT
from gaussmark_lib.runs.parameters import yaml

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = [Requirement(text) for text in PROJECT["dependencies"]]
FOR_TESTS = [Requirement(text) for text in PROJECT["optional-dependencies"]["test"]]
LOCK = "requirements.lock"
TOP_LEVEL = {
    *(
        ".ci",
        ".devcontainer",
        ".gitignore",
        "CHANGELOG.md",
        "CITATION.cff",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "README.md",
        "SECURITY.md",
    ),
    *(
        "environment.yml",
        "pyproject.toml",
        "requirements.lock",
        "data",
        "gaussmark_lib",
        "notebooks",
        "papermill_runs",
        "tests",
    ),
}


def _names(requirements: list[Requirement]) -> set[str]:
    return {canonicalize_name(requirement.name) for requirement in requirements}


def _imported(folder: Path) -> set[str]:
    """The top-level packages that the Python files of a folder import, this project's and the
    standard library's aside.
    """
    found = set()
    for file in folder.rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                found.add(node.module.split(".")[0])
    return (
        found
        - set(sys.stdlib_module_names)
        - {"gaussmark_lib"}
        - {path.stem for path in (ROOT / "tests").iterdir()}
    )


def _undeclared(imported: set[str], declared: set[str]) -> set[str]:
    distributions = metadata.packages_distributions()
    return {
        name
        for name in imported
        if not declared & set(map(canonicalize_name, distributions.get(name, [name])))
    }


def test_what_the_library_imports_is_declared():
    assert _undeclared(_imported(ROOT / "gaussmark_lib"), _names(DECLARED)) == set()


def test_what_the_tests_import_is_declared():
    assert _undeclared(_imported(ROOT / "tests"), _names(DECLARED + FOR_TESTS)) == set()


def test_the_check_for_undeclared_imports_can_fail():
    assert _undeclared(
        {"pandas", "sklearn", "PIL", "zmq", "no_such_package"}, _names(DECLARED)
    ) == {
        "zmq",
        "no_such_package",
    }


def test_what_is_installed_fits_what_is_declared():
    for requirement in DECLARED + FOR_TESTS:
        version = metadata.version(requirement.name).partition("+")[0]
        assert requirement.specifier.contains(version), (
            f"{requirement} is declared, {version} is installed"
        )


def _torch() -> str:
    """The pin of torch, which is the one package that no lock file names: where it comes from
    decides for which hardware it is built.
    """
    (torch,) = [str(requirement) for requirement in DECLARED if requirement.name == "torch"]
    return torch


def _faults_of_lock(text: str, declared: list[Requirement]) -> list[str]:
    """Lines that pin no version, requirements without a line, and pins that a requirement does not
    allow.
    """
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    pins = dict(line.split("==") for line in lines if re.fullmatch(r"[\w.-]+==[\w.]+", line))
    faults = [line for line in lines if line.partition("==")[0] not in pins]
    for requirement in declared:
        name = canonicalize_name(requirement.name)
        if name not in pins:
            faults.append(f"{name} is missing")
        elif not requirement.specifier.contains(pins[name]):
            faults.append(f"{requirement}: {pins[name]}")
    return faults


def test_the_lock_file_pins_every_dependency_within_its_range_and_no_torch():
    text = (ROOT / LOCK).read_text()
    assert (
        _faults_of_lock(
            text,
            [requirement for requirement in DECLARED + FOR_TESTS if requirement.name != "torch"],
        )
        == []
    )
    assert not re.search(r"^torch\b", text, re.MULTILINE)


def test_the_check_of_the_lock_file_can_fail():
    declared = [
        Requirement(text)
        for text in ("numpy>=2.4,<3", "lm_eval[hf]>=0.4.13", "pandas>=3", "scipy>=1.17")
    ]
    text = "# made by hand\nnumpy==3.0.1\nlm-eval==0.4.13\nscipy>=1.17\n"
    assert _faults_of_lock(text, declared) == [
        "scipy>=1.17",
        "numpy<3,>=2.4: 3.0.1",
        "pandas is missing",
        "scipy is missing",
    ]


def test_torch_is_pinned_and_the_makefile_installs_that_version_the_lock_file_and_then_this_alone():
    torch = _torch()
    assert re.fullmatch(r"torch==\d+\.\d+\.\d+", torch)
    done = subprocess.run(
        ["make", "--dry-run", "--always-make", "setup"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    installs = [line.split() for line in done.stdout.splitlines() if " pip install " in line]
    assert [line[-1].strip("'") for line in installs] == [torch, LOCK, "."]
    assert ["--no-deps" in line for line in installs] == [
        False,
        True,
        True,
    ], "a version that is not in the lock file would be installed"


def test_the_conda_environment_is_that_of_pyproject():
    environment = yaml((ROOT / "environment.yml").read_text())
    assert environment["name"] == "gaussmark"
    python, pip, through_pip = environment["dependencies"]
    name, version = python.split("=")
    assert (name, pip) == ("python", "pip")
    assert SpecifierSet(PROJECT["requires-python"]).contains(f"{version}.1")
    assert through_pip["pip"] == [_torch(), f"-r {LOCK}", "-e .[test]"]
    assert "test" in PROJECT["optional-dependencies"]


def test_the_command_exists_and_every_file_of_the_library_is_packaged():
    module, function = PROJECT["scripts"]["gaussmark"].split(":")
    assert hasattr(__import__(module, fromlist=[function]), function)
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = {path.parent for path in (ROOT / "gaussmark_lib").rglob("*.py")}
    assert all((package / "__init__.py").exists() for package in packages), (
        "a folder without __init__.py is no package"
    )
    assert setuptools["packages"]["find"]["include"] == ["gaussmark_lib*"]
    data = [
        f"{package.replace('.', '/')}/{pattern}"
        for package, patterns in setuptools["package-data"].items()
        for pattern in patterns
    ]
    others = [
        path
        for path in (ROOT / "gaussmark_lib").rglob("*")
        if path.is_file() and path.suffix != ".py" and path.parent.name != "__pycache__"
    ]
    assert [path for path in others if not any(path.match(pattern) for pattern in data)] == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="asks git what belongs to the project")
def test_the_top_level_of_the_tree_is_the_agreed_one():
    assert {path.relative_to(ROOT).parts[0] for path in tracked.files("**")} == TOP_LEVEL


KILLED = """
import os, pathlib, signal
from gaussmark_lib import files, paths
with files.hidden_folder(pathlib.Path("marked")) as folder:
    pathlib.Path(folder, "checkpoint").mkdir()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_make_clean_removes_what_a_killed_export_left_and_nothing_else(tmp_path):
    """Also in a folder below; what a living process writes stays, and so do files of a user."""
    (tmp_path / "mine").mkdir()
    living = files.hidden_folder(tmp_path / "marked")
    for place in (tmp_path, tmp_path / "mine"):
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        subprocess.run([sys.executable, "-c", KILLED], cwd=place, env=environment)
    (tmp_path / ".notes.old-2020").touch()
    assert len(os.listdir(tmp_path)) == 4
    clean = ["make", "--file", ROOT / "Makefile", "clean", "PYTHON="]
    subprocess.run(clean, cwd=tmp_path, check=True, capture_output=True)
    left = {Path(living.name).name, ".notes.old-2020", "mine"}
    assert {path.name for path in tmp_path.rglob("*")} == left
    living.cleanup()


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="asks git")
@pytest.mark.parametrize(
    "name",
    ["my.key", "keys/other.key", "notebooks/playground_key.json", ".marked.partial-7-ab_c12"],
)
def test_git_ignores_secrets_and_leftovers(name):
    subprocess.run(["git", "check-ignore", "--quiet", "--no-index", name], cwd=ROOT, check=True)


def test_make_runs_the_tiers():
    plain = {
        name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "ARGS"))
    }  # of the make that runs the tests
    run = {}
    for target in ("test", "test-all", "mutants"):
        command = ["make", "--no-print-directory", "--dry-run", target]
        run[target] = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=True, env=plain
        ).stdout.splitlines()[-1]
    assert run["test"].split()[-3:] == [
        "tests",
        "notebooks/00_first_watermark.ipynb",
        "notebooks/02_level_check.ipynb",
    ]
    committed = [
        path.relative_to(ROOT).as_posix() for path in tracked.files("notebooks/**/*.ipynb")
    ]
    assert run["test-all"].partition(" tests ")[2].split() == committed
    assert all(
        "--dist loadfile --no-loadscope-reorder --nbval-lax" in run[target]
        for target in ("test", "test-all")
    )
    assert run["mutants"].split()[-1] == "tests/mutants.py"
    listed = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert [target for target in run if f"make {target} " not in listed] == []


def test_ci_makes_the_tour_and_then_the_tests_and_insists_on_a_browser():
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    lines = [line for line in script.read_text().splitlines() if line and not line.startswith("#")]
    assert lines[0] == "set -euo pipefail"
    assert lines[-1] == "make test-all", "its last line is the test suite's"
    assert "make tour" in lines
    assert any(line.startswith("export GAUSSMARK_REQUIRE_BROWSER=1") for line in lines)
    subprocess.run(["bash", "-n", str(script)], check=True)


def test_the_tests_have_records_caches_and_a_home_of_their_own():
    places = [paths.records(None), paths.CACHE, paths.TEXTS, Path.home()]
    assert [place for place in places if place.is_relative_to(ROOT)] == []
    assert Path.home() != Path(pwd.getpwuid(os.getuid()).pw_dir)


def test_what_git_does_not_know_is_no_concern_of_the_tests(tmp_path, monkeypatch):
    monkeypatch.setattr(tracked, "ROOT", tmp_path)
    for name in ("ours.yaml", "mine.yaml", "deep/ours.yaml", "gone.yaml"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    assert len(tracked.files("*.yaml")) == 3, "all of them in a copy without git"
    for command in (["init", "--quiet"], ["add", "ours.yaml", "deep/ours.yaml", "gone.yaml"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "gone.yaml").unlink()
    assert tracked.files("*.yaml") == [tmp_path / "ours.yaml"]
    assert tracked.files("**/*.yaml") == [tmp_path / "deep" / "ours.yaml", tmp_path / "ours.yaml"]
