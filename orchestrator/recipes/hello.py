"""placeholder"""

OVERRIDES = {"batch_size": 7}
