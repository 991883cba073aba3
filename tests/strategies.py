"""The kit's strategy for the fields of parts, under the name the tests know it by."""

from gemkit.testing.strategies import field_values

__all__ = ["field_values"]
