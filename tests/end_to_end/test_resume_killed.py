"""Real `gemkit run` processes, killed at random moments: what they resume to is equal to the bit.

GEMKIT_LONG=1 kills 40 processes of every pruner instead of 2, and tries more pruners. GEMKIT_SEED=N
draws moments by that seed, which a failure prints, instead of by another one every time.
"""

import os
import random

import pytest

from benchmarks.killing import MORE, PRUNERS, killed

LONG = bool(os.environ.get("GEMKIT_LONG"))
KILLS = 40 if LONG else 2
"""Processes to kill for each pruner."""
SEED = int(os.environ.get("GEMKIT_SEED") or random.SystemRandom().getrandbits(32))
TRIED = PRUNERS | (MORE if LONG else {})


@pytest.mark.parametrize("pruner", TRIED)
def test_killed_at_any_moment_a_run_resumes_to_the_same_bits(pruner, tmp_path):
    done = killed(pruner, TRIED[pruner], tmp_path, KILLS, SEED)
    assert not done.problems, done.problems[0]
    assert done.kills >= KILLS
