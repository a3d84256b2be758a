"""The words of ``gaussmark bench``: short headings, and what a reader must know.

They are not in ``bench``, because a table is measured again when code that it depends on changes.
"""

from collections.abc import Sequence

from gaussmark_experiments import bench, rewriting

HEADINGS = {  # column → words that a narrow terminal can break
    "10% substituted": "10% subst.",
    "30% substituted": "30% subst.",
    bench.PASTED: "copy- paste 25%",
    bench.REWRITTEN: "re- writ- ten",
    bench.TUNED: "LoRA 200",
    "by Spanish": "Span- ish",
    "by Catalan": "Cata- lan",
    "by Esperanto": "Espe- ranto",
    "by all three": "all three",
    "by SmolLM2": "Smol- LM2",
    "by Gemma": "Gem- ma",
    rewriting.SHUFFLED: "shuf- fled",
    bench.UNMARKED: "plain, Smol- LM2",
}
OF_EDITS = (
    "Names elsewhere: 10% and 30% of the tokens replaced at random is nearest to MarkLLM's Word-S,"
    " the round trip to its BackTranslationTextEditor, rewritten to its Doc-P (GPTParaphraser);"
    " notebooks/pages/bench.md lists the differences. Tokens at 2%: the median number of tokens for"
    " detection at a false-alarm rate of 2%, as in the benchmark Mark My Words."
)
OF_REWRITING = (
    "Rewritten by Apertium (to Spanish, Catalan or Esperanto and back; all three one after another)"
    " or, sentence by sentence, by SmolLM2 and Gemma 3 270M; the test knows the prompt. Controls:"
    " the same words shuffled, and plain text that SmolLM2 rewrote. Meaning: what a judge, Gemma 3"
    " 270M, learns from the rewritten text about the original; a rewriting is a paraphrase if the"
    " interval of its meaning lies above one half. notebooks/pages/bench.md explains more."
)


def about(columns: Sequence[str]) -> str:
    """Return what a reader must know about the columns of a table."""
    return OF_REWRITING if {*columns} & {*rewriting.WAYS} else OF_EDITS
