"""The figure of the loop: what the table of events says is what is drawn, readable for everybody, and harmless whatever a callback is called."""

import json
import re
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

import cbnb.all as cbnb
from cbnb.display import loop
from cbnb.display.look import PAGES, PALETTE, contrast
from cbnb.display.loop import loop_lines, loop_svg
from cbnb.events import EVENTS, FIT, CancelException, Events, Level
from helpers import CANCELS, line_learner

ROOT = Path(__file__).resolve().parents[2]
SVG = "{http://www.w3.org/2000/svg}"


def parsed(svg: str) -> ET.Element:
    return ET.fromstring(svg)


def of_kind(root: ET.Element, kind: str) -> list[ET.Element]:
    return [element for element in root.iter() if f"lp-{kind}" in element.get("class", "").split()]


def height_of(text: ET.Element) -> float:
    """The middle of the line a text is in."""
    return float(text.get("y")) - 4


def many(*names: str):
    return lambda event: names


def test_each_event_is_drawn_once_and_from_top_to_bottom():
    events = of_kind(parsed(loop_svg()), "event")
    assert tuple(text.text for text in events) == EVENTS
    heights = [height_of(text) for text in events]
    assert heights == sorted(heights) and len(set(heights)) == len(EVENTS)
    assert [text.find(f"{SVG}title").text for text in events] == [getattr(Events, name).__doc__ for name in EVENTS]


def test_each_cancel_ends_at_the_event_that_the_table_names_and_begins_where_it_may_first_be_raised():
    root = parsed(loop_svg())
    heights = {text.text: height_of(text) for text in of_kind(root, "event")}
    ends = {text.text: float(text.get("x")) + float(text.get("textLength")) for text in of_kind(root, "event")}
    rails = {path.get("data-cancel"): path for path in of_kind(root, "rail")}
    assert set(rails) == {cancel.__name__ for cancel in CANCELS.values()}
    heads = {float(re.search(r"M[\d.]+ ([\d.]+)", path.get("d"))[1]): path for path in of_kind(root, "head")}
    for cancel in CANCELS.values():
        path, level = rails[cancel.__name__], cancel.level
        assert path.get("data-to") == level.cancelled
        start, end = map(float, re.fullmatch(r"M[\d.]+ ([\d.]+)H[\d.]+V([\d.]+)H.*", path.get("d")).groups())
        assert (start, end) == (heights[cancel.events()[0]], heights[level.cancelled])
        tip = float(re.match(r"M([\d.]+)", heads[end].get("d"))[1])
        assert 0 < tip - ends[level.cancelled] < 10
        name = next(text for text in of_kind(root, "cancel") if text.text == cancel.__name__)
        assert height_of(name) == end


def levels_of(level: Level) -> list[Level]:
    return [level, *(inner for part in level.body if isinstance(part, Level) for inner in levels_of(part))]


def test_boxes_lie_in_each_other_as_the_levels_do_and_hold_their_events():
    root = parsed(loop_svg())
    boxes = [[float(box.get(key)) for key in ("x", "y", "width", "height")] for box in of_kind(root, "box")]
    titles = {(float(text.get("x")), float(text.get("y"))): text.text for text in of_kind(root, "title")}
    assert sorted(titles.values()) == sorted(level.name for level in levels_of(FIT))
    lines = {text.text: height_of(text) for text in of_kind(root, "event")}

    def box_of(level: Level) -> list[float]:
        """The smallest box around the first event of a level."""
        return min((box for box in boxes if box[1] < lines[level.before] < box[1] + box[3]), key=lambda box: box[2])

    for level in levels_of(FIT):
        x, y, width, height = box_of(level)
        assert all(y < lines[name] < y + height for name in (level.before, level.cancelled, level.after))
        for inner in (part for part in level.body if isinstance(part, Level) and part.name != "batch"):
            a, b, c, d = box_of(inner)
            assert x < a and a + c < x + width and y < b and b + d < y + height
    assert len(boxes) == len(levels_of(FIT))


def test_code_is_that_of_the_loop_and_the_second_batch_names_what_it_lacks():
    root = parsed(loop_svg())
    drawn = [text.text for kind in ("code", "quiet") for text in of_kind(root, kind)]
    for line in loop_lines():
        if not line.split()[0].startswith(("before_", "after_")):
            assert line.strip() in drawn
    assert drawn.count("pred = model(*xb)") == 2 and drawn.count("opt.step()") == 1
    assert "the same events, without backward and step" in drawn


@pytest.mark.parametrize("n", [0, 1, 9])
def test_callbacks_stand_at_their_events_in_their_order(n):
    names = [f"Callback{i}" for i in range(n)]
    root = parsed(loop_svg(lambda event: names if event in ("before_step", "after_cancel_fit") else []))
    drawn = [text.text for text in of_kind(root, "name")]
    assert drawn == 2 * names
    lines = {text.text: height_of(text) for text in of_kind(root, "event")}
    for first, following in (("before_step", "after_cancel_step"), ("after_cancel_fit", "after_fit")):
        here = [text for text in of_kind(root, "name") if lines[first] <= height_of(text) < lines[following]]
        assert [text.text for text in here] == names
    if not n:
        assert loop_svg() == loop_svg(lambda event: [])


@pytest.mark.parametrize("names", [("Clip",), ("A", "B", "C"), ("x" * 200, "y" * 30), tuple(f"Callback{i}" for i in range(20))], ids=len)
def test_nothing_overlaps_and_nothing_is_cut_off(names):
    root = parsed(loop_svg(many(*names)))
    width, height = float(root.get("width")), float(root.get("height"))
    texts = list(root.iter(f"{SVG}text"))
    places = [(float(t.get("x")), float(t.get("x")) + float(t.get("textLength")), float(t.get("y"))) for t in texts]
    assert all(0 <= left < right <= width and 0 < y < height for left, right, y in places)
    for i, (left, right, y) in enumerate(places):
        for a, b, c in places[:i]:
            assert abs(y - c) >= 15 or right <= a or b <= left, (texts[i].text, y)
    rails = [float(re.match(r"M[\d.]+ [\d.]+H([\d.]+)", path.get("d"))[1]) for path in of_kind(root, "rail")]
    chips = of_kind(root, "back")
    assert all(float(chip.get("x")) + float(chip.get("width")) < max(rails) for chip in chips)


def test_names_are_escaped_and_long_ones_are_shown_by_the_mouse():
    long = "Callback" + "VeryLong" * 20
    for name in ("<script>alert(1)</script>", 'a"b', "R&D", long):
        root = parsed(loop_svg(many(name)))
        text = of_kind(root, "name")[0]
        title = text.find(f"{SVG}title")
        assert text.text == name or text.text.endswith("…") and title.text == name
        assert name in root.find(f"{SVG}desc").text
    assert "<script" not in loop_svg(many("<script>alert(1)</script>"))


def test_it_is_read_aloud():
    root = parsed(loop_svg(lambda event: ["Clip", "EMA"] if event == "before_step" else []))
    assert root.get("role") == "img" and root[0].tag == f"{SVG}title" and root[0].text
    words = root.find(f"{SVG}desc").text
    places = [words.index(f" {name}") for name in EVENTS]
    assert places == sorted(places) and "before_step (Clip and EMA), " in words
    assert all(f"{cancel.__name__} to {cancel.level.cancelled}" in words for cancel in CANCELS.values())


def mixed(over: str, under: str, share: float) -> str:
    parts = [(int(over[i : i + 2], 16), int(under[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(share * a + (1 - share) * b):02x}" for a, b in parts)


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_text_can_be_read_in_the_innermost_box(theme):
    share = float(re.search(r"fill-opacity:([.\d]+)", loop._STYLE)[1])
    for phase in ("train", "valid"):
        page = PAGES[theme]
        for color in ("raw", "raw", phase, "raw", *["raw"] * (phase == "train")):
            page = mixed(PALETTE[color][theme], page, share)
        for words in ("text", "quiet", "bad"):
            assert contrast(PALETTE[words][theme], page) >= 4.5, (words, page)
    assert contrast(PALETTE["good"][theme], PAGES[theme]) >= 4.5


def test_colors_follow_the_page_and_in_a_file_the_system():
    svg = loop_svg()
    assert "[data-jp-theme-light=false] .cbnb-loop" in svg and "body[data-theme=auto] .cbnb-loop,:root.cbnb-loop{" in svg
    shown = svg[svg.index("</style>") :]
    assert not re.search(r"#[0-9a-f]{6}", shown) and "style=" not in shown  # no color, and nothing that a policy for styles refuses
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", "")


def test_a_terminal_and_a_log_get_text(capsys):
    learn = line_learner(cbs=cbnb.GradientClip)
    for mode in ("terminal", "lines", "plain"):
        with cbnb.display_as(mode):
            learn.show_training_loop()
        assert capsys.readouterr().out.splitlines() == list(loop_lines(FIT, learn.ordered_cbs))


class Shell:
    kernel = object()


def test_a_notebook_gets_figure_and_text_as_one_output(capsys, monkeypatch):
    import IPython.display

    shown = []
    monkeypatch.setattr(IPython.display, "display", lambda data, raw: shown.append((data, raw)))
    monkeypatch.setattr(loop, "shell", Shell)

    class Escaped(cbnb.Callback):
        def before_fit(self): ...
        def __str__(self):
            return "<b>&"

    learn = line_learner(cbs=[cbnb.GradientClip, Escaped()])
    with cbnb.display_as("widgets"):
        learn.show_training_loop()
    ((data, raw),) = shown
    assert raw and capsys.readouterr().out == ""
    assert data["text/plain"].splitlines() == list(loop_lines(FIT, learn.ordered_cbs))
    page = data["text/html"]
    assert page.startswith(loop_svg(learn.ordered_cbs)) and page.count("<svg") == 1
    assert "before_step  &lt;- GradientClip" in page and "<b>" not in page and "&lt;b&gt;&amp;" in page
    shown.clear()
    with cbnb.display_as("lines"):
        learn.show_training_loop()
    assert not shown and "before_step  <- GradientClip" in capsys.readouterr().out


def test_a_cancel_of_your_own_draws_nothing():
    class Mine(cbnb.CancelFitException): ...

    class CancelLunch(CancelException):
        level = Level("lunch")

    svg = loop_svg()
    assert "Mine" not in svg and "CancelLunch" not in svg and loop._cancel_of(FIT) == "CancelFitException"


def test_the_file_of_the_readme_is_this_figure():
    assert (ROOT / "nbs" / "images" / "loop.svg").read_text(encoding="utf-8") == loop_svg() + "\n"


def test_pages_show_it():
    for name in ("tutorials/callback.ipynb", "00_loop.ipynb", "guides/architecture.ipynb", "display/loop.ipynb"):
        cells = json.loads((ROOT / "nbs" / name).read_text(encoding="utf-8"))["cells"]
        pages = ["".join(out.get("data", {}).get("text/html", "")) for cell in cells for out in cell.get("outputs", [])]
        assert any('class="cbnb-loop"' in page for page in pages), name
