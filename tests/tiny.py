"""The kit's tiny networks and data, under the name the tests know them by."""

from gemkit.testing.tiny import CPU, PLAN, tiny_data, tiny_net

__all__ = ["CPU", "PLAN", "REQUIRED", "tiny_data", "tiny_net"]

REQUIRED = {
    "densities": {"densities": [0.9, 0.5, 0.7, 0.6]},
    "nm": {"n": 1, "m": 2},
    "regrow": {"every": 2},
}
"""What parts must be given to suit `tiny_net` and a few steps."""
