"""A run as data: what `gemkit run` does, with the files it writes."""

from pathlib import Path
from tempfile import TemporaryDirectory

from gemkit import Plan, RunConfig, load_config, run

config = RunConfig(
    pruner="magnitude",
    model="lenet300",
    dataset={"name": "fake", "samples": 60},
    density=0.3,
    finetune=Plan(epochs=1),
)
with TemporaryDirectory() as folder:
    result = run(config, Path(folder) / "run")
    recorded = load_config(Path(folder) / "run" / "config.toml")
assert recorded.density == 0.3
assert result.kept == round(0.3 * result.prunable)
