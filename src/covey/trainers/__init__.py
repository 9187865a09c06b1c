"""Trainers: one step function each, and the loop, schedule and checkpoints they share."""
