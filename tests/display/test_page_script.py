"""One output that is a picture everywhere; where scripts run, browser/test_chart_page.py looks."""

import json
import re
from html.parser import HTMLParser

import pytest

from cbnb.display import page_script
from cbnb.display.page_script import Html, asset, packed, runs_scripts, script, scripted, still_image
from helpers import svg_of, unpacked

SVG = '<svg xmlns="http://www.w3.org/2000/svg" width="4" height="3"></svg>'


class Tags(HTMLParser):
    """The tags of a page, in their order."""

    def __init__(self, page: str):
        super().__init__()
        self.found = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))


def test_a_text_is_packed_and_the_same_text_in_the_same_way():
    text = "größer </script> 'quoted' " * 100
    assert unpacked(packed(text)) == text and packed(text) == packed(text) and len(packed(text)) < 200
    assert all(
        re.fullmatch(r"[(-;=-\[\]-~]+", packed(text[:n])) and unpacked(packed(text[:n])) == text[:n] for n in range(12)
    )  # any length


@pytest.mark.parametrize("name", ["chart.js", "live_chart.js", "chart.css", "schedule.js", "schedule.css"])
def test_scripts_and_styles_come_with_the_package(name):
    assert asset(name) and asset(name) is asset(name)
    assert name.endswith("css") or re.search(r"export (async function|function) mount\(|export default", script(name))


def test_scripts_load_nothing_from_elsewhere():
    for name in ("chart.js", "schedule.js"):
        addresses = set(re.findall(r"https?://[^\s'\"`]+", script(name)))
        assert addresses <= {"http://www.w3.org/2000/svg"} and not re.search(
            r"^import |\bfetch\(|innerHTML|document\.write", script(name), re.MULTILINE
        )


def test_the_script_has_the_code_and_the_data():
    data = {"a": [1, 0.5, None], "b": "</script><b>"}
    page = scripted("<p>still</p>", "export const mount = '</script>'", data, live=True)
    assert page.count("</script>") == 1 and page.count("<p>still</p>") == 1
    code, found = re.findall(r"text\('([(-~]+)'\)", page)
    assert unpacked(code) == "export const mount = '</script>'" and json.loads(unpacked(found)) == data
    (name,) = set(re.findall(r'class="(cbnb-\w{12})"', page))
    assert f"getElementsByClassName('{name}')" in page and "__" not in page.replace(code, "").replace(found, "")


def test_no_two_outputs_have_one_name_and_one_code_has_one_key():
    one, two, other = (scripted("", code, {}, live=True) for code in ("a", "a", "b"))
    names, keys = ([re.search(pattern, page)[1] for page in (one, two, other)] for pattern in (r'class="(.*?)"', r"all\['(\w+)'\]"))
    assert len(set(names)) == 3 and keys[0] == keys[1] != keys[2]


def test_data_that_json_does_not_have_is_an_error():
    with pytest.raises(ValueError, match="not JSON compliant"):
        scripted("", "", {"a": float("nan")}, live=True)


@pytest.mark.parametrize(
    "front, runs", [("jupyter", True), ("vscode", True), ("colab", True), ("databricks", True), ("headless", False), (None, False)]
)
def test_where_scripts_run(front, runs, monkeypatch):
    """Files that a machine makes stay small."""
    monkeypatch.setattr(page_script, "front_end", lambda: front)
    assert runs_scripts() is runs and ("<script" in scripted("still", "", {})) is runs
    assert scripted("still", "", {}, live=False) == "still" and "<script" in scripted("still", "", {}, live=True)


def test_a_picture_is_an_image_with_words():
    """An untrusted notebook loses styles and inline SVG, and keeps such an image."""
    page = still_image(SVG, '<b> & "quoted"')
    [(_, image)] = [tag for tag in Tags(page).found if tag[0] == "img"]
    assert image["alt"] == '<b> & "quoted"' and image["class"] == "cbnb-still" and "<b>" not in page
    kind, _, data = image["src"].partition(",")
    assert kind == "data:image/svg+xml" and svg_of(page) == SVG and not re.search("[<>#]", data)


def test_html_as_the_value_of_a_cell():
    assert Html("<b>a</b>", "a")._repr_html_() == "<b>a</b>" and repr(Html("<b>a</b>", "a")) == "a" and repr(Html("<b>")) == "Html"
