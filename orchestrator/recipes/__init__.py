"""Small readable runs: a module with an agent and its tasks, beside it the configuration that makes them a run."""
