"""How large the house is: files, lines and code tokens by room
(``python tests/structure/ruler.py``).

Lines are those of files that ruff keeps at 100 columns; tokens are Python's own, without comments
and layout, so that a budget cannot be met by dense lines.
"""

import io
import tokenize
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
COLUMNS = 100
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENCODING,
    tokenize.ENDMARKER,
}
BESIDE_THE_CORE = {"__init__.py", "record.py", "verdict.py", "words.py", "files.py"}


class Size(NamedTuple):
    files: int = 0
    lines: int = 0
    tokens: int = 0

    def __add__(self, other: "Size") -> "Size":
        return Size(*(a + b for a, b in zip(self, other, strict=True)))


def size(source: str) -> Size:
    found = tokenize.generate_tokens(io.StringIO(source).readline)
    return Size(1, len(source.splitlines()), sum(token.type not in LAYOUT for token in found))


def sizes(folder: Path) -> dict[str, Size]:
    """Room → its size; ``core`` is the flat scheme, ``beside`` the flat files that are not it."""
    rooms: dict[str, Size] = defaultdict(Size)
    for path in sorted(folder.rglob("*.py")):
        inside = path.relative_to(folder).parts
        flat = "beside" if inside[0] in BESIDE_THE_CORE else "core"
        rooms[inside[0] if len(inside) > 1 else flat] += size(path.read_text(encoding="utf-8"))
    return dict(rooms)


def wide(folder: Path) -> list[str]:
    """The lines of more than ``COLUMNS`` characters, as file:line."""
    return [
        f"{path.relative_to(folder)}:{number}"
        for path in sorted(folder.rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if len(line) > COLUMNS
    ]


if __name__ == "__main__":
    for name in ("gaussmark_lib", "tests"):
        rooms = sizes(ROOT / name)
        print(
            f"{name:16}{'files':>8}{'lines':>8}{'tokens':>9}   wide lines: {len(wide(ROOT / name))}"
        )
        rows = sorted(rooms.items(), key=lambda row: row[1].tokens)
        for room, found in [*rows, ("all", sum(rooms.values(), Size()))]:
            print(f"  {room:14}{found.files:8,}{found.lines:8,}{found.tokens:9,}")
