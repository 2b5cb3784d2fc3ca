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
    "確認後再執行",
    "确认后再执行",
    "不要執行",
    "不要执行",
    "先不執行",
    "先不执行",
    "review first",
    "let me review",
    "plan only",
    "dry run",
    "show me the plan",
    "don't execute",
    "do not execute",
    "don't run",
    "do not run",
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
    "never",
    "no need to",
    "stop",
    "cancel",
)
NEGATION_AT_START = ("別", "别")
NEGATION_AT_START_AFTER = "請请先"

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
    "what is",
    "what's",
    "what are",
    "what does",
    "how does",
    "how do i",
    "how do you",
    "how can i",
    "why",
)
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
