"""Fields, tables and tickets as text."""

import math
from typing import Annotated, Literal

import pytest
import torch
from pydantic import Field

from gemkit import load_plugins
from gemkit.cli.configure import KINDS as OPTION_KINDS
from gemkit.parts.part import Part
from gemkit.plugins.registry import KINDS, Entry, Registry
from gemkit.report.catalogue import catalogue, catalogue_text, type_text
from gemkit.report.results import result_text
from gemkit.report.tables import facts, layer_table, percent, text_table
from gemkit.report.tickets import ticket_data, ticket_text
from gemkit.tickets.info import TicketInfo
from gemkit.tickets.ticket import Ticket


class Sample(Part):
    """A part for tests, whose help
    goes over two lines.

    And has a second paragraph.
    """

    name = "sample"
    argument = "depth"

    depth: int = Field(ge=1, le=9, description="how deep")
    mode: Literal["soft", "hard"] = Field(default="soft", description="how [hard]")
    widths: tuple[float, ...] = Field(default=(0.5, 1.0), min_length=1, description="how wide")
    limit: int | None = Field(default=None, gt=0, lt=5, description="where to stop")
    twice: bool = Field(default=False, description="once more")
    free: float = Field(default=1.0, ge=0, le=math.inf, description="how free")


@pytest.fixture
def registry() -> Registry:
    parts = {kind: {} for kind in KINDS}
    parts["scores"]["sample"] = Entry(Sample, "plug", "gemkit-plug 2.0")
    pruners = {"sampled": Entry({"help": "One line"}, "plug", "gemkit-plug 2.0")}
    return Registry(parts, pruners)


def test_a_part_is_described_with_every_field(registry):
    [sample] = catalogue(registry, "scores")["scores"]
    assert sample["help"] == "A part for tests, whose help goes over two lines."
    assert (sample["plugin"], sample["distribution"]) == ("plug", "gemkit-plug 2.0")
    fields = {field["name"]: field for field in sample["fields"]}
    assert fields["depth"]["required"]
    assert fields["depth"]["bounds"] == {">=": 1, "<=": 9}
    assert (fields["mode"]["type"], fields["mode"]["default"]) == ("soft | hard", "soft")
    assert fields["widths"]["default"] == [0.5, 1.0]
    assert fields["widths"]["bounds"] == {"length >=": 1}
    assert (fields["limit"]["type"], fields["limit"]["default"]) == ("int", None)
    assert fields["limit"]["bounds"] == {">": 0, "<": 5}
    assert fields["free"]["bounds"] == {">=": 0}, "infinity is no bound, and no JSON"
    assert fields["twice"]["type"] == "true | false"


@pytest.mark.parametrize("kind", [kind for kind in OPTION_KINDS if kind])
def test_every_kind_with_fields_is_in_the_catalogue(kind):
    [things] = catalogue(load_plugins(only=[]), {"grow": "scores"}.get(kind, kind)).values()
    assert any(thing["fields"] for thing in things)


def test_the_catalogue_as_text_has_every_field(registry):
    text = " ".join(catalogue_text(catalogue(registry)).split())
    for words in (
        "sample:DEPTH [plug, gemkit-plug 2.0] A part for tests, whose help goes over two lines.",
        "depth = (must be given) int >= 1, <= 9 how deep",
        "mode = soft soft | hard how [hard]",
        "widths = [0.5, 1.0] [float, …] length >= 1 how wide",
        "limit = (unset) int > 0, < 5 where to stop",
        "twice = false true | false once more",
        "sampled [plug, gemkit-plug 2.0] One line",
        "roundings (none)",
    ):
        assert words in text


@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "int"),
        (str, "text"),
        (int | float | None, "int | float"),
        (tuple[int, int], "[int, int]"),
        (tuple[str, ...], "[text, …]"),
        (list[int], "list"),
        (tuple[Annotated[float, Field(le=1)], ...], "[float, …]"),
    ],
)
def test_types_have_short_names(annotation, text):
    assert type_text(annotation) == text


def test_a_table_aligns_wraps_and_keeps_brackets(monkeypatch):
    monkeypatch.setenv("COLUMNS", "60")
    text = text_table(("name", "n"), [("[red]", "1"), ("x" * 80, "1,000")], numbers=(1,), indent=2)
    lines = text.splitlines()
    assert all(len(line) <= 60 for line in lines)
    assert all(line.startswith("  ") for line in lines)
    assert lines[1].startswith("  [red] ")
    assert lines[1].endswith("    1")
    assert sum(line.count("x") for line in lines) == 80, "nothing is cut off"


def test_facts_are_two_columns():
    assert facts({"a": "1", "long": "2"}) == "a     1\nlong  2"
    assert percent(0.9567) == "95.7 %"


@pytest.fixture
def ticket() -> Ticket:
    mask = {"conv.weight": torch.tensor([[True, False, False, False]])}
    info = TicketInfo(
        pruner="sampled",
        recipe={"pruner": "sampled", "scores": {"name": "sample", "depth": 3}},
        model={"name": "conv4", "width": 4},
        dataset=None,
        shape=(1, 8, 8),
        classes=10,
        density_target=0.5,
        seed=7,
        epochs=2,
        stage="found",
        versions={"gemkit": "1.0"},
        history=[],
        alive=2,
    )
    return Ticket(mask, {"conv.weight": torch.ones(1, 4)}, info)


def test_a_ticket_is_shown_with_its_origin_and_layers(ticket):
    text = ticket_text(ticket)
    assert ticket.summary() in text
    assert layer_table(ticket) in text
    words = " ".join(text.split())
    assert "recipe scores sample" in words
    assert "model conv4 (width 4)" in words
    assert "dataset not recorded" in words
    assert "2 weights were never frozen, 1 are kept" in words
    assert "conv.weight 1x4 1 4 0.2500 all 1 4 0.2500" in words


def test_a_ticket_as_data_has_everything_but_tensors(ticket):
    data = ticket_data(ticket)
    assert data["sha256"] == ticket.digest()
    assert (data["kept"], data["prunable"], data["density"]) == (1, 4, 0.25)
    assert data["layers"] == [{"name": "conv.weight", "shape": (1, 4), "kept": 1, "prunable": 4}]


@pytest.mark.parametrize(("alive", "shown"), [(2, True), (1, False), (None, False)])
def test_a_result_shows_what_is_alive_only_where_it_differs(alive, shown):
    result = {
        **{"density": 0.25, "kept": 1, "prunable": 4, "alive": alive, "density_target": 0.5},
        **{"accuracy_before": 0.5, "accuracy_after": 0.75, "seconds": 2.0, "seconds_search": 1.0},
        **{"run_dir": "runs/x", "ticket": "runs/x/ticket.safetensors"},
    }
    text = result_text(result, "gemkit eval x")
    assert "50.0 % before fine-tuning, 75.0 % after" in text
    assert text.endswith("gemkit eval x")
    assert ("never frozen" in text) == shown
