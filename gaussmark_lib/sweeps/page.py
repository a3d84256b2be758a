"""The tour's page: one file, which needs no script, no network and no other file.

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
from typing import TYPE_CHECKING, Any

import jinja2
from latex2mathml.converter import convert
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from PIL import Image

from gaussmark_lib.runs import folder as records
from gaussmark_lib.runs import notebook as notebooks
from gaussmark_lib.sweeps import findings

if TYPE_CHECKING:
    from gaussmark_lib.sweeps.tour import Stop

TEMPLATES = Path(__file__).parent / "templates"
SHARPER = 1.44  # pixels of a saved figure for one on the page


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


def claim(source: notebooks.Notebook) -> str:
    """The first paragraph under a notebook's title, as HTML."""
    rest = source.opening.removeprefix(f"# {source.title}").strip()
    markdown = MarkdownWithMath(renderer=_Renderer(escape=False, exclude_anchor_links=True))
    return markdown.render(rest.split("\n\n")[0])


def html(stops: "list[Stop]") -> str:
    """The page over what came of each notebook."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    facts = {
        "made": datetime.now(),
        "commit": records.commit(),
        "python": platform.python_version(),
        "torch": records.version("torch"),
    }
    views = {stop.name: _view(stop) for stop in stops}
    return environment.get_template("tour.html.j2").render(views=views, facts=facts)


def _view(stop: "Stop") -> dict[str, Any]:
    """What the page shows of a notebook."""
    verdicts = findings.verdicts(stop.run, stop.name)
    counts = Counter(line.outcome for line in verdicts)
    folder = stop.run.dir if stop.run else stop.failed
    # in the order in which they were made
    files = sorted(folder.glob("figures/*.png"), key=_made) if folder else []
    with ThreadPoolExecutor() as threads:
        figures = list(threads.map(_figure, files))
    return {
        "stop": stop,
        "headline": stop.run and stop.run.headline,
        "sigma": findings.sigma(stop.run),
        "verdicts": verdicts,
        "counts": ", ".join(f"{n} {outcome}" for outcome, n in counts.items()),
        "checks": findings.checks(stop.run),
        "numbers": stop.run.numbers if stop.run else {},
        "figures": figures,
    }


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
