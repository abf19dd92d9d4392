"""What can be made of a run's past: its weights of any batch, one train step repeated, another run from any batch."""
