"""The report as a person sees it: every plot drawn, nothing on the console, wide and printed."""

import shutil

import pytest

from tests.tuning.test_results import recipe, results
from toolkit.tuning.output import write_results

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
WIDTH = 1280

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium on this machine")
    with playwright.sync_playwright() as running:
        found = running.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


def test_every_plot_is_drawn_without_a_word_on_the_console(browser, tmp_path):
    path = write_results(tmp_path, results(domains=("edit", "chat")), recipe())["report.html"]
    page = browser.new_page(viewport={"width": WIDTH, "height": 900})
    page.set_default_timeout(120_000)
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(path.as_uri())
    page.wait_for_function("document.querySelectorAll('.plotly-graph-div .main-svg').length >= 6")
    assert said == []
    assert asked == [path.as_uri()]  # nothing from anywhere else
    plots = page.evaluate(
        "[...document.querySelectorAll('.plotly-graph-div')].map(plot => ({id: plot.id,"
        " width: plot.getBoundingClientRect().width,"
        " marks: plot.querySelectorAll('.trace, .scatterlayer path, image').length}))"
    )
    assert [plot["id"] for plot in plots] == [f"plot-{place}" for place in range(6)]
    assert all(plot["marks"] > 0 for plot in plots)
    # Readable at 1280 pixels: nothing is wider than the page.
    assert all(0 < plot["width"] <= WIDTH for plot in plots)
    assert page.evaluate("document.documentElement.scrollWidth") <= WIDTH
    printed = page.pdf(format="A4")
    assert printed.startswith(b"%PDF")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).maxWidth") == "none"
