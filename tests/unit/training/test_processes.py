"""Several processes share every batch and agree on every bit of the ticket."""

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from kept import PLAN as FOUR_A_TIME
from kept import Killed, Mortal, Recorder
from kept import find as find_one
from lightning_fabric import Fabric
from tiny import CPU, PLAN, tiny_data, tiny_net

import gemkit
from gemkit import Data, Runtime, load_plugins
from gemkit.builtin.objectives import CrossEntropy
from gemkit.core.errors import DataError, TrainingError
from gemkit.core.events import PhaseStarted, StepEnded
from gemkit.pruning.search import search
from gemkit.training.device import make_fabric
from gemkit.training.loop import endless


def find(fabric, pruner):
    """Search in this process and tell what it found, and what the first process found."""
    torch.set_num_threads(1)
    recipe = load_plugins(only=[]).recipe(pruner)
    ticket = search(
        recipe,
        tiny_net(),
        tiny_data(),
        density=0.3,
        plan=PLAN,
        runtime=CPU,
        on_collapse="warn",
        fabric=fabric,
    )
    mine = torch.cat([mask.flatten() for mask in ticket.mask.values()]).float()
    everybodys = [torch.empty_like(mine) for _ in range(fabric.world_size)]
    torch.distributed.all_gather(everybodys, mine)
    return fabric.world_size, [mask.tolist() for mask in everybodys]


@pytest.mark.parametrize("pruner", ["gem_miner", "edge_popup", "random"])
@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_two_processes_find_the_same_ticket(pruner):
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp_fork")
    world, masks = fabric.launch(find, pruner)
    assert world == 2
    assert masks[0] == masks[1]
    assert 0 < sum(masks[0]) < len(masks[0])


def find_again(fabric, folder):
    """Search once without and once with deaths; tell what both found, and what was told."""
    torch.set_num_threads(1)
    straight, told = Recorder(), Recorder()
    expected = find_one("learned, drawn", straight, fabric=fabric).digest()
    for lives in (6, 5, None):
        beside = {"told": told} if fabric.is_global_zero else {}
        checkpointer = Mortal(Path(folder), lives, beside=beside, writes=fabric.is_global_zero)
        with suppress(Killed):
            found = find_one("learned, drawn", told, checkpointer, fabric=fabric).digest()
        fabric.barrier()
    return expected, found, straight, told


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_two_processes_resume_to_the_same_bits(tmp_path):
    """What they draw differs, so each has its own random numbers to go on with."""
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp_fork")
    expected, found, straight, told = fabric.launch(find_again, str(tmp_path))
    assert found == expected
    assert told == straight


class Damped(CrossEntropy):
    """Cross-entropy divided by the sum of all before, which is another in every process."""

    name = "damped"

    def init_state(self, weights):
        return {"sums": torch.ones(2)}

    def loss(self, outputs, batch, now):
        loss = super().loss(outputs, batch, now)
        now.state["sums"].add_(loss.detach() * (1 + batch[1].float().mean()))
        return loss / now.state["sums"].mean()


def find_damped_again(fabric, folder):
    """Search with an objective that has a state, once without and once with a death."""
    torch.set_num_threads(1)
    recipe = load_plugins(only=[]).recipe("edge_popup").model_copy(update={"objective": Damped()})
    how = {"density": 0.3, "plan": FOUR_A_TIME, "runtime": CPU, "on_collapse": "warn"}
    told = []
    for lives in ("no checkpoint", 6, None):
        told.append(Recorder())
        writes, saved = fabric.is_global_zero, lives != "no checkpoint"
        checkpointer = Mortal(Path(folder), lives, writes=writes) if saved else None
        with suppress(Killed):
            search(
                recipe,
                tiny_net(),
                tiny_data(),
                fabric=fabric,
                checkpointer=checkpointer,
                observers=[told[-1]],
                **how,
            )
        fabric.barrier()
    return told


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_two_processes_resume_what_each_remembers_of_its_own_batches(tmp_path):
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp_fork")
    straight, killed, resumed = fabric.launch(find_damped_again, str(tmp_path))
    assert len(killed) < len(straight)
    assert resumed == straight[-len(resumed) :]


def stop_in_one(fabric, rank):
    """Search while one process asks to stop in its second step; count the steps of all."""
    torch.set_num_threads(1)
    views, steps = [], torch.zeros(1)

    def stop(event):
        if isinstance(event, PhaseStarted):
            views.append(event.view)
        if isinstance(event, StepEnded):
            steps.add_(1)
            if event.step == 2 and fabric.global_rank == rank:
                views[0].stop("enough")

    find_one("learned, top k", stop, fabric=fabric)
    everybodys = [torch.empty_like(steps) for _ in range(fabric.world_size)]
    torch.distributed.all_gather(everybodys, steps)
    return [int(count) for count in everybodys]


@pytest.mark.parametrize(("rank", "steps"), [(0, 4), (1, 12)])
@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_processes_stop_together_when_the_first_asks_to(rank, steps):
    """At the end of the epoch; the broken version waited for ever."""
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp_fork")
    assert fabric.launch(stop_in_one, rank) == [steps, steps]


def refuse_together(fabric, folder):
    """Resume where only the first process sees other data; count the processes that refuse."""
    torch.set_num_threads(1)
    how = {"density": 0.5, "plan": PLAN, "runtime": CPU, "fabric": fabric, "on_collapse": "warn"}
    refused = torch.zeros(1)
    for seed, lives in ((0, 2), (1 - fabric.global_rank, None)):
        checkpointer = Mortal(Path(folder), lives, writes=fabric.is_global_zero)
        try:
            gemkit.search(
                "gem_miner", tiny_net(), tiny_data(seed=seed), checkpointer=checkpointer, **how
            )
        except Killed:
            fabric.barrier()
        except DataError:
            refused += 1
    torch.distributed.all_reduce(refused)
    return int(refused)


@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_processes_refuse_other_data_together(tmp_path):
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp_fork")
    assert fabric.launch(refuse_together, str(tmp_path)) == 2


SCRIPT = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
import torch
from tiny import tiny_data, tiny_net
from gemkit import Runtime, evaluate, finetune, search

runtime, data = Runtime(device="cpu", devices=2), tiny_data()
found = search("random", tiny_net(), data, density=0.5, runtime=runtime)
tuned = finetune(found, tiny_net(), data, epochs=1, runtime=runtime)
evaluate(tuned, tiny_net(), data, runtime=runtime)
told = f"world {torch.distributed.get_world_size()} {tuned.digest()}"
Path(sys.argv[2], f"rank{torch.distributed.get_rank()}").write_text(told)
torch.distributed.barrier()  # torch 2.6 may hang where one process leaves before the other
torch.distributed.destroy_process_group()
"""


def test_a_script_under_torchrun_joins_the_processes_that_are_there(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    done = subprocess.run(
        [sys.executable, *launch, str(script), str(Path(__file__).parents[2]), str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = [path.read_text() for path in sorted(tmp_path.glob("rank*"))]
    assert len(told) == 2
    assert told[0].startswith("world 2 ")
    assert told[0] == told[1]


WHOLE_RUN = """
import sys
from gemkit import Plan, RunConfig, RunSettings, Runtime, run
from gemkit.core.events import StepEnded

class Killed(BaseException):
    pass

def die(event):
    if isinstance(event, StepEnded) and event.phase == "finetune" and event.step == 5:
        raise Killed

checks = RunSettings(checkpoint_minutes=0.0, checks=["shuffle"], check_seeds=1)
config = RunConfig(
    pruner="random", density=0.3, model={"name": "conv4", "width": 4},
    dataset={"name": "fake", "samples": 60}, search=Plan(epochs=2, batch_size=16),
    finetune=Plan(batch_size=16), runtime=Runtime(device="cpu", devices=2), run=checks,
)
try:
    result = run(config, sys.argv[1], observers=[die] if sys.argv[2] == "die" else [])
except Killed:
    sys.exit(0)
print("shuffle" in str(result.checks), flush=True)
"""


def test_a_run_of_two_processes_killed_in_fine_tuning_is_resumed_and_checked(tmp_path):
    """Only the first process has the run's folder; the others must read its ticket and trials."""
    script, folder = tmp_path / "script.py", tmp_path / "run"
    script.write_text(WHOLE_RUN)
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    for words in ("die", "live"):
        done = subprocess.run(
            [sys.executable, *launch, str(script), str(folder), words],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["True", "True"]


@pytest.mark.parametrize("call", ["search", "finetune", "evaluate"])
def test_several_devices_from_python_say_what_to_do(call, monkeypatch):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    model, data, several = tiny_net(), tiny_data(), Runtime(device="cpu", devices=2)
    ticket = gemkit.search("random", model, data, density=0.5, runtime=CPU)
    arguments = ("random",) if call == "search" else (ticket,)
    with pytest.raises(TrainingError, match=r"torchrun --nproc-per-node 2.*--devices 2.*fabric="):
        getattr(gemkit, call)(*arguments, model, data, runtime=several)


def test_processes_that_there_are_already_may_be_more_than_cores(monkeypatch):
    many, opened = Runtime(device="cpu", devices=5000), Rank(0, 5000)
    opened.device, opened.launch = torch.device("cpu"), lambda: None
    monkeypatch.setattr("gemkit.training.device.Fabric", lambda **_: opened)  # which starts none
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    with pytest.raises(TrainingError, match=r"5000 devices of kind 'cpu' .*for a process each"):
        make_fabric(many, start_processes=True)
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert make_fabric(many) is opened


def as_task(monkeypatch, **changes):
    """Make this process the first task of a job of Slurm; return the calls that start others."""
    job = {
        "NTASKS": 2,
        "NTASKS_PER_NODE": 2,
        "STEP_NUM_TASKS": changes.get("NTASKS", 2),
        "PROCID": 0,
        "LOCALID": 0,
        "NODEID": 0,
        "JOB_NAME": "a",
    }
    for name, value in (job | changes).items():
        monkeypatch.setenv(f"SLURM_{name}", str(value))
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    monkeypatch.setattr("gemkit.training.device.os.cpu_count", lambda: 2)
    calls = []
    monkeypatch.setattr("gemkit.training.device.processes.start", calls.append)
    return calls


@pytest.fixture
def unlaunched(monkeypatch):
    """Let Fabric wait for no other process."""
    monkeypatch.setattr("gemkit.training.device.Fabric.launch", lambda fabric: None)


@pytest.mark.parametrize(
    ("changes", "started"),
    [
        ({}, []),
        ({"JOB_NAME": "interactive"}, [2]),
        ({"NTASKS": 1, "NTASKS_PER_NODE": 1}, [2]),
    ],
)
def test_processes_of_srun_are_joined(changes, started, monkeypatch, unlaunched):
    """In an interactive job, or one with a single task, srun has started no other process."""
    calls = as_task(monkeypatch, **changes)
    fabric = make_fabric(Runtime(device="cpu", devices=2), start_processes=True)
    assert calls == started
    assert fabric.world_size == 2


def test_another_number_of_tasks_than_devices_is_one_sentence(monkeypatch, unlaunched):
    as_task(monkeypatch, NTASKS=4, NTASKS_PER_NODE=4)
    with pytest.raises(TrainingError, match=r"srun has started 4 processes, and --devices is 2;"):
        make_fabric(Runtime(device="cpu", devices=2), start_processes=True)
    monkeypatch.delenv("SLURM_NTASKS_PER_NODE")
    with pytest.raises(TrainingError, match=r"cannot work together here: .*--ntasks-per-node=4"):
        make_fabric(Runtime(device="cpu", devices=4), start_processes=True)
    make_fabric(CPU)  # one device needs no other process
    monkeypatch.setenv("SLURM_NTASKS", "1")
    for name, value in {"RUN_ID": "x", "GROUP_RANK": "0"}.items():
        monkeypatch.setenv(f"TORCHELASTIC_{name}", value)
    monkeypatch.setenv("WORLD_SIZE", "3")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with pytest.raises(TrainingError, match="torchrun has started 3 processes, and --devices is 2"):
        make_fabric(Runtime(device="cpu", devices=2), start_processes=True)


def test_tasks_on_several_nodes_are_refused(monkeypatch):
    as_task(monkeypatch, NTASKS_PER_NODE=1, NNODES=2)
    with pytest.raises(TrainingError, match=r"cannot work together here: .*--ntasks-per-node=1"):
        make_fabric(Runtime(device="cpu", devices=2))


@pytest.mark.parametrize("step", [None, 1])
def test_tasks_that_srun_has_not_started_are_not_waited_for(step, monkeypatch):
    """A batch script, or the shell of salloc, is one process, however many tasks its job has."""
    as_task(monkeypatch, STEP_NUM_TASKS=step)
    if step is None:
        monkeypatch.delenv("SLURM_STEP_NUM_TASKS")
    with pytest.raises(TrainingError, match="has 2 tasks, but srun has not started them: write"):
        make_fabric(Runtime(device="cpu", devices=2), start_processes=True)
    make_fabric(CPU)


def test_a_variable_of_slurm_that_is_missing_is_named(monkeypatch, unlaunched):
    as_task(monkeypatch)
    monkeypatch.delenv("SLURM_PROCID")
    with pytest.raises(TrainingError, match="the variable 'SLURM_PROCID' is not set"):
        make_fabric(Runtime(device="cpu", devices=2), start_processes=True)


class Rank:
    """What `endless` needs to know of a fabric."""

    def __init__(self, rank, world):
        self.global_rank, self.world_size = rank, world


def test_processes_share_each_batch_and_none_is_left_with_nothing():
    images, labels = torch.arange(11.0).view(11, 1, 1, 1), torch.zeros(11, dtype=torch.int64)
    pair = (images, labels)
    train = Data.of_tensors(train=pair, validation=pair, test=pair, classes=1).train
    for world, steps in ((1, 3), (2, 2)):
        seen = []
        for rank in range(world):
            batches = endless(train, 4, seed=0, fabric=Rank(rank, world))
            shares = [next(batches)[0] for _ in range(steps)]
            assert all(len(share) > 1 for share in shares)
            seen += [float(value) for share in shares for value in share.flatten()]
        assert len(seen) == len(set(seen)) == (11 if world == 1 else 8)
