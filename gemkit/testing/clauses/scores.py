"""The contract of scores: importance for every weight, and an unchanged network."""

from __future__ import annotations

import torch
from hypothesis import strategies as st

from gemkit.core.errors import ImportanceError
from gemkit.core.probe import Probe, Wanted
from gemkit.core.tensors import Tensors, generator
from gemkit.parts.scores import LearnedScores, Scores
from gemkit.testing.cases import Network
from gemkit.testing.clause import RefusedError, clause, require
from gemkit.testing.strategies import networks
from gemkit.testing.watch import (
    at_global_seed,
    copied,
    no_global_randomness,
    same_everywhere,
    state_of,
    unchanged,
)


def found_networks(part: Scores, device: torch.device) -> st.SearchStrategy[Network]:
    """Draw networks on the device."""
    return networks(device)


def probe_of(part: Scores, case: Network) -> Probe:
    """Return a probe of the network, with the batches and scores that the part needs."""
    model = case.model()
    probe = case.probe(model, case.batches(part.batches_wanted()), {})
    if isinstance(part, LearnedScores):
        drawn = part.init(probe.weights, generator(case.seed, "scores"))
        probe.scores.update(
            {name: drawn[name].to(weight) for name, weight in probe.weights.items()}
        )
    return probe


def measured(part: Scores, probe: Probe) -> Tensors:
    """Measure; a network that is refused with an ImportanceError is rejected as a case."""
    try:
        return part.importance(probe)
    except ImportanceError as error:
        raise RefusedError(str(error)) from error


@clause(Scores)
def it_returns_the_batches_it_wants(part: Scores, case: None) -> None:
    """`batches_wanted` returns a `Wanted` of integers."""
    wanted = part.batches_wanted()
    require(isinstance(wanted, Wanted), f"it is {wanted!r}")
    require(type(wanted.batches) is int and wanted.batches >= 0, f"it is {wanted!r}")
    each = wanted.per_class
    valid = each is None or (type(each) is int and each > 0 and wanted.batches > 0)
    require(valid, f"it is {wanted!r}")


@clause(Scores, found_networks, on_devices=True)
def importance_has_the_names_and_shapes_of_the_weights(part: Scores, case: Network) -> None:
    """`importance` returns one real tensor per prunable weight, of its shape and on its device."""
    probe = probe_of(part, case)
    importance = measured(part, probe)
    require(isinstance(importance, dict), f"it returned {type(importance).__name__}")
    require(
        set(importance) == set(probe.weights),
        f"the weights are {list(probe.weights)}, and it returned {list(importance)}",
    )
    for name, weight in probe.weights.items():
        value = importance[name]
        require(isinstance(value, torch.Tensor), f"'{name}' is a {type(value).__name__}")
        require(not value.is_complex(), f"'{name}' is complex")
        require(
            value.shape == weight.shape,
            f"'{name}' has shape {tuple(value.shape)}, and its weight {tuple(weight.shape)}",
        )
        require(value.device == weight.device, f"'{name}' is on {value.device}")


@clause(Scores, found_networks, on_devices=True)
def importance_is_finite_where_weights_are_alive(part: Scores, case: Network) -> None:
    """Importance is neither nan nor infinite where a weight is alive."""
    probe = probe_of(part, case)
    for name, value in measured(part, probe).items():
        count = int((~value[probe.alive[name]].isfinite()).sum())
        require(not count, f"'{name}' has {count} values of {value.numel()} that are not finite")


@clause(Scores, found_networks, on_devices=True)
def the_same_seed_gives_the_same_importance(part: Scores, case: Network) -> None:
    """Importance depends only on the network, the batches and `probe.rng`."""
    one = at_global_seed(1, lambda: measured(part, probe_of(part, case)))
    other = at_global_seed(2, lambda: measured(part, probe_of(part, case)))
    require(same_everywhere(one, other), "measuring twice gave two results")


@clause(Scores, found_networks, examples=10)
def measuring_draws_no_global_random_numbers(part: Scores, case: Network) -> None:
    """Measuring draws from `probe.rng`, never from global random numbers."""
    probe = probe_of(part, case)
    with no_global_randomness():
        measured(part, probe)


@clause(Scores, found_networks, on_devices=True)
def measuring_does_not_change_the_model(part: Scores, case: Network) -> None:
    """Measuring changes no parameter, gradient, `requires_grad`, buffer, mode or hook."""
    probe = probe_of(part, case)
    with unchanged("the model", lambda: state_of(probe.model)):
        measured(part, probe)


@clause(Scores, found_networks)
def measuring_does_not_change_batches_and_scores(part: Scores, case: Network) -> None:
    """Measuring changes neither the batches nor the learned scores."""
    probe = probe_of(part, case)
    batches = [(f"images {at}", images) for at, (images, _) in enumerate(probe.batches)]
    with unchanged("its input", lambda: copied([*batches, *probe.scores.items()])):
        measured(part, probe)


@clause(Scores, found_networks)
def importance_does_not_depend_on_the_models_mode(part: Scores, case: Network) -> None:
    """Importance is the same for a model in training and in evaluation mode."""
    probes = [probe_of(part, case) for _ in range(2)]
    for training, probe in enumerate(probes):
        probe.model.train(bool(training))
    one, other = (measured(part, probe) for probe in probes)
    require(same_everywhere(one, other), "the two modes differ; use probe.forward")
