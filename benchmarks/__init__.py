"""Holdfast beside its peers in one run: `python -m benchmarks.run`. See the README in this folder."""
