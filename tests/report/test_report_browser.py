"""The page in a real browser: what readers can do with it."""

import pytest

import browser as browsers
from findtta.report import write
from made_results import METHODS, benchmark

pytestmark = pytest.mark.slow

FIRST = "#setting-1 .panel:not([hidden]) table"


@pytest.fixture(scope="module")
def browser():
    with browsers.launched() as browser:
        yield browser


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return write(benchmark(), tmp_path_factory.mktemp("report") / "report.html")


@pytest.fixture
def opened(browser, path):
    """Opens the page with options of the tab; nothing may go wrong in it, and it may ask for nothing."""
    tabs = []

    def open_page(width=1280, height=900, **options):
        context = browsers.page(browser, viewport={"width": width, "height": height}, **options)
        tab = context.__enter__()
        tabs.append((context, tab))
        tab.goto(path.as_uri())
        return tab

    yield open_page
    for context, tab in tabs:
        requests = tab.requests
        context.__exit__(None, None, None)
        assert set(requests) == {path.as_uri()}, "the page asked for something"


@pytest.fixture
def page(opened):
    """The page as it opens on a desk."""
    return opened()


def column(page, number, table=FIRST):
    return page.evaluate(
        f"[...document.querySelectorAll('{table} tbody tr')].filter(row => row.offsetParent)"
        f".map(row => row.cells[{number}].textContent.trim())"
    )


def visible(page, selector):
    return page.evaluate(
        f"[...document.querySelectorAll({selector!r})].filter(found => found.getClientRects().length).length"
    )


def test_no_result_can_run_a_script(page):
    assert page.evaluate("document.title") == "Test-time adaptation results"
    assert page.evaluate("document.querySelectorAll('script, img').length") == 1


def test_headers_sort_by_numbers_and_say_so(page):
    assert column(page, 0) == [method for method in column(page, 0) if method in METHODS]
    page.click(f"{FIRST} th[data-stream=crossmix] button")
    assert page.evaluate(f"document.querySelector('{FIRST} th[data-stream=crossmix]').ariaSort") == "descending"
    numbers = [float(cell.split(" ")[0]) for cell in column(page, 2)]
    assert numbers == sorted(numbers, reverse=True)
    assert column(page, 0)[:2] == ["find", "find-star"]
    page.click(f"{FIRST} th[data-stream=crossmix] button")
    assert [float(cell.split(" ")[0]) for cell in column(page, 2)] == sorted(numbers)
    orders = page.evaluate(f"[...document.querySelectorAll('{FIRST} th[aria-sort]')].map(head => head.ariaSort)")
    assert orders == ["none", "none", "ascending", "none", "none", "none"]


def test_sorting_works_from_the_keyboard_and_puts_what_is_missing_last(page):
    page.evaluate(f"document.querySelector('{FIRST} th[data-stream=static] button').focus()")
    for order in ("descending", "ascending"):
        page.keyboard.press("Enter")
        assert page.evaluate(f"document.querySelector('{FIRST} th[data-stream=static]').ariaSort") == order
        assert column(page, 1)[-1] == "failed"
    page.evaluate(f"document.querySelector('{FIRST} th.name button').focus()")
    page.keyboard.press("Enter")
    assert column(page, 0) == sorted(METHODS)


def test_costs_sort_from_the_least(page):
    page.click("#setting-1 .tabs button:nth-child(6)")
    assert page.evaluate("document.querySelector('#setting-1 .panel:not([hidden])').dataset.title") == "Latency"
    page.click(f"{FIRST} th[data-stream=crossmix] button")
    assert column(page, 0)[0] == "source"
    assert page.evaluate("document.querySelectorAll('#setting-1 .panel:not([hidden])').length") == 1


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
    assert page.evaluate("document.getElementById('shown').textContent") == "107 of 115 runs"
    assert page.evaluate("document.querySelector('[data-filter=method] .chosen').textContent") == "13 of 14"
    page.click("#show-all")
    assert "tent" in column(page, 0)
    assert page.evaluate("document.getElementById('shown').textContent") == "115 runs"


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
    page.keyboard.press("Escape")
    assert page.evaluate("document.querySelectorAll('.filter[open]').length") == 0


def test_the_frontier_follows_the_filter(page):
    chart = "#setting-1 figure[data-stream=crossmix] .points"
    before = page.evaluate(f"document.querySelector('{chart} .frontier path').getAttribute('d')")
    page.click("[data-filter=method] summary")
    page.click("[data-filter=method] input[value=find]")
    assert page.evaluate(f"document.querySelector('{chart} .frontier path').getAttribute('d')") != before
    best = page.evaluate(
        f"[...document.querySelectorAll('{chart} .on-frontier')].map(point => point.dataset.method)"
    )
    assert "find-star" in best


def test_dark_mode_follows_the_system_and_the_button(page, opened):
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.click("#theme")
    dark = page.evaluate(background)
    assert dark != light
    assert page.evaluate("document.getElementById('theme').textContent") == "Light mode"
    page.reload()  # the choice is kept
    assert page.evaluate(background) == dark
    page.click("#theme")
    assert page.evaluate(background) == light
    assert opened(color_scheme="dark").evaluate(background) == dark


def test_pointing_at_a_curve_names_all_methods_at_that_batch(page):
    page.hover("#setting-1 .chart.lines")
    told = page.evaluate("document.getElementById('tooltip').innerText")
    assert told.startswith("batch ")
    assert {line for line in told.split("\n") if line in METHODS} == set(METHODS) - {"note"}  # which failed there
    page.click("#setting-1 .legend [data-method=find] button")
    page.hover("#setting-1 .chart.lines")
    assert "\nfind\n" not in page.evaluate("document.getElementById('tooltip').innerText")
    assert visible(page, "#setting-1 .series[data-method=find]") == 0


def test_charts_can_be_read_with_the_keyboard(page):
    page.evaluate("document.querySelector('#setting-1 .chart.lines').focus()")
    page.keyboard.press("ArrowRight")
    first = page.evaluate("document.querySelector('#tooltip b').textContent")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.querySelector('#tooltip b').textContent") != first
    page.evaluate("document.querySelector('#setting-1 .point[data-method=find]').focus()")
    assert page.evaluate("document.getElementById('tooltip').textContent").startswith("find: ")


def test_layers_have_their_names(page):
    page.hover("#setting-1 .chart[data-names]")
    assert "layer" in page.evaluate("document.querySelector('#tooltip b').textContent")


def test_a_link_to_a_failed_run_opens_it(page):
    page.click("#failed tbody a")
    assert page.evaluate("document.querySelector('.run[open]') === document.querySelector(location.hash)")


def test_only_tables_scroll_sideways(opened):
    page = opened(width=320, height=800)
    page.evaluate("for (const found of document.querySelectorAll('details:not(.filter)')) found.open = true")
    scrolls = "[...document.querySelectorAll('.scroll')].some(box => box.scrollWidth > box.clientWidth)"
    for width in (320, 390, 768, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert width > 700 or page.evaluate(scrolls)


def test_a_menu_fits_on_a_phone(opened):
    page = opened(width=390, height=844, is_mobile=True)
    for name in ("method", "model"):
        page.click(f"[data-filter={name}] summary")
        box = page.evaluate(
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
def test_numbers_on_colours_can_be_read(opened, scheme):
    count, least = opened(color_scheme=scheme).evaluate(CONTRASTS)
    assert count > 1000
    assert least >= 4.5


def test_without_scripts_all_tables_and_charts_are_there(opened):
    page = opened(java_script_enabled=False)
    assert page.locator("#setting-1 .panel table:visible").count() == 7
    assert page.locator("#setting-1 .chart:visible").count() > 8
    assert page.locator("#filters:visible, #theme:visible, .sort:visible, .tabs:visible").count() == 0


def test_paper_gets_the_numbers_and_nothing_to_press(page):
    page.emulate_media(media="print", color_scheme="dark")
    assert visible(page, "#filters, #theme, .tabs, .contents") == 0
    assert visible(page, "#setting-1 table") > 3
    assert (
        page.evaluate("getComputedStyle(document.querySelector('.card')).backgroundColor") == "rgb(255, 255, 255)"
    )


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light")])
def test_there_is_something_to_see(opened, tmp_path, width, scheme):
    from PIL import Image

    opened(width=width, color_scheme=scheme).screenshot(path=tmp_path / "page.png")
    colours = Image.open(tmp_path / "page.png").convert("RGB").getcolors(1 << 20)
    assert len(colours) > 200
    (_, commonest) = max(colours)
    assert (sum(commonest) < 150) == (scheme == "dark")


def test_charts_follow_dark_mode(page):
    colour = "getComputedStyle(document.querySelector('.series.line[data-method=source] path')).stroke"
    light = page.evaluate(colour)
    page.click("#theme")
    assert page.evaluate(colour) != light
