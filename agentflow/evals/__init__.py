"""Evals: a workflow run on the cases of a dataset, its results judged, and a report (page 003 §13).

`suite` reads the files, `judgement` compares results, `evaluators` calls those of the user, `runner` runs the
cases, `report` is what a person reads and a CI fails on.
"""
