"""A ticket of a network with tied weights fits only networks with the same ties."""

import copy
import json

import pytest
import torch
from tiny import CPU, PLAN, tiny_data
from torch import nn

from gemkit import Ticket, evaluate, finetune, load_plugins, search
from gemkit.compaction import compact, load_compact, save_compact
from gemkit.core.errors import TicketError
from gemkit.core.tensors import call_with

PRUNERS = ["gem_miner", "edge_popup", "snip", "synflow", "magnitude", "random", "imp_long_warm"]
ONE = "one weight in the ticket's network but several in the model: '1.weight', '3.weight'"
SEVERAL = "one weight in the model but several in the ticket's network: '1.weight', '3.weight'"


def net(*, tied, also=False):
    """Build a network whose two hidden layers share one weight, or hold equal ones."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 72), nn.ReLU(), nn.Linear(72, 72))
    model[3].weight = model[1].weight if tied else nn.Parameter(model[1].weight.detach().clone())
    if also:
        model[3].bias = model[1].bias
    return model.append(nn.Linear(72, 3))


def found(pruner="random", **how):
    return search(pruner, net(**how), tiny_data(), density=0.5, plan=PLAN, runtime=CPU)


def uses(ticket, model):
    """List everything that puts a ticket into a model."""
    how = {"data": tiny_data(), "runtime": CPU}
    return [
        lambda: ticket.apply(model),
        lambda: evaluate(ticket, model, **how),
        lambda: finetune(ticket, model, epochs=1, **how),
        lambda: compact(ticket, model),
    ]


@pytest.mark.parametrize("pruner", PRUNERS)
def test_an_untied_network_refuses_the_ticket_of_a_tied_one(pruner):
    ticket, model = found(pruner, tied=True), net(tied=False)
    assert ticket.info.tied == [["1.weight", "3.weight"]]
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    for use in uses(ticket, model):
        with pytest.raises(TicketError) as error:
            use()
        assert str(error.value).count(ONE) == 1
    assert all(torch.equal(before[name], own) for name, own in model.state_dict().items())
    for use in uses(ticket, net(tied=True)):
        use()


@pytest.mark.parametrize("pruner", PRUNERS)
def test_a_tied_network_refuses_the_ticket_of_an_untied_one(pruner):
    ticket = found(pruner, tied=False)
    assert ticket.info.tied == []
    for use in uses(ticket, net(tied=True)):
        with pytest.raises(TicketError, match=SEVERAL):
            use()


def test_equal_values_do_not_make_a_tie():
    """Without recorded ties, only values are compared, and this ticket passes."""
    ticket = found(tied=False)
    mask = dict(ticket.mask, **{"3.weight": ticket.mask["1.weight"]})
    state = dict(ticket.state, **{"3.weight": ticket.state["1.weight"]})
    with pytest.raises(TicketError, match=SEVERAL):
        Ticket(mask, state, ticket.info).apply(net(tied=True))
    Ticket(mask, state, ticket.info.model_copy(update={"tied": None})).apply(net(tied=True))


def test_a_ticket_without_recorded_ties_is_accepted():
    ticket = found(tied=True).with_info(tied=None)
    other = ticket.apply(net(tied=False))
    assert other[3].weight.count_nonzero() > other[1].weight.count_nonzero()


def test_every_tie_is_compared():
    both, one = found(tied=True, also=True), found(tied=True)
    assert both.info.tied == [["1.weight", "3.weight"], ["1.bias", "3.bias"]]
    with pytest.raises(TicketError, match=r"several in the model: '1\.bias', '3\.bias'") as error:
        both.apply(net(tied=True))
    assert "weight'" not in str(error.value)
    with pytest.raises(TicketError, match=r"one weight in the model but.*'1\.bias', '3\.bias'"):
        one.apply(net(tied=True, also=True))


@pytest.mark.parametrize("pruner", PRUNERS)
def test_a_layer_under_two_names_is_searched_and_trained(pruner):
    """torch's `functional_call` leaves such a layer with the wrong tensors."""
    model = shared()
    kept = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    recipe = load_plugins(only=[]).recipe(pruner, parts={"init": "as_built"})
    ticket = search(recipe, model, tiny_data(), density=0.5, plan=PLAN, runtime=CPU)
    assert [*map(set, ticket.info.tied)] == [
        {f"1.{own}", f"4.{own}"} for own in ("0.weight", "0.bias", "1.weight", "1.bias")
    ]
    assert list(ticket.mask) == ["1.0.weight", "5.weight"]
    assert torch.equal(ticket.state["1.0.weight"], kept["1.0.weight"]) or pruner.startswith("imp")
    assert torch.equal(ticket.state["1.0.weight"], ticket.state["4.0.weight"])
    trained = finetune(ticket, model, tiny_data(), epochs=1, runtime=CPU)
    assert 0 <= evaluate(trained, model, tiny_data(), runtime=CPU) <= 1
    assert all(torch.equal(kept[name], own) for name, own in model.state_dict().items())
    with pytest.raises(TicketError, match="several in the model"):
        ticket.apply(untied(model))


def test_a_call_with_other_tensors_does_not_change_the_model():
    model = nn.ModuleDict({"one": nn.Linear(3, 3, bias=False), "norm": nn.BatchNorm1d(3)})
    model["same"], model["tied"] = model["one"], nn.Linear(3, 3, bias=False)
    model["tied"].weight = model["one"].weight
    model["again"] = model["norm"]
    model.forward = lambda x: model["again"](model["tied"](model["same"](model["one"](x))))
    before = dict(model.state_dict(keep_vars=True))
    mean, double = torch.ones(3), 2 * torch.eye(3)
    tensors = {"same.weight": double, "norm.running_mean": mean}
    assert torch.allclose(call_with(model.eval(), tensors, torch.ones(1, 3)), torch.tensor(7.0))
    after = model.state_dict(keep_vars=True)
    assert list(after) == list(before)
    assert all(own is before[name] for name, own in after.items())


def shared():
    """Build a network that holds a block under two names."""
    torch.manual_seed(0)
    block = nn.Sequential(nn.Linear(72, 72), nn.LayerNorm(72))
    return nn.Sequential(nn.Flatten(), block, nn.ReLU(), nn.ReLU(), block, nn.Linear(72, 3))


def untied(model):
    """Return a copy of `shared` that has two blocks."""
    other = copy.deepcopy(model)
    other[4] = copy.deepcopy(model[1])
    return other


def test_files_record_ties_and_old_files_need_not(tmp_path):
    ticket, path = found(tied=True), tmp_path / "tied.gem"
    ticket.save(path)
    with pytest.raises(TicketError, match="several in the model"):
        Ticket.load(path).apply(net(tied=False))
    save_compact(compact(ticket, net(tied=True)), tmp_path / "compact.gem")
    load_compact(tmp_path / "compact.gem", net(tied=True))
    with pytest.raises(TicketError, match="several in the model"):
        load_compact(tmp_path / "compact.gem", net(tied=False))
    old = json.loads(ticket.info.model_dump_json(exclude={"tied", "prune_frozen"}))
    assert type(ticket.info).model_validate_json(json.dumps(old)).tied is None


@pytest.mark.parametrize(
    "tied",
    [[["a"]], [["a", "b" * 1_001]], [["a", "b"]] * 10_001, [["a"] * 1_001]],
)
def test_ties_in_a_file_are_bounded(tied, tmp_path):
    ticket = found(tied=True).with_info(tied=tied)
    with pytest.raises(TicketError, match="tied"):
        ticket.save(tmp_path / "too much.gem")
