"""What a run leaves behind and shows: the run folder, windowed metrics, the live display.

Nothing is re-exported here, so that a reader of one module does not pay for the others (rich, tensorboard, ...):

- ``writer.RunWriter``: config.json, metrics.jsonl, rollouts/step_N.jsonl, summary.json
- ``metrics.MetricWindow``: means over ``logging_steps`` that know the difference between a gap and a zero
- ``display.make_display``: the live display, or plain log lines
- ``table.before_after_table``: the table at the end of a recipe
- ``sinks.make_sinks``: TensorBoard and Weights & Biases
- ``memory``: resident memory
"""
