"""Whole runs on a virtual clock, from a seed: the world, its workflows, and the laws of every log."""
