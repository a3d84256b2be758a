"""Sphinx's settings. Formulas become MathML here, which a browser sets without a script; figures
get the texts that their notebooks keep.
"""

import hashlib
import inspect
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat

from gaussmark_lib.site import docstrings
from gaussmark_lib.sweeps.mathml import mathml

project = "GaussMark workbench"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
root_doc = "index"
exclude_patterns = ["README.md"]  # it is the front page, included by index.md

nb_execution_mode = "off"  # the notebooks are committed as executed
nb_merge_streams = True
nb_ipywidgets_js: dict[str, dict] = {}  # which would come from the network
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
python_use_unqualified_type_names = True
nitpicky = True
nitpick_ignore_regex = [
    ("py:(class|data|obj|exc)", ".*")
]  # types in signatures, most of them other projects'; functions and modules must exist

html_theme = "furo"
html_title = project
html_math_renderer = "mathml"
html_copy_source = html_show_copyright = False
html_show_search_summary = False  # fetched from each page, which a browser refuses for local files
html_static_path = [str(Path(__file__).parent / "templates" / "site.css")]
html_css_files = ["site.css"]
highlight_language = "none"  # formulas and shells; notebooks and fences name theirs
pygments_style, pygments_dark_style = "default", "github-dark"


def setup(app: Any) -> None:
    app.add_html_math_renderer("mathml", (_math, None), (_math, None))
    app.connect("doctree-read", _describe)
    app.connect(
        "autodoc-process-docstring",
        lambda app, what, name, it, options, lines: docstrings.mend(lines),
        priority=400,
    )  # before napoleon
    app.connect("autodoc-process-signature", _signature)


def _signature(
    app: Any, what: str, name: str, it: Any, *rest: Any
) -> tuple[str, str | None] | None:
    return (
        docstrings.signature(it)
        if inspect.isfunction(it) and it.__module__.startswith("gaussmark_lib")
        else None
    )


def _math(translator: Any, node: Any) -> None:
    translator.body.append(mathml(node.astext(), display=node.tagname == "math_block"))
    node.clear()  # its LaTeX, which would be written behind it


def _describe(app: Any, doctree: Any) -> None:
    """MyST-NB names an output's image by the hash of its bytes."""
    source = Path(app.env.doc2path(app.env.docname))
    texts = dict(_texts(source)) if source.suffix == ".ipynb" else {}
    for image in doctree.findall(lambda node: node.tagname == "image"):
        if text := texts.get(Path(image["uri"]).stem):
            image["alt"] = text


def _texts(notebook: Path) -> Iterator[tuple[str, str]]:
    for cell in nbformat.read(notebook, as_version=4).cells:
        for output in cell.get("outputs", []):
            if alt := output.get("metadata", {}).get("image/png", {}).get("alt"):
                yield hashlib.sha256(b64decode(output.data["image/png"])).hexdigest(), alt
