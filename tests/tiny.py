"""The kit's tiny networks and data, under the name the tests know them by."""

from gemkit.testing.tiny import CPU, PLAN, tiny_data, tiny_net

__all__ = ["CPU", "PLAN", "REQUIRED", "tiny_data", "tiny_net"]

REQUIRED = {"densities": {"densities": [0.9, 0.5, 0.7, 0.6]}}
"""What parts that cannot be used by name alone must be given to suit `tiny_net`."""
