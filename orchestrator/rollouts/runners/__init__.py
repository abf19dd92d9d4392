"""Where attempts are played: in this process, in worker processes, or on other machines, with equal results."""
