"""A person who looks for a run in a lab book: sorts, filters, turns pages, marks two runs, all by the keyboard if need be."""

from lab import Lab
from notebook_page import axe_violations_in, wait_until

SETUP = """
import json, tempfile
from cbnb.all import *
from cbnb.lab.store import opened, transaction
from cbnb.toy import wave_learner

book = LabBook(tempfile.mkdtemp())
for lr in (0.003, 0.01): wave_learner().fit(2, lr)
book.close()
book[1].name = '<b>bold</b>'
with opened(book.file) as db, transaction(db):
    columns = 'status, started, epochs, steps, summary'
    for i in range(3, 121):
        settings = json.dumps(book[1].settings | dict(lr=i/1000))
        db.execute(f'INSERT INTO runs({columns}, settings) SELECT {columns}, ? FROM runs WHERE id=1', (settings,))
"""


def test_a_run_is_found_sorted_and_marked(lab: Lab):
    with lab.open(lab.write("book.ipynb", [SETUP, "book"]), size=(1200, 1000)) as page:
        page.run_all()
        out = page.output(1)
        out.locator(".cbnb-book tbody tr").nth(49).wait_for()
        status, ids = out.locator("[role=status]"), lambda: out.locator(".cbnb-book tbody th").all_inner_texts()
        assert status.inner_text() == "120 of 120 runs, page 1 of 3" and ids()[0] == "120"
        out.get_by_role("button", name="next").click()
        wait_until(lambda: ids()[0] == "70")
        head = out.locator("thead").get_by_role("button", name="lr", exact=True)
        head.focus()
        page.tab.keyboard.press("Enter")
        wait_until(lambda: ids()[:2] == ["3", "1"] and out.locator("th[aria-sort=ascending]").inner_text().startswith("lr"))
        page.tab.keyboard.press("Enter")
        wait_until(lambda: ids()[0] == "120")
        out.locator("input[type=search]").fill("lr>0.01 lr<=0.013")
        wait_until(lambda: ids() == ["13", "12", "11"])
        for number in (13, 11):
            out.get_by_label(f"compare run {number}").check()
        assert out.locator("code").inner_text() == "compare(lab[11], lab[13])"
        out.locator("input[type=search]").fill("BOLD")
        wait_until(lambda: ids() == ["1"])
        assert out.locator("tbody b", has_text="bold").count() == 0 and "<b>bold</b>" in out.locator(".cbnb-book tbody tr").inner_text()
        out.get_by_role("button", name="all columns").click()
        wait_until(lambda: out.locator("thead").get_by_role("button", name="optimizer", exact=True).count() == 1)
        out.locator("input[type=search]").fill("")
        # the number of a run stays in view when the table is scrolled to the right
        number = out.locator(".cbnb-book tbody th").first
        before = number.bounding_box()["x"]
        assert out.locator(".cbnb-book .scroll").evaluate("box => { box.scrollLeft = 1e4; return box.scrollLeft }") > 0
        assert number.bounding_box()["x"] == before
        assert axe_violations_in(page, 1) == []
        # a narrow page leaves out the last columns, and names them where all are shown
        out.get_by_role("button", name="all columns").click()
        page.tab.set_viewport_size(dict(width=480, height=1000))
        wait_until(lambda: out.locator(".cbnb-book .scroll").evaluate("box => box.clientWidth < 450 && box.scrollWidth <= box.clientWidth"))
        shown = out.locator(".cbnb-book thead th").all_inner_texts()
        assert shown[0].startswith("id") and len(shown) >= 3 and "started" not in shown
        assert "started" in out.get_by_role("button", name="all columns").get_attribute("title")
