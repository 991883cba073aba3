"""Contract tests for plugin authors.

    from gemkit.testing import contract

    test_my_scores = contract(MyScores)

`contract` returns the test. For other tests, `gemkit.testing.strategies` draws networks,
importance, masks and recipes, and `gemkit.testing.tiny` has networks and data on which a search
takes milliseconds. Needs pytest and hypothesis: `pip install 'gemkit[test]'`.
"""

from importlib.util import find_spec

from gemkit.core.errors import GemkitError

_missing = [name for name in ("pytest", "hypothesis") if find_spec(name) is None]
if _missing:
    raise GemkitError(
        f"gemkit.testing needs {' and '.join(_missing)}; install with pip install 'gemkit[test]'"
    )

from gemkit.testing.clause import (  # noqa: E402
    CLAUSES,
    Clause,
    Verdict,
    clauses_of,
    clauses_of_kind,
    verdicts,
)
from gemkit.testing.clauses.presets import NamedPreset  # noqa: E402
from gemkit.testing.clauses.pruners import Pruner  # noqa: E402
from gemkit.testing.contract import contract  # noqa: E402
from gemkit.testing.finding import find_plugin  # noqa: E402
from gemkit.testing.things import things_among, things_in, things_of  # noqa: E402
from gemkit.testing.tiny import CPU, PLAN, tiny_data, tiny_net  # noqa: E402

__all__ = [
    "CLAUSES",
    "CPU",
    "PLAN",
    "Clause",
    "NamedPreset",
    "Pruner",
    "Verdict",
    "clauses_of",
    "clauses_of_kind",
    "contract",
    "find_plugin",
    "things_among",
    "things_in",
    "things_of",
    "tiny_data",
    "tiny_net",
    "verdicts",
]
