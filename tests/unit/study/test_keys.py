"""Keys: what moves a result and what does not."""

import hashlib

import pytest
from pydantic import Field
from studies import cells_of

import gemkit.study.keys as keys
from gemkit import MeasuredScores, load_plugins
from gemkit.models.custom import Custom
from gemkit.models.from_timm import Timm
from gemkit.plugins.provenance import versions_of
from gemkit.study.keys import changed, key_of
from gemkit.study.stage_store import StageStore

BASE = {"model": "conv4", "dataset": "digits", "pruner": "gem_miner", "search": {"epochs": 4}}


def stages(checks=(), registry=None, **changes):
    [cell] = cells_of(BASE | changes, checks=checks, registry=registry)
    return cell.info


def test_keys_do_not_move():
    """If this fails, every study of every user is computed again: leave new fields out of keys."""
    cell = stages(["shuffle"])
    assert (cell.search, cell.finetune, cell.checks["shuffle"]) == (
        "search-5f40060294b51b0e",
        "finetune-3f5ec7dc3875c22b",
        "check-db24f2003fb86f43",
    )


@pytest.mark.parametrize(
    "change",
    [
        {"seed": 1},
        {"density": 0.1},
        {"model": {"name": "conv4", "width": 8}},
        {"dataset": {"name": "fake", "samples": 60}},
        {"recipe": {"regularizer": {"weight": 3e-3}}},
        {"search": {"epochs": 6}},
        {"search": {"epochs": 4, "lr": 0.5}},
        {"runtime": {"threads": 2}},
        {"runtime": {"precision": "bf16"}},
        {"runtime": {"compile": True}},
        {"runtime": {"device": "cpu"}},
        {"on_collapse": "keep-one"},
        {"objective": {"name": "cross_entropy", "smoothing": 0.1}},
        {"metric": "f1"},
    ],
    ids=str,
)
def test_what_decides_the_ticket_moves_all_stages(change):
    there, here = stages(["shuffle"]), stages(["shuffle"], **change)
    assert not set(there.stages()) & set(here.stages())


@pytest.mark.parametrize(
    "change",
    [{"finetune": {"epochs": 9}}, {"finetune": {"lr": 0.5}}, {"runtime": {"compact": True}}],
)
def test_fine_tuning_shares_the_search(change):
    there, here = stages(["shuffle"]), stages(["shuffle"], **change)
    assert there.search == here.search
    assert not set(there.stages()[1:]) & set(here.stages()[1:])


@pytest.mark.parametrize(
    "change",
    [
        {"run": {"data_dir": "elsewhere", "checkpoint_minutes": 3.0}},
        {"runtime": {"threads": 1}},
        {"recipe": {"finalize": "rounded"}},
        {"model": {"name": "conv4"}},
        {"on_collapse": "warn"},
        {"objective": "cross_entropy"},
        {"finetune": {"epochs": 4}},
    ],
    ids=str,
)
def test_what_is_at_its_default_moves_nothing(change):
    assert stages(["shuffle"]).stages() == stages(["shuffle"], **change).stages()


def test_a_search_without_training_does_not_depend_on_epochs():
    one, other = (stages(pruner="snip", search={"epochs": epochs}) for epochs in (4, 8))
    assert one.search == other.search
    assert one.finetune != other.finetune, "as many epochs as the search, unless it sets others"


def test_the_dense_network_is_trained_once_for_all_densities():
    cells = cells_of(BASE | {"pruner": "dense"}, grid={"density": [0.05, 0.02]}, checks=["shuffle"])
    [cell] = cells
    assert cell.info.density == cell.info.axes["density"] == 1.0
    assert cell.info.checks == {}, "there is nothing to compare"


def test_a_check_with_fields_is_another_stage():
    cell = stages(["reinit", "reinit:kaiming_normal"])
    assert len(set(cell.checks.values())) == 2


class Old(MeasuredScores):
    """Scores of today."""

    name = "some"

    power: float = Field(default=2.0, description="exponent")

    def importance(self, probe):
        raise NotImplementedError


class New(Old):
    """The same scores with a new field."""

    damping: float = Field(default=0.0, description="new and neutral")


def test_a_new_field_at_its_default_leaves_the_key():
    old, new, other = (
        key_of("x", keys._part(one, False)) for one in (Old(), New(), New(damping=1))
    )
    assert old == new != other
    assert keys._part(New(), True) == {"name": "some", "power": 2.0, "damping": 0.0}


def test_a_default_that_changed_is_noticed(tmp_path):
    [cell] = cells_of(BASE)
    [stage, *_] = cell.stages.values()
    store = StageStore(tmp_path)
    store.folder(stage.name).path.mkdir(parents=True)
    store.begin(stage.name, {**stage.about, "search": {**stage.about["search"], "momentum": 0.8}})
    with pytest.raises(Exception, match=r"search.momentum was 0.8 and is 0.9"):
        store.check_same(stage)
    store.begin(stage.name, {**stage.about, "unknown": 1})
    store.check_same(stage)


def test_settings_that_only_one_side_knows_are_new():
    assert changed({"a": 1, "b": {"c": 2}}, {"b": {"c": 2, "d": 3}}) == []
    assert changed({"b": {"c": 2}}, {"b": {"c": 3}}) == ["b.c was 2 and is 3"]


PLUGIN = '''
from gemkit import MeasuredScores, hookimpl

class Mine(MeasuredScores):
    """Mine."""
    name = "mine"
    def importance(self, probe):
        return {name: weight.abs() for name, weight in probe.weights.items()}

@hookimpl
def gemkit_scores():
    return [Mine]

@hookimpl
def gemkit_pruners():
    return {"mine": {"scores": "mine"}}
'''


def test_a_changed_plugin_file_is_another_method(tmp_path):
    found = []
    for number, text in enumerate((PLUGIN, PLUGIN, PLUGIN + "\n# changed\n")):
        (tmp_path / str(number)).mkdir()
        file = tmp_path / str(number) / "mine.py"
        file.write_text(text)
        registry = load_plugins(files=[file], only=())
        found.append(stages(pruner="mine", registry=registry).search)
    assert found[0] == found[1] != found[2]


def test_a_changed_plugin_file_within_a_part_is_another_method(tmp_path):
    found = []
    file = tmp_path / "mine.py"
    for text in (PLUGIN, PLUGIN + "\n# changed\n"):
        file.write_text(text)
        registry = load_plugins(files=[file], only=())
        within = {"scores": {"name": "lamp", "of": "mine"}}
        found.append(stages(pruner="lamp", recipe=within, registry=registry).search)
    assert found[0] != found[1]


def test_two_plugin_files_of_one_name_are_two(tmp_path):
    files = []
    for number, name in enumerate(("mine", "yours")):
        (tmp_path / str(number)).mkdir()
        files.append(tmp_path / str(number) / "mine.py")
        files[-1].write_text(PLUGIN.replace('"mine"', f'"{name}"'))
    registry = load_plugins(files=files, only=())
    parts = [registry.build("scores", name) for name in ("mine", "yours", "mine")]
    versions = versions_of(parts, registry)
    assert list(versions) == ["mine.py", "mine.py (2)"]
    assert len(set(versions.values())) == 2


@pytest.mark.parametrize("address", ["mynet_of_keys", "mynets_of_keys.inner"])
def test_a_changed_module_of_an_own_network_is_another_network(tmp_path, monkeypatch, address):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / f"{address.replace('.', '/')}.py"
    file.parent.mkdir(exist_ok=True)
    (file.parent / "__init__.py").touch()
    found = []
    for text in ("raise SystemExit", "raise SystemExit", "raise SystemExit  # changed"):
        file.write_text(text)
        found.append(stages(model=f"{address}:net").search)
    assert found[0] == found[1] != found[2]
    file.unlink()
    assert stages(model=f"{address}:net").search not in found, "the error comes when it is built"


@pytest.mark.parametrize(
    "network",
    [
        Custom(function="nowhere_to_be_found:net", weights="some.pth"),
        Timm(network="resnet18", weights="some.pth"),
    ],
    ids=["own", "timm"],
)
def test_changed_weights_of_a_network_are_another_network(network, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = []
    for content in (b"one", b"two"):
        (tmp_path / "some.pth").write_bytes(content)
        found.append(keys._plugins([network], load_plugins(only=())))
    digests = [f"sha256:{hashlib.sha256(content).hexdigest()}" for content in (b"one", b"two")]
    assert found == [{"some.pth": digest} for digest in digests]
    (tmp_path / "some.pth").unlink()
    assert keys._plugins([network], load_plugins(only=())) == {}
