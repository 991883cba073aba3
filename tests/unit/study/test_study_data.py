"""`gemkit.Study`: what it refuses before anything runs."""

import shutil

import pytest
from data_files import write_classes
from studies import REGISTRY, TINY, Here

from gemkit import Study
from gemkit.core.errors import DataError
from gemkit.data.folders import ImageFolder


def pretend(base, folder, script, **options):
    """Run a study whose stages have scripted results, and return the executor."""
    study = Study(None, folder / "mine", base=base, registry=REGISTRY, **options)
    executor = Here(study.store, script)
    study.run(executor, progress=False)
    return executor


def test_changed_data_are_not_mixed_with_those_of_finished_stages(tmp_path):
    images = tmp_path / "pictures"
    write_classes(images, {"cats": 12, "dogs": 12})
    data = ImageFolder(path=str(images)).load(None).fingerprint
    script = {"search": [{"data": data}], "finetune": [{"data": data}]}
    base = TINY | {"dataset": f"imagefolder:{images}"}
    assert len(pretend(base, tmp_path, script, seeds=1).ran) == 2
    assert len(pretend(base, tmp_path, script, seeds=2).ran) == 2, "the same data"
    shutil.rmtree(images)
    write_classes(images, {"cats": 14, "dogs": 12})
    assert not pretend(base, tmp_path, script, seeds=2).ran, "nothing is missing"
    with pytest.raises(DataError, match=r"not those of data set 'imagefolder:.*images instead of"):
        pretend(base, tmp_path, script, seeds=3)
    other = TINY | {"dataset": {"name": "fake", "samples": 60}}
    assert len(pretend(other, tmp_path, {}, seeds=1).ran) == 2, "another data set"


def test_data_are_looked_for_where_stages_look_for_them(tmp_path):
    write_classes(tmp_path / "data" / "pictures", {"cats": 12, "dogs": 12})
    base = TINY | {"dataset": "imagefolder:pictures", "run": {"data_dir": str(tmp_path / "data")}}
    assert len(pretend(base, tmp_path, {}).ran) == 2
