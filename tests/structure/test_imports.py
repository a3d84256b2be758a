"""The shape of the library, from its syntax trees: a flat core that imports no room, rooms around
it without a circle, small files.

Nothing is imported here, so that what is checked is what the files say, lazy imports included.
"""

import ast
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from gaussmark_lib.paths import ROOT

LIBRARY, TESTS = ROOT / "gaussmark_lib", ROOT / "tests"
MOST_CORE_FILES = 29
FRONT_DOOR = "cli"  # the room that imports every other, each when it is needed; nobody imports it
NO_ROOM = {
    "browser",
    "gpu",
    "notebooks",
    "robustness",
    "structure",
}  # folders of tests that mirror no room
PLAIN_ERRORS = {"ValueError", "TypeError", "Exception", "AssertionError"}
# Plain errors that are right where they are: {"module: function": "why"}.
PLAIN_ERRORS_ALLOWED: dict[str, str] = {}

Trees = Mapping[str, ast.Module]


def trees(folder: Path) -> dict[str, ast.Module]:
    """The syntax tree of every module of a package, by its dotted name; a package's own is that of
    its ``__init__``.
    """
    found = {}
    for file in sorted(folder.rglob("*.py")):
        parts = [folder.name, *file.relative_to(folder).with_suffix("").parts]
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = ast.parse(
            file.read_text(encoding="utf-8")
        )
    return found


def imports(modules: Trees, *, lazy: bool = True) -> dict[str, set[str]]:
    """Which modules each module imports, those of this package only; without ``lazy``, what an
    import of it runs at once.
    """
    return {name: _imported(name, tree, modules, lazy) - {name} for name, tree in modules.items()}


def _imported(name: str, tree: ast.Module, modules: Trees, lazy: bool) -> set[str]:
    found = set()
    for node in ast.walk(tree) if lazy else _at_once(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{name}: a relative import"
            both = {alias.name: f"{node.module}.{alias.name}" for alias in node.names}
            found |= {module if module in modules else node.module for module in both.values()}
    return found & set(modules)


def _at_once(node: ast.AST) -> Iterator[ast.AST]:
    """The nodes that run when a module is imported: not those inside functions, nor those for type
    checkers only.
    """
    for child in ast.iter_child_nodes(node):
        for_checkers = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        if (
            not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            and not for_checkers
        ):
            yield child
            yield from _at_once(child)


def room(module: str, modules: Trees) -> str:
    """The room that a module lies in; "" for the flat core."""
    parts = module.split(".")
    is_package = any(other.startswith(f"{'.'.join(parts[:2])}.") for other in modules)
    return parts[1] if len(parts) > 1 and is_package else ""


def core_imports_of_rooms(modules: Trees) -> list[str]:
    inside = {name: room(name, modules) for name in modules}
    return [
        f"{name} imports {other}"
        for name, others in imports(modules).items()
        for other in others
        if not inside[name] and inside[other]
    ]


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """The names of one circle, or nothing."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def between_rooms(modules: Trees) -> dict[str, set[str]]:
    """Which rooms each room imports."""
    graph: dict[str, set[str]] = {}
    for name, others in imports(modules).items():
        if here := room(name, modules):
            graph.setdefault(here, set()).update(
                {room(other, modules) for other in others} - {"", here}
            )
    return graph


def plain_errors(modules: Trees) -> list[str]:
    """Where Python's own errors are raised in place of the library's: "module: function"."""
    found = []
    for name, tree in modules.items():
        for function in [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        ]:
            raised = [
                ast.unparse(node.exc).partition("(")[0]
                for node in ast.walk(function)
                if isinstance(node, ast.Raise) and node.exc
            ]
            found += [f"{name}: {function.name}"] * bool(PLAIN_ERRORS & set(raised))
    return found


def undocumented(modules: Trees) -> list[str]:
    return [name for name, tree in modules.items() if not ast.get_docstring(tree)]


def unmirrored(tests: Path, library: Path) -> list[str]:
    """Folders of tests/unit and tests/oracle that mirror no room, and rooms without any."""
    rooms = {path.parent.name for path in library.glob("*/__init__.py")}
    tested = {
        path.parent.name
        for kind in ("unit", "oracle")
        for path in (tests / kind).glob("*/test_*.py")
    }
    return sorted((tested - rooms) | (rooms - tested))


@pytest.fixture(scope="module")
def library() -> dict[str, ast.Module]:
    return trees(LIBRARY)


def test_the_core_imports_no_room(library):
    assert core_imports_of_rooms(library) == []


def test_the_front_door_opens_without_a_room_and_nobody_imports_it(library):
    """What ``gaussmark --help`` runs imports no other room; where the work is done, a command
    imports its room when it is needed.
    """
    at_once, seen, todo = imports(library, lazy=False), set(), {f"gaussmark_lib.{FRONT_DOOR}"}
    while todo:
        seen |= (name := {todo.pop()})
        todo |= at_once[name.pop()] - seen
    assert {room(name, library) for name in seen} == {FRONT_DOOR, ""}
    inside = {name: room(name, library) for name in library}
    assert [
        name
        for name, others in imports(library).items()
        if inside[name] != FRONT_DOOR and FRONT_DOOR in {inside[other] for other in others}
    ] == []


def test_no_circle_of_rooms(library):
    rooms = between_rooms(library)
    rooms["plots"].discard("experiments")  # until the last notebook's figures have moved
    assert circle(rooms) == []


def test_no_circle_of_modules(library):
    assert circle(imports(library, lazy=False)) == []


def test_the_library_raises_its_own_errors(library):
    assert sorted(set(plain_errors(library)) - set(PLAIN_ERRORS_ALLOWED)) == []
    assert set(PLAIN_ERRORS_ALLOWED) <= set(plain_errors(library)), (
        "what is allowed and not there any more"
    )


def test_every_module_says_what_it_is(library):
    assert undocumented(library) == []


def test_the_core_is_small():
    assert len(list(LIBRARY.glob("*.py"))) <= MOST_CORE_FILES


def test_tests_mirror_the_rooms():
    assert unmirrored(TESTS, LIBRARY) == []
    assert {
        path.name for path in TESTS.iterdir() if path.is_dir() and path.name != "__pycache__"
    } == {"unit", "oracle", *NO_ROOM}


@pytest.fixture
def broken(tmp_path) -> Path:
    """A small library with every fault."""
    files = {
        "__init__.py": '"""The map."""',
        "core.py": "def f():\n    from lib.attic import box",
        "one.py": "from lib import two",
        "two.py": '"""Two."""\nimport lib.one\ndef f():\n    raise ValueError("no")',
        "attic/__init__.py": '"""Up."""',
        "attic/box.py": "from lib.cellar.wine import red",
        "cellar/__init__.py": '"""Down."""',
        "cellar/wine.py": "def f():\n    import lib.attic.box\n",
    }
    for name, text in files.items():
        path = tmp_path / "lib" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "lib"


def test_each_check_can_fail(broken, tmp_path):
    modules = trees(broken)
    assert core_imports_of_rooms(modules) == ["lib.core imports lib.attic.box"]
    assert set(circle(between_rooms(modules))) == {"attic", "cellar"}
    assert set(circle(imports(modules, lazy=False))) == {"lib.one", "lib.two"}
    assert plain_errors(modules) == ["lib.two: f"]
    assert undocumented(modules) == ["lib.attic.box", "lib.cellar.wine", "lib.core", "lib.one"]
    (tmp_path / "tests/unit/garage").mkdir(parents=True)
    (tmp_path / "tests/unit/garage/test_car.py").touch()
    assert unmirrored(tmp_path / "tests", broken) == ["attic", "cellar", "garage"]


def test_what_is_imported_is_found(broken):
    found = imports(trees(broken))
    assert found["lib.cellar.wine"] == {"lib.attic.box"}
    assert found["lib.attic.box"] == {"lib.cellar.wine"}
    assert imports(trees(broken), lazy=False)["lib.core"] == set()
    assert found["lib.core"] == {"lib.attic.box"}
