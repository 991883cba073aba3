"""What a ticket records about its search."""

from gemkit import load_plugins, search
from gemkit.testing import CPU, tiny_data, tiny_net

ticket = search("synflow", tiny_net(), tiny_data(), density=0.5, runtime=CPU, seed=3)
assert (ticket.info.pruner, ticket.info.seed, ticket.info.stage) == ("synflow", 3, "found")
assert ticket.info.history[-1].kept == ticket.kept
assert load_plugins().recipe(ticket.info.recipe).scores.name == "synflow"
