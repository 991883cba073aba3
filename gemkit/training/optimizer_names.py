"""Optimizers by name: those that fit a network under a mask, and why others are refused.

A test checks both tables with `gemkit.training.optimizer_contract`.
"""

from collections.abc import Mapping

from gemkit.core.errors import did_you_mean

NATIVE = ("sgd", "adam", "adamw")
"""torch's own, in one fused kernel; `--compile` compiles them with the update."""

FROM_TIMM = (
    *("adabelief", "adadelta", "adagrad", "adamax", "adamc", "adamwlegacy"),
    *("adopt", "adoptc", "adoptw", "laprop", "lapropc", "lion", "lionc"),
    *("momentum", "nadam", "nadamc", "nadamlegacy", "nadamw", "nesterov", "nesterovw"),
    *("radabelief", "radam", "radamlegacy", "radamw"),
    *("rmsprop", "rmsproptf", "rmsproptfc", "rmsproptfw", "sgdc", "sgdw"),
)
"""Made by `timm.optim.create_optimizer_v2`; an older timm may not have all of them."""

_COUPLED = "the step of a weight depends on other weights, pruned ones included"
_RANDOM = "it draws global random numbers, and the step of a weight depends on other weights"
_COPIES = "it keeps a copy of the weights and ignores what masks and rewinding write into them"
_UNSAVED = "it counts steps outside the state of each weight, which is all that is saved"
_MORE = "it needs more than one gradient per step: a closure, or second derivatives"
_FOREIGN = "it needs CUDA and a library that gemkit does not install"

_REASONS: Mapping[str, tuple[str, ...]] = {
    _COUPLED: (
        *("adafactor", "adafactorbv", "adafactorbvc", "cadafactor", "cadafactorbv"),
        *("cadafactorbvc", "adamp", "cadamp", "sgdp", "csgdp", "adamuon", "muon", "nadamuon"),
        *("nmuon", "lamb", "lambc", "lambcd", "lambcw", "lambw", "clamb", "clambw"),
        *("larc", "lars", "nlarc", "nlars", "novograd", "novogradc", "novogradw", "nvnovograd"),
        *("mars", "cmars", "shampoo", "soap", "cadamc", "cadamw", "cadan", "cadanw", "cadopt"),
        *("cadoptc", "cadoptw", "claprop", "clion", "clionc", "cnadamc", "cnadamw"),
        *("crmsproptf", "csgdc", "csgdw"),
    ),
    _RANDOM: ("kron", "kronc", "kronw"),
    _COPIES: ("madgrad", "madgradw"),
    _UNSAVED: ("adan", "adanp", "adanw"),
    _MORE: ("adahessian", "lbfgs", "sam"),
    _FOREIGN: (
        *("bnbadam", "bnbadam8bit", "bnbadamw", "bnbadamw8bit", "bnbademamix", "bnbademamix8bit"),
        *("bnblion", "bnblion8bit", "bnbsgd", "bnbsgd8bit", "fusedadam", "fusedadamw"),
        *("fusedlamb", "fusednovograd", "fusedsgd"),
    ),
}
REFUSED = {name: reason for reason, names in _REASONS.items() for name in names}
"""Name -> why it does not fit."""


def check_name(name: str) -> None:
    """Refuse a name that is unknown, or that of an optimizer that does not fit."""
    if name in (*NATIVE, *FROM_TIMM):
        return
    reason = _COPIES if name.startswith("lookahead_") else REFUSED.get(name)
    if reason:
        raise ValueError(f"{reason}; use sgd, adam, adamw, lion or another that docs/runs.md lists")
    known = did_you_mean(name, [*NATIVE, *FROM_TIMM])
    raise ValueError(f"there is no optimizer of this name{known}")
