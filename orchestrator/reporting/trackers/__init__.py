"""The metric rows in W&B, Trackio and TensorBoard: views of the journal like ``metrics.jsonl``, one row a batch."""
