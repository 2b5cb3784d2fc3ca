"""Write the reference pages into the package."""

from __future__ import annotations

from tests.docs.blocks import ROOT
from tests.docs.references import REFERENCES

for topic, make in REFERENCES.items():
    (ROOT / "agentflow/docs" / f"{topic}.md").write_text(make(), encoding="utf-8")
