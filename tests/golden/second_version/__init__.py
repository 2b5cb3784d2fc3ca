"""Stores of the second version (schema 4), made at commit 0319368 by `first_version/make.py`."""
