"""Which texts ask for a workflow (page 004 §2)."""

from __future__ import annotations

import time

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agentflow.pipeline import activation_terms as terms
from agentflow.pipeline.activation import MessageLength, classify, fold, mask
from tests.unit.pipeline.activation_texts import (
    ACTIONS,
    INTENTS,
    NEGATED,
    NEGATIONS,
    REVIEW_FIRST,
    TEXTS,
)

GRID = [
    *(("W", f"{action} 這個 {intent}") for action in ACTIONS for intent in INTENTS),
    *(("D", f"{negation}{rest}") for negation in NEGATIONS for rest in NEGATED),
    *(("R", f"workflow: 寄信, {marker}") for marker in REVIEW_FIRST),
]
ALL = [*TEXTS, *GRID]


def said(text: str) -> str:
    found = classify(text)
    if found.mode == "direct_answer":
        assert found.trigger == "none"
        assert not found.execution_requested
        return "D"
    return "W" if found.execution_requested else "R"


def test_there_are_more_than_300_texts_in_both_scripts():
    texts = {text for _, text in ALL}
    assert len(texts) > 300
    assert sum(any("\u4e00" <= c <= "\u9fff" for c in text) for text in texts) > 150
    assert sum(text.isascii() for text in texts) > 80


@pytest.mark.parametrize(("wanted", "text"), TEXTS)
def test_a_text_is_taken_for_what_it_is(wanted: str, text: str):
    assert said(text) == wanted


def test_each_term_of_the_grids_counts():
    assert [(text, said(text)) for _, text in GRID] == [(text, wanted) for wanted, text in GRID]


@pytest.mark.parametrize(
    ("text", "rest"),
    [
        ("啟用 workflow:寄 信 ", "寄 信"),
        ("启用　Workflow: A：B ", "A：B"),
        ("workflow:", ""),
        ("  WORKFLOW : x\ny ", "x\ny"),
    ],
)
def test_a_prefix_gives_on_the_rest_of_the_text_itself(text: str, rest: str):
    found = classify(text)
    assert (found.trigger, found.user_input) == ("explicit_prefix", rest)


def test_the_detector_gives_on_the_whole_text_and_the_matched_terms():
    found = classify("  Plan the Workflow, 先給我看 ")
    assert found.trigger == "semantic_detector"
    assert found.user_input == "Plan the Workflow, 先給我看"
    assert (found.matched.intent, found.matched.action) == (("workflow",), ("plan",))
    assert found.matched.review == ("先給我看",)


def test_the_caller_can_ask_for_a_review_and_never_take_one_back():
    assert not classify("workflow: x", review=True).execution_requested
    assert not classify("workflow: x, 先給我看", review=False).execution_requested


@pytest.mark.parametrize("text", ["", "  \n", "x" * 100_001])
def test_a_text_that_is_empty_or_too_long_is_refused(text: str):
    with pytest.raises(MessageLength):
        classify(text)


def test_a_text_of_100_000_characters_is_judged_in_a_second():
    started = time.process_time()
    parts = ("a", "`` ` ", "不要plan ", "workflow plan ", "www.", "://", "建", ".", "/", "plan@", "別")
    for part in (*parts, "~~~\n", "a~~~ ", "```\n"):
        classify((part * 100_000)[:100_000])
    classify("\n".join("a" + "~" * length for length in range(440, 2, -1)))
    assert time.process_time() - started < 15


def test_the_terms_of_the_source_are_all_there():
    assert {"workflow", "流程", "多階段", "stage"} <= {*terms.INTENT}
    wanted = {"建立", "設計", "規劃", "plan", "拆步驟", "先給我計劃"}
    assert wanted <= {*terms.ACTION}
    assert terms.BUILD == "建"
    assert {"先給我看", "我修正後再建立", "先 review", "先review"} <= {*terms.REVIEW}


def test_each_word_of_the_tables_does_what_its_table_says():
    asks = "{} plan the workflow"
    assert [word for word in terms.REVIEW if said(f"workflow: 寄信, {word}") != "R"] == []
    questions = (*terms.DEFINITION, *terms.DEFINITION_BEFORE)
    assert [word for word in questions if said(asks.format(word)) != "D"] == []
    assert [word for word in questions if said(f"please, {asks.format(word)}") != "W"] == []
    assert [word for word in terms.NEGATION if said(asks.format(word)) != "D"] == []


# -- properties -----------------------------------------------------------------------------------

TERMS = [
    *terms.INTENT,
    *terms.ACTION,
    *terms.REVIEW,
    *terms.DEFINITION_BEFORE,
    "build",
    "建一個",
    "please",
    "what is",
    "請",
    "不要",
]
PLAIN = st.sampled_from([*TERMS, "x", "的", " ", ", ", "。", "!", "\n", "3", "_", "-"])
SENTENCES = st.lists(PLAIN, min_size=1, max_size=12).map("".join).filter(lambda t: bool(t.strip()))


@given(SENTENCES)
def test_a_masked_region_never_matches(text: str):
    hidden = text.replace("`", "").replace("\n", " ")
    for masked in (f"x `{hidden}` y", f"```\n{hidden}\n````", f"~~~ sh\n{text.replace('`', '')}\n~~~\ny"):
        found = classify(masked)
        assert found.mode == "direct_answer"
        assert found.matched.intent == found.matched.action == found.matched.review == ()


@given(SENTENCES)
def test_case_and_width_never_matter(text: str):
    wide = "".join(chr(ord(c) + 0xFEE0) if "!" <= c <= "~" else "\u3000" if c == " " else c for c in text)
    first = classify(text)
    for other in (text.upper(), text.title(), wide, wide.upper()):
        found = classify(other)
        assert (found.mode, found.trigger, found.matched) == (first.mode, first.trigger, first.matched)
        assert found.execution_requested == first.execution_requested


def test_no_character_is_folded_otherwise_than_its_other_case():
    ligatures = "ﬀﬁﬂﬃﬄﬅﬆ"
    for char in map(chr, range(0x1E944)):  # behind the last letter that has a case
        if char.islower() == char.isupper() or char in ligatures:
            continue
        others = [other for other in (char.upper(), char.lower(), char.title()) if len(other) == 1]
        assert all(fold(other) == fold(char) for other in others), hex(ord(char))


@given(SENTENCES, st.sampled_from(NEGATIONS))
@example("什麼是 workflow 設計", "請勿")
@example("流程圖 plan", "不要")
@example("~~~\nplan the workflow\n~~~", "不要")
@example("how to plan the workflow", "never")
def test_adding_a_negation_never_activates(text: str, negation: str):
    if classify(text).mode == "direct_answer":
        for more in (
            f"{negation} {text}",
            f"{text} {negation}",
            f"{negation}, {text}",
            f"{text}. {negation}",
        ):
            assert classify(more).mode == "direct_answer"


@given(st.text(max_size=60))
def test_every_character_keeps_its_position(text: str):
    assert len(fold(text)) == len(mask(fold(text))) == len(text)
