"""The documentation corpus: what counts as prose, how strings are cut, and a split that depends on
the paragraph alone.
"""

import ast
import hashlib
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path, PurePosixPath

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from gaussmark_lib import docs, paths
from gaussmark_lib.docs import is_prose, paragraphs, paragraphs_of_file, split_of
from gaussmark_lib.errors import CorpusError

PROSE = (
    "The estimator returns the mean of all samples that were drawn, which does not depend on the"
    " order in which they came."
)
OTHER = (
    "A second paragraph follows the first one after a blank line, and it has to be long enough to"
    " be kept by the rules."
)


def test_prose_is_prose():
    assert is_prose(PROSE)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Too short to be kept.",
        PROSE[:-1],
        PROSE[0].lower() + PROSE[1:],
        PROSE.replace("mean", ">>> mean"),
        PROSE.replace("mean", "m\N{REPLACEMENT CHARACTER}an"),
        PROSE.replace("mean", f"m{chr(0xD800)}an"),
        "X " + "= 3 + x[4] % {} " * 10 + ".",
        (
            "Returns x_1, y_2, z_3, f(x), g(y) -> np.ndarray[int, 3] of x_1 + y_2 and z_3 / f(x) *"
            " g(y) == 0x3F as x_4 or y_5."
        ),
    ],
    ids=[
        "empty",
        "short",
        "no full stop",
        "no capital",
        "doctest",
        "replacement",
        "surrogate",
        "formula",
        "code",
    ],
)
def test_what_is_no_prose(text):
    assert not is_prose(text)


def test_the_share_of_words_decides():
    words, codes = (
        "Some plain words in a row that go on and on without any end in sight for now",
        "x_1 y_2 z_3 a_4 b_5",
    )
    text = f"{words} {codes}".split()
    share = len(words.split()) / len(text)
    assert share >= docs.MIN_WORD_SHARE
    assert is_prose(" ".join(text)[:-1] + "5.") == (share >= docs.MIN_WORD_SHARE)
    assert not is_prose(" ".join([*text, "c_6", "d_7", "e_8."]))


def test_strings_are_cut_at_blank_lines_rules_and_changes_of_indentation():
    text = f"{PROSE}\n\n{OTHER}\n\nNotes\n-----\n{PROSE} Once more.\nIndented:\n    {OTHER}\n"
    assert paragraphs(text) == [PROSE, OTHER, OTHER]  # "… Once more. Indented:" ends with a colon


def test_lines_of_one_paragraph_are_joined_by_one_space():
    first, second, third = PROSE[:40], PROSE[40:80], PROSE[80:]
    assert paragraphs(f"\n    {first}\n    {second}\n    {third}\n") == [
        " ".join(f"{first} {second} {third}".split())
    ]


@given(st.text(max_size=400))
def test_paragraphs_are_prose_on_one_line_and_cutting_them_again_changes_nothing(text):
    for found in paragraphs(f"{text}\n\n{PROSE}\n\n{text}"):
        assert is_prose(found)
        assert found == " ".join(found.split())
        assert paragraphs(found) == [found]


@given(st.text(max_size=200))
def test_the_split_depends_on_the_paragraph_alone(text):
    fraction = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") / 2**64
    assert split_of(text) == ("heldout" if fraction < 0.05 else "train")


def test_the_split_is_the_same_in_another_process():
    """Python's own hash is not."""
    code = (
        f"from gaussmark_lib.docs import split_of; print([split_of({PROSE!r} + str(i)) for i in"
        " range(100)])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert answer == f"{[split_of(PROSE + str(i)) for i in range(100)]}\n"


def test_a_twentieth_is_held_out():
    n = 20_000
    share = sum(split_of(f"{PROSE} {i}") == "heldout" for i in range(n)) / n
    assert abs(share - 0.05) < 3.3 * (0.05 * 0.95 / n) ** 0.5  # 99.9%


def write(path, *strings: str):
    path.write_text(
        "\n".join(f"x{i} = {text!r}" for i, text in enumerate(strings)), encoding="utf-8"
    )
    return path


def test_a_files_paragraphs_come_in_its_order_from_all_its_strings(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(
        f'"""{PROSE}"""\n\ndef f():\n    """Short.\n\n    {OTHER}\n    """\n    return'
        f' "{PROSE[:-1]} twice."\n'
    )
    assert paragraphs_of_file(path) == [PROSE, OTHER, f"{PROSE[:-1]} twice."]


@pytest.mark.parametrize(
    "content",
    [b"def f(:", b"\x00", b"\xff\xfe", b"x = '\xe9'", b"((((" * 5000],
    ids=["syntax", "null", "bytes", "latin", "deep"],
)
def test_a_file_that_does_not_parse_has_none(tmp_path, content):
    path = tmp_path / "a.py"
    path.write_bytes(content)
    assert paragraphs_of_file(path) == []


def test_a_string_that_no_file_can_hold_does_not_stop_the_rest(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(f'x = "{PROSE[:-1]} \\ud800."\ny = "{OTHER}"\n')
    assert paragraphs_of_file(path) == [OTHER]


def test_invalid_escapes_of_others_are_not_our_warnings(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(f'x = "\\d {PROSE}"\ny = "{OTHER}"\n')
    assert paragraphs_of_file(path) == [OTHER]


@given(
    st.integers(0, 50),
    st.sampled_from(["list", "dict", "call", "f-string", "decorator", "default", "match"]),
)
def test_no_string_is_missed_wherever_it_stands(tmp_path_factory, indent, place):
    code = {
        "list": f"x = [1, ({OTHER!r},)]",
        "dict": f"x = {{a: {{'b': {OTHER!r}}}}}",
        "call": f"f(*x, y={OTHER!r}, **z)",
        "f-string": f"f'{{x}} {{y:{{z}}}}' f{OTHER!r}",
        "decorator": f"@f({OTHER!r})\nclass A: ...",
        "default": f"lambda x={OTHER!r}: [y for y in x if y.z]",
        "match": f"match x:\n    case A(b={OTHER!r} | None): ...",
    }[place]
    path = tmp_path_factory.mktemp("code") / "a.py"
    path.write_text("\n" * indent + code)
    by_walking = [
        node.value
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Constant) and len(str(node.value)) >= docs.MIN_CHARS
    ]
    assert [text.strip() for text in by_walking] == paragraphs_of_file(path) == [OTHER]


@pytest.fixture
def built(tmp_path, monkeypatch) -> pd.DataFrame:
    one = write(tmp_path / "one.py", PROSE, OTHER)
    two = write(tmp_path / "two.py", OTHER, f"{PROSE[:-1]} too.")
    monkeypatch.setattr(docs, "source_files", lambda: [("a/one.py", one), ("b/two.py", two)])
    return docs.build()


def test_a_paragraph_found_twice_is_kept_once(built):
    assert built["source"].tolist() == ["a/one.py", "a/one.py", "b/two.py"]
    assert built["text"].tolist() == [PROSE, OTHER, f"{PROSE[:-1]} too."]
    assert built["split"].tolist() == [split_of(text) for text in built["text"]]


def test_no_paragraph_is_in_both_splits_of_the_whole_corpus_if_it_is_there():
    path = docs.CACHE / f"docs-{docs.fingerprint()}.parquet"
    if not path.exists():
        pytest.skip("the corpus has not been built yet, which takes most of a minute")
    corpus = docs.load()
    assert corpus["text"].is_unique
    assert (corpus["split"] == corpus["text"].map(split_of)).all()
    assert corpus["text"].map(is_prose).all()
    assert len(corpus) > 10_000


def test_the_cache_is_read_back_and_built_only_once(built, tmp_path, monkeypatch):
    monkeypatch.setattr(docs, "CACHE", tmp_path / "cache")
    first = docs.load()
    monkeypatch.setattr(docs, "build", lambda: pytest.fail("built again"))
    pd.testing.assert_frame_equal(docs.load(), first)
    assert [file.name for file in (tmp_path / "cache").iterdir()] == [
        f"docs-{docs.fingerprint()}.parquet"
    ]


def test_a_damaged_cache_is_built_again_and_that_is_said(built, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(docs, "CACHE", tmp_path)
    first = docs.load()
    [path] = tmp_path.glob("docs-*.parquet")
    path.write_bytes(path.read_bytes()[:100])
    pd.testing.assert_frame_equal(docs.load(), first)
    assert caplog.messages == [f"{path} is damaged, and is built again"]


@pytest.mark.parametrize("fault", ["file", "read-only"])
def test_a_cache_that_cannot_be_kept_is_noticed_before_the_work(tmp_path, monkeypatch, fault):
    monkeypatch.setattr(docs, "CACHE", tmp_path / "cache")
    monkeypatch.setattr(docs, "build", lambda: pytest.fail("it was built"))
    if fault == "file":
        (tmp_path / "cache").touch()
    else:
        monkeypatch.setattr(
            docs,
            "hidden_folder",
            lambda path: (_ for _ in ()).throw(OSError(30, "Read-only file system")),
        )
    with pytest.raises(
        CorpusError,
        match=r"corpus cannot be kept in .*cache: (File exists|Read-only file system); make room",
    ):
        docs.load()


class _Installed:
    """An installed distribution of this version, with these files."""

    def __init__(self, version="1.0", files=None):
        self.version, self.files = version, files


def install(monkeypatch, **distributions):
    """Exactly these packages are installed, and the corpus is of them."""

    def distribution(name):
        if name not in distributions:
            raise metadata.PackageNotFoundError(name)
        return distributions[name]

    monkeypatch.setattr(docs, "PACKAGES", tuple(distributions))
    monkeypatch.setattr(docs.metadata, "distribution", distribution)


def test_another_version_of_a_package_means_another_cache(monkeypatch):
    install(monkeypatch, torch=_Installed("2.13.0"), numpy=_Installed("2.4.6"))
    before = docs.fingerprint()
    assert docs.versions() == {"torch": "2.13.0", "numpy": "2.4.6"}
    install(monkeypatch, torch=_Installed("2.13.0"), numpy=_Installed("2.5.0"))
    assert docs.fingerprint() != before


def test_other_rules_mean_another_cache(monkeypatch):
    before = docs.fingerprint()
    monkeypatch.setattr(docs, "VERSION", docs.VERSION + 1)
    assert docs.fingerprint() != before


def test_a_build_for_other_hardware_has_the_same_documentation(monkeypatch):
    install(monkeypatch, torch=_Installed("2.13.0+cpu"))
    cpu = docs.fingerprint()
    install(monkeypatch, torch=_Installed("2.13.0"))
    assert docs.fingerprint() == cpu


def test_packages_outside_the_list_change_nothing(monkeypatch):
    install(monkeypatch, torch=_Installed("2.13.0"), seaborn=_Installed())
    monkeypatch.setattr(docs, "PACKAGES", ("torch",))
    before = docs.fingerprint()
    install(monkeypatch, torch=_Installed("2.13.0"))
    assert docs.fingerprint() == before


def test_a_missing_package_is_named(monkeypatch):
    install(monkeypatch, torch=_Installed("2.13.0"))
    monkeypatch.setattr(docs, "PACKAGES", ("torch", "no-such-package"))
    for ask in (docs.versions, docs.fingerprint, lambda: docs.files_of("no-such-package")):
        with pytest.raises(
            CorpusError, match="needs the package no-such-package, which is not installed"
        ):
            ask()


def test_a_package_without_a_list_of_its_files_is_named(monkeypatch):
    install(monkeypatch, torch=_Installed("2.13.0"))
    with pytest.raises(
        CorpusError, match=r"torch: expected a list of its installed files \(RECORD\), found none"
    ):
        docs.files_of("torch")


class _File(PurePosixPath):
    def locate(self):
        return Path("/installed", self)


@pytest.fixture
def two_packages(monkeypatch):
    names = [
        "b/z.py",
        "b/a.py",
        "b/tests/test_a.py",
        "b/data.txt",
        "../../bin/script.py",
        "b-1.0.dist-info/LICENSE",
    ]
    install(
        monkeypatch,
        b=_Installed(files=[_File(name) for name in names]),
        a=_Installed(files=[_File("a/tests/x.py"), _File("a.py")]),
    )


def test_the_files_of_a_package_are_sorted_by_name_and_lie_inside_it(two_packages):
    assert [name for name, _ in docs.files_of("b")] == ["b/a.py", "b/tests/test_a.py", "b/z.py"]
    assert next(name for name, _ in docs.files_of("b", suffix="")) == "b-1.0.dist-info/LICENSE"
    assert docs.files_of("b")[0] == ("b/a.py", Path("/installed/b/a.py"))


def test_the_source_files_are_those_of_the_packages_in_their_order_without_tests(two_packages):
    assert [name for name, _ in docs.source_files()] == ["b/a.py", "b/z.py", "a.py"]


def test_the_source_files_of_this_environment_are_those_of_the_list():
    files = docs.source_files()
    names = [name for name, _ in files]
    assert len(names) == len(set(names)) > 5_000
    assert {"torch/__init__.py", "numpy/__init__.py", "pydantic/main.py"} <= set(names)
    assert not any(
        "/tests/" in name or name.startswith(("json/", "gaussmark_lib/", "pytest/", "seaborn/"))
        for name in names
    )
    assert all(path.is_file() for _, path in files[::100])


def test_every_package_comes_with_the_project():
    """Each is a dependency in ``pyproject.toml``, or a dependency of one: no environment lacks it,
    and no extra decides the corpus.
    """
    declared = tomllib.loads((paths.ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    todo, needed = list(map(Requirement, declared)), set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if name in needed and not requirement.extras:
            continue
        needed.add(name)
        for line in metadata.requires(name) or []:
            further = Requirement(line)
            if any(
                further.marker is None or further.marker.evaluate({"extra": extra})
                for extra in requirement.extras or {""}
            ):
                todo += [further] if canonicalize_name(further.name) not in needed else []
    assert {canonicalize_name(package) for package in docs.PACKAGES} <= needed
