"""`Ticket.hold`: a mask stays in anybody's training loop, whatever the optimizer does."""

import copy
import gc
import warnings
import weakref

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny import tiny_data, tiny_net
from torch import nn
from torch.optim import optimizer as torch_hooks
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from gemkit import Ticket, prunable_names
from gemkit.core.errors import GemkitWarning, TicketError
from gemkit.core.tensors import aligned
from gemkit.tickets import hold as hold_module

IMAGES, LABELS = next(tiny_data().train.batches(32))


class Careless(torch.optim.Optimizer):
    """Moves every weight, also where the gradient is zero, and spoils some."""

    def __init__(self, parameters, spoilt=float("nan")):
        super().__init__(parameters, {"lr": 0.1})
        self.spoilt = spoilt

    @torch.no_grad()
    def step(self):
        for parameter in self.param_groups[0]["params"]:
            still = parameter.grad == 0
            parameter.sub_(parameter.grad, alpha=0.1)
            parameter[still] = -0.1
            if still.any():
                parameter.view(-1)[still.view(-1).nonzero()[0]] = self.spoilt


OPTIMIZERS = {
    "sgd": lambda own: torch.optim.SGD(own, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda own: torch.optim.SGD(own, lr=0.1, momentum=0.9, nesterov=True),
    "fused": lambda own: torch.optim.SGD(own, lr=0.1, momentum=0.9, fused=True),
    "adam": lambda own: torch.optim.Adam(own, lr=0.01, weight_decay=0.01, amsgrad=True),
    "adamw": lambda own: torch.optim.AdamW(own, lr=0.01, weight_decay=0.1),
    "adagrad": lambda own: torch.optim.Adagrad(own, lr=0.1, initial_accumulator_value=0.1),
    "rmsprop": lambda own: torch.optim.RMSprop(own, lr=0.01, momentum=0.9, centered=True),
    "rprop": lambda own: torch.optim.Rprop(own),
    "asgd": lambda own: torch.optim.ASGD(own, lr=0.1),
    "careless": Careless,
}


def ticket_of(model, density=0.5, seed=0):
    rng = torch.Generator().manual_seed(seed)
    masks = {
        name: torch.rand(model.get_parameter(name).shape, generator=rng) < density
        for name in prunable_names(model)
    }
    return Ticket.from_masks(model, masks)


def train(model, optimizer, steps=3, **how):
    for _ in range(steps):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(IMAGES.to(how.get("dtype", torch.float32))), LABELS)
        loss.backward()
        optimizer.step()


def assert_held(ticket, model):
    """Pruned weights are +0, to the bit, and some of the others have moved."""
    own = dict(model.named_parameters(remove_duplicate=False))
    for name, mask in ticket.mask.items():
        pruned = own[name].detach()[~mask]
        assert not pruned.any(), name
        assert not pruned.signbit().any(), name
        assert not torch.equal(own[name].detach()[mask], ticket.state[name][mask]), name


@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("when", ["before", "after"])
def test_pruned_weights_stay_zero(make, when):
    model = tiny_net()
    ticket = ticket_of(model)
    if when == "before":
        optimizer = make(model.parameters())
        train(model, optimizer)  # it remembers gradients of weights that are pruned now
        hold = ticket.hold(model, optimizer)
    else:
        hold = ticket.hold(model)
        optimizer = make(model.parameters())
    with hold:
        for _ in range(3):
            train(model, optimizer, 1)
            assert_held(ticket, model)
            for name, mask in ticket.mask.items():
                state = optimizer.state[model.get_parameter(name)]
                moments = [state[key] for key in state if key.startswith(("exp", "momentum"))]
                assert not any(own is not None and own[~mask].any() for own in moments), name


def test_a_held_loop_is_the_loop_with_masks_written_out():
    ticket = ticket_of(tiny_net())
    held, written = tiny_net(), ticket.apply(tiny_net())
    with ticket.hold(held):
        train(held, OPTIMIZERS["adamw"](held.parameters()), 5)
    optimizer = OPTIMIZERS["adamw"](written.parameters())
    for _ in range(5):
        optimizer.zero_grad()
        F.cross_entropy(written(IMAGES), LABELS).backward()
        for name, mask in ticket.mask.items():
            written.get_parameter(name).grad *= mask
        optimizer.step()
        with torch.no_grad():
            for name, mask in ticket.mask.items():
                written.get_parameter(name).mul_(mask)
    for name, value in written.state_dict().items():
        assert torch.equal(value, held.state_dict()[name]), name


@settings(max_examples=25)
@given(
    st.sampled_from(sorted(OPTIMIZERS)),
    st.floats(0.05, 0.95),
    st.integers(0, 2**20),
    st.integers(1, 3),
)
def test_any_mask_holds_with_any_optimizer(name, density, seed, steps):
    model = tiny_net()
    ticket = ticket_of(model, density, seed)
    optimizer = OPTIMIZERS[name](model.parameters())
    with ticket.hold(model, optimizer):
        train(model, optimizer, steps)
        for layer, mask in ticket.mask.items():
            assert not model.get_parameter(layer).detach()[~mask].any()


@pytest.mark.parametrize("spoilt", [float("nan"), float("inf")])
def test_gradients_that_are_not_finite_do_not_reach_pruned_weights(spoilt):
    model = tiny_net()
    ticket = ticket_of(model)
    optimizer = OPTIMIZERS["adam"](model.parameters())
    with ticket.hold(model, optimizer):
        F.cross_entropy(model(IMAGES), LABELS).backward()
        for name, mask in ticket.mask.items():
            model.get_parameter(name).grad[~mask] = spoilt
        optimizer.step()
        assert_held(ticket, model)
        assert all(own.isfinite().all() for own in model.parameters())


@pytest.mark.parametrize("keyword", [True, False])
def test_gradients_of_a_closure_are_masked(keyword):
    """Lightning passes a closure, and LBFGS calls it many times."""
    model = tiny_net()
    ticket = ticket_of(model)
    for make in (OPTIMIZERS["adam"], lambda own: torch.optim.LBFGS(own, lr=0.1, max_iter=3)):
        optimizer = make(model.parameters())

        def closure(optimizer=optimizer):
            optimizer.zero_grad()
            loss = F.cross_entropy(model(IMAGES), LABELS)
            loss.backward()
            return loss

        with ticket.hold(model, optimizer):
            loss = optimizer.step(closure=closure) if keyword else optimizer.step(closure)
            assert loss.ndim == 0
            assert_held(ticket, model)
            for name, mask in ticket.mask.items():
                assert not model.get_parameter(name).grad[~mask].any()
                state = optimizer.state[model.get_parameter(name)]
                assert not state.get("exp_avg", torch.zeros_like(mask))[~mask].any()


def test_gradients_may_accumulate_and_be_clipped():
    model = tiny_net()
    ticket = ticket_of(model, 0.1)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with ticket.hold(model, optimizer) as hold:
        for part in (slice(16), slice(16, 32)):
            F.cross_entropy(model(IMAGES[part]), LABELS[part]).backward()
        whole = nn.utils.get_total_norm([own.grad for own in model.parameters()])
        hold.mask_gradients_()
        kept = nn.utils.get_total_norm([own.grad for own in model.parameters()])
        assert kept < whole
        optimizer.step()
        assert_held(ticket, model)


def test_masks_are_made_once_for_gradients_and_steps(monkeypatch):
    model = tiny_net()
    made = []
    monkeypatch.setattr(
        hold_module, "aligned", lambda mask, own: made.append(mask) or aligned(mask, own)
    )
    ticket = ticket_of(model)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    with ticket.hold(model, optimizer) as hold:
        for _ in range(2):
            F.cross_entropy(model(IMAGES), LABELS).backward()
            hold.mask_gradients_()
            optimizer.step()
    assert len(made) == len(ticket.mask)


def test_a_gradient_scaler_may_skip_steps():
    model = tiny_net()
    ticket = ticket_of(model)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    with ticket.hold(model, optimizer):
        for spoilt in (False, True, False):
            optimizer.zero_grad()
            scaler.scale(F.cross_entropy(model(IMAGES), LABELS)).backward()
            if spoilt:
                model[0].weight.grad.fill_(float("inf"))
            scaler.step(optimizer)
            scaler.update()
            assert_held(ticket, model)
    assert scaler.get_scale() == 1.0


def test_averages_stay_sparse_and_copies_are_not_held():
    model = tiny_net()
    ticket = ticket_of(model)
    early = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    with ticket.hold(model, optimizer) as hold:
        late = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
        early.update_parameters(model)
        hold.mask_(early)
        for _ in range(2):
            train(model, optimizer, 1)
            early.update_parameters(model)
            late.update_parameters(model)
        assert_held(ticket, late.module)
        assert_held(ticket, early.module)
        free = copy.deepcopy(model)
        train(free, OPTIMIZERS["sgd"](free.parameters()))
        assert any(free.get_parameter(n).detach()[~mask].any() for n, mask in ticket.mask.items())
        assert_held(ticket, model)


def test_several_groups_and_groups_that_come_later():
    model = tiny_net()
    ticket = ticket_of(model)
    first, *others = model.parameters()
    optimizer = torch.optim.SGD([{"params": [first], "lr": 0.5}], lr=0.1, momentum=0.9)
    with ticket.hold(model, optimizer):
        train(model, optimizer, 1)
        optimizer.add_param_group({"params": others, "weight_decay": 0.1})
        train(model, optimizer, 2)
        assert_held(ticket, model)


def test_two_optimizers_mask_what_they_train():
    model = tiny_net()
    ticket = ticket_of(model)
    head = list(model[-1].parameters())
    rest = [own for own in model.parameters() if all(own is not other for other in head)]
    pair = [OPTIMIZERS["sgd"](rest), OPTIMIZERS["adam"](head)]
    with ticket.hold(model):
        for _ in range(2):
            F.cross_entropy(model(IMAGES), LABELS).backward()
            for optimizer in pair:
                optimizer.step()
                optimizer.zero_grad()
        assert_held(ticket, model)


def test_a_loaded_optimizer_forgets_pruned_weights():
    model = tiny_net()
    ticket = ticket_of(model)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    train(model, optimizer)
    saved = copy.deepcopy(optimizer.state_dict())
    with ticket.hold(model, optimizer):
        optimizer.load_state_dict(saved)
        for name, mask in ticket.mask.items():
            momentum = optimizer.state[model.get_parameter(name)]["momentum_buffer"]
            assert not momentum[~mask].any()
            assert momentum[mask].any()


def test_an_optimizer_that_gets_masked_weights_later_forgets_them_once_loaded():
    model = tiny_net()
    ticket = ticket_of(model)
    reference = OPTIMIZERS["sgd"](model.parameters())
    train(model, reference)
    saved = copy.deepcopy(reference.state_dict())
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1, momentum=0.9)
    with ticket.hold(model):
        optimizer.step()
        optimizer.param_groups.clear()
        optimizer.add_param_group({"params": list(model.parameters())})
        train(model, optimizer, 1)
        assert len(optimizer._optimizer_load_state_dict_post_hooks) == 1
        model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True)
        optimizer.param_groups[0]["params"][:] = model.parameters()
        train(model, optimizer, 1)
        assert len(optimizer._optimizer_load_state_dict_post_hooks) == 1
        optimizer.load_state_dict(saved)
        for name, mask in ticket.mask.items():
            assert not optimizer.state[model.get_parameter(name)]["momentum_buffer"][~mask].any()
    assert not optimizer._optimizer_load_state_dict_post_hooks


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear(72, 72), nn.Linear(72, 72)
        self.two.weight = self.one.weight
        self.head = nn.Linear(72, 3)

    def forward(self, images):
        return self.head(torch.relu(self.two(torch.relu(self.one(images.flatten(1))))))


def test_tied_weights_are_held_under_both_names():
    model = Tied()
    ticket = ticket_of(model)
    assert list(ticket.mask) == ["one.weight", "head.weight"]
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    with ticket.hold(model, optimizer):
        train(model, optimizer)
        assert_held(ticket, model)
        assert model.two.weight is model.one.weight


@pytest.mark.parametrize("change", [lambda m: m.double(), lambda m: m.to(torch.bfloat16)])
def test_a_model_may_change_its_type_later(change):
    model = tiny_net()
    ticket = ticket_of(model)
    optimizer = Careless(model.parameters())
    with ticket.hold(model):
        train(model, optimizer, 1)
        change(model)
        train(model, optimizer, dtype=next(model.parameters()).dtype)
        for name, mask in ticket.mask.items():
            assert not model.get_parameter(name).detach()[~mask].any()


@pytest.fixture
def overwriting():
    """Let casts replace the parameters of a model, as some users of torch do."""
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    yield
    torch.__future__.set_overwrite_module_params_on_conversion(False)


REPLACED = {
    "load_state_dict": lambda m: m.load_state_dict(copy.deepcopy(m.state_dict()), assign=True),
    "double": lambda m: m.double(),
    "layer": lambda m: m.__setitem__(0, copy.deepcopy(m[0])),
    "parameter": lambda m: setattr(m[0], "weight", nn.Parameter(torch.randn_like(m[0].weight))),
}


@pytest.mark.parametrize("replace", REPLACED.values(), ids=REPLACED)
@pytest.mark.parametrize("swap", [False, True])
@pytest.mark.usefixtures("overwriting")
def test_parameters_that_replace_others_are_held(replace, swap):
    """An optimizer that is made of them masks them, and so does one whose list is exchanged."""
    model = tiny_net()
    ticket = ticket_of(model)
    optimizer = Careless(model.parameters())
    with ticket.hold(model, optimizer) as hold:
        train(model, optimizer, 1)
        old = model[0].weight
        replace(model)
        assert model[0].weight is not old
        if swap:
            optimizer.param_groups[0]["params"][:] = list(model.parameters())
        else:
            optimizer = Careless(model.parameters())
        dtype = model[0].weight.dtype
        F.cross_entropy(model(IMAGES.to(dtype)), LABELS).backward()
        hold.mask_gradients_()
        assert not model[0].weight.grad[~ticket.mask["0.weight"]].any()
        train(model, optimizer, 2, dtype=dtype)
        assert_held(ticket, model.float())


def test_names_of_a_tied_weight_are_held_apart_where_it_is_untied():
    model = Tied()
    ticket = ticket_of(model)
    with ticket.hold(model):
        state = {name: own.clone() for name, own in model.state_dict().items()}
        model.load_state_dict(state, assign=True)
        assert model.two.weight is not model.one.weight
        train(model, Careless(model.parameters()))
        assert_held(ticket, model)
        assert not model.two.weight.detach()[~ticket.mask["one.weight"]].any()


def test_an_optimizer_whose_list_is_exchanged_is_followed():
    """Cached lists are those of its parameters, not of their number."""
    model = tiny_net()
    ticket = ticket_of(model)
    weights = [model.get_parameter(name) for name in ticket.mask]
    others = [nn.Parameter(torch.ones(1)) for _ in weights]
    for own in others:
        own.grad = torch.ones(1)
    optimizer = Careless(others)
    with ticket.hold(model):
        optimizer.step()
        optimizer.param_groups[0]["params"][:] = weights
        train(model, optimizer)
        assert_held(ticket, model)


def test_layers_that_no_longer_fit_are_named_once():
    model = tiny_net()
    ticket = ticket_of(model)
    with ticket.hold(model):
        nn.utils.parametrizations.spectral_norm(model[0])  # the parameter moves to another name
        model[8] = nn.Linear(model[8].in_features, 5)
        optimizer = Careless(model.parameters())
        with pytest.warns(GemkitWarning, match=r"no longer held: '8.weight'$"):
            train(model, optimizer, 1)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            train(model, optimizer, 1)
        own = model[0].parametrizations.weight.original.detach()
        assert not own[~ticket.mask["0.weight"]].any()


def test_wrapped_models_are_held(tmp_path):
    model = tiny_net()
    ticket = ticket_of(model)
    compiled = torch.compile(model, backend="eager")
    optimizer = OPTIMIZERS["sgd"](compiled.parameters())
    with ticket.hold(compiled, optimizer):
        train(compiled, optimizer)
        assert_held(ticket, model)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1
    )
    try:
        parallel = nn.parallel.DistributedDataParallel(tiny_net(), gradient_as_bucket_view=True)
        optimizer = OPTIMIZERS["adam"](parallel.parameters())
        with ticket.hold(parallel, optimizer):
            train(parallel, optimizer)
            assert_held(ticket, parallel.module)
    finally:
        torch.distributed.destroy_process_group()


def test_only_the_mask_is_applied_on_request():
    model = tiny_net()
    ticket = ticket_of(tiny_net())
    with torch.no_grad():
        model[-1].bias.fill_(7)
    with ticket.hold(model, weights=False):
        assert bool((model[-1].bias == 7).all())
        assert not model[0].weight.detach()[~ticket.mask["0.weight"]].any()
    with ticket.hold(model):
        assert not bool((model[-1].bias == 7).all())


def hooks():
    return len(torch_hooks._global_optimizer_pre_hooks), len(
        torch_hooks._global_optimizer_post_hooks
    )


def test_removing_lets_go():
    model, before = tiny_net(), hooks()
    ticket = ticket_of(model)
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    hold = ticket.hold(model, optimizer)
    assert hooks() != before
    hold.remove()
    hold.remove()
    assert hooks() == before
    assert not optimizer._optimizer_load_state_dict_post_hooks
    train(model, optimizer)
    assert model[0].weight.detach()[~ticket.mask["0.weight"]].any()


def test_a_model_that_is_gone_leaves_no_hooks():
    before, model = hooks(), tiny_net()
    ticket_of(model).hold(model)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None
    assert hooks() == before


def test_other_optimizers_of_the_process_are_left_alone():
    model, other = tiny_net(), tiny_net()
    with ticket_of(model).hold(model):
        optimizer = OPTIMIZERS["sgd"](other.parameters())
        train(other, optimizer)
        assert other[0].weight.all()


def test_a_refused_hold_changes_nothing():
    model, before = tiny_net(), hooks()
    with torch.no_grad():
        for own in model.parameters():
            own.fill_(7)
    ticket = ticket_of(tiny_net())
    with pytest.raises(TicketError, match="trains none of the weights"):
        ticket.hold(model, OPTIMIZERS["sgd"](tiny_net().parameters()))
    assert all(bool((own == 7).all()) for own in model.parameters())
    model.register_load_state_dict_pre_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        ticket.hold(model)
    assert hooks() == before


def test_an_optimizer_of_another_model_is_refused():
    model, before = tiny_net(), hooks()
    with pytest.raises(TicketError, match="this SGD trains none of the weights that the ticket"):
        ticket_of(model).hold(model, OPTIMIZERS["sgd"](tiny_net().parameters()))
    with pytest.raises(TicketError, match=r"no parameters of these names and shapes: '0.weight'"):
        ticket_of(model).hold(nn.Linear(3, 3), weights=False)
    with pytest.raises(TicketError, match="does not fit this Linear"):
        ticket_of(model).hold(nn.Linear(3, 3))
    assert hooks() == before


# --- loops of others ------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore")  # their own
def test_a_mask_holds_in_lightning(tmp_path):
    lightning = pytest.importorskip("lightning")
    model = tiny_net()
    ticket = ticket_of(model)

    class Lit(lightning.LightningModule):
        def __init__(self):
            super().__init__()
            self.net = model

        def training_step(self, batch, index):
            return F.cross_entropy(self.net(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.Adam(self.parameters(), lr=0.01, weight_decay=0.01)

    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(IMAGES, LABELS), batch_size=8
    )
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
        accumulate_grad_batches=2,
        default_root_dir=tmp_path,
    )
    with ticket.hold(model):
        trainer.fit(Lit(), loader)
        assert_held(ticket, model)


@pytest.mark.filterwarnings("ignore")  # their own
def test_a_mask_holds_in_the_trainer_of_hugging_face(tmp_path):
    transformers = pytest.importorskip("transformers")
    pytest.importorskip("accelerate")
    net = tiny_net()
    ticket = ticket_of(net)

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, images, labels):
            logits = self.net(images)
            return {"loss": F.cross_entropy(logits, labels), "logits": logits}

    data = [{"images": image, "labels": label} for image, label in zip(IMAGES, LABELS, strict=True)]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        num_train_epochs=2,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=2,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        weight_decay=0.1,
        learning_rate=0.01,
    )
    with ticket.hold(net):
        transformers.Trainer(Model(), arguments, train_dataset=data).train()
        assert_held(ticket, net)
