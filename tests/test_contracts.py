"""gemkit's own parts keep the contracts that it asks of others."""

from gemkit import load_plugins
from gemkit.plugins import BUILT_IN
from gemkit.testing import contract, things_of

REGISTRY = load_plugins(only=())

test_every_part_and_pruner_of_gemkits_own = contract(
    *(thing for plugin in BUILT_IN for thing in things_of(REGISTRY, plugin))
)
