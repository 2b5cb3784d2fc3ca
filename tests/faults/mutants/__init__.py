"""Mistakes that are put into a copy of the engine, one at a time, to see whether the quick tests notice."""
