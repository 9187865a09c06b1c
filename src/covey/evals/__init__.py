"""Evaluation: what a model gets right, with intervals, apart from any training reward."""
