"""The site's settings for Sphinx, which reads the repository as it lies here: written pages,
notebooks as executed, and docstrings (``make site``).

A written page is a Jinja template: ``claim("speed", "…")`` is what a reference record measured
of one of its claims. A number, a claim or a link that there is not ends the build.
"""

import hashlib
import json
import pkgutil
import re
import shutil
import subprocess
from base64 import b64decode
from collections.abc import Iterable
from html import unescape
from importlib import import_module
from itertools import pairwise
from pathlib import Path
from typing import Any

import jinja2
import nbformat
from PIL import Image

from gaussmark_lib import files, stats
from gaussmark_lib.workbench import answers, words
from gaussmark_lib.workbench.runs import folder, notebook, presets
from gaussmark_lib.workbench.sweeps.tour import TEMPLATES, mathml

project = html_title = "GaussMark workbench"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "notebooks/pages/index"
include_patterns = ["*.md", "notebooks/**", "papermill_runs/README.md", "data/doclm/README.md"]
exclude_patterns = [".*", "build", "**/.ipynb_checkpoints", "notebooks/gaussmark_experiments"]

nb_execution_mode = "off"  # the notebooks are committed as executed
nb_merge_streams = True
nb_render_markdown_format = "myst"  # formulas in outputs too
nb_ipywidgets_js: dict[str, dict] = {}  # which would come from the network
nb_mime_priority_overrides = [("html", "application/vnd.jupyter.widget-view+json", None)]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
autodoc_member_order = "bysource"
python_use_unqualified_type_names = True
nitpicky = True
# types in signatures, most of them other projects'; functions and modules must exist
nitpick_ignore_regex = [("py:(class|data|obj|exc)", ".*")]

html_theme = "furo"
html_math_renderer = "mathml"  # needs no script
html_copy_source = html_show_copyright = False
html_show_search_summary = (
    False  # fetched from each page, which a browser refuses for local files
)
html_static_path = ["site.css", str(TEMPLATES / "enlarge.js")]
html_css_files = ["site.css"]
html_js_files = ["enlarge.js"]
highlight_language = "none"  # formulas and shells; notebooks and fences name theirs
pygments_style, pygments_dark_style = "default", "github-dark"

REFERENCE = files.RUNS / "reference"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
# code, which stays as it is, or a formula
FORMULA = re.compile(r"<(code|pre|script)\b.*?</\1>|\$([^$<]+)\$", re.DOTALL)
PARTS = {  # page → the package that it is about
    "library": "gaussmark_lib",
    "library_beyond": "gaussmark_lib.beyond",
    "library_workbench": "gaussmark_lib.workbench",
    "library_experiments": "gaussmark_experiments",
}


def setup(app: Any) -> None:
    app.add_html_math_renderer("mathml", (_math, None), (_math, None))
    app.connect("source-read", _fill)
    app.connect("doctree-read", _describe)
    app.connect("autodoc-process-docstring", _set, priority=400)  # before napoleon
    app.connect("html-page-context", _check)
    app.connect("build-finished", _print)


def filled(text: str, reference: Path = REFERENCE) -> str:
    """A page's text with its numbers; an error for a record or a claim that there is not."""
    environment = jinja2.Environment(
        undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters["percent"] = words.percent
    environment.filters["short"] = _short
    environment.filters["plain"] = _plain
    records = {
        run.id: run for path in sorted(reference.iterdir()) if (run := folder.load(path))
    }
    return environment.from_string(text).render(
        records=records,
        headline=lambda name: records[name].headline,
        claim=lambda name, which, **options: _claim(records[name], which, **options),
        finding=lambda name, which: _finding(records[name], which),
        measured=lambda name, *what, **where: _measured(records[name], *what, **where),
        half_detected=_half_detected,
        share_of=lambda n_hits, n: stats.share([i < n_hits for i in range(n)]),
        likeness=_likeness(reference),
        gallery=lambda: _gallery(records.values()),
        paper=presets.read(presets.PAPER, "file")["models"],
        in_paper=_in_paper,
        pdf=CHROMIUM,
        commit=lambda: (folder.commit() or "unknown")[:12],
        modules=_modules,
        introduction=_introduction,
        presets=sorted(path.stem for path in files.PRESETS.glob("*.yaml")),
    )


def _modules(package: str) -> list[str]:
    """The modules on a package's page, in the order of the package's map: of the experiments,
    only their packages.
    """
    imported = import_module(package)
    found = pkgutil.iter_modules(imported.__path__, f"{package}.")
    are_all_shown = package != "gaussmark_experiments"
    shown = {module.name for module in found if module.ispkg or are_all_shown}
    in_map = dict.fromkeys(re.findall("``([a-z_]+)``", imported.__doc__))
    names = [f"{package}.{name}" for name in in_map]
    return [name for name in names if name in shown - {*PARTS.values()}]


def _introduction() -> str:
    """The README's picture, with its sentence, and what GaussMark is."""
    text = (files.ROOT / "README.md").read_text(encoding="utf-8")
    beginning = text.partition("\n## ")[0].partition("\n")[2]
    return re.sub(r"\]\((?!https?:)", "](/", beginning).strip()


def _finding(run: folder.Run, name: str) -> dict[str, Any]:
    (finding,) = [claim for claim in run.results["claims"] if claim["claim"] == name]
    return finding


def _claim(run: folder.Run, name: str, **options: bool) -> str:
    return " ".join(words.estimate(_finding(run, name), **options))


def _measured(
    run: folder.Run,
    table: str,
    column: str,
    most: float | None = None,
    cluster: str | None = None,
    **where: object,
) -> str:
    """The mean of a column of a record's table, over rows with these values; with ``most``,
    the share that is at most this. ``cluster`` names the column of rows that belong together.
    """
    rows = run.table(table)
    for name, value in where.items():
        rows = rows[rows[name] == value]
    values = rows[column] if most is None else rows[column] <= most
    groups = rows[cluster] if cluster else None
    estimate = stats.interval(values.to_numpy(), cluster=groups)
    return " ".join(words.estimate(estimate.row(), as_percent=values.dtype == bool))


def _half_detected(run: folder.Run, level: str) -> int:
    """The tokens after which half of the texts are detected with their own key, interpolated
    between the recorded lengths; an error if none or all lengths reach half.
    """
    rows = [row for row in run.results["power"] if row["kind"] == "own key"]
    points = sorted((row["n_tokens"], row["value"]) for row in rows if row["level"] == level)
    for (start, below), (end, above) in pairwise(points):
        if below < 0.5 <= above:
            return round(start + (end - start) * (0.5 - below) / (above - below))
    raise ValueError(f"{run.id}: expected a length after which half of the texts are detected")


def _in_paper(model: dict[str, Any], quantity: str, scheme: str = "GaussMark") -> float:
    (number,) = [
        row["value"]
        for row in model["numbers"]
        if (row["quantity"], row["scheme"]) == (quantity, scheme)
    ]
    return number


def _likeness(reference: Path) -> dict[str, dict[str, Any]]:
    """Return the rows that ``gaussmark_experiments.likeness`` measured: model → row."""
    path = reference / "likeness.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _gallery(records: Iterable[folder.Run]) -> dict[str, list[dict[str, Any]]]:
    """Model → its records that keep figures, with their notebooks; real models come first."""
    models: dict[str, list[dict[str, Any]]] = {title: [] for title in answers.TITLES.values()}
    for run in records:
        figures = [_figure(path) for path in sorted(run.dir.glob("figures/*.png"))]
        if figures:
            [source] = [
                path for path in notebook.numbered() if run.id.startswith(path.stem[3:])
            ]
            entry = {"id": run.id, "notebook": notebook.load(source), "figures": figures}
            models.setdefault(answers.title(run), []).append(entry)
    return {title: sorted(runs, key=_place) for title, runs in models.items() if runs}


def _place(entry: dict[str, Any]) -> tuple[str, str]:
    return entry["notebook"].name, entry["id"]


def _figure(path: Path) -> dict[str, str]:
    """A figure's file, and the title and the sentence that the file carries."""
    with Image.open(path) as image:
        words_of_file = {name: " ".join(text.split()) for name, text in image.text.items()}
    described = words_of_file.get("Description", "")
    first_sentence = re.match(r".*?[.?](?= |$)", described)
    if not first_sentence:
        raise ValueError(f"{path}: expected a description in the file, found none")
    title = words_of_file.get("Title", first_sentence[0].removesuffix("."))
    sentence = described.removeprefix(title).lstrip(",. ")
    return {"file": path.name, "title": title, "sentence": sentence}


def _plain(text: str) -> str:
    r"""Text that Markdown shows as it is, such as ``\|`` for ``|``."""
    return re.sub(r"([\\`*_$<>|\[\]])", r"\\\1", text)


def _short(estimate: dict[str, float], decimals: int = 2) -> str:
    """Such as ``.92 (.88 to .97)``."""
    value, low, high = (
        re.sub(r"^(-?)0\.", r"\1.", f"{estimate[name]:.{decimals}f}").replace("-", "−")
        for name in ("value", "low", "high")
    )
    return f"{value} ({low} to {high})"


def _fill(app: Any, document: str, source: list[str]) -> None:
    if document.startswith("notebooks/pages/"):
        source[0] = filled(source[0])


def _math(translator: Any, node: Any) -> None:
    display = "block" if node.tagname == "math_block" else "inline"
    translator.body.append(mathml(node.astext(), display))
    node.clear()  # its LaTeX, which would be written behind it


def _describe(app: Any, doctree: Any) -> None:
    """Formulas in HTML, such as that of a folded answer, are set: MyST does not read it. Names
    in the map of a package lead to its modules. Figures get the texts that their notebooks
    keep; MyST-NB names them by a hash of their bytes.
    """
    for raw in doctree.findall(lambda node: node.tagname == "raw"):
        raw[:] = [type(text)(_set_formulas(text)) for text in raw.children]
    package = PARTS.get(app.env.docname.removeprefix("notebooks/pages/"))
    if package:
        _link(doctree, app.env.docname, package)
    path = Path(app.env.doc2path(app.env.docname))
    cells = nbformat.read(path, as_version=4).cells if path.suffix == ".ipynb" else []
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    texts = {
        hashlib.sha256(b64decode(output.data["image/png"])).hexdigest(): image["alt"]
        for output in outputs
        if "alt" in (image := output.get("metadata", {}).get("image/png", {}))
    }
    for image in doctree.findall(lambda node: node.tagname == "image"):
        image["alt"] = texts.get(Path(image["uri"]).stem, image.get("alt", ""))
        image["loading"] = "lazy"


def _set_formulas(html: str) -> str:
    """Set the formulas between dollars, except in code."""
    return FORMULA.sub(
        lambda match: mathml(unescape(match[2])) if match[2] else match[0], html
    )


def _check(app: Any, page: str, template: str, context: dict[str, Any], doctree: Any) -> None:
    """A formula that nobody set ends the build."""
    left = [match[0] for match in FORMULA.finditer(context.get("body", "")) if match[2]]
    if left:
        raise ValueError(f"{page}: expected formulas that are set, found {left[0]}")


def _link(doctree: Any, document: str, package: str) -> None:
    """Link the names in the map at the top of a package's page."""
    from sphinx.addnodes import pending_xref

    known = {*PARTS.values()}.union(*map(_modules, PARTS.values()))
    top = [node for node in doctree[0] if node.tagname != "section"]
    nodes = [node for part in top for node in part.findall()]
    for literal in [node for node in nodes if node.tagname == "literal"]:
        target = f"{package}.{literal.astext()}"
        if target in known:
            link = {"refdomain": "py", "reftype": "mod", "reftarget": target}
            link |= {"refdoc": document, "refexplicit": True}
            literal.replace_self(pending_xref("", literal.deepcopy(), **link))


def _print(app: Any, error: Exception | None) -> None:
    """The short paper as a PDF next to its page, if Chromium is installed. Links to others
    are left out, because they would name folders of this machine.
    """
    page = Path(app.outdir) / "notebooks" / "pages" / "short_paper.html"
    if not CHROMIUM or error or not page.exists():
        return
    text = page.read_text(encoding="utf-8")
    alone = page.with_name("short_paper.alone.html")
    alone.write_text(re.sub('(<a [^>]*)href="(?!http)[^"]*"', r"\1", text), encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--no-pdf-header-footer"]
    target = f"--print-to-pdf={page.with_suffix('.pdf')}"
    command = [CHROMIUM, *options, target, alone.as_uri()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    alone.unlink()


def _set(app: Any, what: str, name: str, it: Any, options: Any, lines: list[str]) -> None:
    """Indented blocks of docstrings: formulas are set, and others become literal blocks.
    :func:`score.score` is looked for in the whole library.
    """
    section = inside = False
    before = ""
    made: list[str] = []
    block: list[str] = []
    for line in [*lines, "end"]:
        if line and not line.startswith(" "):
            made += _displayed(block)
            section = bool(re.fullmatch(r"(Args|Attributes|Raises|Returns|Yields):", line))
            inside = False
            block = []
        elif line and not (section or inside or before):
            inside = not "".join(made[-2:]).endswith("::")  # which make a block themselves
        if inside:
            block.append(line)
        else:  # |z| is no substitution
            line = re.sub(r"(?<![`\w])\|([^|`\s]+)\|", r"\\|\1\\|", line)
            made.append(re.sub(r":(func|class|meth):`(?=\w+\.)", r":\1:`.", line))
        before = line
    lines[:] = made[:-1]


def _displayed(block: list[str]) -> list[str]:
    """An indented block as reStructuredText."""
    text = "\n".join(block).rstrip()
    if not text:
        return []
    if not re.search("[Σ⟨‖∫∇·²√]|~ N", text) or re.search('[`"@]', text):
        return ["::", "", *text.split("\n"), ""]
    formulas = [f"   {latex(line.strip())}" for line in text.split("\n") if line]
    return [line for formula in formulas for line in (".. math::", "", formula, "")]


FUNCTIONS = {"log", "exp", "sin", "arcsin", "max", "min"}
SYMBOLS = {
    **{"Σ": r"\sum ", "∫": r"\int ", "∇": r"\nabla ", "∂": r"\partial ", "‖": r"\Vert "},
    **{"⟨": r"\langle ", "⟩": r"\rangle ", "≈": r"\approx ", "~": r"\sim ", "·": r"\cdot "},
    **{"…": r"\dots ", "≥": r"\ge ", "−": "-", "ᵀ": r"^\top ", "²": "^2 ", "#": r"\#"},
}


def latex(formula: str) -> str:
    """A formula of a docstring, such as ``Σ_s ⟨ξ_s, G_s⟩ / √(n + 1)``, as LaTeX."""
    formula = re.sub(r"(?<![_^])\{([^{}]*)\}", r"\\{\1\\}", formula)  # {1, 2} is a set
    formula = re.sub(" {3,}", r" \\quad ", formula)
    formula = re.sub(r"√\(((?:[^()]|\([^()]*\))*)\)", r"\\sqrt{\1}", formula)
    word = r"[A-Za-z](?:-?[a-z]+|[A-Z]+)"
    formula = re.sub(rf"(?<![\\_{{A-Za-z]){word}(?: {word})*", _word, formula)
    formula = re.sub(r"_(<?[A-Za-z0-9θ]+)", r"_{\1}", formula)
    formula = re.sub(r"\^(\(\w+\))", r"^{\1}", formula)
    return "".join(SYMBOLS.get(letter, letter) for letter in formula)


def _word(match: re.Match) -> str:
    """Words between symbols: a function, the d of a derivative, or text."""
    text = match[0]
    if text in FUNCTIONS:
        gap = r"\," if match.string[match.end() :].startswith(" ") else ""
        return f"\\{text}{gap} "
    if re.fullmatch("d[a-z]", text):
        return text
    return f"\\text{{ {text} }}" if " " in text else f"\\text{{{text}}}"
