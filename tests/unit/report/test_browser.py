"""The page in a browser: no request, no error, filters, keyboard, zoom; skipped without one."""

import pytest
from browser import PROGRAM, browser
from reports import HOSTILE, record, study

from gemkit.report.written import write_report

pytestmark = pytest.mark.skipif(PROGRAM is None, reason="no Chromium is installed")

COUNT = "document.querySelectorAll('#accuracy .point').length"


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report")
    records = study() + [record(HOSTILE, 0.2, seed, model=HOSTILE) for seed in range(3)]
    write_report(records, folder, folder, title=HOSTILE, formats=["html"])
    return folder / "report.html"


@pytest.fixture(scope="module")
def chromium():
    with browser() as tab:
        yield tab


@pytest.fixture
def tab(chromium, page):
    chromium.requests.clear()
    chromium.complaints.clear()
    chromium.open(page)
    yield chromium
    assert set(chromium.requests) == {page.resolve().as_uri()}, "a request left the page"
    assert chromium.complaints == []


def test_every_section_is_drawn(tab):
    drawn = tab.run(
        "[...document.querySelectorAll('section.charts:not([hidden])')]"
        ".map(s => [s.id, s.querySelectorAll('svg.plot').length])"
    )
    assert [name for name, count in drawn if count == 0] == []
    assert len(drawn) == 7
    assert tab.run(COUNT) == 2 * (12 + 1)
    assert tab.run("document.querySelectorAll('img, iframe').length") == 0
    assert tab.run(
        "[...document.querySelectorAll('svg *')].every(e => !/NaN|Infinity/.test(e.outerHTML))"
    )


def test_filters_by_method_density_and_network(tab):
    for name, value, points in (("series", 1, 18), ("density", 0, 12), ("model", 0, 0)):
        tab.run(f"document.querySelector('input[name={name}][value=\"{value}\"]').click()")
        assert tab.run(COUNT) == points, name
    rows = "document.querySelectorAll('#groups > .scroll tr[data-g]:not([hidden])').length"
    assert tab.run(rows) == 0
    assert tab.run("document.getElementById('count').textContent") == "0 of 13 cells shown."
    tab.run("document.querySelector('input[name=model][value=\"0\"]').click()")
    assert tab.run(rows) == 6


def test_the_keyboard_filters_hovers_and_zooms(tab):
    tab.run("document.querySelector('input[name=series]').focus()")
    tab.key(" ", " ")
    assert tab.run(COUNT) == 18
    tab.key(" ", " ")
    tab.run("document.querySelector('#accuracy svg.plot').focus()")
    tab.key("ArrowRight")
    tip = tab.run("document.getElementById('tip').innerText")
    assert "gem_miner at 2 %" in tip
    assert "n = 5, 95 % interval" in tip
    assert "search.epochs 8" in tip
    ticks = "document.querySelector('#accuracy svg.plot').textContent"
    whole = tab.run(ticks)
    tab.key("+", "+")
    assert tab.run(ticks) != whole
    tab.key("0", "0")
    assert tab.run(ticks) == whole
    tab.key("Escape")
    assert tab.run("document.getElementById('tip').hidden")


BOX = "(b => [b.x, b.y, b.width, b.height])(document.querySelector('{}').getBoundingClientRect())"


def test_the_mouse_hovers_and_zooms(tab):
    tab.run("document.querySelector('#accuracy figure').scrollIntoView({block: 'end'})")
    x, y, width, height = tab.run(BOX.format("#accuracy .point"))
    tab.mouse("mouseMoved", x + width / 2, y + height / 2)
    assert "before fine-tuning:" in tab.run("document.getElementById('tip').innerText")
    left, top, *_ = tab.run(BOX.format("#accuracy svg.plot"))
    tab.mouse("mousePressed", left + 100, top + 40, button="left", clickCount=1)
    tab.mouse("mouseMoved", left + 250, top + 150, button="left", buttons=1)
    tab.mouse("mouseReleased", left + 250, top + 150, button="left", clickCount=1)
    assert tab.run("zooms.size") == 1
    tab.run("document.querySelector('#accuracy [title=\"Reset zoom\"]').click()")
    assert tab.run("zooms.size") == 0


def test_points_of_methods_that_coincide_are_set_apart(tab):
    assert tab.run("[0, 1, 2].map(k => offset(k, 3))") == [-5, 0, 5]
    same = "document.querySelectorAll('#accuracy figure')[0].querySelectorAll('.point')"
    drawn = tab.run(f"[...{same}].map(p => p.outerHTML)")
    assert len(set(drawn)) == len(drawn) == 12
    marks = "[...document.querySelectorAll('label svg.mark')].map(m => m.innerHTML)"
    assert len(set(tab.run(marks))) == 4


def test_tables_are_sorted_by_number(tab):
    head = "document.querySelectorAll('#groups thead')[0].querySelectorAll('button')[2]"
    rows = "[...document.querySelector('#groups table').tBodies[0].rows]"
    cells = f"{rows}.map(r => Number(r.children[2].dataset.v))"
    tab.run(f"{head}.click()")
    assert tab.run(cells) == sorted(tab.run(cells))
    tab.run(f"{head}.click()")
    assert tab.run(cells) == sorted(tab.run(cells), reverse=True)
    assert tab.run(f"{head}.parentNode.getAttribute('aria-sort')") == "descending"


@pytest.mark.parametrize(("width", "dark"), [(400, False), (1200, True)])
def test_the_page_fits_a_phone_and_the_dark(tab, page, width, dark):
    tab.open(page, width, dark=dark)
    assert tab.run("document.documentElement.scrollWidth") == width
    assert tab.run(COUNT) == 26
    background = tab.run("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(22, 23, 26)" if dark else "rgb(255, 255, 255)")
