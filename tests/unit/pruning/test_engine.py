"""The one loop: what every search and fine-tuning promises, whatever the recipe."""

import copy

import pytest
import torch
from tiny import CPU, PLAN, tiny_data, tiny_net
from torch import nn

from gemkit import (
    Data,
    LearnedScores,
    MeasuredScores,
    Plan,
    Runtime,
    evaluate,
    finetune,
    load_plugins,
    search,
)
from gemkit.core.errors import CollapseError, FitError, OptionError, TrainingError
from gemkit.core.events import Collapsed, EpochEnded, Froze, Noted, PhaseStarted, StepEnded
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import budget, generator, kept, parameters_of, total
from gemkit.data.embedded import Digits
from gemkit.parts.schedule import Freeze
from gemkit.pruning.finetune import finetune_plan
from gemkit.pruning.freeze import Freezer
from gemkit.pruning.guard import remedies
from gemkit.pruning.masked import MaskedNet
from gemkit.pruning.search import search_plan
from gemkit.training.device import layout_of, make_fabric
from gemkit.training.loop import RunContext, endless
from gemkit.training.trainer import Trainer

PRUNERS = sorted(load_plugins().pruners)


def find(pruner, *, density=0.3, seed=0, options=None, **how):
    recipe = load_plugins().recipe(pruner, options={**(options or {})})
    how = {"runtime": CPU, "plan": PLAN, "on_collapse": "warn", **how}
    return search(recipe, tiny_net(), tiny_data(), density=density, seed=seed, **how)


@pytest.mark.parametrize("pruner", PRUNERS)
def test_a_search_keeps_no_more_than_its_budget(pruner):
    ticket = find(pruner)
    limit = budget(ticket.prunable, ticket.info.density_target)
    assert 0 < ticket.kept <= limit
    if pruner != "gem_miner":  # the only one whose ticket may be sparser than asked for
        assert ticket.kept == limit
    else:
        assert ticket.info.alive == limit


@pytest.mark.one_in(3)
@pytest.mark.parametrize("pruner", PRUNERS)
def test_two_searches_with_one_seed_are_equal_to_the_bit_and_another_seed_is_not(pruner):
    assert find(pruner) == find(pruner)
    if pruner not in {"dense", "magnitude"}:  # nothing in them is drawn
        assert find(pruner).mask.keys() == find(pruner, seed=1).mask.keys()
        assert find(pruner) != find(pruner, seed=1)


@pytest.mark.parametrize("pruner", PRUNERS)
def test_a_search_leaves_the_model_and_the_random_numbers_as_they_were(pruner):
    model, data = tiny_net(), tiny_data()
    before = copy.deepcopy(model.state_dict())
    flags = [parameter.requires_grad for parameter in model.parameters()]
    random_numbers = torch.get_rng_state()
    recipe = load_plugins().recipe(pruner)
    search(recipe, model, data, plan=PLAN, density=0.5, runtime=CPU, on_collapse="warn")
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert [parameter.requires_grad for parameter in model.parameters()] == flags
    assert all(parameter.grad is None for parameter in model.parameters())
    assert torch.equal(random_numbers, torch.get_rng_state())


@pytest.mark.parametrize("pruner", PRUNERS)
def test_the_ticket_holds_the_starting_weights_also_of_what_was_pruned(pruner):
    ticket = find(pruner)
    for name in ticket.mask:
        assert ticket.state[name].count_nonzero() == ticket.state[name].numel()


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_pruned_weights_stay_exactly_zero_while_the_rest_is_trained(optimizer):
    ticket = find("magnitude")
    plan = Plan(epochs=4, batch_size=8, lr=0.01, weight_decay=0.1, optimizer=optimizer)
    trained = finetune(ticket, tiny_net(), tiny_data(), plan=plan, runtime=CPU)
    model = trained.apply(tiny_net())
    assert trained.mask.keys() == ticket.mask.keys()
    for name, mask in ticket.mask.items():
        weight = model.get_parameter(name)
        assert torch.equal(trained.mask[name], mask)
        assert weight[~mask].count_nonzero() == 0
        assert not torch.equal(weight[mask], ticket.state[name][mask])
    assert trained.info.stage == "finetuned"


def train_then_freeze(net, *, clear):
    """Train, prune half in the middle of training, train on; return what pruned weights have."""
    data = tiny_data()
    trainer = Trainer(net, Plan(lr=0.1, momentum=0.9, weight_decay=0.1), make_fabric(CPU), CPU)
    batches = list(data.train.batches(8, seed=0))
    for batch in batches:
        trainer.step(batch, lr=0.1)
    alive = {
        name: torch.rand(mask.shape, generator=generator(0, name)) < 0.5
        for name, mask in net.alive.items()
    }
    net.freeze_(alive, {})
    if clear:
        net.clear_state(trainer.optimizer)
    for batch in batches:
        trainer.step(batch, lr=0.1)
    weights = [weight.detach()[~alive[name]] for name, weight in net.parameters.items()]
    momenta = [
        trainer.optimizer.state[weight]["momentum_buffer"][~alive[name]]
        for name, weight in net.parameters.items()
    ]
    return [float(torch.cat(values).abs().max()) for values in (weights, momenta)]


def test_momentum_gathered_before_a_freeze_does_not_revive_a_weight():
    model = tiny_net()
    net = MaskedNet(model, prunable_names(model))
    assert train_then_freeze(net, clear=True) == [0.0, 0.0]


def test_momentum_left_in_place_would_be_noticed_and_revives_no_weight_all_the_same():
    """The broken version: the optimizer keeps its memory of what was pruned."""
    model = tiny_net()
    net = MaskedNet(model, prunable_names(model))
    weights, momenta = train_then_freeze(net, clear=False)
    assert weights == 0
    assert momenta > 0


@pytest.mark.parametrize("pruner", ["gem_miner", "magnitude"])
def test_freezes_only_take_away_and_end_at_the_target(pruner):
    events = []
    options = {} if pruner == "gem_miner" else {"schedule.rounds": 5}
    recipe = load_plugins().recipe(pruner, parts={"schedule": "exponential"}, options=options)
    ticket = search(
        recipe,
        tiny_net(),
        tiny_data(),
        density=0.2,
        plan=Plan(epochs=9, batch_size=16, lr=0.5),
        runtime=CPU,
        on_collapse="warn",
        observers=[events.append],
    )
    freezes = [event for event in events if isinstance(event, Froze)]
    alive = [event.alive for event in freezes]
    assert len(freezes) == (4 if pruner == "gem_miner" else 5)
    assert alive == sorted(alive, reverse=True)
    assert alive[-1] == budget(ticket.prunable, 0.2)
    assert [record.alive for record in ticket.info.history] == alive


def test_observers_hear_every_step_epoch_and_freeze_in_order():
    events = []
    find("gem_miner", observers=[events.append])
    kinds = [type(event) for event in events if not isinstance(event, Collapsed | Noted)]
    epoch = [StepEnded, StepEnded, EpochEnded]
    assert kinds == [PhaseStarted, *epoch, *epoch, *epoch, Froze]
    assert [event.step for event in events if isinstance(event, StepEnded)] == [1, 2, 3, 4, 5, 6]


def test_one_shot_pruners_take_no_step_and_weights_are_trained_between_spread_freezes():
    events = []
    ticket = find("magnitude", observers=[events.append])
    assert ticket.info.epochs == 0
    assert not any(isinstance(event, StepEnded) for event in events)
    recipe = load_plugins().recipe("magnitude", parts={"schedule": "cubic"})
    plan = Plan(epochs=4, batch_size=16, lr=0.1)
    gradual = search(recipe, tiny_net(), tiny_data(), density=0.3, plan=plan, runtime=CPU)
    assert gradual.info.epochs == 4
    start = tiny_net().state_dict()
    assert all(not torch.equal(gradual.state[name], start[name]) for name in gradual.mask)


def test_scores_learn_and_weights_stand_still():
    ticket = find("gem_miner")
    again = (
        load_plugins()
        .recipe("gem_miner")
        .init.draw(
            {name: state for name, state in ticket.state.items() if name in ticket.mask},
            generator(0, "weights"),
        )
    )
    for name, weight in again.items():
        assert torch.equal(ticket.state[name], weight)
    assert torch.equal(ticket.state["0.bias"], tiny_net().state_dict()["0.bias"])


def test_gem_miner_learns_before_any_weight_is_trained_and_fine_tuning_lifts_it():
    data, model = tiny_data(samples=96), tiny_net(width=12)
    plan = Plan(epochs=12, batch_size=16, lr=1.0)
    ticket = search("gem_miner", model, data, density=0.3, plan=plan, runtime=CPU)
    before = evaluate(ticket, model, data, runtime=CPU)
    after = evaluate(
        finetune(ticket, model, data, plan=Plan(epochs=12, batch_size=16), runtime=CPU),
        model,
        data,
        runtime=CPU,
    )
    assert before > 0.6
    assert after >= before


def test_too_strong_a_penalty_is_reported_as_collapse_and_gives_no_ticket():
    with pytest.raises(CollapseError, match=r"lower regularizer\.weight"):
        find("gem_miner", options={"regularizer.weight": 0.5}, plan=Plan(epochs=6, batch_size=8))


def collapse_half(policy, events):
    """Magnitude pruning of a network whose last layer is tiny: it loses everything first."""
    model = tiny_net()
    with torch.no_grad():
        model[-1].weight.mul_(1e-3)
    recipe = load_plugins().recipe("magnitude")
    return search(
        recipe,
        model,
        tiny_data(),
        density=0.3,
        runtime=CPU,
        on_collapse=policy,
        observers=[events.append],
    )


def test_an_empty_layer_is_an_error_that_names_it():
    with pytest.raises(CollapseError, match=r"8\.weight' lost every weight") as told:
        collapse_half("error", [])
    assert 'on_collapse="warn"' in str(told.value), "for whoever writes Python"
    assert "--on-collapse warn" in str(told.value), "for whoever types commands"


def test_a_collapse_that_stops_the_search_is_told_once_by_the_error():
    events = []
    with pytest.raises(CollapseError):
        collapse_half("error", events)
    assert not [event for event in events if isinstance(event, Collapsed)]


ADVICE = [
    ("magnitude", {}, ["raise the density", "choose allocation 'erk' or 'uniform'"]),
    ("magnitude", {"allocation": "erk"}, ["raise the density"]),
    (
        "gem_miner",
        {},
        [
            "raise the density",
            "lower regularizer.weight",
            "lower the learning rate",
            "choose allocation 'erk' or 'uniform'",
        ],
    ),
    ("gem_miner", {"regularizer": "none", "allocation": "uniform"}, ["raise", "lower the learn"]),
    ("edge_popup", {"allocation": "uniform"}, ["raise the density", "lower the learning rate"]),
]


@pytest.mark.parametrize(("pruner", "parts", "advice"), ADVICE)
def test_advice_against_collapse_is_about_what_the_recipe_has(pruner, parts, advice):
    found = remedies(load_plugins(only=()).recipe(pruner, parts=parts))
    assert len(found) == len(advice)
    assert all(one.startswith(start) for one, start in zip(found, advice, strict=True))


def test_an_empty_layer_is_only_told_under_warn():
    events = []
    ticket = collapse_half("warn", events)
    assert kept({"": ticket.mask["8.weight"]}) == 0
    told = [event.layers for event in events if isinstance(event, Collapsed)]
    assert told[0] == ("8.weight",)


def test_a_collapse_stops_the_search_at_the_freeze_that_causes_it():
    events, model = [], tiny_net()
    with torch.no_grad():
        model[-1].weight.mul_(1e-6)
    recipe = load_plugins().recipe("magnitude", parts={"schedule": "linear"})
    plan = Plan(epochs=6, batch_size=16, lr=1e-9)
    with pytest.raises(CollapseError, match=r"8\.weight' lost every weight"):
        search(
            recipe,
            model,
            tiny_data(),
            density=0.3,
            plan=plan,
            runtime=CPU,
            observers=[events.append],
        )
    assert isinstance(events[-1], Froze)
    assert events[-1].target > 0.3, "more freezes were planned"


def test_keep_one_saves_the_best_weight_of_an_empty_layer_at_the_same_count():
    ticket = collapse_half("keep-one", [])
    assert kept({"": ticket.mask["8.weight"]}) == 1
    assert ticket.mask["8.weight"].flatten()[ticket.state["8.weight"].abs().argmax()]
    assert ticket.kept == budget(ticket.prunable, 0.3)


def test_a_network_that_no_signal_passes_is_a_collapse_though_no_layer_is_empty():
    model = tiny_net()
    with torch.no_grad():  # what reaches the last channels of one layer, the next does not read
        model[3].weight[:3] *= 1e-2
        model[5].weight[3:] *= 1e-2
    with pytest.raises(CollapseError, match="no path"):
        search("magnitude", model, tiny_data(), density=0.5, runtime=CPU)


def test_divergence_is_an_error_with_the_way_out():
    recipe = load_plugins().recipe("magnitude", parts={"schedule": "linear"})
    plan = Plan(epochs=4, batch_size=8, lr=1e12)
    with pytest.raises(TrainingError, match="lower the learning rate"):
        search(recipe, tiny_net(), tiny_data(), plan=plan, density=0.5, runtime=CPU)


def test_a_schedule_longer_than_the_search_is_refused_before_any_work():
    with pytest.raises(FitError, match=r"schedule.every"):
        find("gem_miner", plan=Plan(epochs=2))


@pytest.mark.parametrize(
    "runtime",
    [
        Runtime(device="cpu", precision="64"),
        Runtime(device="cpu", precision="bf16"),
        Runtime(device="cpu", channels_last=False),
    ],
    ids=["float64", "bf16", "contiguous"],
)
@pytest.mark.parametrize("pruner", ["gem_miner", "edge_popup", "magnitude"])
def test_every_precision_and_layout_gives_a_ticket_that_evaluates(pruner, runtime):
    ticket = find(pruner, runtime=runtime)
    assert 0 <= evaluate(ticket, tiny_net(), tiny_data(), runtime=runtime) <= 1


def test_the_layout_in_memory_does_not_change_which_weights_are_ranked_where(fabric):
    """Scores are drawn and ties are broken in logical order, whatever the strides."""
    runtimes = [Runtime(channels_last=channels_last) for channels_last in (True, False)]
    one, other = (find("random", runtime=runtime, fabric=fabric) for runtime in runtimes)
    assert all(torch.equal(one.mask[name], other.mask[name]) for name in one.mask)


@pytest.mark.parametrize("pruner", ["gem_miner", "edge_popup", "random"])
def test_search_and_finetune_run_on_every_device(pruner, fabric):
    ticket = find(pruner, fabric=fabric)
    trained = finetune(ticket, tiny_net(), tiny_data(), plan=PLAN, fabric=fabric)
    assert 0 <= evaluate(trained, tiny_net(), tiny_data(), fabric=fabric) <= 1


def test_parameters_keep_their_names_and_the_model_its_class():
    model = tiny_net()
    names = prunable_names(model)
    net = MaskedNet(model, names)
    assert list(model.state_dict()) == list(tiny_net().state_dict())
    assert total(net.alive) == sum(p.numel() for p in parameters_of(model, names).values())


def freezer_of(recipe, observers=()):
    """A search taken apart: its context, trainer and freezer, ready to be stepped by hand."""
    context = RunContext("search", tiny_data(), 0, CPU, observers, None)
    model = tiny_net()
    net = (
        MaskedNet.learning(model, prunable_names(model), recipe, generator(0, "scores"))
        if isinstance(recipe.scores, LearnedScores)
        else MaskedNet(model, prunable_names(model))
    )
    plan = Plan(epochs=1, batch_size=8, lr=0.1, momentum=0.9, weight_decay=0.1)
    trainer = Trainer(net, plan, context.fabric, CPU)
    trainer.module.train()
    return trainer, Freezer(recipe, net, trainer, context, "warn")


def test_a_freeze_in_the_middle_of_training_clears_what_the_optimizer_remembers():
    trainer, freezer = freezer_of(load_plugins().recipe("magnitude"))
    batches = list(tiny_data().train.batches(8, seed=0))
    for batch in batches:
        trainer.step(batch, lr=0.1)
    freezer.freeze(4, Freeze(4, 0.3))
    for batch in batches:
        trainer.step(batch, lr=0.1)
    for name, weight in trainer.net.parameters.items():
        assert weight[~trainer.net.alive[name]].count_nonzero() == 0


@pytest.mark.parametrize("finalize", ["rounded", "alive"])
def test_the_mask_of_the_ticket_is_applied_to_the_network(finalize):
    recipe = load_plugins().recipe("gem_miner", options={"finalize": finalize})
    trainer, freezer = freezer_of(recipe)
    freezer.freeze(0, Freeze(0, 0.5))
    mask = freezer.final_mask(0.5)
    for name, weight in trainer.net.parameters.items():
        assert torch.equal(weight.detach(), trainer.net.weights[name] * mask[name])
    alive = kept(trainer.net.alive)
    assert kept(mask) == alive if finalize == "alive" else kept(mask) < alive


def test_training_batches_are_augmented_and_evaluation_is_not():
    source = Digits().load(None).train
    training = next(endless(source, 64, seed=0, fabric=make_fabric(CPU)))[0]
    plain = next(source.batches(64, seed=0))[0]
    assert training.shape == plain.shape
    assert not torch.equal(training, plain)
    assert 0 < sum(torch.equal(a, b) for a, b in zip(training, plain, strict=True)) < 32


class InPlace(MeasuredScores):
    """The broken version of |w|: it changes what it was given."""

    name = "in_place"

    def importance(self, probe):
        for mask in probe.alive.values():
            mask.zero_()
        return {name: weight.abs_() for name, weight in probe.weights.items()}


def test_a_score_that_works_in_place_cannot_change_the_network():
    recipe = load_plugins().recipe("magnitude")
    careless = recipe.model_copy(update={"scores": InPlace()})
    one, other = (
        search(each, tiny_net(), tiny_data(), density=0.3, runtime=CPU)
        for each in (recipe, careless)
    )
    assert all(torch.equal(one.state[name], other.state[name]) for name in one.state)
    assert all(torch.equal(one.mask[name], other.mask[name]) for name in one.mask)


def test_a_density_that_keeps_nothing_is_refused_before_any_step():
    events = []
    with pytest.raises(FitError, match="keeps none of 342"):
        find("gem_miner", density=1e-6, observers=[events.append])
    assert not events


def test_a_last_freeze_at_the_very_end_is_told_beforehand():
    for epochs, told in ((3, True), (4, False)):
        events = []
        find("gem_miner", plan=Plan(epochs=epochs, batch_size=16), observers=[events.append])
        assert isinstance(events[0], Noted) is told


def test_fine_tuning_takes_epochs_and_the_tickets_own_seed():
    ticket = find("random", seed=5)
    how = {"epochs": 2, "runtime": CPU}
    one = finetune(ticket, tiny_net(), tiny_data(), **how)
    assert one == finetune(ticket, tiny_net(), tiny_data(), seed=5, **how)
    assert one != finetune(ticket, tiny_net(), tiny_data(), seed=0, **how)


def test_a_last_batch_of_one_image_is_left_out_of_training():
    """Batch statistics of a single value do not exist."""
    model = nn.Sequential(
        nn.Conv2d(2, 4, 6), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(4, 3)
    )
    data = tiny_data(samples=17)
    ticket = search("gem_miner", model, data, density=0.5, plan=PLAN, runtime=CPU)
    assert ticket.kept > 0
    with pytest.raises(ValueError, match="more than 1 value"):
        model.train()(torch.zeros(1, 2, 6, 6))


def test_networks_that_crash_in_channels_last_stay_contiguous():
    fine = nn.Sequential(nn.Conv2d(16, 4, 1, stride=2), nn.Conv2d(3, 4, 3, stride=2))
    dangerous = nn.Sequential(nn.Conv2d(4, 8, 1, stride=2))
    assert layout_of(fine, Runtime()) is torch.channels_last
    assert layout_of(dangerous, Runtime()) is torch.contiguous_format
    assert layout_of(fine, Runtime(channels_last=False)) is torch.contiguous_format


def deep_net(depth=8, width=32):
    """Convolutions with biases in front of batch norm: signals are weak beside the constants."""
    torch.manual_seed(0)
    layers = [nn.Conv2d(2, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    for _ in range(depth):
        layers += [nn.Conv2d(width, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 3))


def test_a_weak_signal_is_not_taken_for_none():
    ticket = search("random", deep_net(), tiny_data(), density=0.1, runtime=CPU)
    assert ticket.density == pytest.approx(0.1, abs=1e-3)


@pytest.mark.parametrize("pruner", ["gem_miner", "magnitude"])
def test_tied_weights_make_a_ticket_that_can_be_used(pruner):
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 72), nn.ReLU(), nn.Linear(72, 72))
    model[3].weight = model[1].weight
    model.append(nn.Linear(72, 3))
    ticket = search(pruner, model, tiny_data(), density=0.5, plan=PLAN, runtime=CPU)
    trained = finetune(ticket, model, tiny_data(), epochs=1, runtime=CPU)
    assert 0 <= evaluate(trained, model, tiny_data(), runtime=CPU) <= 1


def test_parameters_the_user_froze_stay_as_they_are():
    model = tiny_net()
    model[0].bias.requires_grad_(False)
    start = model[0].bias.detach().clone()
    ticket = search("magnitude", model, tiny_data(), density=0.5, runtime=CPU)
    trained = finetune(ticket, model, tiny_data(), epochs=2, runtime=CPU)
    assert torch.equal(trained.state["0.bias"], start)
    assert not torch.equal(trained.state["8.bias"], model[8].bias)


def test_three_dimensional_convolutions_are_pruned_too():
    class Volume(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv3d(1, 4, (2, 3, 3))
            self.head = nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.conv(x.unsqueeze(1)).relu().mean(dim=(2, 3, 4)))

    ticket = search("gem_miner", Volume(), tiny_data(), density=0.5, plan=PLAN, runtime=CPU)
    assert list(ticket.mask) == ["conv.weight", "head.weight"]


def test_an_unknown_collapse_policy_is_refused():
    with pytest.raises(OptionError, match=r"did you mean 'error'"):
        find("random", on_collapse="eror")


def test_keep_one_never_passes_the_budget():
    with pytest.raises(CollapseError, match="each of 4 layers"):
        find("magnitude", density=2.5 / 342, on_collapse="keep-one")


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_pruned_parameters_are_exactly_zero_after_every_step(optimizer):
    """Looks at the model itself, which nothing masks again."""
    model = tiny_net()
    net = MaskedNet(model, prunable_names(model))
    half = {name: torch.rand(mask.shape) < 0.5 for name, mask in net.alive.items()}
    net.freeze_(half, {})
    plan = Plan(lr=0.05, weight_decay=0.1, optimizer=optimizer)
    trainer = Trainer(net, plan, make_fabric(CPU), CPU)
    for batch in tiny_data().train.batches(8, seed=0):
        trainer.step(batch, lr=0.05)
        for name, weight in net.parameters.items():
            assert weight[~half[name]].count_nonzero() == 0
            assert weight[half[name]].count_nonzero() > 0


def test_weight_decay_has_one_default_whatever_the_door():
    assert finetune_plan(Plan(epochs=3)).weight_decay == 1e-4
    decays = {
        name: search_plan(load_plugins().recipe(name), PLAN, tiny_data()).weight_decay
        for name in ("gem_miner", "edge_popup", "gradual_ep_l2", "magnitude")
    }
    assert decays == {
        "gem_miner": 0.0,
        "edge_popup": 5e-4,
        "gradual_ep_l2": 5e-4,
        "magnitude": 1e-4,
    }
    assert (
        search_plan(
            load_plugins().recipe("gem_miner"), Plan(weight_decay=0.3), tiny_data()
        ).weight_decay
        == 0.3
    )


class WithEmptyLayers(nn.Sequential):
    """A network with two layers that have no weights, and that it does not use."""

    def __init__(self):
        super().__init__(*tiny_net())
        self.none, self.other = nn.Linear(0, 2), nn.Linear(3, 0)

    def forward(self, images):
        for layer in list(self)[:-2]:
            images = layer(images)
        return images


@pytest.mark.filterwarnings("ignore:Initializing zero-element tensors")
@pytest.mark.parametrize("pruner", ["magnitude", "gem_miner"])
def test_layers_without_weights_keep_their_places_in_the_ticket(pruner):
    """Empty tensors are at the same address, which does not make them the same."""
    how = {"plan": PLAN, "runtime": CPU, "on_collapse": "warn"}
    ticket = search(pruner, WithEmptyLayers(), tiny_data(), density=0.5, **how)
    shapes = {name: own.shape for name, own in WithEmptyLayers().state_dict().items()}
    assert {name: own.shape for name, own in ticket.state.items()} == shapes


def test_an_epoch_is_one_pass_where_its_last_batch_is_left_out():
    """33 images in batches of 16 are two steps: a batch of one image has no statistics."""
    rng = torch.Generator().manual_seed(0)
    images, labels = torch.randn(33, 2, 6, 6, generator=rng), torch.arange(33) % 3
    some = (images[:6], labels[:6])
    data = Data.of_tensors(train=(images, labels), validation=some, test=some, classes=3)
    seen, events = [], []

    def look(own, given):
        if own.training and given[0].any():  # not the blank inputs that the network is tried with
            seen.append(given[0])

    net = tiny_net()
    net.register_forward_pre_hook(look)
    dense = search("dense", tiny_net(), data, runtime=CPU)
    plan = Plan(epochs=2, batch_size=16)
    finetune(dense, net, data, plan=plan, runtime=CPU, observers=[events.append])
    assert [event.steps for event in events if isinstance(event, PhaseStarted)] == [4]
    assert [type(event) for event in events[1:]] == 2 * [StepEnded, StepEnded, EpochEnded]
    for epoch in (seen[:2], seen[2:]):
        assert len(torch.cat(epoch).flatten(1).sum(1).unique()) == 32  # no image twice
