"""Stores of the first version (commit 0a76281), left by killed processes, and the world they ran in."""
