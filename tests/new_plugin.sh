#!/usr/bin/env bash
# From nothing to a pruner of one's own: a fresh environment, gemkit and a new plugin built and
# installed for real, a run with it, and its own tests. Then all of plugins/ installed next to it.
#
# Downloads nothing: torch and the other dependencies, hatchling included, are borrowed from the
# environment of $PYTHON (default python3), where `pip install 'gemkit[test]'` has been run.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
python=${PYTHON:-python3}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
unset PYTHONPATH GEMKIT_PLUGINS
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} PIP_DISABLE_PIP_VERSION_CHECK=1
say() { printf '\n== %s\n' "$*"; }

say "a fresh environment, which sees the libraries of this one but not its gemkit"
"$python" -m venv --without-pip "$work/venv"
"$python" - "$work"/venv/lib/python*/site-packages <<'PYTHON'
import sys
from pathlib import Path

places = [place for place in sys.path if Path(place).name in {"site-packages", "dist-packages"}]
Path(sys.argv[1], "borrowed.pth").write_text("\n".join(places))
PYTHON
install() {
    "$python" -m pip --python "$work/venv/bin/python" install --quiet \
        --no-index --no-deps --no-build-isolation "$@"
}
cd "$work"

say "gemkit itself, from its wheel"
install "$root"
venv/bin/gemkit --version

say "gemkit new-plugin from-nothing"
venv/bin/gemkit new-plugin from-nothing
install ./gemkit-from-nothing

say "gemkit run --pruner from_nothing"
venv/bin/gemkit run --pruner from_nothing --dataset fake --epochs 2 --density 0.3 --device cpu \
    --json >result.json
grep -o '"pruner": "from_nothing"' result.json

say "its tests"
(cd gemkit-from-nothing && ../venv/bin/python -m pytest -q -p no:cacheprovider)

say "the plugins that come with gemkit, installed next to it"
install "$root"/plugins/*/
venv/bin/gemkit plugins
