"""The tour's page: one file, which needs no script, no network and no other file; and what became
of a notebook's expectations, in words: of each finding whether it held, with its interval and n.

Formulas become MathML. Figures become WebP, which loses nothing and takes less than half of PNG's
bytes, and lie inside the page.
"""

import base64
import platform
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from html import escape
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jinja2
from latex2mathml.converter import convert
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from PIL import Image

from gaussmark_lib import runs, words
from gaussmark_lib.runs import folder as records
from gaussmark_lib.runs.notebook import Notebook

if TYPE_CHECKING:
    from gaussmark_lib.sweeps.tour import Stop

TEMPLATES = Path(__file__).parent / "templates"
SHARPER = 1.44  # pixels of a saved figure for one on the page
# a reader should see first what did not come out as expected
OUTCOMES = {
    "not held": "✗ not held",
    "held": "✓ held",
    "at the edge": "~ at the edge",
    "too little data": "? too little data",
}


class Finding(NamedTuple):
    """One quantity. ``reference`` is the same finding of the notebook's recorded large run."""

    name: str
    value: str
    basis: str  # interval and n
    outcome: str
    expected: str
    reference: str

    @property
    def verdict(self) -> str:
        return OUTCOMES[self.outcome]


def verdicts(run: records.Run | None, notebook: str) -> list[Finding]:
    """All of the notebook's findings: first those that did not hold, last those that are open."""
    claims = sorted(_claims(run), key=lambda claim: [*OUTCOMES].index(claim["outcome"]))
    large = {claim["claim"]: _in_words(claim) for claim in _claims(runs.reference(notebook))}
    return [
        Finding(
            claim["claim"],
            *words.estimate(claim),
            claim["outcome"],
            str(claim.get("expected", "")).replace("-", "−"),
            large.get(claim["claim"], ""),
        )
        for claim in claims
    ]


def _claims(run: records.Run | None) -> list[dict[str, Any]]:
    claims = run.results.get("claims", []) if run else []
    return [claim for claim in claims if claim.get("outcome") in OUTCOMES]


def _in_words(claim: dict[str, Any]) -> str:
    return f"{claim['outcome']}: {' '.join(words.estimate(claim))}"


class _Renderer(IPythonRenderer):
    def inline_math(self, body: str) -> str:
        return mathml(body)

    def block_math(self, body: str) -> str:
        return mathml(body, display="block")


def mathml(latex: str, display: str = "inline") -> str:
    """A formula as MathML; as its LaTeX where it is not understood, because a page is written after
    hours of runs.
    """
    try:
        return convert(latex, display=display)
    except Exception:  # its own errors, and IndexError or StopIteration for some formulas
        return f"<code>{escape(latex)}</code>"


def claim(source: Notebook) -> str:
    """The first paragraph under a notebook's title, as HTML."""
    rest = source.opening.removeprefix(f"# {source.title}").strip()
    markdown = MarkdownWithMath(renderer=_Renderer(escape=False, exclude_anchor_links=True))
    return markdown.render(rest.split("\n\n")[0])


def html(stops: "list[Stop]") -> str:
    """The page over what came of each notebook."""
    loader = jinja2.FileSystemLoader(TEMPLATES)
    options = {"autoescape": True, "trim_blocks": True, "lstrip_blocks": True}
    template = jinja2.Environment(loader=loader, **options).get_template("tour.html.j2")
    facts = {
        "made": datetime.now(),
        "commit": records.commit(),
        "python": platform.python_version(),
        "torch": records.version("torch"),
    }
    return template.render(views={stop.name: _view(stop) for stop in stops}, facts=facts)


def _view(stop: "Stop") -> dict[str, Any]:
    """What the page shows of a notebook."""
    run, findings = stop.run, verdicts(stop.run, stop.name)
    counts = Counter(finding.outcome for finding in findings)
    folder = run.dir if run else stop.failed
    # in the order in which they were made
    files = sorted(folder.glob("figures/*.png"), key=_made) if folder else []
    with ThreadPoolExecutor() as threads:
        figures = list(threads.map(_figure, files))
    results = run.results if run else {}
    return {
        "stop": stop,
        "headline": run and run.headline,
        "sigma": _sigma(results),
        "verdicts": findings,
        "counts": ", ".join(f"{n} {outcome}" for outcome, n in counts.items()),
        "checks": [check["check"] for check in results.get("checks", [])],
        "numbers": run.numbers if run else {},
        "figures": figures,
    }


def _sigma(results: dict[str, Any]) -> float | None:
    """The σ of the notebook's GaussMark watermark, where it recorded exactly one."""
    given = results.get("σ", results.get("sigma"))
    given = given.get("GaussMark") if isinstance(given, dict) else given
    return given if isinstance(given, int | float) else None


def _made(path: Path) -> tuple[int, str]:
    return path.stat().st_mtime_ns, path.name


def _figure(path: Path) -> dict[str, Any]:
    """A figure, its size on the page, and the description that its PNG file keeps."""
    stored = BytesIO()
    with Image.open(path) as image:
        image.convert("RGB").save(stored, "WEBP", lossless=True, method=2, quality=20)
        width, height = (round(length / SHARPER) for length in image.size)
        alt = " ".join(image.text.get("Description", "").split())
    data = base64.b64encode(stored.getvalue()).decode()
    return {"data": data, "width": width, "height": height, "alt": alt}
