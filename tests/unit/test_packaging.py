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

from gaussmark_lib import files
from gaussmark_lib.files import ROOT
from gaussmark_lib.workbench.runs.parameters import yaml

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DECLARED = [Requirement(text) for text in PROJECT["dependencies"]]
EXTRAS = [
    Requirement(text)
    for extra in ("cluster", "engine", "release")
    for text in PROJECT["optional-dependencies"][extra]
]
FOR_TESTS = [Requirement(text) for text in PROJECT["optional-dependencies"]["test"]]
PACKAGES = (ROOT / "gaussmark_lib", files.EXPERIMENTS)
LOCK = "requirements.lock"
MOST_DEPENDENCIES = 40  # with gguf and nbclient
TOP_LEVEL = (
    ".ci .devcontainer .gitignore CHANGELOG.md CITATION.cff CONTRIBUTING.md LICENSE Makefile"
    " README.md SECURITY.md environment.yml pyproject.toml requirements.lock data gaussmark_lib"
    " notebooks papermill_runs tests"
)


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
    ours = {"gaussmark_lib", "gaussmark_experiments"} | {
        path.stem for path in (ROOT / "tests").iterdir()
    }
    return found - set(sys.stdlib_module_names) - ours


def _undeclared(imported: set[str], declared: list[Requirement]) -> set[str]:
    known = {canonicalize_name(requirement.name) for requirement in declared}
    distributions = metadata.packages_distributions()
    names = {name: distributions.get(name, [name]) for name in imported}
    return {name for name, of_it in names.items() if not known & {*map(canonicalize_name, of_it)}}


def test_what_is_imported_is_declared():
    for package in PACKAGES:
        assert _undeclared(_imported(package), DECLARED + EXTRAS) == set()
    assert _undeclared(_imported(ROOT / "tests"), DECLARED + FOR_TESTS + EXTRAS) == set()
    assert _undeclared({"pandas", "sklearn", "PIL", "zmq"}, DECLARED) == {"zmq"}


@pytest.mark.parametrize("requirement", DECLARED + FOR_TESTS, ids=lambda one: one.name)
def test_what_is_installed_and_locked_fits_what_is_declared(requirement):
    """Torch is in no lock file: where it comes from decides for which hardware it is built."""
    pins = dict(re.findall(r"^([\w.-]+)==([\w.]+)$", (ROOT / LOCK).read_text(), re.MULTILINE))
    versions = [metadata.version(requirement.name).partition("+")[0]]
    name = canonicalize_name(requirement.name)
    versions += [] if name == "torch" else [pins[name]]
    assert all(map(requirement.specifier.contains, versions))
    assert "torch" not in pins


def _torch() -> str:
    (torch,) = [str(requirement) for requirement in DECLARED if requirement.name == "torch"]
    assert re.fullmatch(r"torch==\d+\.\d+\.\d+", torch)
    return torch


def _dry_run(*targets: str) -> list[str]:
    """The commands of make."""
    # without those of the make that runs the tests
    theirs = ("MAKE", "ARGS", "NOTEBOOKS")
    plain = {k: v for k, v in os.environ.items() if not k.startswith(theirs)}
    command = ["make", "--no-print-directory", "--dry-run", *targets]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, env=plain)
    return done.stdout.splitlines()


def test_the_makefile_installs_torch_the_lock_file_and_then_this_alone():
    lines = _dry_run("--always-make", "setup")
    installs = [line.split() for line in lines if " pip install " in line]
    assert [line[-1].strip("'") for line in installs] == [_torch(), LOCK, "."]
    # or a version that is not in the lock file would be installed
    assert ["--no-deps" in line for line in installs] == [False, True, True]


def test_the_conda_environment_is_that_of_pyproject():
    environment = yaml((ROOT / "environment.yml").read_text())
    python, pip, through_pip = environment["dependencies"]
    name, version = python.split("=")
    assert (environment["name"], name, pip) == ("gaussmark", "python", "pip")
    assert SpecifierSet(PROJECT["requires-python"]).contains(f"{version}.1")
    assert through_pip["pip"] == [_torch(), f"-r {LOCK}", "-e .[test]"]


def test_the_command_exists_and_every_file_of_the_library_is_packaged():
    module, function = PROJECT["scripts"]["gaussmark"].split(":")
    assert hasattr(__import__(module, fromlist=[function]), function)
    setuptools = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = {path.parent for package in PACKAGES for path in package.rglob("*.py")}
    assert all((package / "__init__.py").exists() for package in packages)
    found = setuptools["packages"]["find"]
    assert {ROOT / place for place in found["where"]} == {package.parent for package in PACKAGES}
    assert found["include"] == ["gaussmark_lib*", "gaussmark_experiments*"]
    data = [
        f"{package.replace('.', '/')}/{pattern}"
        for package, patterns in setuptools["package-data"].items()
        for pattern in patterns
    ]
    places = [f"{package.relative_to(ROOT)}/**/[!.]*" for package in PACKAGES]
    files_of_packages = [path for place in places for path in tracked.files(place)]
    others = [p for p in files_of_packages if p.suffix not in (".py", ".pyc") and p.is_file()]
    assert [path for path in others if not any(path.match(pattern) for pattern in data)] == []


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="asks git what belongs to the project")
def test_the_top_level_of_the_tree_is_the_agreed_one():
    top_level = {path.relative_to(ROOT).parts[0] for path in tracked.files("**")}
    assert top_level == set(TOP_LEVEL.split())


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="asks git")
@pytest.mark.parametrize(
    "name",
    ["my.key", "keys/other.key", "notebooks/playground_key.json", ".marked.partial-7-ab_c12"],
)
def test_git_ignores_secrets_and_leftovers(name):
    subprocess.run(["git", "check-ignore", "--quiet", "--no-index", name], cwd=ROOT, check=True)


def test_dependencies_are_few():
    assert len(DECLARED) <= MOST_DEPENDENCIES


def test_the_tests_have_records_caches_and_a_home_of_their_own():
    places = [files.records(None), files.CACHE, Path.home()]
    assert [place for place in places if place.is_relative_to(ROOT)] == []
    assert Path.home() != Path(pwd.getpwuid(os.getuid()).pw_dir)
