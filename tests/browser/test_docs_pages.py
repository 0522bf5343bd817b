"""The pages of the documentation as a reader meets them: with a keyboard or a screen reader, on a telephone, in both themes, without a network."""

from collections.abc import Iterator

import pytest

from docs_site import build, served
from lab import chromium
from notebook_page import axe_violations

# At least one of each kind; the last ones take axe longest, and are long pages of kinds that are among the first
PAGES = [
    "index",
    "search",
    "guides/contents",
    "guides/gallery",
    "tutorials/callback",
    "how_to/resume_after_a_crash",
    "how_to/errors",
    "how_to/log_elsewhere",
    "moving/keras",
    "reference/schedules",
    "history",
    "schedule",
    "display/chart",
    "how_it_works/index",
    "moving/from_fastai_v1",
    "callbacks/interpret",
    "tutorials/metrics",
    "reference/learner",
    "learner",
    "lr/finder",
]
# Each kind of page once, and on a dark ground those with code, tables, pictures and a search: axe takes seconds for a page
READ_BY_AXE = [
    *(
        (name, "light")
        for name in PAGES[:-5]
        if name not in ("guides/contents", "how_to/resume_after_a_crash", "how_to/log_elsewhere", "schedule")
    ),
    *((name, "dark") for name in ("index", "search", "guides/gallery", "how_to/errors", "reference/schedules", "history")),
]
NARROW, WIDE = 420, (1024, 1330, 1400)
WIDER = "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def site() -> Iterator[str]:
    with served(build()) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    with chromium() as running:
        yield running


@pytest.mark.parametrize("name, theme", READ_BY_AXE)
def test_everybody_can_read_it(site: str, browser, name: str, theme: str):
    context = browser.new_context(color_scheme=theme, viewport={"width": 1200, "height": 900})
    page = context.new_page()
    page.goto(f"{site}/{name}.html{'?q=learning+rate' if name == 'search' else ''}", wait_until="load")
    if name == "search":
        page.wait_for_selector("ul.search li a")
    assert axe_violations(page, "body") == []
    context.close()


@pytest.mark.parametrize("name", PAGES)
def test_it_fits_any_window_and_asks_nobody_else(site: str, browser, name: str):
    context = browser.new_context(viewport={"width": NARROW, "height": 900})
    asked, errors = [], []
    context.on("request", lambda request: asked.append(request.url))
    page = context.new_page()
    page.on("pageerror", lambda error: errors.append(str(error)))
    page.goto(f"{site}/{name}.html", wait_until="networkidle")
    assert page.evaluate(WIDER) <= 0
    for width in WIDE:
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate(WIDER) <= 0, width
    assert [url for url in asked if not url.startswith((site, "data:", "blob:"))] == [] and errors == []
    context.close()


def test_images_say_what_is_in_them(site: str, browser):
    page = browser.new_page()
    for name in PAGES:
        page.goto(f"{site}/{name}.html")
        for image in page.locator("article img").all():
            alt = image.get_attribute("alt") or ""
            assert len(alt) > 3 and not alt.endswith((".png", ".svg")) and "<Figure" not in alt, f"{name}: {alt!r}"


def test_the_notebook_of_a_page_can_be_downloaded(site: str, browser):
    page = browser.new_page()
    page.goto(f"{site}/learner.html")
    with page.expect_download() as download:
        page.locator(".view-this-page a").click()
    assert download.value.suggested_filename == "04_learner.ipynb"


def test_sections_are_folded_and_open_where_the_reader_is(site: str, browser):
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto(f"{site}/index.html")
    top = page.locator(".sidebar-tree > ul > li > a").all_inner_texts()
    assert top[0].endswith("at a glance") and {"Tutorials", "Reference", "How it works", "Moving from ..."} <= set(top)
    assert not page.locator(".sidebar-tree a", has_text="The length of a fit").is_visible()
    page.goto(f"{site}/learner.html")
    assert page.locator(".sidebar-tree a", has_text="The length of a fit").is_visible()
