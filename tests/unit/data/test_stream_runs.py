"""Streams in resumed runs, in several processes, and in data sets of plugins."""

import itertools

import pytest
import torch
from cli_runs import commands_in
from kept import Killed, Mortal, dropping_net, in_lives
from lightning_fabric import Fabric
from own_data import Jittered, loader, of_datasets, of_loaders
from tiny import CPU, tiny_net
from torch.utils.data import DataLoader

from gemkit import Plan, finetune, load_plugins, search
from gemkit.core.errors import DataError
from gemkit.data.part import DatasetPart
from gemkit.pruning.search import search as search_together
from gemkit.testing import contract
from gemkit.training.loop import endless

PLAN = Plan(epochs=3, batch_size=16, lr=0.3)
KINDS = {
    "data set": lambda: of_datasets(Jittered()),
    "fixed loader": lambda: of_loaders(loader()),
    "shuffling loader": lambda: of_loaders(DataLoader(Jittered(), 16, shuffle=True)),
    "endless loader": lambda: of_loaders(Endless(), steps=3),
}


class Endless:
    """Batches in random order, for ever."""

    def __iter__(self):
        return itertools.chain.from_iterable(
            DataLoader(Jittered(), 16, shuffle=True) for _ in itertools.count()
        )


def find(data, checkpointer=None):
    torch.manual_seed(99)
    how = {"density": 0.3, "plan": PLAN, "runtime": CPU, "on_collapse": "warn", "progress": False}
    return search(
        "gem_miner",
        dropping_net(),
        data,
        checkpointer=checkpointer,
        **how,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_killed_after_any_step_a_search_resumes_to_the_same_bits(kind, tmp_path):
    """Two to four steps at a time, of three an epoch, so that most deaths are in the middle."""
    expected = find(KINDS[kind]())
    lives = itertools.cycle((2, 4, 3))
    found, _, deaths = in_lives(
        lambda _, saved: find(KINDS[kind](), saved),
        tmp_path,
        itertools.islice(lives, 3),
    )
    assert deaths == 3
    assert found == expected


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("start", range(8))
def test_what_comes_after_some_steps_is_what_would_have_come(kind, start):
    train = KINDS[kind]().train
    fabric = Alone()
    whole = list(itertools.islice(endless(train, 16, seed=1, fabric=fabric), 10))
    rest = itertools.islice(endless(train, 16, seed=1, fabric=fabric, start=start), 10 - start)
    for (inputs, targets), (expected, labels) in zip(rest, whole[start:], strict=True):
        assert torch.equal(inputs, expected)
        assert torch.equal(targets, labels)


class Alone:
    """What `endless` needs to know of a fabric."""

    global_rank, world_size = 0, 1


def test_a_resumed_run_refuses_other_data(tmp_path):
    with pytest.raises(Killed):
        find(of_loaders(), Mortal(tmp_path, 2))
    with pytest.raises(DataError, match="the run began with: the training images differ"):
        find(of_loaders(loader(seed=1)), Mortal(tmp_path))
    with pytest.raises(DataError, match="32 training images instead of 40"):
        find(of_loaders(loader(drop_last=True)), Mortal(tmp_path))
    find(of_loaders(), Mortal(tmp_path))


# --- several processes ---------------------------------------------------------------------------


def in_two(fabric, kind, pruner):
    """Search and fine-tune in this process; return what all processes found, and steps seen."""
    torch.set_num_threads(1)
    seen = []
    data = KINDS[kind]()
    recipe = load_plugins(only=[]).recipe(pruner)
    how = {"plan": PLAN, "runtime": CPU, "fabric": fabric}
    ticket = search_together(recipe, tiny_net(), data, density=0.3, on_collapse="warn", **how)
    trained = finetune(ticket, tiny_net(), data, **how, progress=False)
    for inputs, targets in data.train.batches(16, seed=0, rank=fabric.global_rank, world=2):
        seen.append((len(inputs), targets.tolist()))
    mine = torch.cat([own.flatten().float() for own in trained.state.values()])
    everybodys = [torch.empty_like(mine) for _ in range(fabric.world_size)]
    torch.distributed.all_gather(everybodys, mine)
    return seen, [own.tolist() for own in everybodys]


@pytest.mark.parametrize(("kind", "pruner"), [("data set", "gem_miner"), ("fixed loader", "snip")])
@pytest.mark.filterwarnings("ignore:This process.*multi-threaded:DeprecationWarning")
def test_two_processes_share_every_batch_and_train_the_same_network(kind, pruner):
    fabric = Fabric(accelerator="cpu", devices=2, strategy="ddp_fork")
    seen, (one, other) = fabric.launch(in_two, kind, pruner)
    assert one == other
    whole = [targets.tolist() for _, targets in KINDS[kind]().train.batches(16, seed=0)]
    assert [targets for _, targets in seen] == [targets[::2] for targets in whole]


# --- plugins -------------------------------------------------------------------------------------


class Streamed(DatasetPart):
    """A data set of a plugin that does not fit memory."""

    name = "streamed"

    def load(self, folder):
        return of_datasets(classes=3)


test_a_streamed_data_set_keeps_the_contract = contract(Streamed)

PLUGIN = """
from own_data import of_datasets, of_loaders
from gemkit import DatasetPart, hookimpl


class Streamed(DatasetPart):
    '''Fetched batch by batch.'''

    name = "streamed"

    def load(self, folder):
        return of_datasets(classes=3)


class Uncounted(DatasetPart):
    '''Loaders without a number of classes.'''

    name = "uncounted"

    def load(self, folder):
        return of_loaders()


@hookimpl
def gemkit_datasets():
    return [Streamed, Uncounted]
"""


def test_a_run_takes_a_streamed_data_set_of_a_plugin(tmp_path, monkeypatch):
    gemkit = commands_in(tmp_path, monkeypatch)
    (tmp_path / "mine.py").write_text(PLUGIN)
    words = ("run", "--plugin", "mine.py", "--model", "lenet300", "--pruner", "snip")
    few = ("--density", "0.5", "--device", "cpu", "--finetune-epochs", "1", "--batch-size", "16")
    done = gemkit(*words, "--dataset", "streamed", *few, "--check", "shuffle", "--check-seeds", "1")
    assert done.exit_code == 0, done.output
    refused = gemkit(*words, "--dataset", "uncounted", *few)
    assert refused.exit_code == 2
    assert "does not say how many classes there are; give classes=" in refused.stderr
