"""From tasks to trajectories: the dataset, the gateway that agents call, the runners, and what is stored of each rollout."""
