"""The page of examples: each is short, complete, and runs at toy size."""

import re
from pathlib import Path

import pytest

from gemkit.data import generated

PAGE = (Path(__file__).parents[2] / "docs" / "examples.md").read_text()
EXAMPLES = dict(re.findall(r"<!-- ([\w ]+) -->\n```python\n(.*?)```", PAGE, flags=re.DOTALL))
SMALLER = {
    "timm on a folder": [
        ("range(120)", "range(20)"),
        ('"resnet10t"', '"test_resnet"'),
        ('"gem_miner"', '"snip"'),
        ("epochs=10", "epochs=1"),
    ],
    "tokens and a transformer": [
        ("3000", "60"),
        ("2000", "40"),
        ("epochs=20)", "epochs=4)"),
        ("epochs=20,", "epochs=1,"),
    ],
    "a mask in a plain loop": [("range(10)", "range(2)")],
}


def test_every_example_is_known_and_short():
    assert EXAMPLES.keys() == SMALLER.keys()
    assert PAGE.count("```python") == len(EXAMPLES)
    assert all(len(example.splitlines()) < 40 for example in EXAMPLES.values())


@pytest.mark.filterwarnings("ignore::gemkit.GemkitWarning")
@pytest.mark.parametrize("name", SMALLER)
def test_the_examples_run(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GEMKIT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(generated, "_SIZES", (128, 20, 20))
    example = EXAMPLES[name]
    for long, short in SMALLER[name]:
        assert long in example
        example = example.replace(long, short)
    names = {}
    exec(example, names)
    for layer, mask in names["ticket"].mask.items():
        if name != "tokens and a transformer":  # it is not applied to the model there
            assert not names["model"].get_parameter(layer).detach()[~mask].any()


def test_the_page_links_all_six():
    for words in ("timm", "DataLoader", "regression", "several labels", "transformer", "loop"):
        assert re.search(rf"^\| .*{words}.* \| \[", PAGE, flags=re.MULTILINE), words
