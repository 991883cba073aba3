"""A schedule of two freezes: half of the way before the first step, the rest in the middle."""

from gemkit import Freeze, FreezeSchedule


class Halfway(FreezeSchedule):
    """Prune twice."""

    name = "halfway"

    @property
    def trains(self):
        return True

    def freezes(self, target, epochs, steps_per_epoch):
        return [Freeze(0, (1 + target) / 2), Freeze(epochs * steps_per_epoch // 2, target)]


assert Halfway().freezes(0.2, 10, 50) == [Freeze(0, 0.6), Freeze(250, 0.2)]
