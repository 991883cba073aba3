"""Layer densities by experiment: searched on validation images, learned by gradient descent."""

import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import get_args

import pytest
import torch
import torch.nn.functional as F
from cli_runs import TINY, answer, commands_in
from tiny import CPU, tiny_data, tiny_net
from torch import nn

from gemkit import Plan, Ticket, finetune, load_plugins, search
from gemkit.cli.ratios import RULES
from gemkit.core.errors import FitError, OptionError, TrainingError
from gemkit.core.prunable import prunable_names
from gemkit.core.tensors import budget, generator, total
from gemkit.data.source import TensorSource
from gemkit.methods import ratio_learning
from gemkit.methods.ratio_learning import RatedNet, learn_ratios, rate_plan
from gemkit.methods.ratio_search import climb, groups, most_trials, neighbours, search_ratios
from gemkit.methods.ratios import (
    allocated,
    every_weight,
    layer_densities,
    overall,
    with_densities,
)
from gemkit.methods.smart_ratio import Densities, SmartRatio
from gemkit.training.device import make_fabric
from gemkit.training.trainer import Trainer

REGISTRY = load_plugins(only=())
SMART = REGISTRY.recipe("smart_ratio")
DENSITY = 0.4


class Forbidden(TensorSource):
    """Images that nobody may look at."""

    def batches(self, *arguments, **keywords):
        raise AssertionError("these images are not for choosing by")

    def to(self, device):
        return self


def data_without(*splits):
    data = tiny_data()
    hidden = {name: Forbidden(getattr(data, name).images, data.train.labels) for name in splits}
    return replace(data, **hidden)


def unchanged(model):
    fresh = tiny_net().state_dict()
    return all(torch.equal(value, fresh[name]) for name, value in model.state_dict().items())


# --- reading and writing -------------------------------------------------------------------------


def test_the_densities_of_a_recipe_make_the_same_tickets_when_listed():
    net, data = tiny_net(), tiny_data()
    ratios = layer_densities(SMART, net, DENSITY)
    listed = with_densities(SMART, ratios, every_weight(SMART, net), "as before")
    assert listed.density == pytest.approx(DENSITY, abs=0.01)
    assert listed.allocation == Densities(densities=ratios)
    assert layer_densities(listed, net, 0.9) == ratios  # it insists on its own
    plain = search(SMART, net, data, density=DENSITY, runtime=CPU)
    again = search(listed, net, data, density=0.9, runtime=CPU)
    assert plain.layers == again.layers
    assert REGISTRY.recipe_from_toml(listed.to_toml()) == listed


@pytest.mark.parametrize(
    ("pruner", "words"),
    [
        ("gem_miner", "'gem_miner' trains while it searches"),
        ("magnitude", "allocation 'global' lets layers compete"),
    ],
)
def test_recipes_without_layer_densities_are_refused(pruner, words):
    with pytest.raises(FitError, match=words):
        layer_densities(REGISTRY.recipe(pruner), tiny_net(), DENSITY)


# --- searching -----------------------------------------------------------------------------------


def test_groups_are_the_ends_and_three_parts_between():
    assert {name: list(group) for name, group in groups(20).items()} == {
        "ends": [0, 19],
        "early": [1, 2, 3, 4, 5, 6],
        "middle": [7, 8, 9, 10, 11, 12],
        "late": [13, 14, 15, 16, 17, 18],
    }
    for layers in range(3, 12):
        assert sorted(place for group in groups(layers).values() for place in group) == list(
            range(layers)
        )
    with pytest.raises(FitError, match="a network of 2 prunable layers"):
        groups(2)


def test_neighbours_move_one_group_and_no_density_above_one():
    moved = dict(neighbours((0.5, 0.2, 0.1, 0.1, 0.9), 0.25))
    assert len(moved) == most_trials(1) - 1 == 8
    assert moved["ends denser"] == pytest.approx((0.625, 0.2, 0.1, 0.1, 1.0))
    assert moved["early sparser"] == pytest.approx((0.5, 0.16, 0.1, 0.1, 0.9))


def closeness(goal):
    def score(ratios):
        return -sum(abs(ratio - wanted) for ratio, wanted in zip(ratios, goal, strict=True))

    return score


def test_climbing_goes_on_from_the_best_and_stops_at_the_top():
    start, goal = (0.4, 0.4, 0.4, 0.4, 0.4), (0.4, 0.4, 0.9, 0.2, 0.4)
    trials = list(climb(start, tuple, closeness(goal), step=0.5, rounds=50))
    best = max(trials, key=lambda trial: trial.accuracy)
    assert best.ratios == pytest.approx((0.4, 0.4, 0.9, 0.4 / 1.5**2, 0.4))
    assert len({trial.ratios for trial in trials}) == len(trials) < 50
    assert len(list(climb(start, tuple, closeness(goal), 0.5, rounds=2))) <= most_trials(2)


def test_climbing_stays_where_nothing_is_better():
    trials = list(climb((0.4,) * 5, tuple, lambda ratios: 0.5, 0.5, rounds=9))
    assert len(trials) == most_trials(1)
    assert max(trials, key=lambda trial: trial.accuracy).change == "start"


def test_searching_keeps_the_budget_and_looks_at_validation_images_alone():
    net, data, told = tiny_net(), data_without("test"), []
    settings = {"density": DENSITY, "plan": Plan(epochs=1, batch_size=16), "runtime": CPU}
    trials = search_ratios(SMART, net, data, **settings, repeats=2, on_trial=told.append)
    alive = every_weight(SMART, net)
    kept = {
        sum(
            round(ratio * mask.numel())
            for ratio, mask in zip(trial.ratios, alive.values(), strict=True)
        )
        for trial in trials
    }
    assert kept == {budget(total(alive), DENSITY)}
    assert trials[0].ratios == layer_densities(SMART, net, DENSITY)
    assert told == trials == search_ratios(SMART, net, data, **settings, repeats=2)
    assert unchanged(net)


def test_a_trials_accuracy_is_that_of_its_trained_tickets():
    from gemkit import evaluate

    net, data, plan = tiny_net(), tiny_data(), Plan(epochs=2, batch_size=16)
    trials = search_ratios(
        SMART, net, data, density=DENSITY, plan=plan, runtime=CPU, repeats=2, seed=5
    )
    scores = []
    for seed in (5, 6):
        ticket = search(SMART, net, data, density=DENSITY, seed=seed, runtime=CPU)
        trained = finetune(ticket, net, data, plan=plan, runtime=CPU)
        scores.append(evaluate(trained, net, data, split="validation", runtime=CPU))
    assert trials[0].accuracy == pytest.approx(sum(scores) / 2)


# --- learning: the gradient ----------------------------------------------------------------------

RATES = (0.7, 0.6, 0.9, 0.5)


def rated(model, rates=RATES, seed=0):
    return RatedNet(model, prunable_names(model), rates, generator(seed, "rates"))


def test_the_gradient_of_a_rate_is_the_sum_over_its_layer():
    """Against autograd, with the straight-through draw written out: w · (m + p − stop(p))."""
    model, (images, labels) = tiny_net().double(), next(tiny_data().train.batches(32))
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    net = rated(model)
    masks = {name: mask.clone() for name, mask in net.mask.items()}
    F.cross_entropy(net.model(images.double()), labels).backward()
    for name in net.rates:
        net.pull_back_(name)

    leaves = {
        n: torch.tensor(r).double().requires_grad_() for n, r in zip(masks, RATES, strict=True)
    }
    straight = {
        name: weights[name] * (masks[name] + leaf - leaf.detach()) for name, leaf in leaves.items()
    }
    logits = torch.func.functional_call(tiny_net().double(), weights | straight, images.double())
    F.cross_entropy(logits, labels).backward()
    for name, leaf in leaves.items():
        assert leaf.grad != 0
        torch.testing.assert_close(net.rates[name].grad, leaf.grad, rtol=1e-9, atol=1e-12)


def test_it_is_the_slope_of_the_expected_loss_where_that_is_linear():
    """All 2^4 masks of a linear model: E[loss] is differentiated by finite differences."""
    weight, slopes = torch.randn(1, 4).double(), torch.randn(1, 4).double()

    def expected(rate):
        masks = torch.cartesian_prod(*4 * [torch.tensor([0.0, 1.0]).double()])
        chances = (rate * masks + (1 - rate) * (1 - masks)).prod(1)
        return chances @ (masks * weight * slopes).sum(1)

    model = nn.Linear(4, 1, bias=False).double()
    model.weight.data.copy_(weight)
    net = rated(model, (0.3,))
    net.model(slopes).sum().backward()
    for name in net.rates:
        net.pull_back_(name)
    difference = (expected(0.3 + 1e-6) - expected(0.3 - 1e-6)) / 2e-6
    torch.testing.assert_close(net.rates["weight"].grad, difference, rtol=1e-7, atol=1e-9)


def test_steps_are_sgd_with_momentum_and_decay_on_the_scalars():
    data, lr = tiny_data(), 1e-3
    net = rated(tiny_net())
    plan = Plan(lr=lr, momentum=0.9, weight_decay=0.1)
    trainer = Trainer(net, plan, make_fabric(CPU), CPU)
    expected, speed = dict(zip(net.rates, RATES, strict=True)), dict.fromkeys(net.rates, 0.0)
    seen = {}
    pull_back_ = net.pull_back_

    def recorded(name):
        pull_back_(name)
        seen[name] = net.rates[name].grad.item()

    net.pull_back_ = recorded
    for _ in range(3):
        trainer.step(next(data.train.batches(16, seed=0)), lr)
        for name, gradient in seen.items():
            speed[name] = 0.9 * speed[name] + gradient + 0.1 * expected[name]
            expected[name] -= lr * speed[name]
            assert net.rates[name].item() == pytest.approx(expected[name], abs=1e-6)


def test_masks_are_drawn_anew_with_the_rates_as_probability():
    net = rated(nn.Linear(100, 100, bias=False), (0.3,))
    first = net.mask["weight"]
    net.draw_()
    assert not torch.equal(first, net.mask["weight"])
    assert int(first.sum()) != 3000  # chance, not an exact count
    assert abs(int(first.sum()) - 3000) < 5 * (10000 * 0.3 * 0.7) ** 0.5
    expected = net._still["weight"] * net.mask["weight"]
    torch.testing.assert_close(net.parameters["weight"].detach(), expected, rtol=0, atol=0)


def test_rates_stay_between_zero_and_one_and_weights_stand_still():
    net = rated(tiny_net())
    still = {name: weight.clone() for name, weight in net._still.items()}
    trainer = Trainer(net, Plan(lr=1e3), make_fabric(CPU), CPU)
    for _ in range(3):
        trainer.step(next(tiny_data().train.batches(32)), 1e3)
    rates = [rate.item() for rate in net.rates.values()]
    assert all(0 <= rate <= 1 for rate in rates)
    assert {0.0, 1.0}.intersection(rates)
    assert all(torch.equal(net._still[name], still[name]) for name in still)
    assert [id(rate) for rate in net.rates.values()] == [id(rate) for rate in net.trainable()]


# --- learning: the loop --------------------------------------------------------------------------


def test_learning_is_repeatable_and_never_looks_at_test_images():
    net, data = tiny_net(), data_without("test")
    settings = {"density": DENSITY, "plan": Plan(epochs=3, batch_size=16, lr=1e-2), "runtime": CPU}
    start = layer_densities(SMART, net, DENSITY)
    learned = learn_ratios(SMART, net, data, **settings)
    assert learned == learn_ratios(SMART, net, data, **settings)
    assert learned != learn_ratios(SMART, net, data, **settings, seed=1)
    assert all(0 <= rate <= 1 for rate in learned)
    assert learned != pytest.approx(start, abs=1e-4)
    assert overall(learned, every_weight(SMART, net)) != pytest.approx(DENSITY, abs=1e-4)
    assert unchanged(net)


def test_without_epochs_it_is_the_start():
    net = tiny_net()
    learned = learn_ratios(
        SMART, net, tiny_data(), density=DENSITY, plan=Plan(epochs=0), runtime=CPU
    )
    assert learned == pytest.approx(layer_densities(SMART, net, DENSITY))


def test_it_learns_in_the_weights_a_run_of_the_recipe_starts_from(monkeypatch):
    used = {}

    class Spied(RatedNet):
        def __init__(self, model, names, rates, rng):
            super().__init__(model, names, rates, rng)
            used.update(self._still)

    monkeypatch.setattr(ratio_learning, "RatedNet", Spied)
    recipe = REGISTRY.recipe("smart_ratio", parts={"init": "signed_constant"})
    net, data = tiny_net(), tiny_data()
    settings = {"density": DENSITY, "seed": 3, "runtime": CPU}
    learn_ratios(recipe, net, data, plan=Plan(epochs=0), **settings)
    ticket = search(recipe, net, data, **settings)
    assert all(torch.equal(weight, ticket.state[name]) for name, weight in used.items())


def test_rates_that_all_fall_to_zero_are_told(monkeypatch):
    class Dying(RatedNet):
        def draw_(self):
            for rate in self.rates.values():
                rate.data.zero_()
            super().draw_()

    monkeypatch.setattr(ratio_learning, "RatedNet", Dying)
    with pytest.raises(TrainingError, match="every layer's density fell to 0; lower the learning"):
        learn_ratios(SMART, tiny_net(), tiny_data(), density=DENSITY, runtime=CPU)


def test_a_selection_that_would_have_no_effect_is_refused():
    with pytest.raises(OptionError, match="select = 'best': the rates of the last step are kept"):
        learn_ratios(SMART, tiny_net(), tiny_data(), plan=Plan(select="best"), runtime=CPU)


def test_the_authors_learning_rate_holds_for_a_search_as_long_as_theirs():
    data = tiny_data(samples=32)
    long, short = Plan(epochs=150 * 391, batch_size=32), Plan(epochs=391, batch_size=32)
    assert rate_plan(long, data).lr == 1e-6
    assert rate_plan(short, data).lr == pytest.approx(150e-6)
    assert rate_plan(short, data).weight_decay == 5e-4
    assert rate_plan(Plan(lr=0.5, weight_decay=0.0), data).lr == 0.5


# --- on the command line -------------------------------------------------------------------------

TRAINING = tuple(word for word in TINY if word not in ("--density", "0.3"))


@pytest.fixture
def gemkit(tmp_path, monkeypatch):
    return commands_in(tmp_path, monkeypatch)


@pytest.fixture
def ticket(gemkit, tmp_path):
    done = gemkit("run", "--pruner", "random", *TINY, "--out", "found", "--finetune-epochs", 0)
    assert done.exit_code == 0, done.stderr
    return Ticket.load(tmp_path / "found" / "ticket.safetensors")


def kept_of(ticket):
    return [layer.kept for layer in ticket.layers]


def recipe_of(result, file):
    assert result.exit_code == 0, result.stderr
    file.write_text(result.stdout)
    return tomllib.loads(result.stdout)


def test_a_copy_makes_random_tickets_with_the_same_counts(gemkit, ticket, tmp_path):
    recipe_of(gemkit("ratios", "copy", "found/ticket.safetensors"), tmp_path / "copy.toml")
    done = answer(gemkit("run", "--recipe", "copy.toml", *TRAINING, "--seed", 1, "--json"))
    again = Ticket.load(done["ticket"])
    assert kept_of(again) == kept_of(ticket)
    assert any((again.mask[name] != ticket.mask[name]).any() for name in again.mask)


def test_copied_ends_stand_around_the_smart_ratios_of_the_tickets_density(gemkit, ticket, tmp_path):
    """Version 2: no other layer gives anything up, so the density of the whole is another."""
    file = tmp_path / "ends.toml"
    recipe = recipe_of(gemkit("ratios", "copy", "found/ticket.safetensors", "--ends", "vgg"), file)
    done = answer(gemkit("run", "--recipe", "ends.toml", *TRAINING, "--json"))
    found = Ticket.load(done["ticket"])
    alive = {name: torch.ones_like(mask) for name, mask in ticket.mask.items()}
    smart = allocated(SmartRatio(rule="vgg"), alive, ticket.density)
    middle = [round(r * m.numel()) for r, m in zip(smart, alive.values(), strict=True)][1:-1]
    first, *between, last = kept_of(found)
    assert (first, last) == (kept_of(ticket)[0], kept_of(ticket)[-1])
    assert between == middle
    assert recipe["density"] == pytest.approx(found.density) != pytest.approx(ticket.density)


def test_searched_densities_become_a_recipe(gemkit, tmp_path):
    short = (*TRAINING, "--epochs", 1)
    result = gemkit("ratios", "search", "--pruner", "random", "--density", 0.3, *short)
    recipe = recipe_of(result, tmp_path / "searched.toml")
    assert "up to 9 tickets, 1 epoch each" in result.stderr
    assert "start" in result.stderr
    assert recipe["allocation"]["name"] == "densities"
    done = answer(gemkit("run", "--recipe", "searched.toml", *TRAINING, "--json"))
    assert done["density"] == recipe["density"] == pytest.approx(0.3, abs=1e-3)
    told = answer(gemkit("ratios", "search", "--recipe", "searched.toml", *short, "--json"))
    assert told["accuracy_validation"] == max(trial["accuracy"] for trial in told["trials"])
    assert told["kept"] == done["kept"]


def test_learned_densities_become_a_recipe_of_another_density(gemkit, tmp_path):
    result = gemkit("ratios", "learn", "--density", 0.3, "--lr", 0.02, *TRAINING)
    recipe = recipe_of(result, tmp_path / "learned.toml")
    assert recipe["density"] != pytest.approx(0.3, abs=1e-4)
    assert "density 0.3 at the start" in result.stderr
    done = answer(gemkit("run", "--recipe", "learned.toml", *TRAINING, "--json"))
    assert done["kept"] == budget(done["prunable"], recipe["density"])
    result = gemkit(
        "ratios", "learn", "--recipe", "learned.toml", "--density", 0.5, *TRAINING, "--json"
    )
    assert answer(result)["density_start"] == recipe["density"]
    assert "the given density 0.5 is ignored" in result.stderr


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("copy", "nowhere.safetensors"), "nowhere.safetensors does not exist"),
        (("copy", "damaged.safetensors"), "damaged.safetensors"),
        (("copy", "sparse.safetensors", "--ends", "resnet"), "ask for a density of at least"),
        (("search", "--pruner", "gem_miner", "--density", 0.3), "trains while it searches"),
        (("learn", "--pruner", "magnitude", "--density", 0.3), "lets layers compete"),
        (("learn", "--pruner", "random", "--recipe", "x.toml"), "give one"),
        (("learn", "--density", 0.001), "ask for a density of at least"),
        (("search", "--model", "lenet300"), "allocation.fixed='last'"),
    ],
)
def test_mistakes_are_told_in_one_message(gemkit, ticket, tmp_path, words, said):
    (tmp_path / "damaged.safetensors").write_bytes(b"\x80\x04not a ticket")
    none = {name: torch.zeros_like(mask) for name, mask in ticket.mask.items()}
    none["conv1.weight"][0, 0] = True
    replace(ticket, mask=none).save(tmp_path / "sparse.safetensors")
    result = gemkit("ratios", *words, *(("--dataset", "fake") if words[0] != "copy" else ()))
    assert result.exit_code == 2
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_the_rules_in_the_help_are_the_real_ones():
    assert get_args(SmartRatio.model_fields["rule"].annotation) == RULES


def test_the_commands_in_the_documentation_make_every_version(gemkit, ticket, tmp_path):
    page = (Path(__file__).parents[3] / "docs" / "smart-ratio.md").read_text()
    table = [line for line in page.splitlines() if re.match(r"\| v\d", line)]
    assert [row.split()[1] for row in table] == ["v1", "v2", "v3", "v4", "v5", "v6"]
    for row in table:
        for command in re.findall(r"`gemkit ([^`]+)`", row):
            line, _, file = command.replace("TICKET", "found/ticket.safetensors").partition(" > ")
            words = line.split()
            if words[:2] != ["ratios", "copy"]:
                words += TINY if words[0] == "run" else (*TRAINING, "--epochs", "1")
            result = gemkit(*words)
            assert result.exit_code == 0, f"{command}: {result.stderr}"
            if file:
                (tmp_path / file).write_text(result.stdout)
    assert {file.stem for file in tmp_path.glob("*.toml")} == {"v2", "imp", "v4", "v5", "v6"}
    for version in ("v2", "v4", "v5", "v6"):
        done = answer(gemkit("run", "--recipe", f"{version}.toml", *TRAINING, "--json"))
        assert done["recipe"]["allocation"]["name"] == "densities"
