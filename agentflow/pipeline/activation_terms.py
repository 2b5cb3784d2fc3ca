"""The words by which a text is taken for a request of a workflow (page 004 §2): data, for `activation` alone.

All are in lower case. A blank stands for one or more. The lists may grow, but never lose a term.
"""

from __future__ import annotations

__all__ = [
    "ACTION",
    "ACTION_BESIDE_WORKFLOW",
    "BUILD",
    "BUILD_BEFORE",
    "BUILD_NOT_AFTER",
    "CLAUSE_ENDS",
    "DEFINITION",
    "DEFINITION_BEFORE",
    "INTENT",
    "LONGER",
    "NEGATION",
    "NEGATION_AT_START",
    "NEGATION_AT_START_AFTER",
    "REQUEST",
    "REVIEW",
    "WORKFLOW",
]

WORKFLOW = ("workflow", "workflows")
INTENT = (*WORKFLOW, "stage", "stages", "流程", "多階段", "多阶段")
ACTION = (
    "plan",
    "建立",
    "設計",
    "规划",
    "規劃",
    "设计",
    "拆步驟",
    "拆步骤",
    "先給我計劃",
    "先給我計畫",
    "先给我计划",
)
ACTION_BESIDE_WORKFLOW = ("build", "create", "design")
"""Counted only if the text has one of WORKFLOW as well."""

BUILD = "建"
"""A term only before BUILD_BEFORE, an intent term, or a Latin letter or digit, and never after
BUILD_NOT_AFTER."""
BUILD_BEFORE = "一個个條条套份好出成"
BUILD_NOT_AFTER = "福封土基"

_NOT_RUN = (
    *(
        "不要",
        "先不",
        "先別",
        "先别",
        "請別",
        "请别",
        "勿",
        "不必",
        "不用",
        "不需",
        "無需",
        "无需",
        "無須",
        "无须",
    ),
    *("暫不", "暂不", "不想"),
)
_DO_NOT_RUN = ("do not", "don't", "dont", "no need to")

REVIEW = (
    "先給我看",
    "先给我看",
    "我修正後再建立",
    "我修正后再建立",
    "先 review",
    "先review",
    "先給我計劃",
    "先給我計畫",
    "先给我计划",
    "先讓我看",
    "先让我看",
    "等我確認",
    "等我确认",
    "確認後再執行",
    "确认后再执行",
    *(f"{no}{run}" for no in _NOT_RUN for run in ("執行", "执行")),
    "review first",
    "review-first",
    "let me review",
    "let me see the plan",
    "plan only",
    "plan-only",
    "dry run",
    "dry-run",
    "dryrun",
    "show me the plan",
    *(f"{no} {run}" for no in _DO_NOT_RUN for run in ("execute", "run")),
)

NEGATION = (
    "不要",
    "不用",
    "不必",
    "不需",
    "不想",
    "無須",
    "无须",
    "請勿",
    "请勿",
    "切勿",
    "無需",
    "无需",
    "禁止",
    "不打算",
    "不是要",
    "沒有要",
    "没有要",
    "do not",
    "don't",
    "dont",
    "must not",
    "should not",
    "shouldn't",
    "will not",
    "won't",
    "rather not",
    "did not",
    "didn't",
    "does not",
    "doesn't",
    "not to",
    "not going to",
    "never",
    "no need to",
    "no need for",
    "without",
    "instead of",
    "rather than",
    "avoid",
    "stop",
    "cancel",
)
NEGATION_AT_START = ("別", "别")
NEGATION_AT_START_AFTER = "請请先"

_HOW = ("怎麼", "怎么", "怎樣", "怎样", "如何")

DEFINITION = (
    "是什麼",
    "是什么",
    "什麼是",
    "什么是",
    "什麼叫",
    "什么叫",
    "是啥",
    "為什麼",
    "为什么",
    "為何",
    "为何",
    *(f"{how}{act}" for how in _HOW for act in ("建", "設計", "设计", "規劃", "规划", "拆步驟", "拆步骤")),
    "what is",
    "what exactly",
    "what's",
    "what are",
    "what does",
    "how does",
    "how do i",
    "how do you",
    "how can i",
    "why",
)
DEFINITION_BEFORE = (
    *("how to", "how would", "how should", "how could", "should i", "should we", "is it a good idea"),
    *("is there a", "is there any", "are there any", "does the", "does a", "do you know"),
    *("where can i", "where do i", "which workflow", "who made", "who wrote", "when was", "when did"),
)
"""Counted only before the first action term: behind it they are part of what is to be done."""
REQUEST = ("幫我", "帮我", "替我", "請", "请", "我要", "我想", "please", "for me", "i want", "i need")

LONGER = {
    "流程": ("流程圖", "流程图"),
    "設計": ("設計師", "設計稿", "設計感"),
    "设计": ("设计师", "设计稿", "设计感"),
    "規劃": ("規劃師", "規劃局"),
    "规划": ("规划师", "规划局"),
    "不必": ("不必要",),
    "請": ("請勿", "請別", "請問", "請教", "請假", "請求", "申請", "邀請"),
    "请": ("请勿", "请别", "请问", "请教", "请假", "请求", "申请", "邀请"),
}
"""Longer words, by the term that they hold and are not."""

CLAUSE_ENDS = ",。.;!?:、\n\r"
"""Of the folded text, in which the full-width forms are ASCII."""
