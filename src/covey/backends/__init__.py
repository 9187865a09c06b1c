"""Training backends: one gradient contract (see base.py), one file each."""
