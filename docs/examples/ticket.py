"""Find a ticket, save it, and use it in a network."""

from pathlib import Path
from tempfile import TemporaryDirectory

from gemkit import Ticket, search
from gemkit.testing import CPU, tiny_data, tiny_net

ticket = search("snip", tiny_net(), tiny_data(), density=0.5, runtime=CPU)
with TemporaryDirectory() as folder:
    ticket.save(Path(folder) / "half.safetensors")
    assert Ticket.load(Path(folder) / "half.safetensors") == ticket

network = ticket.apply(tiny_net())
assert not network[0].weight[~ticket.mask["0.weight"]].any()
assert sum(layer.kept for layer in ticket.layers) == ticket.kept
