"""Crash-safe orchestration of reinforcement-learning post-training for LLM agents."""

__version__ = "0.1.0"
