"""Datums, checkpoints and the redoing of train steps."""
