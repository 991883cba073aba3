"""Unmodified timm models: searched, fine-tuned, and the ticket applied to a new model."""

import pytest
import timm
import torch
from tiny import CPU, tiny_data
from torch import nn

from gemkit import Plan, evaluate, finetune, prepare, prunable_names, search

MODELS = {
    "resnet18": {},
    "mobilenetv3_small_050": {},
    "convnext_atto": {},
    "vit_tiny_patch16_224": {"img_size": 32},
    "regnetx_002": {},
}
PLAN = Plan(epochs=2, batch_size=8, lr=0.5)


def build(name):
    torch.manual_seed(0)
    return prepare(timm.create_model(name, num_classes=3, **MODELS[name]))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("pruner", ["gem_miner", "edge_popup", "magnitude"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_a_timm_model_is_searched_and_fine_tuned_unmodified(name, pruner):
    data = tiny_data(shape=(3, 32, 32), samples=12)
    model = build(name)
    keys = list(model.state_dict())
    recipe = load_recipe(pruner)
    ticket = search(recipe, model, data, density=0.4, plan=PLAN, runtime=CPU, on_collapse="warn")
    assert list(model.state_dict()) == keys
    assert list(ticket.state) == keys
    assert ticket.density <= 0.4 + 1e-6
    trained = finetune(ticket, model, data, plan=Plan(epochs=1, batch_size=8, lr=0.01), runtime=CPU)
    fresh = trained.apply(build(name))
    assert type(fresh) is type(model)
    for layer, mask in ticket.mask.items():
        assert fresh.get_parameter(layer)[~mask].count_nonzero() == 0
    assert 0 <= evaluate(trained, model, data, runtime=CPU) <= 1


def load_recipe(pruner):
    from gemkit import load_plugins

    options = {"schedule.every": 1} if pruner == "gem_miner" else {}
    return load_plugins().recipe(pruner, options=options)


def test_the_models_cover_grouped_depthwise_and_attention_layers():
    kinds = {
        "depthwise": ("mobilenetv3_small_050", lambda m: m.groups == m.in_channels > 1),
        "grouped": ("regnetx_002", lambda m: 1 < m.groups < m.in_channels),
    }
    for name, is_kind in kinds.values():
        assert any(is_kind(m) for m in build(name).modules() if isinstance(m, nn.Conv2d))
    assert "blocks.0.attn.qkv.weight" in prunable_names(build("vit_tiny_patch16_224"))


def test_biases_norms_and_position_embeddings_are_not_prunable():
    model = build("vit_tiny_patch16_224")
    names = set(prunable_names(model))
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or "norm" in name or name in {"pos_embed", "cls_token"}:
            assert name not in names
        elif parameter.ndim >= 2:
            assert name in names
