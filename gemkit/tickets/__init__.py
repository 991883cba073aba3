"""Tickets: a mask with its weights, the file format, and applying it to a model."""
