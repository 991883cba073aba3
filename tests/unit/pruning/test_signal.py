"""Networks that carry no signal at initialization are found, reported, and made ready."""

import copy

import pytest
import torch
from cli_runs import commands_in
from tiny import CPU, tiny_data
from torch import nn

from benchmarks import families, timm_tickets
from gemkit import Plan, load_plugins, prepare, prunable_names, search
from gemkit.core.errors import CollapseError, ModelError, SignalError
from gemkit.core.events import Collapsed, Noted
from gemkit.models.custom import model_data
from gemkit.models.prepare import changes
from gemkit.models.signal import trace
from gemkit.report.pages import with_results
from gemkit.runs.specs import recorded_model
from gemkit.sanity.context import context_of
from gemkit.training.checkpointer import Checkpointer

LIBRARY = load_plugins(only=[])
PLAN = Plan(epochs=2, batch_size=16, lr=5.0)


class Block(nn.Module):
    """A residual block whose last norm has a scale of 0, as timm builds them."""

    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x):
        return x + self.norm(self.conv(x))


class Scaled(nn.Module):
    """A residual block with a layer scale."""

    def __init__(self, width, scale=1e-6):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 1, bias=False)
        self.gamma = nn.Parameter(torch.full((width, 1, 1), scale))

    def forward(self, x):
        return x + self.gamma * self.conv(x)


class Unused(nn.Module):
    """A layer that takes no part."""

    def __init__(self, width):
        super().__init__()
        self.spare = nn.Linear(width, width)

    def forward(self, x):
        return x


class Blind(nn.Module):
    """A layer that sees a constant instead of the image."""

    def __init__(self, width):
        super().__init__()
        self.conv = nn.Conv2d(width, width, 1)

    def forward(self, x):
        return x + self.conv(torch.ones_like(x))


def residual(block, width=8):
    torch.manual_seed(0)
    stem, head = nn.Conv2d(2, width, 3, padding=1), nn.Linear(width, 3)
    return nn.Sequential(stem, block(width), nn.AdaptiveAvgPool2d(1), nn.Flatten(), head)


def zero_head(width=8):
    model = residual(Scaled)
    nn.init.ones_(model[1].gamma)
    nn.init.zeros_(model[-1].weight)
    return model


def found_in(model):
    data = tiny_data()
    batch = next(iter(data.train.batches(16)))
    return trace(model, prunable_names(model), batch)


# --- what one batch shows ------------------------------------------------------------------------


def test_a_norm_of_scale_zero_leaves_a_layer_without_gradient():
    found = found_in(residual(Block))
    assert found.dead == ("1.conv.weight",)
    assert not found.constant
    assert "1 of 3 prunable layers gets no gradient ('1.conv.weight')" in found.sentences(3)


def test_a_head_of_zeros_makes_the_output_constant():
    found = found_in(zero_head())
    assert found.constant
    assert found.dead == ("0.weight", "1.conv.weight")


def test_a_layer_scale_makes_a_layer_faint():
    assert found_in(residual(Scaled)).faint == ("1.conv.weight",)


def test_unused_and_blind_layers_are_told_apart():
    assert found_in(residual(Unused)).unused == ("1.spare.weight",)
    blind = found_in(residual(Blind))
    assert blind.blind == ("1.conv.weight",)
    assert not blind.dead
    assert not blind.unused


def test_a_sound_network_shows_nothing():
    assert found_in(prepare(residual(Block))).sentences(3) == []


def test_looking_leaves_no_trace():
    model = residual(Block)
    model[1].eval()
    before, modes = copy.deepcopy(model.state_dict()), [m.training for m in model.modules()]
    random = torch.get_rng_state()
    found_in(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [module.training for module in model.modules()] == modes
    assert torch.equal(random, torch.get_rng_state())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_dropout_does_not_cut_layers_off():
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 8), nn.Dropout(1 - 1e-9), nn.Linear(8, 3))
    assert found_in(model).dead == ()


# --- making a network ready ----------------------------------------------------------------------


@pytest.mark.parametrize("build", [lambda: residual(Block), lambda: residual(Scaled), zero_head])
def test_a_prepared_copy_passes_signal_everywhere(build):
    model = build()
    before = copy.deepcopy(model.state_dict())
    ready = prepare(model, seed=3)
    found = found_in(ready)
    assert (found.dead, found.faint, found.constant) == ((), (), False)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    changed = {change.name for change in changes(model)}
    assert changed
    for name, value in ready.state_dict().items():
        assert torch.equal(value, before[name]) == (name not in changed)
    again = prepare(model, seed=3).state_dict()
    assert all(torch.equal(value, again[name]) for name, value in ready.state_dict().items())


def test_a_response_norm_keeps_its_scale_of_zero():
    class GlobalResponseNorm(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(4))

    assert list(changes(nn.Sequential(GlobalResponseNorm()))) == []


def test_scales_and_weights_of_ordinary_size_stay():
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), Scaled(4, scale=0.1))
    assert list(changes(model)) == []


# --- searches ------------------------------------------------------------------------------------


def hunt(pruner, model, *, density=0.5, **settings):
    events = []
    options = {"schedule.every": 1} if pruner in {"gem_miner", "imp_short_cold"} else {}
    recipe = LIBRARY.recipe(pruner, options=options)
    arguments = {"plan": PLAN, "runtime": CPU, "observers": [events.append]} | settings
    return search(recipe, model, tiny_data(), density=density, **arguments), events


def notes_of(events):
    notes = [event.message for event in events if isinstance(event, Noted)]
    return [note for note in notes if note.startswith("at the start of the search")]


@pytest.mark.parametrize("pruner", ["gem_miner", "edge_popup", "snip", "grasp", "synflow"])
def test_scores_that_need_signal_are_refused_without_it(pruner):
    with pytest.raises(SignalError) as told:
        hunt(pruner, residual(Block))
    assert "'1.conv.weight'" in str(told.value)
    assert "norms with a scale of 0 ('1.norm.weight')" in str(told.value)
    assert "prepare=True" in str(told.value)


@pytest.mark.parametrize("pruner", ["gem_miner", "snip"])
def test_a_network_is_prepared_on_request(pruner):
    model = residual(Block)
    ticket, events = hunt(pruner, model, prepare=True)
    assert not notes_of(events)
    assert model[1].norm.weight.count_nonzero() == 0
    assert (ticket.state["1.norm.weight"] == 1).all()


def test_a_search_without_signal_can_be_meant():
    plan = PLAN.model_copy(update={"on_no_signal": "warn"})
    _, events = hunt("gem_miner", residual(Block), plan=plan)
    [note] = notes_of(events)
    assert "'1.conv.weight'" in note


@pytest.mark.parametrize("pruner", ["magnitude", "random", "imp_short_cold"])
def test_scores_that_need_no_signal_only_report_it(pruner):
    _, events = hunt(pruner, residual(Block))
    assert len(notes_of(events)) == 1


def test_masks_depend_on_the_labels_once_the_network_is_ready():
    masks = {}
    for ready in (False, True):
        plan = PLAN.model_copy(update={"on_no_signal": "warn", "lr": 20.0})
        for order in (0, 1):
            data = tiny_data(seed=0)
            data.train.labels[:] = (data.train.labels + order) % 3
            recipe = LIBRARY.recipe("gem_miner", options={"schedule.every": 1})
            model = prepare(residual(Block)) if ready else residual(Block)
            ticket = search(recipe, model, data, density=0.5, plan=plan, runtime=CPU)
            masks[ready, order] = ticket.mask["1.conv.weight"]
    assert torch.equal(masks[False, 0], masks[False, 1])
    assert not torch.equal(masks[True, 0], masks[True, 1])


# --- collapse ------------------------------------------------------------------------------------


class Cut(nn.Module):
    """A branch through a single channel, behind which a search may leave nothing."""

    def __init__(self, width):
        super().__init__()
        self.narrow = nn.Conv2d(width, width, 1, bias=False)
        self.wide = nn.Conv2d(width, width, 1, bias=False)

    def forward(self, x):
        return x + self.wide(torch.relu(self.narrow(x)))


def test_a_constant_output_is_a_collapse():
    model = nn.Sequential(nn.Flatten(), nn.Linear(72, 40), nn.ReLU(), nn.Linear(40, 3))
    with torch.no_grad():  # only weights that keep every unit off survive
        model[1].bias.fill_(-3.0)
        model[1].weight.fill_(1.0)
        model[1].weight[:, 0] = -2.0
    data = tiny_data()
    data.train.images.fill_(0.5)
    data.train.images[:, 0, 0, 0] = torch.linspace(0, 1, len(data.train.images))
    recipe = LIBRARY.recipe("magnitude", parts={"allocation": "uniform"})
    arguments = {"density": 0.014, "plan": PLAN, "runtime": CPU}
    with pytest.raises(CollapseError, match="the same for every image"):
        search(recipe, model, data, **arguments)
    events = []
    search(recipe, model, data, on_collapse="warn", observers=[events.append], **arguments)
    assert len([event for event in events if isinstance(event, Collapsed)]) == 1


def test_layers_that_lose_their_gradient_are_a_collapse():
    model = residual(Cut)
    with torch.no_grad():
        model[1].narrow.weight.copy_(-torch.rand(8, 8, 1, 1) * 0.01)
        model[1].narrow.weight[:, 0] = 5.0  # carries the signal, and is pruned by invert
        model[0].weight.abs_()
        model[0].bias.fill_(3.0)
    recipe = LIBRARY.recipe("magnitude", parts={"allocation": "uniform"}, options={"invert": True})
    with pytest.raises(CollapseError, match=r"'1\.wide\.weight' no longer get any gradient"):
        search(recipe, model, tiny_data(), density=0.5, plan=PLAN, runtime=CPU)


def test_every_collapse_is_reported_once():
    recipe = LIBRARY.recipe("synflow", options={"schedule.rounds": 20})
    events = []
    torch.manual_seed(0)
    layers = [layer for _ in range(6) for layer in (nn.Linear(72, 72, bias=False), nn.ReLU())]
    model = nn.Sequential(nn.Flatten(), *layers, nn.Linear(72, 3))
    recipe = recipe.model_copy(update={"scores": LIBRARY.build("scores", "magnitude")})
    with torch.no_grad():
        model[1].weight.mul_(1e-3)
    search(
        recipe, model, tiny_data(), density=0.01, plan=PLAN, runtime=CPU,
        on_collapse="warn", observers=[events.append],
    )  # fmt: skip
    collapses = [event for event in events if isinstance(event, Collapsed)]
    reported = [layer for event in collapses for layer in event.layers]
    assert "1.weight" in reported
    assert len(collapses) <= len(set(reported)) + 1


# --- networks by name ----------------------------------------------------------------------------


def scales(part):
    torch.manual_seed(0)
    model = part.build((3, 32, 32), 3)
    return [m.weight for name, m in model.named_modules() if name.endswith("bn2")]


def test_networks_by_name_are_built_ready_and_say_so():
    part = LIBRARY.build("models", "timm:resnet10t")
    assert part.prepare
    assert all((scale == 1).all() for scale in scales(part))
    as_built = LIBRARY.build("models", "timm:resnet10t", {"prepare": False})
    assert all((scale == 0).all() for scale in scales(as_built))


def test_a_file_that_does_not_mention_it_means_the_network_as_built():
    said = {"name": "timm", "network": "resnet10t"}
    assert not recorded_model(LIBRARY, said, None, {}).prepare
    assert recorded_model(LIBRARY, {**said, "prepare": True}, None, {}).prepare
    assert recorded_model(LIBRARY, {"name": "conv4"}, None, {}).name == "conv4"


def test_new_settings_at_their_defaults_leave_older_configurations_as_they_were():
    as_built = LIBRARY.build("models", "timm:resnet10t", {"prepare": False})
    assert "prepare" not in model_data(as_built)
    assert model_data(LIBRARY.build("models", "timm:resnet10t"))["prepare"]
    assert not {"allow_ties", "on_no_signal"} & Plan().model_dump().keys()
    assert Plan(allow_ties=True, on_no_signal="warn").model_dump()["allow_ties"]


def test_frozen_parameters_are_not_prepared():
    model = residual(Block)
    model[1].norm.weight.requires_grad_(False)
    assert list(changes(model)) == []


def test_loaded_weights_are_never_prepared(tmp_path):
    from safetensors.torch import save_file

    as_built = LIBRARY.build("models", "timm:resnet10t", {"prepare": False})
    file = tmp_path / "weights.safetensors"
    save_file(as_built.build((3, 32, 32), 3).state_dict(), file)
    part = LIBRARY.build("models", "timm:resnet10t", {"weights": str(file)})
    assert all((scale == 0).all() for scale in scales(part))


OWN = """
from torch import nn

class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(1, 1, 3, padding=1), nn.BatchNorm2d(1)
        nn.init.zeros_(self.norm.weight)

    def forward(self, x):
        return x + self.norm(self.conv(x))

def net(shape, classes):
    return nn.Sequential(Block(), nn.Flatten(), nn.Linear(64, classes))
"""


def test_a_network_of_ones_own_is_refused_or_prepared_on_the_command_line(tmp_path, monkeypatch):
    gemkit = commands_in(tmp_path, monkeypatch)
    (tmp_path / "dark_nets.py").write_text(OWN)
    words = ("run", "--model", "dark_nets:net", "--pruner", "snip", "--density", "0.5")
    words += ("--finetune-epochs", "0", "--device", "cpu", "--on-collapse", "warn")
    refused = gemkit(*words)
    assert refused.exit_code == 2
    assert "norms with a scale of 0 ('0.norm.weight')" in refused.output
    assert gemkit(*words, "--out", "ready", "-o", "model.prepare=true").exit_code == 0
    warned = gemkit(*words, "--out", "dark", "--on-no-signal", "warn", "--allow-ties")
    assert warned.exit_code == 0
    assert "warning: at the start of the search" in warned.output


# --- families of timm ----------------------------------------------------------------------------


@pytest.mark.one_in(3)
@pytest.mark.parametrize("network", families.IN_CI)
def test_no_family_has_a_silent_layer(network):
    row = families.measure({"network": network, "size": families.IN_CI[network]})
    assert row["prepared"]["dead"] == row["prepared"]["unused"] == 0
    assert not row["prepared"]["constant"]
    assert row["snip_same"] == row["gem_miner_same"] == 0


def test_the_families_as_built_would_be_noticed():
    row = families.measure({"network": "resnet10t", "size": 32})
    assert row["as_built"]["dead"] == 8


def test_the_table_of_families_is_made_of_the_results():
    page = families.PAGE.read_text()
    rows = families.ledger().of(families.planned())
    assert len(rows) == len(families.FAMILIES) >= 40
    assert with_results(page, "families", families.table(rows)) == page


def test_the_table_of_tickets_is_made_of_the_results():
    page = timm_tickets.PAGE.read_text()
    rows = timm_tickets.ledger().of(timm_tickets.planned())
    assert with_results(page, "timm-tickets", timm_tickets.table(rows)) == page


# --- awkward networks and old runs ---------------------------------------------------------------


class Detached(nn.Module):
    """A network whose prunable layer never reaches the output."""

    def __init__(self):
        super().__init__()
        self.spare, self.bias = nn.Linear(72, 3), nn.Parameter(torch.zeros(3))

    def forward(self, x):
        return self.bias + x.flatten(1)[:, :3]


def test_a_network_that_uses_none_of_its_layers_says_so():
    assert found_in(Detached()).unused == ("spare.weight",)


@pytest.mark.parametrize("pruner", ["gem_miner", "edge_popup", "snip"])
def test_a_search_in_a_network_that_uses_none_of_its_layers_is_refused(pruner):
    with pytest.raises(SignalError, match="takes no part in computing the output"):
        hunt(pruner, Detached())


def test_several_outputs_are_refused_in_a_sentence():
    class Pair(nn.Linear):
        def forward(self, x):
            return super().forward(x.flatten(1)), x

    with pytest.raises(ModelError, match="Pair returns something of type tuple"):
        found_in(Pair(72, 3))


def test_batches_of_one_image_are_looked_at_together():
    layers = [nn.Flatten(), nn.Linear(72, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3)]
    plan = Plan(epochs=0, batch_size=1)
    ticket, _ = hunt("magnitude", nn.Sequential(*layers), plan=plan)
    assert ticket.kept


def test_a_search_that_was_saved_is_resumed_whatever_the_check_says(tmp_path):
    class Saved(Checkpointer):
        phase = "search"

    with pytest.raises(SignalError):
        hunt("gem_miner", residual(Block))
    assert hunt("gem_miner", residual(Block), checkpointer=Saved())[0].kept


def test_names_that_only_begin_like_a_scale_are_left_alone():
    class GRN(nn.Module):
        def __init__(self):
            super().__init__()
            self.gamma = nn.Parameter(torch.zeros(4))

    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            for name in ("scale_bias", "lstm_h0", "gains_x", "lsx"):
                setattr(self, name, nn.Parameter(torch.zeros(4)))

    assert list(changes(nn.Sequential(GRN(), Odd()))) == []


def test_data_that_never_change_are_named_as_a_reason():
    data = tiny_data()
    data.train.images.fill_(0.0)
    with pytest.raises(SignalError, match="look whether images and labels differ"):
        search(LIBRARY.recipe("snip"), Blank(), data, density=0.5, plan=PLAN, runtime=CPU)


class Blank(nn.Module):
    """Two layers without biases, which pass no blank image on."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.last = nn.Linear(72, 8, bias=False), nn.Linear(8, 3, bias=False)

    def forward(self, x):
        return self.last(torch.relu(self.first(x.flatten(1))))


@pytest.mark.parametrize("older", [True, False])
def test_the_search_of_an_older_ticket_can_be_repeated_without_signal(older):
    plan = PLAN.model_copy(update={"on_no_signal": "warn"})
    ticket, _ = hunt("snip", residual(Block), plan=plan.model_copy(update={"allow_ties": True}))
    known = {"plan": ticket.info.plan.model_copy(update={"on_no_signal": "error"})}
    ticket = ticket.with_info(**known, **({"tied": None} if older else {}))
    context = context_of(
        ticket, data=tiny_data(), build=lambda: residual(Block), registry=LIBRARY, runtime=CPU
    )
    if older:
        assert context.search().kept == ticket.kept
    else:
        with pytest.raises(SignalError):
            context.search()
