"""From tasks to trajectories: the dataset, the gateway that agents call, the runners, what is stored of a rollout."""
