"""Data sets, loaders and iterables of batches: the promises of tensors, where they can hold."""

import errno
import math
import os
import random
import signal
import time
import warnings
from itertools import chain, islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from data_files import check_ranks_share_each_batch
from hypothesis import given, settings
from hypothesis import strategies as st
from own_data import Counting, Jittered, Rows, loader, of_datasets, of_loaders, of_tensors, pair
from tiny import CPU, PLAN, tiny_net
from torch import nn
from torch.multiprocessing import get_context, reductions
from torch.utils.data import DataLoader, TensorDataset, get_worker_info

import gemkit
from gemkit import Data, GemkitWarning, Plan, Runtime, evaluate, finetune, importance, search
from gemkit.cli.command import split_text
from gemkit.core.errors import DataError
from gemkit.core.memory import memory_explained
from gemkit.data.readers import DatasetReader, LoaderReader
from gemkit.data.source import known_size
from gemkit.data.stream import stream

few = settings(deadline=None, max_examples=20)


def numbered(samples):
    """Samples that know their number."""
    return TensorDataset(torch.arange(float(samples))[:, None], torch.arange(samples) % 3)


def of_samples(samples, workers=0):
    own = numbered(samples)
    return stream(DatasetReader(own, torch.arange(samples), None, workers), "numbers")


def of_batches(batches, steps=None):
    return stream(LoaderReader(batches, steps, "numbers"), "numbers")


def read(source, size, **how):
    return [inputs.flatten().tolist() for inputs, _ in source.batches(size, **how)]


# --- order ---------------------------------------------------------------------------------------


@few
@given(st.integers(1, 30), st.integers(1, 12), st.integers(0, 99), st.integers(0, 9))
def test_a_data_set_gives_the_batches_of_its_tensors(samples, size, seed, epoch):
    source = of_samples(samples)
    expected = gemkit.data.TensorSource(*numbered(samples).tensors)
    for how in ({}, {"seed": seed, "epoch": epoch}):
        assert read(source, size, **how) == read(expected, size, **how)
    assert len(source) == samples
    assert source.steps(size) == expected.steps(size)


@few
@given(st.integers(1, 30), st.integers(1, 12), st.integers(1, 5))
def test_ranks_together_see_what_one_process_sees(samples, size, world):
    check_ranks_share_each_batch(of_samples(samples), size, world)
    own = DataLoader(numbered(samples), batch_size=size)
    check_ranks_share_each_batch(of_batches(own), size, world)


class EverythingForAll:
    """Broken on purpose: every process gets all batches."""

    is_cut = True

    def __init__(self, own):
        self.own, self.samples = own, own.samples

    def __getattr__(self, name):
        return getattr(self.own, name)

    def read(self, which):
        return self.own.read(which._replace(rank=0, world=1))


def test_the_check_catches_a_share_that_is_seen_twice():
    source = of_samples(12)
    broken = stream(EverythingForAll(source.reader), "numbers")
    with pytest.raises(AssertionError):
        check_ranks_share_each_batch(broken, 6, 2)


class Deadly(Jittered):
    """Its workers are killed, as the system does where memory runs out."""

    by = signal.SIGKILL

    def __getitem__(self, place):
        if get_worker_info() is not None and place == 12:
            os.kill(os.getpid(), self.by)
        return super().__getitem__(place)


def test_a_killed_worker_is_not_blamed_on_the_data():
    deadly = stream(DatasetReader(Deadly(20), torch.arange(20), None, 1), "x")
    with pytest.raises(DataError, match=r"batch . cannot be read: a worker .* or was killed"):
        list(deadly.batches(8, seed=0))


def test_a_worker_that_is_killed_while_its_batches_are_used_is_not_either():
    """torch raises then wherever this process is."""

    @memory_explained()
    def slowly(batches):
        for _ in batches:
            time.sleep(0.3)

    deadly = stream(DatasetReader(Deadly(20), torch.arange(20), None, 1), "x")
    with pytest.raises(DataError, match=r"a worker .* or was killed"):
        slowly(deadly.batches(2))


def test_a_batch_that_a_lost_worker_leaves_is_not_blamed_on_the_data():
    """The tensors of a batch come from its worker, which has to be there until they are read."""

    class Left:
        def __iter__(self):
            yield torch.zeros(2, 1), torch.tensor([0, 1])
            queue = get_context("fork").Queue()
            worker = get_context("fork").Process(target=queue.put, args=[torch.ones(2)])
            worker.start()
            time.sleep(0.5)
            worker.kill()
            worker.join()
            yield queue.get(), torch.tensor([0, 1])

    with pytest.raises(DataError, match=r"batch 1 cannot be read: a worker .* or was killed"):
        list(of_batches(Left(), 2).batches(2))


def failing(fail):
    """Say why the second batch cannot be read, if this is called for it."""

    class Batches:
        def __iter__(self):
            yield torch.zeros(2, 1), torch.tensor([0, 1])
            fail()

    with pytest.raises(DataError, match=r"^numbers, batch 1 cannot be read") as found:
        list(of_batches(Batches(), 2).batches(2))
    return str(found.value)


def raising(error):
    def fail(*_):
        raise error

    return fail


def of_worker(error):
    """An error as torch passes it on."""
    words = f"Caught {type(error).__name__} in DataLoader worker process 0.\nOriginal Traceback"
    return type(error)(f"{words} (most recent call last):\n{type(error).__name__}: {error}\n")


def of_system(code):
    return OSError(code, os.strerror(code))


def test_full_shared_memory_is_not_blamed_on_the_data(monkeypatch):
    words = (
        "batch 1 cannot be read: /dev/shm, through which workers hand over the data, is probably "
        "full; enlarge it"
    )
    full = "unable to allocate shared memory(shm) for file </torch_1>: No space left on device (28)"
    assert words in failing(raising(of_worker(RuntimeError(full))))
    name = "multiprocessing.synchronize.SemLock._make_name"
    monkeypatch.setattr(name, raising(of_system(errno.ENOSPC)))
    assert words in failing(get_context("fork").Lock), "before there is a worker"
    for disk in (of_system(errno.ENOSPC), of_worker(of_system(errno.ENOSPC))):
        assert "correct the data set" in failing(raising(disk))


def test_a_worker_that_a_bus_error_ends_lacks_shared_memory(monkeypatch):
    """The memory that a file was promised is not there."""
    monkeypatch.setattr(Deadly, "by", signal.SIGBUS)
    deadly = stream(DatasetReader(Deadly(20), torch.arange(20), None, 1), "x")
    with pytest.raises(DataError, match=r"batch . cannot be read: /dev/shm, .* is probably full"):
        list(deadly.batches(8, seed=0))


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENFILE])
def test_too_many_open_files_are_not_blamed_on_the_data_nor_on_a_worker(code):
    words = "batch 1 cannot be read: too many files are open; raise the limit (`ulimit -n`), use"
    torchs = RuntimeError("Too many open files. Communication with the workers is no longer …")
    for error in (of_system(code), of_worker(of_system(code)), torchs):
        assert words in failing(raising(error))
    tensor = SimpleNamespace(detach=raising(of_system(code)))
    assert words in failing(lambda: reductions.rebuild_storage_fd(None, tensor, 1))
    named = OSError(code, os.strerror(code), "my images/1.png")
    for error in (named, of_worker(named)):
        words = "too many files are open, so 'my images/1.png' cannot be opened; raise the limit"
        assert words in failing(raising(error))


@pytest.mark.filterwarnings("ignore:This DataLoader will create 2 worker")  # on one core
def test_workers_fetch_the_same_batches():
    own = Jittered(20)
    straight, fetched = (
        stream(DatasetReader(own, torch.arange(20), None, workers), "x") for workers in (0, 2)
    )
    assert [len(x) for x, _ in fetched.batches(8, seed=0)] == [8, 8, 4]
    labels = [[y.tolist() for _, y in one.batches(8, seed=0)] for one in (straight, fetched)]
    assert labels[0] == labels[1]
    again = [torch.cat([x for x, _ in fetched.batches(8, seed=0)]) for _ in range(2)]
    assert torch.equal(*again), "random transforms too, with as many workers"


class Noise(Jittered):
    """Random numbers alone, whatever the sample."""

    def __getitem__(self, index):
        return torch.randn(2), self.labels[index]


def test_processes_draw_transforms_of_their_own():
    source = stream(DatasetReader(Noise(16), torch.arange(16), None, 0), "x")
    one, other = (
        torch.cat([x for x, _ in source.batches(8, seed=0, rank=rank, world=2)]) for rank in (0, 1)
    )
    assert not torch.isclose(one, other).any()


@pytest.mark.parametrize("kind", ["data set", "shuffled loader", "own order"])
def test_random_numbers_depend_on_seed_and_epoch_alone(kind):
    source = {
        "data set": lambda: stream(DatasetReader(Jittered(), torch.arange(40), None, 0), "x"),
        "shuffled loader": lambda: of_batches(DataLoader(Jittered(), 16, shuffle=True)),
        "own order": lambda: of_batches(DataLoader(Jittered(), 16)),
    }[kind]()

    def whole(**how):
        return torch.cat([inputs for inputs, _ in source.batches(16, **how)])

    first = whole(seed=1, epoch=2)
    torch.manual_seed(7), np.random.seed(7), random.seed(7)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    assert torch.equal(whole(seed=1, epoch=2), first)
    assert torch.equal(torch.get_rng_state(), states[0])
    assert (np.random.get_state()[1] == states[1]).all()
    assert random.getstate() == states[2]
    assert not torch.equal(whole(seed=1, epoch=3), first)
    assert not torch.equal(whole(seed=2, epoch=2), first)


def test_reading_between_batches_disturbs_no_epoch():
    """Scores are measured in the middle of an epoch, by reading the loader again."""
    for workers in ({}, {"num_workers": 1, "persistent_workers": True}):
        source = of_batches(DataLoader(Jittered(), 8, shuffle=True, **workers))
        expected = [x for x, _ in source.batches(8, seed=0)]
        found = []
        for inputs, _ in islice(source.batches(8, seed=0), 10):  # or for ever, if it begins again
            found.append(inputs)
            next(source.batches(8, seed=5))
        assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


# --- lengths -------------------------------------------------------------------------------------


def test_the_length_of_a_loader_is_its_number_of_batches():
    cases = [
        (loader(40, 16), 3, 40),
        (loader(40, 16, drop_last=True), 2, 32),
        (list(loader(40, 16)), 3, 48),  # the last one may be smaller, which nobody knows
        (DataLoader(TensorDataset(*pair(40)), batch_sampler=[[0, 1], [2, 3], [4]]), 3, 6),
    ]
    for own, steps, samples in cases:
        source = of_batches(own)
        assert (source.steps(64), len(source)) == (steps, samples)
        assert len(list(source.batches(64))) == steps


def test_an_endless_loader_has_the_steps_it_is_given():
    source = of_batches(DataLoader(Counting(), batch_size=4), steps=3)
    assert source.steps(1) == 3
    assert len(list(source.batches(1))) == 3
    with pytest.raises(DataError, match=r"no length.* give it, as in Data.of_loaders\(..., steps"):
        of_loaders(DataLoader(Counting(), batch_size=4))
    with pytest.raises(DataError, match="steps=0 is no number of batches"):
        of_loaders(DataLoader(Counting(), batch_size=4), steps=0)


class Augmented(TensorDataset):
    """Marks what it returns, as a random crop would."""

    def __getitem__(self, index):
        inputs, target = super().__getitem__(index)
        return inputs + 1000, target


def test_held_out_samples_of_an_augmenting_data_set_are_augmented_as_the_page_says():
    data = Data.of_datasets(train=Augmented(*numbered(40).tensors), test=numbered(8))
    [(inputs, _)] = data.validation.batches(100)
    assert inputs.min() >= 1000
    given = Data.of_datasets(
        train=Augmented(*numbered(40).tensors), validation=numbered(8), test=numbered(8)
    )
    [(inputs, _)] = given.validation.batches(100)
    assert inputs.max() < 1000


def test_no_number_of_samples_is_made_up():
    """Of an iterable data set, or of a given number of steps, only reading tells how many."""
    assert known_size(of_batches(DataLoader(Counting(7), batch_size=4))) is None
    assert known_size(of_batches(DataLoader(numbered(7), batch_size=4), steps=1)) is None
    assert known_size(of_batches(DataLoader(numbered(7), batch_size=4))) == 7
    assert known_size(of_samples(5)) == 5
    assert known_size(gemkit.data.TensorSource(*numbered(5).tensors)) == 5
    assert split_text(None, "test") == "the test images"
    assert split_text(1, "test") == "1 test image"


class Short:
    """Says that it has more batches than it has."""

    def __len__(self):
        return 5

    def __iter__(self):
        return iter(list(loader()))


def test_a_loader_that_ends_early_is_an_error():
    with pytest.raises(DataError, match="it ended after 3 of 5 batches"):
        list(of_batches(Short()).batches(1))
    finite = of_batches(DataLoader(Counting(7), batch_size=4), steps=3)
    with pytest.raises(DataError, match="it ended after 2 of 3 batches"):
        list(finite.batches(1))


# --- runs ----------------------------------------------------------------------------------------

HOW = {"density": 0.5, "runtime": CPU, "on_collapse": "warn", "progress": False}
MORE = [
    *[(name, {"workers": 1}) for name in ("gem_miner",)],
    *[(name, {}) for name in ("gem_miner", "snip", "prospr", "rigl")],
]


@pytest.mark.parametrize(("pruner", "how"), MORE)
def test_a_data_set_finds_the_ticket_of_its_tensors(pruner, how):
    tickets = []
    for data in (of_tensors(), of_datasets(**how)):
        ticket = search(pruner, tiny_net(), data, plan=PLAN, **HOW)
        tickets.append(finetune(ticket, tiny_net(), data, plan=PLAN, runtime=CPU))
        value = evaluate(tickets[-1], tiny_net(), data, runtime=CPU)
        assert value == evaluate(tickets[-1], tiny_net(), of_tensors(), runtime=CPU)
    assert tickets[0].info.classes == 3
    assert tickets[0].with_info(classes=None) == tickets[1]


@pytest.mark.parametrize(
    "pruner", ["gem_miner", "snip", "grasp", "prospr", "rigl", "imp_long_warm"]
)
def test_a_loader_does_what_a_list_of_its_batches_does(pruner):
    plan = Plan(epochs=3, lr=0.5)
    one, other = (
        search(pruner, tiny_net(), of_loaders(own), plan=plan, **HOW)
        for own in (loader(48), list(loader(48)))
    )
    assert one == other
    shuffled = [
        search(pruner, tiny_net(), of_loaders(loader(48, shuffle=True)), plan=plan, **HOW)
        for _ in range(2)
    ]
    assert shuffled[0] == shuffled[1], "the seed decides the order"
    trained = finetune(one, tiny_net(), of_loaders(), plan=plan, runtime=CPU)
    assert trained.info.stage == "finetuned"


def test_every_batch_of_a_loader_is_a_step():
    """40 samples in batches of 13 leave one, which batch statistics cannot use."""
    seen = []
    own = DataLoader(numbered(40), batch_size=13)
    data = Data.of_loaders(train=own, validation=own, test=own)

    def noted(outputs, targets):
        seen.append(len(targets))
        return nn.functional.cross_entropy(outputs, targets)

    plan = Plan(epochs=2, lr=0.1)
    ticket = search("random", nn.Sequential(nn.Linear(1, 3)), data, **HOW, objective=noted)
    seen.clear()
    finetune(ticket, nn.Sequential(nn.Linear(1, 3)), data, plan=plan, objective=noted)
    assert seen.count(13) == 2 * (3 + 3), "three steps, and as many to measure"
    assert seen.count(1) == 2, "only to measure"


def test_a_batch_size_without_effect_is_noted():
    plan = Plan(epochs=1, batch_size=8, lr=0.1)
    with pytest.warns(GemkitWarning, match="batch_size = 8 has no effect.*batches of 16"):
        search("random", tiny_net(), of_loaders(), plan=plan, **HOW)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        search("random", tiny_net(), of_loaders(), plan=Plan(epochs=1, lr=0.1), **HOW)


@pytest.mark.parametrize("metric", ["accuracy", "f1", "loss"])
def test_a_short_last_batch_counts_by_its_samples(metric):
    model = tiny_net()
    ticket = search("random", model, of_tensors(), **HOW)
    images, labels = pair()
    uneven = [
        (images[:30], labels[:30]),
        (images[30:37], labels[30:37]),
        (images[37:], labels[37:]),
    ]
    expected = evaluate(ticket, model, of_tensors(), runtime=CPU, metric=metric)
    value = evaluate(ticket, model, of_loaders(test=uneven), runtime=CPU, metric=metric)
    assert value == pytest.approx(expected, rel=1e-6)


def test_importance_takes_loaders_and_dicts():
    batches = list(loader())
    expected = importance("snip", tiny_net(), batches)
    dicts = ({"x": images, "y": labels} for images, labels in batches)
    for own, how in ((loader(), {}), (dicts, {"split": lambda batch: (batch["x"], batch["y"])})):
        found = importance("snip", tiny_net(), own, **how)
        assert all(torch.equal(found[name], value) for name, value in expected.items())
    two = importance("snip", tiny_net(), islice(loader(), 1))
    assert not torch.equal(two["0.weight"], expected["0.weight"])
    with pytest.raises(DataError, match="give batches, such as"):
        importance("snip", tiny_net(), of_tensors())
    with pytest.raises(DataError, match="batches is a int"):
        importance("snip", tiny_net(), 3)


def test_compact_fine_tuning_and_checks_take_loaders():
    data, model = of_loaders(loader(48, shuffle=True)), tiny_net()
    ticket = search("snip", model, data, **{**HOW, "density": 0.2})
    how = {"plan": Plan(epochs=1, lr=0.1)}
    trained = finetune(ticket, model, data, runtime=Runtime(device="cpu", compact=True), **how)
    assert trained.state.keys() == model.state_dict().keys()
    from gemkit.sanity.connectivity import LinearModeConnectivity
    from gemkit.sanity.context import context_of
    from gemkit.sanity.controls import Shuffle

    context = context_of(
        ticket,
        data=data,
        build=tiny_net,
        registry=gemkit.load_plugins(only=[]),
        runtime=CPU,
        finetune_plan=how["plan"],
    )
    assert Shuffle().control(ticket, context).kept == ticket.kept
    assert "barrier" in LinearModeConnectivity(points=3).measure(ticket, context)


def rows():
    images, labels = pair()
    return Rows(pixels=images, label=labels)


@pytest.mark.parametrize("workers", [0, 1])
def test_hugging_face_data_sets_are_map_style(workers):
    split = {"split": lambda batch: (batch["pixels"], batch["label"]), "workers": workers}
    data = of_datasets(rows(), **split, validation=rows(), test=rows(), classes=3)
    one, other = (
        search("gem_miner", tiny_net(), own, plan=PLAN, **HOW) for own in (data, of_tensors())
    )
    assert one == other


# --- devices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("make", [of_loaders, of_datasets], ids=["loaders", "data sets"])
def test_batches_are_moved_to_the_device(make, device, fabric):
    data = make().to(device)
    inputs, targets = next(data.train.batches(8, seed=0))
    assert inputs.device.type == targets.device.type == device.type
    how = {"density": 0.5, "on_collapse": "warn", "fabric": fabric}
    plan = Plan(epochs=1, lr=0.1)
    ticket = search("snip", tiny_net(), make(), plan=plan, **how)
    trained = finetune(ticket, tiny_net(), make(), plan=plan, fabric=fabric)
    assert 0 <= evaluate(trained, tiny_net(), make(), fabric=fabric) <= 1


def test_batches_may_come_from_a_device(device):
    own = [(x.to(device), y.to(device)) for x, y in loader()]
    source = of_loaders(own, validation=own, test=own).to(device).train
    for (x, y), (expected_x, expected_y) in zip(source.batches(1), loader(), strict=True):
        assert x.device.type == device.type
        assert torch.equal(x.cpu(), expected_x)
        assert torch.equal(y.cpu(), expected_y)


# --- what cannot be promised ---------------------------------------------------------------------


def moving(seed=3):
    """A loader with a generator of its own, which goes on from epoch to epoch."""
    return loader(shuffle=True, generator=torch.Generator().manual_seed(seed))


def test_an_order_that_the_seed_does_not_decide_is_told_once():
    with pytest.warns(GemkitWarning, match="first batch of train was another.*resumed run") as told:
        data = of_loaders(moving())
    assert len(told) == 1
    assert told[0].filename.endswith("own_data.py"), "the line of the caller"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        again = of_loaders(moving(4))
    assert data.fingerprint == again.fingerprint, "its kind alone is compared"
    with pytest.raises(DataError, match="2 processes would not share the same"):
        data.train.batches(1, world=2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        of_loaders(loader(shuffle=True))


@pytest.mark.parametrize("kind", ["data set", "loader"])
def test_values_that_are_not_finite_are_not_another_batch(kind):
    """A plan may leave such steps out (`on_nan`), but there has to be something to train on."""
    images, labels = pair()
    images[3, 0, 0, 0] = math.nan
    some, none = (TensorDataset(own, labels) for own in (images, images * math.nan))
    make = of_datasets if kind == "data set" else (lambda own: of_loaders(DataLoader(own, 16)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert make(some).train.is_fixed
        words = "train split, batch 0: no value of its inputs is finite; repair or remove"
        with pytest.raises(DataError, match=words):
            make(none)


def test_the_fingerprint_of_a_stream_is_its_first_batch():
    then = of_loaders().fingerprint
    assert then == of_loaders(loader(num_workers=1)).fingerprint
    other = of_loaders(loader(seed=1)).fingerprint
    assert then.differences(other) == ["the training images differ"]
    assert then.differences(of_loaders(loader(39)).fingerprint) == [
        "39 training images instead of 40"
    ]
    known = of_datasets().fingerprint
    assert known == of_datasets(workers=1).fingerprint
    images, labels = pair()
    assert known.differences(of_datasets(TensorDataset(images, labels.flip(0))).fingerprint) == [
        "the training labels differ"
    ]


# --- memory --------------------------------------------------------------------------------------


class Large(torch.utils.data.Dataset):
    """Half a megabyte for each of 512 samples, made when they are read."""

    def __init__(self):
        self.resident = []

    def __len__(self):
        return 512

    def __getitem__(self, index):
        self.resident.append(int(Path("/proc/self/statm").read_text().split()[1]) * 4096)
        return torch.full((1, 362, 362), float(index)), index % 2


@pytest.mark.parametrize("kind", ["data set", "loader"])
def test_what_does_not_fit_memory_streams(kind):
    """A quarter of a gigabyte an epoch, of which one batch is held."""
    if not Path("/proc/self/statm").exists():
        pytest.skip("memory use is only known on Linux")
    large = Large()
    net = nn.Sequential(nn.AvgPool2d(60), nn.Flatten(), nn.Linear(36, 2))
    small = [(torch.zeros(4, 1, 362, 362), torch.arange(4) % 2)]
    if kind == "loader":
        own = DataLoader(large, batch_size=16, shuffle=True)
        data = Data.of_loaders(train=own, validation=small, test=small)
    else:
        data = Data.of_datasets(train=large, validation=numbered_images(), test=numbered_images())
    how = {"plan": Plan(epochs=2, batch_size=16, lr=0.01), "runtime": CPU}
    finetune(search("random", net, data, **how), net, data, **how)
    assert len(large.resident) > 1024
    after_first = large.resident[len(large.resident) // 8]
    assert max(large.resident) - after_first < 64 * 2**20


def numbered_images():
    return [(torch.zeros(1, 362, 362), 0), (torch.zeros(1, 362, 362), 1)]


# --- mistakes ------------------------------------------------------------------------------------


def test_a_bad_batch_is_named_wherever_it_is():
    images, labels = pair()
    good = (images[:8], labels[:8])
    bad = {
        "batch 1: label 9 is above 2, with classes=3": (images[:8], labels[:8] + 7),
        "batch 1: labels count from 0": (images[:8], labels[:8] - 1),
        "batch 1: it is inputs of float32 of 2 dimensions": (images[:8].flatten(1), labels[:8]),
        "batch 1: it is .* targets of float32": (images[:8], labels[:8].float()),
        "batch 1: inputs of shape .* are no batch": (images[:8], labels[:7]),
        "batch 1: the batch is a tuple of 3": (*good, 1),
        "batch 1: targets are text": (images[:2], ["cat", "dog"]),
    }
    for sentence, batch in bad.items():
        source = of_loaders([good, batch], classes=3).train
        with pytest.raises(DataError, match=f"data set 'custom', train split, {sentence}"):
            list(source.batches(1))


def test_a_label_without_an_output_is_a_sentence_in_training_too():
    images, labels = pair()
    own = [(images[:8], labels[:8]), (images[:8], labels[:8] + 7)]
    with pytest.raises(DataError, match="a batch holds label 9, and the network has 3 outputs"):
        finetune(
            search("random", tiny_net(), of_loaders(own), **HOW),
            tiny_net(),
            of_loaders(own),
            epochs=1,
            runtime=CPU,
        )


def test_an_error_of_the_data_set_names_the_batch():
    class Broken(Jittered):
        def __getitem__(self, index):
            if index == 33:
                raise OSError("disk on fire")
            return super().__getitem__(index)

    data = of_loaders(DataLoader(Broken(), batch_size=16))
    words = (
        r"batch 2 cannot be read \(OSError: disk on fire, at .*streams\.py:\d+, in __getitem__\)"
    )
    with pytest.raises(DataError, match=words):
        list(data.train.batches(1))


def test_without_validation_a_tenth_of_a_data_set_is_held_out():
    own = numbered(40)
    data = Data.of_datasets(train=own, test=own)
    splits = (data.train, data.validation, data.test)
    parts = [sorted(chain.from_iterable(read(one, 64))) for one in splits]
    assert sorted(parts[0] + parts[1]) == parts[2] == list(range(40))
    assert len(parts[1]) == 4


def test_data_of_streams_print_as_one_line():
    assert repr(of_loaders()) == (
        "Data('custom': 40 train, 40 validation, 40 test; labels of classes, images of 2×6×6)"
    )
    assert repr(of_loaders(classes=3).train) == (
        "StreamSource(data set 'custom', train split: float32 inputs of 2×6×6, cpu)"
    )
