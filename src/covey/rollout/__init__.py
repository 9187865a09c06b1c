"""Rollout engines: prompts in, sampled completions with their log-probs out."""
