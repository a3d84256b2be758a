from gaussmark_lib.workbench.plots import show


def test_texts_are_escaped_and_in_order():
    html = show.side_by_side({"a": "<b>bold?</b>", "b & c": "fine"}).data
    assert "<b>" not in html
    assert "&lt;b&gt;bold?" in html
    assert html.index("bold") < html.index("b &amp; c") < html.index("fine")


def test_a_sentence_is_markdown():
    assert show.sentence("ψ is **1**").data == "ψ is **1**"
