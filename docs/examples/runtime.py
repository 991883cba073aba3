"""Compute on the CPU in mixed precision."""

from gemkit import Runtime, search
from gemkit.testing import tiny_data, tiny_net

runtime = Runtime(device="cpu", precision="bf16")
ticket = search("magnitude", tiny_net(), tiny_data(), density=0.5, runtime=runtime)
assert ticket.kept == ticket.prunable / 2
