"""Scores that ask for four samples of every class, in two batches."""

from gemkit import MeasuredScores, Wanted, load_plugins, search
from gemkit.testing import CPU, tiny_data, tiny_net


class Even(MeasuredScores):
    """The gradient on as many samples of every class."""

    name = "even"

    def batches_wanted(self):
        return Wanted(batches=2, per_class=4)

    def importance(self, probe):
        assert [len(labels) for _, labels in probe.batches] == [6, 6]  # there are three classes
        gradient = probe.gradient(probe.leaves())
        return {name: own.abs() for name, own in gradient.items()}


recipe = load_plugins().recipe("magnitude").model_copy(update={"scores": Even()})
ticket = search(recipe, tiny_net(), tiny_data(), density=0.5, runtime=CPU)
assert ticket.kept == ticket.prunable / 2
