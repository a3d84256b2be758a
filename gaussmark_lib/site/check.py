"""What every page must keep: a text for each image, and nothing that the browser fetches from
elsewhere.
"""

from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

FETCHED = {
    "img": "src",
    "script": "src",
    "link": "href",
    "source": "src",
    "iframe": "src",
    "video": "src",
}
NEVER_FETCHED = {"canonical", "license", "author"}  # links of these kinds only name something


def faults(folder: Path) -> list[str]:
    """One line for each fault of each HTML page in a folder."""
    return [
        f"{page.relative_to(folder)}: {fault}"
        for page in sorted(folder.rglob("*.html"))
        for fault in of_page(page.read_text(encoding="utf-8"))
    ]


def of_page(html: str) -> list[str]:
    """The faults of one page.

    >>> of_page('<img src="a.png" alt=" "><script src="https://cdn.example/x.js"></script>')
    ['the image a.png has no text (alt)', 'https://cdn.example/x.js would be fetched from the
    network']
    """
    reader = _Reader()
    reader.feed(html)
    return list(reader.faults())


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in FETCHED:
            self.tags.append((tag, dict(attrs)))

    def faults(self) -> Iterator[str]:
        for tag, given in self.tags:
            address = given.get(FETCHED[tag]) or ""
            alt = (given.get("alt") or "").strip()
            if tag == "img" and (
                not alt or Path(alt).name == Path(address).name
            ):  # Sphinx puts the file's name where there is none
                yield f"the image {address[:80]} has no text (alt)"
            if (
                address.startswith(("http:", "https:", "//"))
                and given.get("rel") not in NEVER_FETCHED
            ):
                yield f"{address[:80]} would be fetched from the network"
