"""Benchmarks: the product beside its peers, on the same work, in one go. See README.md."""
