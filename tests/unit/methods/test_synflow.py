"""SynFlow against closed forms and its own laws, on plain networks and on gates and attention."""

import pytest
import timm
import torch
import torch.nn.functional as F
from architectures import build, vgg16, vit
from tiny import CPU, tiny_data, tiny_net
from torch import nn

from gemkit import Plan, importance, load_plugins, prunable_names, search, select
from gemkit.core.errors import ImportanceError
from gemkit.core.probe import Probe
from gemkit.core.tensors import budget, kept, total
from gemkit.methods.positive_flow import PositiveFlow
from gemkit.methods.synflow import Synflow
from gemkit.pruning.collapse import empty_layers


def synflow(model, shape=(3, 32, 32), alive=None, dtype=torch.float64):
    """Scores in the model's own format, which is double precision unless said otherwise."""
    model = model.to(dtype)
    return importance("synflow", model, [(torch.zeros(1, *shape), torch.tensor([0]))], alive=alive)


def layer_sums(model, shape=(3, 32, 32)):
    return {name: float(value.sum()) for name, value in synflow(model, shape).items()}


# --- the definition ------------------------------------------------------------------------------


def test_a_chain_of_linear_layers_has_a_closed_form():
    """s_ij = (flow arriving at j) · |w_ij| · (flow leaving i), R the product of all."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), *(nn.Linear(a, b, bias=False) for a, b in ((12, 5), (5, 4), (4, 3)))
    ).double()
    a, b, c = (layer.weight.detach().abs() for layer in model[1:])
    ones = torch.ones
    one, two = a @ ones(12).double(), b @ (a @ ones(12).double())
    out = ones(3).double()
    expected = [
        (c @ b).T @ out[:, None] * a,
        (c.T @ out)[:, None] * b * one,
        out[:, None] * c * two,
    ]
    measured = synflow(model, (3, 2, 2))
    for value, wanted in zip(measured.values(), expected, strict=True):
        torch.testing.assert_close(value, wanted, rtol=1e-13, atol=0)


def test_everything_takes_part_by_its_absolute_value():
    """Biases, scales, shifts and running statistics too, in evaluation mode, by hand."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2)).double()
    norm = model[1]
    for tensor in (norm.weight, norm.bias, norm.running_mean):
        nn.init.normal_(tensor)
    nn.init.uniform_(norm.running_var, 0.5, 2)
    nn.init.constant_(model[0].bias, -5)
    first, last = model[0].weight.detach().abs(), model[3].weight.detach().abs()
    first.requires_grad_()
    flow = first.sum(1) + 5 - norm.running_mean.abs()
    flow = flow / (norm.running_var + norm.eps).sqrt() * norm.weight.abs() + norm.bias.abs()
    out = (last @ flow + model[3].bias.abs()).sum()
    [slope] = torch.autograd.grad(out, first)
    torch.testing.assert_close(synflow(model.train(), (4,))["0.weight"], first.detach() * slope)


def test_a_running_mean_above_the_flow_stops_it_but_turns_nothing_negative():
    model = tiny_net()
    model[1].running_mean[:3] = 1e6
    scores = synflow(model, (2, 6, 6))
    assert min(float(value.min()) for value in scores.values()) >= 0


# --- its laws ------------------------------------------------------------------------------------


def unbiased(model):
    for name, parameter in model.named_parameters():
        if "bias" in name or "pos_embed" in name:
            nn.init.zeros_(parameter)
    return model


class Gated(nn.Module):
    """Squeeze-and-excitation and a gated linear unit: products of two flows."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, bias=False)
        self.squeeze = nn.Conv2d(4, 2, 1, bias=False)
        self.excite = nn.Conv2d(2, 4, 1, bias=False)
        self.wide = nn.Linear(4, 8, bias=False)
        self.head = nn.Linear(4, 3, bias=False)

    def forward(self, x):
        x = F.hardswish(self.conv(x), inplace=True)
        gate = self.excite(F.silu(self.squeeze(x.mean((2, 3), keepdim=True))))
        x = F.relu6(x).mul_(torch.sigmoid(gate))
        return self.head(F.glu(self.wide(x.mean((2, 3)))))


def test_every_cut_carries_the_whole_flow_also_through_gates():
    """The gates answer for half of what they let through; so do the layers they multiply."""
    torch.manual_seed(0)
    sums = layer_sums(Gated(), (3, 8, 8))
    whole = sums["head.weight"]
    expected = {"conv": 1, "squeeze": 0.5, "excite": 0.5, "wide": 1, "head": 1}
    for name, share in expected.items():
        assert sums[f"{name}.weight"] == pytest.approx(share * whole, rel=1e-10), name


@pytest.mark.parametrize("fused", [True, False])
def test_attention_carries_the_whole_flow(fused):
    """One attention block without its residual path: all must pass the projections."""
    torch.manual_seed(0)
    model = unbiased(vit(global_pool="avg", class_token=False))
    model.blocks = model.blocks[:1]
    for block in model.blocks:
        block.forward = lambda x, own=block: own.mlp(own.norm2(own.attn(own.norm1(x))))
        block.attn.fused_attn = fused
    sums = layer_sums(model)
    assert len(sums) == 6
    for name, value in sums.items():
        assert value == pytest.approx(sums["head.weight"], rel=1e-10), name


def test_torchs_own_attention_layer_is_the_same():
    torch.manual_seed(0)
    layer = nn.MultiheadAttention(8, 2, batch_first=True, bias=False)
    separate = nn.MultiheadAttention(8, 2, batch_first=True, bias=False, kdim=8, vdim=8)
    for name in "qkv":
        assert getattr(separate, f"{name}_proj_weight") is None  # as long as widths are equal
    model = Attending(layer)
    sums = layer_sums(model, (5, 8))
    for name, value in sums.items():
        assert value == pytest.approx(sums["head.weight"], rel=1e-10), name
    uneven = Attending(nn.MultiheadAttention(8, 2, batch_first=True, bias=False, kdim=4), key=4)
    sums = layer_sums(uneven, (5, 8))
    shares = {name: value / sums["head.weight"] for name, value in sums.items()}
    assert shares["attention.q_proj_weight"] == pytest.approx(0.25, rel=1e-10)
    assert shares["attention.k_proj_weight"] == pytest.approx(0.25, rel=1e-10)
    assert shares["attention.v_proj_weight"] == pytest.approx(0.5, rel=1e-10)


class Attending(nn.Module):
    def __init__(self, attention, key=8):
        super().__init__()
        self.attention = attention
        self.key = key
        self.head = nn.Linear(8, 3, bias=False)

    def forward(self, x):
        return self.head(self.attention(x, x[..., : self.key], x, need_weights=False)[0].mean(1))


def test_a_plain_network_conserves_flow_layer_by_layer():
    sums = layer_sums(build("vgg16"))
    assert len(sums) == 14
    for value in sums.values():
        assert value == pytest.approx(sums["0.weight"], rel=1e-10)


def test_relu6_let_alone_would_stop_the_flow():
    """The broken version: what 52 of MobileNet-V2's 53 layers would get without a stand-in."""
    model = build("mobilenet_v2").double().eval()
    weights = {name: model.get_parameter(name) for name in prunable_names(model)}
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.abs_()
    ones = torch.ones(1, 3, 32, 32).double()
    saturated = torch.autograd.grad(model(ones).sum(), list(weights.values()))
    assert sum(not slope.any() for slope in saturated) > 40
    with PositiveFlow():
        flow = model(ones).sum()
    assert all(slope.any() for slope in torch.autograd.grad(flow, list(weights.values())))


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet18", {}),
        ("mobilenetv3_small_050", {}),
        ("convnext_atto", {}),
        ("vit_tiny_patch16_224", {"img_size": 32}),
    ],
)
def test_timm_models_have_flow_in_every_layer(name, options):
    torch.manual_seed(0)
    scores = synflow(timm.create_model(name, num_classes=10, **options), dtype=torch.float32)
    for layer, value in scores.items():
        assert value.dtype == torch.float32
        assert value.isfinite().all(), layer
        assert (value >= 0).all(), layer
        assert value.any(), layer


def deep(layers):
    torch.manual_seed(0)
    return nn.Sequential(*(nn.Conv2d(3, 3, 3, padding=1, bias=False) for _ in range(layers)))


def test_flow_beyond_single_precision_keeps_its_ranking():
    """R is about 1e60 here; in the model's own format it comes back scaled, as a whole."""
    model = deep(200)
    with torch.no_grad():
        for layer in model:
            layer.weight.mul_(1.2)
    exact = synflow(model, (3, 4, 4), dtype=torch.float64)
    assert float(exact["0.weight"].sum()) > 1e39
    single = synflow(model, (3, 4, 4), dtype=torch.float32)
    assert all(value.isfinite().all() for value in single.values())
    one, other = (
        torch.cat([value.flatten().double() for value in scores.values()])
        for scores in (exact, single)
    )
    torch.testing.assert_close(one / one.max(), other / other.max(), rtol=1e-4, atol=0)


def test_flow_beyond_double_precision_is_an_error_that_says_so():
    model = deep(300)
    with torch.no_grad():
        for layer in model:
            layer.weight.mul_(1e2)
    with pytest.raises(ImportanceError, match="overflows even double precision"):
        synflow(model, (3, 4, 4))


# --- what it refuses -----------------------------------------------------------------------------


class Odd(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.one, self.two, self.function = nn.Linear(4, 4), nn.Linear(4, 3), function

    def forward(self, x):
        return self.two(self.function(self.one(x)))


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (torch.exp, "takes 'exp' of"),
        (lambda x: x**2, "takes 'pow' of"),
        (lambda x: F.normalize(x), "takes 'normalize' of"),
        (torch.atan, "takes 'atan' of"),
        (torch.exp2, "takes 'exp2' of"),
        (F.tanhshrink, "takes 'tanhshrink' of"),
        (lambda x: F.softmin(x, dim=-1), "takes 'softmin' of"),
        (lambda x: torch.addcmul(x, x, x), "takes 'addcmul' of"),
        (lambda x: 1 - x, "is negative"),
        (lambda x: x * 0, "no synaptic flow passes 'one.weight'"),
    ],
)
def test_what_breaks_the_law_is_refused_in_words(function, words):
    torch.manual_seed(0)
    with pytest.raises(ImportanceError, match=words):
        synflow(Odd(function), (4,))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.clamp_max(0.5),
        lambda x: x.clamp_min(0.1),
        lambda x: torch.minimum(x, torch.tensor(0.5, dtype=x.dtype)),
        lambda x: torch.maximum(x, 2 * x),
        lambda x: torch.mm(x, x.t().mm(x)),
    ],
)
def test_bounds_are_lifted_and_matrix_products_shared(function):
    torch.manual_seed(0)
    model = Odd(function)
    nn.init.zeros_(model.one.bias)
    nn.init.zeros_(model.two.bias)
    sums = layer_sums(model, (4,))
    assert sums["one.weight"] == pytest.approx(sums["two.weight"], rel=1e-10)


def test_zero_weights_and_no_shape_are_told():
    model = tiny_net()
    nn.init.zeros_(model[8].weight)
    with pytest.raises(ImportanceError, match=r"all weights of '8\.weight' are zero"):
        synflow(model, (2, 6, 6))
    with pytest.raises(ImportanceError, match="shape of an input"):
        importance("synflow", tiny_net(), [])


def test_a_layer_without_flow_is_fine_once_something_is_pruned():
    """A residual branch may die at low density, as the authors' method has it."""
    model = tiny_net()
    alive = {name: torch.ones_like(model.get_parameter(name)) for name in prunable_names(model)}
    alive["3.weight"].zero_()
    scores = synflow(model, (2, 6, 6), alive=alive)
    assert not scores["0.weight"].any()


# --- stand-ins one by one ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "function",
    [
        *(F.relu6, F.hardswish, F.silu, F.gelu, F.mish, F.elu, F.softplus, torch.tanh, F.hardtanh),
        *(torch.relu, F.leaky_relu, lambda x: x.clamp(0, 6), lambda x: F.log_softmax(x, -1)),
        *(lambda x: F.layer_norm(x, (4,)), lambda x: F.rms_norm(x, (4,)), torch.sigmoid),
        *(lambda x: F.group_norm(x, 2), F.hardsigmoid, lambda x: x.softmax(-1), nn.SiLU(True)),
        *(lambda x: x * x.sigmoid(), lambda x: x.clone().mul_(x), lambda x: x / x.sum()),
        *(lambda x: torch.einsum("bi,bi->bi", x, x), lambda x: F.instance_norm(x[None])[0]),
        *(lambda x: x.bmm(x.mT) if x.ndim > 2 else x @ x.T, lambda x: F.glu(x)),
    ],
)
def test_every_stand_in_is_positive_and_of_degree_one(function):
    """Euler: x · ∂f/∂x = f, and nothing negative comes out."""
    torch.manual_seed(0)
    x = (torch.rand(3, 4, dtype=torch.float64) * 9).requires_grad_()
    with PositiveFlow():
        y = function(x * 1.0)
    [slope] = torch.autograd.grad(y.sum(), x)
    assert (y >= 0).all()
    torch.testing.assert_close((x * slope).sum(), y.sum())


def test_products_and_gates_have_the_values_they_should():
    torch.manual_seed(0)
    a, b, c = ((torch.rand(2, 4, 4) + 1).double().requires_grad_() for _ in range(3))
    with PositiveFlow():
        both, crossed = (a * 1.0) * (b * 1.0), (a * 1.0) @ (b * 1.0)
        attended = F.scaled_dot_product_attention(a * 1.0, b * 1.0, c * 1.0)
        gate = torch.sigmoid(a * 1.0)
    torch.testing.assert_close(both, a * b)
    torch.testing.assert_close(crossed, a @ b)
    torch.testing.assert_close(attended, c.mean(-2, keepdim=True).expand_as(c))
    assert (gate == 1).all()


def test_outside_nothing_has_a_stand_in():
    with PositiveFlow():
        pass
    assert F.relu6(torch.tensor(9.0)) == 6


# --- the pruner ----------------------------------------------------------------------------------


def test_the_pruner_takes_a_hundred_exponential_rounds_and_others_are_one_option_away():
    registry = load_plugins()
    recipe = registry.recipe("synflow")
    freezes = recipe.schedule.freezes(0.01, 0, 1)
    assert [freeze.step for freeze in freezes] == [0] * 100
    assert freezes[49].density == pytest.approx(0.1)
    assert registry.recipe("synflow", parts={"schedule": "once"}).schedule.name == "once"
    linear = registry.recipe("synflow", parts={"schedule": {"name": "linear", "rounds": 100}})
    assert linear.schedule.freezes(0.01, 0, 1)[49].density == pytest.approx(0.505)


def test_no_layer_is_pruned_away_at_a_thousandth_but_in_one_shot_layers_are():
    """The method's whole point, on a VGG-16 of an eighth of the width."""
    torch.manual_seed(0)
    model = vgg16(8)
    data = tiny_data(classes=10, shape=(3, 32, 32), samples=10)
    ticket = search("synflow", model, data, density=0.001, runtime=CPU)
    assert kept(ticket.mask) == budget(total(ticket.mask), 0.001)
    assert empty_layers(ticket.mask) == ()
    assert ticket.info.history[-1].alive < ticket.info.history[0].alive
    magnitude = select(importance("magnitude", model, []), 0.001)
    assert empty_layers(magnitude) != ()


def test_it_can_be_measured_between_epochs_of_training():
    """Running means have moved then, and channels have died."""
    recipe = load_plugins().recipe("synflow", parts={"schedule": "cubic"}, options={})
    plan = Plan(epochs=4, batch_size=16, lr=0.1)
    ticket = search(
        recipe, tiny_net(), tiny_data(), density=0.2, plan=plan, runtime=CPU, on_collapse="warn"
    )
    assert kept(ticket.mask) == budget(total(ticket.mask), 0.2)


def test_scores_come_in_double_precision_inside():
    model = tiny_net()
    weights = {name: model.get_parameter(name).detach() for name in prunable_names(model)}
    alive = {name: torch.ones_like(weight, dtype=torch.bool) for name, weight in weights.items()}
    scores = Synflow().importance(Probe(model, weights, alive, shape=(2, 6, 6)))
    assert all(value.dtype == torch.float64 for value in scores.values())
