from base64 import b64decode
from io import BytesIO

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from gaussmark_lib.workbench.plots import show


def test_texts_are_escaped_and_in_order():
    html = show.side_by_side({"a": "<b>bold?</b>", "b & c": "fine"}).data
    assert "<b>" not in html
    assert "&lt;b&gt;bold?" in html
    assert html.index("bold") < html.index("b &amp; c") < html.index("fine")


def test_a_sentence_is_markdown():
    assert show.sentence("ψ is **1**").data == "ψ is **1**"


def test_a_saved_figure_is_inside_the_page_with_its_description(tmp_path):
    words = PngInfo()
    words.add_text("Description", "Power  against\ntokens.")
    path = tmp_path / "power.png"
    Image.new("RGB", (40, 30), "orange").save(path, pnginfo=words)
    for colours in (None, 4):
        picture = show.saved(path, colours)
        assert (picture.alt, picture.width, picture.height) == ("Power against tokens.", 40, 30)
        data = picture.source.removeprefix("data:image/webp;base64,")
        with Image.open(BytesIO(b64decode(data))) as shown:
            assert shown.getpixel((1, 1)) == (255, 165, 0)
