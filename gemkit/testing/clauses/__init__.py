"""The clauses of every kind of part; importing this package defines them all."""

from gemkit.testing.clauses import (
    allocations,
    anything,
    checks,
    datasets,
    initializers,
    learned,
    models,
    observers,
    presets,
    pruners,
    regularizers,
    roundings,
    schedules,
    scores,
    searching,
)

__all__ = [
    "allocations",
    "anything",
    "checks",
    "datasets",
    "initializers",
    "learned",
    "models",
    "observers",
    "presets",
    "pruners",
    "regularizers",
    "roundings",
    "schedules",
    "scores",
    "searching",
]
