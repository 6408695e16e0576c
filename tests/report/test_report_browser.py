"""The page in a real browser: what readers can do with it."""

import chromium
import pytest
from imagined import METHODS, benchmark

from findtta.report import write

FIRST = "#setting-1 .panel:not([hidden]) table"


@pytest.fixture(scope="module")
def browser():
    executable = chromium.find()
    if executable is None:
        pytest.skip(chromium.ABSENT)
    with chromium.Browser(executable) as browser:
        yield browser


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(benchmark(), tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture
def opened(browser, path):
    """A tab in which nothing may go wrong, whatever a test does with it."""
    yield browser
    assert browser.complaints == []
    assert browser.requests == [path.as_uri()], "the page asked for something"


@pytest.fixture
def page(opened, path):
    """The page as it opens on a desk."""
    opened.open(path)
    return opened


def column(page, number, table=FIRST):
    return page.value(
        f"[...document.querySelectorAll('{table} tbody tr')].filter(row => row.offsetParent)"
        f".map(row => row.cells[{number}].textContent.trim())"
    )


def visible(page, selector):
    return page.value(
        f"[...document.querySelectorAll({selector!r})].filter(found => found.getClientRects().length).length"
    )


def test_no_result_can_run_a_script(page):
    assert page.value("document.title") == "Test-time adaptation results"
    assert page.value("document.querySelectorAll('script, img').length") == 1


def test_headers_sort_by_numbers_and_say_so(page):
    assert column(page, 0) == [method for method in column(page, 0) if method in METHODS]
    page.click(f"{FIRST} th[data-stream=crossmix] button")
    assert page.value(f"document.querySelector('{FIRST} th[data-stream=crossmix]').ariaSort") == "descending"
    numbers = [float(cell.split(" ")[0]) for cell in column(page, 2)]
    assert numbers == sorted(numbers, reverse=True)
    assert column(page, 0)[:2] == ["find", "find-star"]
    page.click(f"{FIRST} th[data-stream=crossmix] button")
    assert [float(cell.split(" ")[0]) for cell in column(page, 2)] == sorted(numbers)
    assert page.value(f"[...document.querySelectorAll('{FIRST} th[aria-sort]')].map(head => head.ariaSort)") == [
        "none", "none", "ascending", "none", "none", "none",
    ]  # fmt: skip


def test_sorting_works_from_the_keyboard_and_puts_what_is_missing_last(page):
    page.value(f"document.querySelector('{FIRST} th[data-stream=static] button').focus()")
    for order in ("descending", "ascending"):
        page.press("Enter")
        assert page.value(f"document.querySelector('{FIRST} th[data-stream=static]').ariaSort") == order
        assert column(page, 1)[-1] == "failed"
    page.value(f"document.querySelector('{FIRST} th.name button').focus()")
    page.press("Enter")
    assert column(page, 0) == sorted(METHODS)


def test_costs_sort_from_the_least(page):
    page.click("#setting-1 .tabs button:nth-child(5)")
    assert page.value("document.querySelector('#setting-1 .panel:not([hidden])').dataset.title") == "Latency"
    page.click(f"{FIRST} th[data-stream=crossmix] button")
    assert column(page, 0)[0] == "source"
    assert page.value("document.querySelectorAll('#setting-1 .panel:not([hidden])').length") == 1


def test_the_table_against_the_paper_sorts_by_difference(page):
    table = "#setting-1 table.paper"
    page.click(f"{table} thead tr:nth-child(2) th:nth-child(3) button")
    gaps = [float(cell.replace("\N{MINUS SIGN}", "-")) for cell in column(page, 3, table)]
    assert gaps == sorted(gaps, reverse=True)
    assert len(gaps) == 13


def test_a_method_can_be_left_out_everywhere(page):
    page.click("[data-filter=method] summary")
    page.click("[data-filter=method] input[value=tent]")
    assert "tent" not in column(page, 0)
    assert visible(page, "main [data-method=tent]") == 0
    assert visible(page, "main [data-method=eata]") > 10
    assert page.value("document.getElementById('shown').textContent") == "107 of 115 runs"
    assert page.value("document.querySelector('[data-filter=method] .chosen').textContent") == "13 of 14"
    page.click("#show-all")
    assert "tent" in column(page, 0)
    assert page.value("document.getElementById('shown').textContent") == "115 runs"


def test_the_mean_is_over_the_streams_that_are_shown(page):
    before = column(page, 5)
    page.click("[data-filter=stream] summary")
    for stream in ("static", "shuffle"):
        page.click(f"[data-filter=stream] input[value={stream}]")
    cells = [column(page, number) for number in (2, 4, 5)]
    for crossmix, random, mean in zip(*cells, strict=True):
        assert float(mean) == pytest.approx((float(crossmix.split()[0]) + float(random.split()[0])) / 2, abs=0.011)
    assert visible(page, "main [data-stream=static]") == 0
    assert column(page, 5) != before


def test_a_setting_can_be_left_out(page):
    page.click("[data-filter=data] summary")
    page.click("[data-filter=data] input[value=cifar10-c]")
    assert visible(page, "#setting-1") == 0
    assert visible(page, "#setting-2") == 1
    page.click("[data-filter=data] .none")
    assert visible(page, "#nothing") == 1
    page.press("Escape")
    assert page.value("document.querySelectorAll('.filter[open]').length") == 0


def test_the_frontier_follows_the_filter(page):
    chart = "#setting-1 figure[data-stream=crossmix] .points"
    before = page.value(f"document.querySelector('{chart} .frontier').getAttribute('d')")
    page.click("[data-filter=method] summary")
    page.click("[data-filter=method] input[value=find]")
    assert page.value(f"document.querySelector('{chart} .frontier').getAttribute('d')") != before
    best = page.value(f"[...document.querySelectorAll('{chart} .on-frontier')].map(point => point.dataset.method)")
    assert "find-star" in best


def test_dark_mode_follows_the_system_and_the_button(page, path):
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.value(background)
    page.click("#theme")
    dark = page.value(background)
    assert dark != light
    assert page.value("document.getElementById('theme').textContent") == "Light mode"
    page.open(path)  # the choice is kept
    assert page.value(background) == dark
    page.click("#theme")
    assert page.value(background) == light
    page.value("localStorage.clear()")
    page.open(path, scheme="dark")
    assert page.value(background) == dark


def test_pointing_at_a_curve_names_all_methods_at_that_batch(page):
    page.hover("#setting-1 .chart.lines")
    told = page.value("document.getElementById('tooltip').innerText")
    assert told.startswith("batch ")
    assert {line for line in told.split("\n") if line in METHODS} == set(METHODS) - {"note"}  # which failed there
    page.click("#setting-1 .legend [data-method=find] button")
    page.hover("#setting-1 .chart.lines")
    assert "\nfind\n" not in page.value("document.getElementById('tooltip').innerText")
    assert visible(page, "#setting-1 .series[data-method=find]") == 0


def test_charts_can_be_read_with_the_keyboard(page):
    page.value("document.querySelector('#setting-1 .chart.lines').focus()")
    page.press("ArrowRight")
    first = page.value("document.querySelector('#tooltip b').textContent")
    page.press("ArrowRight")
    assert page.value("document.querySelector('#tooltip b').textContent") != first
    page.value("document.querySelector('#setting-1 .point[data-method=find]').focus()")
    assert page.value("document.getElementById('tooltip').textContent").startswith("find: ")


def test_layers_have_their_names(page):
    page.hover("#setting-1 .chart[data-names]")
    assert "layer" in page.value("document.querySelector('#tooltip b').textContent")


def test_a_link_to_a_failed_run_opens_it(page):
    page.click("#failed tbody a")
    assert page.value("document.querySelector('.run[open]') === document.querySelector(location.hash)")


def test_only_tables_scroll_sideways(opened, path):
    opened.open(path, width=320, height=800)
    opened.value("for (const found of document.querySelectorAll('details:not(.filter)')) found.open = true")
    scrolls = "[...document.querySelectorAll('.scroll')].some(box => box.scrollWidth > box.clientWidth)"
    for width in (320, 390, 768, 1280):
        opened.resize(width, 800)
        assert opened.value("document.documentElement.scrollWidth") == width
        assert opened.value(scrolls) is (width < 1000)


def test_a_menu_fits_on_a_phone(opened, path):
    opened.open(path, width=390, height=844)
    for name in ("method", "model"):
        opened.click(f"[data-filter={name}] summary")
        box = opened.value(
            f"document.querySelector('[data-filter={name}] .menu').getBoundingClientRect().toJSON()"
        )
        assert box["left"] >= 0
        assert box["right"] <= 390
        assert box["top"] >= 0
        assert box["bottom"] <= 844


CONTRASTS = """
(() => {
  const parse = (color) => {
    const parts = color.match(/[\\d.]+/g).map(Number);
    return color.startsWith("color(") ? parts.slice(0, 3) : parts.slice(0, 3).map((part) => part / 255);
  };
  const light = (color) => {
    const [r, g, b] = parse(color).map((part) => part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const ratio = (a, b) => (Math.max(light(a), light(b)) + 0.05) / (Math.min(light(a), light(b)) + 0.05);
  const found = [];
  for (const cell of document.querySelectorAll("td[style]")) {
    const style = getComputedStyle(cell);
    for (const part of [cell, ...cell.querySelectorAll("small")])
      found.push(ratio(getComputedStyle(part).color, style.backgroundColor));
  }
  return [found.length, Math.min(...found)];
})()
"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_numbers_on_colours_can_be_read(opened, path, scheme):
    opened.open(path, scheme=scheme)
    count, least = opened.value(CONTRASTS)
    assert count > 1000
    assert least >= 4.5


def test_without_scripts_all_tables_and_charts_are_there(opened, path):
    opened.open(path, script=False)
    # Scripts of the test still run: only those of the page do not.
    assert visible(opened, "#setting-1 .panel table") == 6
    assert visible(opened, "#setting-1 .chart") > 8
    assert visible(opened, "#filters, #theme, .sort, .tabs") == 0
    opened.open(path)
    assert visible(opened, "#filters") == 1


def test_paper_gets_the_numbers_and_nothing_to_press(page):
    page.media("dark", "print")
    assert visible(page, "#filters, #theme, .tabs, .contents") == 0
    assert visible(page, "#setting-1 table") > 3
    assert page.value("getComputedStyle(document.querySelector('.card')).backgroundColor") == "rgb(255, 255, 255)"


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_there_is_something_to_see(opened, path, tmp_path, width, scheme):
    from PIL import Image

    opened.open(path, width=width, height=900, scheme=scheme)
    opened.screenshot(tmp_path / "page.png")
    colours = Image.open(tmp_path / "page.png").convert("RGB").getcolors(1 << 20)
    assert len(colours) > 200
    (_, commonest) = max(colours)
    assert (sum(commonest) < 150) == (scheme == "dark")
