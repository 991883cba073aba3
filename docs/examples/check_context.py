"""A control whose masks are read backwards, and its accuracy after fine-tuning."""

import torch

from gemkit import SanityCheck, Ticket, load_plugins, search
from gemkit.sanity.context import context_of
from gemkit.testing import CPU, PLAN, tiny_data, tiny_net


class Reversed(SanityCheck):
    """Every mask backwards."""

    name = "reversed"

    def control(self, ticket, context):
        masks = {name: own.flatten().flip(0).view_as(own) for name, own in ticket.mask.items()}
        return Ticket(masks, ticket.state, ticket.info)


ticket = search("magnitude", tiny_net(), tiny_data(), density=0.5, plan=PLAN, runtime=CPU)
context = context_of(ticket, data=tiny_data(), build=tiny_net, registry=load_plugins(), runtime=CPU)
assert context.search().digest() == ticket.digest()  # the search behind the ticket, again
control = Reversed().control(ticket, context)
assert control.kept == ticket.kept
assert 0 <= context.evaluate(context.finetune(control, plan=PLAN)) <= 1
assert torch.equal(context.rng("x").get_state(), context.rng("x").get_state())
