"""Runs that are killed on purpose, resumed, and compared with one that nobody disturbed."""
