"""The pages of the documentation as a reader meets them: with a keyboard or a screen reader, on a telephone, in both themes, without a network."""

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Iterator

import pytest

from docs_site import OUT, build, served
from lab import chromium
from notebook_page import axe_violations
from notebooks import SETTINGS

# At least one of each kind; the last ones take axe longest, and are long pages of kinds that are among the first
PAGES = [
    "index",
    "search",
    "404",
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
    "project/contributing",
    "moving/from_fastai_v1",
    "callbacks/interpret",
    "tutorials/metrics",
    "reference/learner",
    "learner",
    "lr/finder",
]
# Each kind of page once, and those with code, tables, pictures and a search on a dark ground, where only the colors are others: axe takes
# seconds for a page, and half of them for the rest
READ_BY_AXE = [
    *(
        (name, "light")
        for name in PAGES[:-5]
        if name not in ("guides/contents", "how_to/resume_after_a_crash", "how_to/log_elsewhere", "schedule")
    ),
    *((name, "dark") for name in ("index", "search", "404", "guides/gallery", "how_to/errors", "reference/schedules", "history")),
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
    assert axe_violations(page, "body", rules=["color-contrast"] if theme == "dark" else ()) == []
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


def test_a_wrong_address_leads_to_the_search(site: str, browser):
    """A server sends 404.html for an address of any depth."""
    page = browser.new_page()
    page.route("**/how_to/nothing/here.html", lambda route: route.fulfill(status=404, path=OUT / "404.html"))
    page.goto(f"{site}/how_to/nothing/here.html")
    assert page.locator(".skip-to-content").evaluate("link => link.href") == f"{site}/how_to/nothing/here.html#furo-main-content"
    assert {link.split("#")[0].split("?")[0].startswith(site) for link in page.evaluate(ADDRESSES)} == {True}
    page.locator("form.find input").fill("clip gradients")
    page.locator("form.find button").click()
    page.wait_for_selector("ul.search li a")
    assert page.url == f"{site}/search.html?q=clip+gradients"


ADDRESSES = (
    "() => [...document.querySelectorAll('article a, .sidebar-tree a, script[src], link[rel=stylesheet]')].map(e => e.href ?? e.src)"
)


def test_a_reader_can_change_the_version(site: str, browser):
    page = browser.new_page()
    page.goto(f"{site}/how_to/errors.html", wait_until="networkidle")
    assert not page.locator(".versions").is_visible()  # there is one
    versions = [{"name": "stable", "place": ""}, {"name": "dev", "place": "dev/"}]
    page.route("**/versions.json", lambda route: route.fulfill(json=versions))
    page.route("**/dev/**", lambda route: route.fulfill(body="dev", content_type="text/html"))
    page.goto(f"{site}/how_to/errors.html")
    select = page.get_by_label("Version")
    select.wait_for()
    assert select.locator("option:checked").inner_text() == "stable"
    select.select_option("dev")
    page.wait_for_url(f"{site}/dev/how_to/errors.html")


def test_search_engines_find_each_page_at_its_address(site: str):
    address = f"{SETTINGS['doc_host']}{SETTINGS['doc_baseurl']}/"
    places = [place.text for place in ElementTree.parse(OUT / "sitemap.xml").findall(".//{*}loc")]
    assert all(place.startswith(address) and (OUT / place.removeprefix(address)).exists() for place in places)
    assert {f"{address}{name}.html" for name in PAGES if name not in ("search", "404")} <= set(places)
    found = re.findall('rel="canonical" href="(.*?)"', (OUT / "how_to" / "errors.html").read_text(encoding="utf-8"))
    assert found == [f"{address}how_to/errors.html"]


def test_a_picture_follows_the_theme(site: str, browser):
    for theme, name in (("light", "dashboard.gif"), ("dark", "dashboard-dark.gif")):
        page = browser.new_page(color_scheme=theme)
        asked = []
        page.on("request", lambda request: asked.append(request.url.rpartition("/")[2]))
        page.goto(f"{site}/index.html", wait_until="networkidle")
        shown = [image.get_attribute("src").rpartition("/")[2] for image in page.locator("article img").all() if image.is_visible()]
        assert name in shown and [file for file in asked if file.startswith("dashboard")] == [name]
        page.close()


def test_sections_are_folded_and_open_where_the_reader_is(site: str, browser):
    page = browser.new_page(viewport={"width": 1200, "height": 900})
    page.goto(f"{site}/index.html")
    top = page.locator(".sidebar-tree > ul > li > a").all_inner_texts()
    assert top[0].endswith("at a glance") and {"Tutorials", "Reference", "How it works", "Moving from ..."} <= set(top)
    assert not page.locator(".sidebar-tree a", has_text="The length of a fit").is_visible()
    page.goto(f"{site}/learner.html")
    assert page.locator(".sidebar-tree a", has_text="The length of a fit").is_visible()
