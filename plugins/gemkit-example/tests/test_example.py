"""Both plugins of the tutorial keep gemkit's contracts."""

from gemkit_example import power, sensitivity
from gemkit_example.power import PowerScores
from gemkit_example.sensitivity import Sensitivity

from gemkit.testing import contract

test_sensitivity = contract(sensitivity)
test_sensitivity_on_several_batches = contract(Sensitivity(batches=3))
test_power = contract(power)
test_power_of_another_exponent = contract(PowerScores(exponent=3.5))
