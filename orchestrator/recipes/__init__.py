"""Small readable runs: each module holds an agent, its tasks and the configuration values that make them a run."""
