"""Plans in files: new fields from the command line, and functions that a file can only name."""

import re
import shlex
import tomllib
from functools import partial
from pathlib import Path

import pytest
import torch
from cli_runs import TINY, answer, commands_in
from kept import Killed

import gemkit
from gemkit import Plan, RunConfig, Runtime
from gemkit.core.errors import OptionError
from gemkit.core.events import StepEnded
from gemkit.runs.read_config import config_from_toml
from gemkit.tickets.ticket import Ticket
from gemkit.training.optimizers import make_optimizer
from gemkit.training.plan import text_of


def rmsprop(params, lr, weight_decay):
    return torch.optim.RMSprop(params, lr=lr, weight_decay=weight_decay)


def curve(progress):
    return 1 - progress


PLAN = Plan(epochs=3, batch_size=16, optimizer=rmsprop, lr=0.01, lr_schedule=curve)
CONFIG = RunConfig(
    density=0.3,
    model={"name": "conv4", "width": 4},
    dataset={"name": "fake", "samples": 60},
    search=PLAN,
    finetune=PLAN,
    runtime=Runtime(device="cpu"),
)
TEXTS = {
    "optimizer": "custom:test_plan_files.rmsprop",
    "lr_schedule": "custom:test_plan_files.curve",
}


@pytest.fixture
def cli(tmp_path, monkeypatch):
    return commands_in(tmp_path, monkeypatch)


# --- the command line ----------------------------------------------------------------------------


def test_new_fields_are_set_like_all_others(cli):
    fields = (
        *("search.optimizer=lion", "search.lr=0.01", "search.clip_grad=2", "search.accumulate=2"),
        *("finetune.optimizer=adam", "finetune.optimizer_options={eps = 1e-6, betas=[0.9, 0.99]}"),
        "finetune.lr_schedule=linear",
    )
    words = [word for field in fields for word in ("-o", field)]
    folder = Path(answer(cli("run", *TINY, *words, "--json"))["run_dir"])
    config = tomllib.loads((folder / "config.toml").read_text())
    search, finetune = config["search"], config["finetune"]
    assert (search["optimizer"], search["clip_grad"], search["accumulate"]) == ("lion", 2.0, 2)
    assert finetune["optimizer_options"] == {"eps": 1e-6, "betas": [0.9, 0.99]}
    assert finetune["lr_schedule"] == "linear"
    assert not {"clip_grad", "accumulate"} & finetune.keys()
    assert cli("resume", folder).exit_code == 0


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (("search.optimizer=lamb",), "search.optimizer = 'lamb': the step of a weight depends on"),
        (("search.optimizer=lyon",), "did you mean 'lion'"),
        (("search.optimizer=lion",), "search.lr = None: there is no default for optimizer 'lion'"),
        (("search.clip_grad=0",), "search.clip_grad = 0: should be greater than 0"),
        (("search.accumulate=0",), "search.accumulate = 0: should be greater than or equal to 1"),
        (("search.lr_schedule=cosin",), "did you mean 'cosine'"),
        (("search.optimizer=custom:os.system", "search.lr=1"), "a file alone runs no code"),
        (("finetune.lr_schedule=custom:os.system",), "a file alone runs no code"),
        (("finetune.optimizer=adam", "finetune.optimizer_options={alpha=1}"), "cannot be made"),
    ],
)
def test_a_mistake_is_one_message(cli, fields, words):
    result = cli("run", *TINY, *(word for field in fields for word in ("-o", field)))
    assert result.exit_code == 2
    assert words in " ".join(result.stderr.split())
    assert "Traceback" not in result.stderr


# --- functions -----------------------------------------------------------------------------------


def test_a_function_is_written_as_where_it_is_defined():
    assert PLAN.model_dump(mode="json").items() >= TEXTS.items()
    assert PLAN.model_dump()["optimizer"] is rmsprop, "a plan that is copied keeps it"
    assert PLAN.lasting(5).optimizer is rmsprop
    assert text_of(torch.optim.RMSprop) == "custom:torch.optim.rmsprop.RMSprop"
    assert text_of(partial(rmsprop)) == "custom:functools.partial"
    assert text_of("sgd") == "sgd"


def test_a_run_with_functions_is_resumed_from_python_alone(cli, tmp_path):
    folder, taken = tmp_path / "mine", []

    def die(event):
        if isinstance(event, StepEnded):
            taken.append(event)
            if len(taken) == 5:
                raise Killed

    with pytest.raises(Killed):
        gemkit.run(CONFIG, folder, observers=[die])
    refused = cli("resume", folder)
    assert refused.exit_code == 2
    assert "names a function, and a file alone runs no code" in " ".join(refused.stderr.split())
    with pytest.raises(OptionError, match=r"custom:test_plan_files\.rmsprop"):
        gemkit.resume(folder)
    resumed = gemkit.run(CONFIG, folder)
    straight = gemkit.run(CONFIG, tmp_path / "straight")
    for load in ("load_ticket", "load_finetuned"):
        assert getattr(resumed, load)().digest() == getattr(straight, load)().digest()
    written = tomllib.loads((folder / "config.toml").read_text())
    assert written["search"].items() >= TEXTS.items()
    other = CONFIG.replace(search=Plan(epochs=3, batch_size=16, lr=0.01))
    with pytest.raises(OptionError, match="holds another run"):
        gemkit.run(other, folder)


def test_a_ticket_names_the_functions_of_its_search(cli, tmp_path):
    result = gemkit.run(CONFIG, tmp_path / "mine")
    made = result.load_ticket()
    file = tmp_path / "ticket.safetensors"
    made.save(file)
    again = Ticket.load(file)
    assert again.digest() == made.digest()
    assert (again.info.plan.optimizer, again.info.plan.lr_schedule) == (*TEXTS.values(),)
    with pytest.raises(OptionError, match=r"Plan\(optimizer=\.\.\.\)"):
        again.info.plan.decided(lr=0.1, weight_decay=0.0)
    with pytest.raises(OptionError, match=r"Plan\(lr_schedule=\.\.\.\)"):
        again.info.plan.model_copy(update={"optimizer": "sgd"}).lr_at(0, 1)


def test_a_configuration_with_functions_reads_back_as_their_names():
    back = config_from_toml(CONFIG.to_toml())
    assert back.search.model_dump(mode="json") == CONFIG.search.model_dump(mode="json")
    assert back.to_toml() == CONFIG.to_toml()


# --- the page on runs ----------------------------------------------------------------------------

PAGE = (Path(__file__).parents[3] / "docs" / "runs.md").read_text()


def test_the_plan_of_the_page_on_runs_can_be_followed():
    examples = re.findall(r"```python\n(.*?)```", PAGE, flags=re.DOTALL)
    [example] = [one for one in examples if "\nplan = " in one]
    names = {}
    exec(example, names)
    plan = names["plan"]
    make_optimizer(plan, [torch.nn.Parameter(torch.ones(3))]).step()
    assert plan.lr_at(15, 1) == pytest.approx(0.01 * 0.25)


def test_the_options_of_the_page_on_runs_are_taken(cli):
    section = PAGE.partition("## Optimizers and learning rates")[2].partition("\n## ")[0]
    commands = re.findall(r"^gemkit (run .*)$", section, flags=re.MULTILINE)
    assert len(commands) == 2
    for command in commands:
        assert cli(*shlex.split(command), *TINY).exit_code == 0
