"""The tools that turn notebooks into a README, a page and a site, on notebooks of a few cells."""

import base64
import re
import shutil
import subprocess
import sys
from functools import partial
from pathlib import Path

import nbformat
import pytest
import yaml
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import check
import docs_api
import docs_pages
import export
import forked
import notebooks
import outputs
import reading
import readme
import render
import run_notebooks

TABLE = '<table class="c"><tr><td>1</td></tr></table>'
PIXEL = base64.b64encode(b"a figure").decode()


def ran(source: str, *outputs: dict) -> nbformat.NotebookNode:
    return new_code_cell(source, outputs=list(outputs))


def shown(**data: str) -> dict:
    return new_output("display_data", data={kind.replace("_", "/"): content for kind, content in data.items()})


def printed(text: str) -> dict:
    return new_output("stream", name="stdout", text=text)


def test_directives_are_the_leading_lines_only():
    cell = new_code_cell("#| export\n# | eval: false\nx = 1\n#| hide")
    assert notebooks.directives(cell) == ["export", "eval: false"]
    assert notebooks.is_skipped(cell) and not notebooks.is_hidden(cell)


def test_every_cell_runs_in_a_kernel_and_a_failure_is_located(tmp_path):
    path = tmp_path / "some.ipynb"
    kept = printed("kept\n")
    cells = [ran("print(6 * 7)"), ran("#| eval: false\n1/0", kept), ran("bool(get_ipython().kernel)")]
    nbformat.write(new_notebook(cells=cells), path)
    with notebooks.clean_kernels():
        outputs = [cell.outputs for cell in notebooks.execute(path).cells]
        assert outputs[0][0].text == "42\n" and outputs[1] == [kept] and outputs[2][0].data == {"text/plain": "True"}
        nbformat.write(new_notebook(cells=[new_markdown_cell("text"), ran("x = 1\nx / 0")]), path)
        with pytest.raises(notebooks.CellFailed, match=r"(?s)some.ipynb, cell 2:.*2 \| x / 0.*ZeroDivisionError"):
            notebooks.execute(path)


def test_an_export_without_its_last_steps_is_told_in_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(check, "ROOT", tmp_path)
    here, fresh = tmp_path / "here", tmp_path / "fresh"
    for folder, text in ((here, "short"), (fresh, "with parameters")):
        folder.mkdir()
        (folder / "a.py").write_text(text)
        (folder / "a.js").write_text("script")
    plain = check.modules_in(here)
    assert check.export_differences(fresh, fresh, plain) == []
    assert check.export_differences(here, fresh, plain) == [check.PLAIN]
    (here / "a.py").write_text("edited")
    (found,) = check.export_differences(here, fresh, plain)
    assert found.startswith("here/a.py: differs") and "-edited" in found


def test_a_second_export_does_nothing_until_a_file_changes(tmp_path, monkeypatch, capsys):
    """A change of what goes in, of what comes out, and of the tools counts, a hidden file does not."""
    for path in ("nbs/a.ipynb", "cbnb/a.py", "tools/export.py", "settings.ini"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text("one")
    monkeypatch.setattr(export, "STAMP", tmp_path / ".exported")
    monkeypatch.setattr(export, "digest", partial(export.digest, tmp_path))
    monkeypatch.setattr(export, "export", lambda root: None)
    monkeypatch.setattr(export.subprocess, "run", lambda *args, **kwargs: None)

    def is_done() -> bool:
        export.main()
        return "nothing changed" not in capsys.readouterr().out

    assert is_done() and not is_done()
    for path in ("nbs/a.ipynb", "cbnb/a.py", "tools/export.py", "settings.ini", "nbs/b.ipynb"):
        (tmp_path / path).write_text("two")
        assert is_done() and not is_done()
    (tmp_path / "nbs" / ".hidden").write_text("two")
    assert not is_done()
    (tmp_path / "nbs" / "b.ipynb").unlink()
    assert is_done()


def test_the_commit_hook_takes_an_exported_module_as_it_is_and_refuses_wrong_style(tmp_path):
    """pre-commit names the staged files to ruff, which then forgets what pyproject.toml excludes."""
    hooks = yaml.safe_load((notebooks.ROOT / ".pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"][0]["hooks"]
    entries = {hook["id"]: hook["entry"].removeprefix(".venv/bin/").split() for hook in hooks}
    assert entries["made"] == ["python", "tools/check.py"] and (notebooks.ROOT / "tools" / "check.py").exists()
    staged = ["cbnb/_modidx.py", "cbnb/callbacks/csv_logger.py", "nbs/callbacks/csv_logger.ipynb", "tools/check.py"]
    for name in ("pyproject.toml", *staged):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(notebooks.ROOT / name, tmp_path / name)

    def accepts(*names: str) -> bool:
        said = []
        for hook in ("ruff", "ruff-format"):
            program, *arguments = entries[hook]
            chosen = [name for name in names if hook == "ruff" or name.endswith(".py")]
            done = subprocess.run([Path(sys.executable).with_name(program), *arguments, *chosen], cwd=tmp_path, capture_output=True)
            said.append(done.returncode)
        same = all((tmp_path / name).read_bytes() == (notebooks.ROOT / name).read_bytes() for name in names if name in staged)
        return same and not any(said)

    assert accepts(*staged)
    (tmp_path / "tools" / "wrong.py").write_text("import os\n")
    assert not accepts(*staged, "tools/wrong.py")
    (tmp_path / "tools" / "wrong.py").write_text("x  =  1\n")
    assert "--force-exclude" in entries["ruff-format"] and accepts("tools/wrong.py")
    assert (tmp_path / "tools" / "wrong.py").read_text() == "x = 1\n"


def test_each_tool_is_in_the_table_of_contributing():
    text = (notebooks.ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = [row for row in text.splitlines() if row.startswith("| `") and row.count("|") == 4]
    named = {name for row in rows for name in re.findall(r"`(\w+\.py)`", row.split("|")[1])}
    assert named == {path.name for path in (notebooks.ROOT / "tools").glob("*.py")}


def test_readme_shows_figures_tables_and_text():
    page = readme.Readme(
        new_notebook(
            cells=[
                new_markdown_cell("# Title\n\n[more](02_callback.ipynb#top), [web](https://example.org), [here](#below)"),
                ran("#| hide\nsecret = 1"),
                ran("plot()", shown(text_plain="<Figure>", image_png=PIXEL)),
                ran("#| echo: false\ntable", shown(text_plain="text", text_html=f"<style>x</style>{TABLE}")),
                ran("widget", shown(text_plain="epoch 0", text_html="<svg></svg>")),
            ]
        )
    )
    assert "(nbs/02_callback.ipynb#top)" in page.text and "(https://example.org)" in page.text and "(#below)" in page.text
    assert "secret" not in page.text and "```python\ntable" not in page.text
    assert list(page.images.values()) == [b"a figure"] and "![](nbs/images/readme-1.png)" in page.text
    assert "<table><tr><td>1</td></tr></table>" in page.text and "```\nepoch 0\n```" in page.text


def test_page_fetches_nothing(tmp_path):
    (tmp_path / "a.gif").write_bytes(b"GIF")
    outside = '<img src="https://example.org/a.png"><script src="https://example.org/a.js"></script><a href="https://example.org">ok</a>'
    cell = ran("1", shown(text_html=outside), printed("epoch 1\nAccuracy: 0.9\n"))
    text = '[next](10_data.ipynb) [export](files/export.ipynb) [top](#top)\n\n<picture><source srcset="a.gif"><img src="a.gif"></picture>'
    nb = new_notebook(cells=[new_markdown_cell(text), cell])
    page = render.to_html(render.reader_view(nb), "title", tmp_path, "../nbs")
    assert "<script" not in page and "a.png" not in page and "url(http" not in page
    assert 'href="https://example.org"' in page and 'href="../nbs/10_data.ipynb"' in page and 'href="#top"' in page
    assert 'href="../nbs/./files/export.ipynb"' in page and page.count('="data:image/gif;base64,R0lG"') == 2
    assert render.last_line_with("accuracy", nb) == "Accuracy: 0.9"


def test_widgets_leave_the_picture_that_they_show_besides():
    view = {"application/vnd.jupyter.widget-view+json": {"model_id": "box"}}
    own, alone = new_output("display_data", data={**view, "text/html": "its own picture"}), new_output("display_data", data={**view})
    cleared = new_output("display_data", data={"text/plain": ""})  # such as the bar of a long validation
    nb = new_notebook(cells=[ran("dashboard", own, alone, cleared)], metadata={"widgets": {"state": {}}})
    (left,) = notebooks.without_widgets(nb).cells[0].outputs
    assert left.data == {"text/html": "its own picture"} and "widgets" not in nb.metadata


def test_site_names_entries_and_links():
    source = 'class A:\n    def f(self): "doc"\n    def g(self): pass\n@patch\ndef h(self: Learner): "doc"\ndef _p(): "doc"'
    assert list(docs_api.documented(source)) == ["A", "A.f", "Learner.h"]
    module = new_notebook(cells=[new_code_cell("#| default_exp learner"), new_code_cell("#| export\n" + source)])
    site = docs_pages.Site({notebooks.NBS / "04_learner.ipynb": module})
    assert site.link("`learn.h()` and `other`") == "{py:obj}`learn.h() <cbnb.learner.Learner.h>` and `other`"
    assert site.link("# `A`\n```\n`A`\n```") == "# `A`\n```\n`A`\n```"
    assert docs_pages.to_pages("[a](05_optim.ipynb#x) [b](../02_callback.ipynb)") == "[a](optim.ipynb#x) [b](../callback.ipynb)"


@pytest.mark.parametrize(
    "stored, prints, equal",
    [
        ("loss 0.72, 1,000 steps", "loss 0.75, 1,000 steps", True),  # another machine
        ("loss 0.72", "loss 0.4", False),
        ("done: 2 epochs in 00:03", "done: 2 epochs in 01:17", True),
        ("done: 2 epochs in 00:03", "done: 3 epochs in 00:03", False),
        ("loss \u2588\u2584\u2581 0.5 at 996 samples/s", "loss \u2581\u2588 0.5 at 12.5 samples/s", True),
        ("<Line at 0x7f00aa>", "<Line at 0x1200bb>", True),
        ("<Line object>", "<Line object at 0x1200bb>", True),  # as nbdev cleans it
        ("a loss", "a metric", False),
        ("1e-7 to 10", "1e-7 to 1", False),
        ("slide=0.24, minimum=0.024", "slide=0.00017, minimum=0.024", True),
        ("slide=0.24, minimum=0.024", "slide=0.24, minimum=0.24", False),
        ("one\ntwo", "one", False),
    ],
)
def test_printed_outputs_are_compared_as_a_reader_would(stored, prints, equal):
    before, now = (new_notebook(cells=[new_code_cell("1"), ran("f()", printed(text))]) for text in (stored, prints))
    assert (outputs.differences(before, now) == []) == equal
    assert all(line.startswith("cell 2\n") for line in outputs.differences(before, now))


def test_outputs_that_differ_by_times_stay_as_stored():
    clock = ran("clock()", printed("saved at 10:00:01\n"))
    stored = new_notebook(cells=[clock, ran("f()", printed("loss 0.5, 1.2 s\n")), ran("g()", shown(text_plain="1", image_png=PIXEL))])
    prints = "saved at 11:22:33\n", "loss 0.6, 1.3 s\n", "1"
    now = new_notebook(cells=[ran("f()", printed(text)) for text in prints])
    outputs.keep_times(stored, now)
    assert [outputs.printed(cell)[0] for cell in now.cells] == ["saved at 10:00:01", "loss 0.6, 1.3 s", "1"]


def test_a_notebook_with_stale_text_fails(tmp_path, capsys):
    path = tmp_path / "stale.ipynb"
    nbformat.write(new_notebook(cells=[ran("print(2 + 2)", printed("5\n"))]), path)
    assert run_notebooks.run_all([path], 1, keep=False)[0].args[0].splitlines()[1:] == [
        "  cell 1",
        "      stored: 5",
        "      prints: 4",
    ]
    assert "STALE" in capsys.readouterr().out


def test_the_figures_of_a_page(tmp_path):
    path = tmp_path / "page.ipynb"
    cells = [
        new_markdown_cell("# Two words\n```\nnot these\n```\nand three more"),
        new_code_cell("#| export\nimport math"),
        new_code_cell("#| export\ndef f():\n    return 1\n\nx = 2"),
        new_code_cell("assert f() == 1\nassert x"),
        new_code_cell("#| export\nclass A: pass"),
        new_code_cell("#| hide\nassert A"),
    ]
    nbformat.write(new_notebook(cells=cells), path)
    found = reading.figures(path)
    assert (found.words, found.exported, found.asserts, found.defining, found.followed) == (5, [3, 1], 3, 2, 1)
    assert reading.table([path])[-1].split() == ["all", "5", "4", "2", "3", "0%", "75.0", "50%"]


def test_a_page_counts_for_the_core_or_for_its_room():
    pages = [notebooks.NBS / name for name in ("04_learner.ipynb", "lr/rules.ipynb", "index.ipynb")]
    assert [reading.group(page) for page in pages] == ["core", "lr/", "index and roof"]
    sums = reading.table([notebooks.NBS / "lr" / "rules.ipynb", notebooks.NBS / "all.ipynb"])[3:]
    assert [line[:20].strip() for line in sums] == ["", "lr/", "index and roof", "all"]


def test_the_figures_of_the_package(tmp_path):
    path = tmp_path / "a.py"
    path.write_text(
        '"a module"\n# no code\nclass A:\n    """of two\n    lines"""\n\nclass B(A): pass\nclass C: pass\nclass D(C): pass\nprint(C)\n'
    )
    assert reading.package([path], {"a"}) == "lines of code: core 0, package 5; docstrings 3; 4 classes, 1 rungs"


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
def test_a_forked_program_says_and_returns_what_python_does(tmp_path):
    (tmp_path / "fails.py").write_text("def f(): 1 / 0\nprint(__name__, __file__, flush=True)\nf()")
    programs = [
        [tmp_path / "fails.py"],
        ["-c", "import sys; print(sys.argv); sys.exit(3)", "a", "b"],
        ["-W", "ignore", "-c", "raise KeyboardInterrupt"],
        ["-c", "import os; os.kill(os.getpid(), 9)"],
        ["-c", "print(input())"],
        ["-m", "json.tool", "--help"],
    ]
    with forked.server(tmp_path / "forks", ("json",)) as command:
        for program in programs:
            ran = [
                subprocess.run([*start, *program], input="read", capture_output=True, text=True)
                for start in ([sys.executable], [*command, "program"])
            ]
            assert len({(done.returncode, done.stdout, done.stderr) for done in ran}) == 1, ran


@pytest.mark.skipif(sys.platform != "linux", reason="processes are forked on Linux only")
def test_programs_of_a_forked_kernel_are_forked_too(tmp_path):
    code = "import subprocess, sys\nask = 'import sys; print(\"torch._dynamo\" in sys.modules)'\n"
    code += "print(*(subprocess.run([sys.executable, '-c', ask], text=True, capture_output=True, start_new_session=s).stdout[:-1] for s in (0, 1)))"
    nb = new_notebook(cells=[ran(code)])
    nbformat.write(nb, tmp_path / "starts.ipynb")
    with notebooks.clean_kernels(), forked.forked_kernels(tmp_path) as kernel:
        [cell] = notebooks.execute(tmp_path / "starts.ipynb", kernel=kernel).cells
    assert cell.outputs[0].text == "True False\n"
