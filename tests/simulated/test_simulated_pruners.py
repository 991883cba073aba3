"""Whole searches and fine-tunings end on the device with the bits of the CPU."""

from dataclasses import replace

import pytest
import torch
from tiny import CPU, tiny_net

from gemkit import Data, Plan, evaluate, finetune, load_plugins, search
from gemkit.testing import simulated

PRUNERS = sorted(load_plugins().pruners)
DEVICE = simulated.install()


def small_data():
    """Images of whole numbers, cropped and flipped."""
    rng = torch.Generator().manual_seed(0)
    labels = torch.arange(32) % 3
    templates = torch.randint(200, (3, 2, 6, 6), generator=rng)
    images = templates[labels] + torch.randint(56, (32, 2, 6, 6), generator=rng)
    pair = (images.to(torch.uint8), labels)
    data = Data.of_tensors(train=pair, validation=pair, test=pair, classes=3)
    return replace(data, train=replace(data.train, pad=1, flip=True))


DATA = small_data()


def found(pruner, **how):
    how = {"density": 0.4, "plan": Plan(epochs=6, batch_size=16), "on_collapse": "warn", **how}
    return search(pruner, tiny_net(), DATA, **how)


def trained(ticket, optimizer="sgd", **place):
    plan = Plan(epochs=2, batch_size=16, optimizer=optimizer, select="best")
    return finetune(ticket, tiny_net(), DATA, plan=plan, **place)


def check_equal(here, there):
    for name, mask in here.mask.items():
        assert torch.equal(mask, there.mask[name]), f"mask of {name}"
    for name, value in here.state.items():
        assert torch.equal(value, there.state[name]), name
    assert here.digest() == there.digest()


@pytest.mark.one_in(3)
@pytest.mark.parametrize("pruner", PRUNERS)
def test_search_fine_tuning_and_evaluation_are_those_of_the_cpu(pruner):
    fabric = simulated.fabric()
    here, there = found(pruner, runtime=CPU), found(pruner, fabric=fabric)
    check_equal(here, there)
    here, there = trained(here, runtime=CPU), trained(there, fabric=fabric)
    check_equal(here, there)
    accuracy = evaluate(here, tiny_net(), DATA, runtime=CPU)
    assert evaluate(there, tiny_net(), DATA, fabric=fabric) == accuracy


VARIANTS = {
    "drawn masks": ("gem_miner", {"parts": {"rounding": "bernoulli"}}, {}),
    "a penalty that follows": ("gem_miner", {"parts": {"regularizer": "auto"}}, {}),
    "inverted": ("edge_popup", {"options": {"invert": True}}, {}),
    "keep-one": ("magnitude", {}, {"density": 0.02, "on_collapse": "keep-one"}),
}


@pytest.mark.parametrize(("pruner", "changes", "how"), VARIANTS.values(), ids=VARIANTS)
def test_other_ways_through_a_search_are_those_of_the_cpu(pruner, changes, how):
    recipe = load_plugins().recipe(pruner, **changes)
    here = found(recipe, runtime=CPU, **how)
    check_equal(here, found(recipe, fabric=simulated.fabric(), **how))


@pytest.mark.parametrize("optimizer", ["adam", "adamw"])
def test_every_optimizer_takes_the_steps_of_the_cpu(optimizer):
    ticket = found("random", runtime=CPU)
    here = trained(ticket, optimizer, runtime=CPU)
    check_equal(here, trained(ticket, optimizer, fabric=simulated.fabric()))


def test_another_search_would_be_noticed():
    here, there = found("snip", runtime=CPU), found("random", fabric=simulated.fabric())
    with pytest.raises(AssertionError, match="mask of"):
        check_equal(here, there)


# --- the data ------------------------------------------------------------------------------------


@pytest.mark.parametrize("augment", [False, True])
def test_batches_are_those_of_the_cpu_and_do_not_wait(augment):
    how = {"seed": 1, "augment": augment}
    here = list(DATA.train.batches(10, **how))
    moved = DATA.train.to(DEVICE)
    with simulated.watched() as seen:
        there = list(moved.batches(10, **how))
    assert seen.waits == []
    assert len(seen.uploads) <= 3  # the order, the crops and the scale; not one for each batch
    for (images, labels), (their_images, their_labels) in zip(here, there, strict=True):
        assert torch.equal(their_images.cpu(), images)
        assert torch.equal(their_labels.cpu(), labels)
