"""What the documentation is made of: sections, the reference, links for names, synonyms, alternative texts. tests/browser has the built site."""

import inspect
import json
import re
import shutil
import sys
from pathlib import Path

import pytest
from jinja2 import Template
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tools" / "sphinx_conf")]

import site_pages

import cbnb.all
import docs
import docs_nav
import docs_pages
import docs_reference
import examples
import notebooks

V1 = "cbnb.dialects.fastai_v1_schedules"


@pytest.fixture(scope="module")
def site() -> docs_pages.Site:
    return docs_pages.Site({path: notebooks.read(path) for path in notebooks.notebook_paths()})


@pytest.fixture(scope="module")
def reference(site) -> dict[str, str]:
    return dict(site.reference.files(site.link))


def test_every_public_name_is_in_the_reference_once(site):
    names = [item.name for items in site.reference.topics.values() for item in items if "." not in item.name]
    assert not set(cbnb.all.__all__) - set(names)
    assert len(names) == len(set(names))
    targets = [item.target for items in site.reference.topics.values() for item in items]
    assert len(targets) == len(set(targets))


def parts(doc: str) -> dict[str, str]:
    """The sections of a docstring, by their titles; what comes before them has the title ''."""
    titles = ["", *re.findall(r"^(Args|Returns|Raises|Example):(?:$| )", doc, re.MULTILINE)]
    return dict(zip(titles, re.split(r"\n*^(?:Args|Returns|Raises|Example):\s", doc, flags=re.MULTILINE), strict=True))


def signature(item: docs_reference.Item) -> inspect.Signature | None:
    """How the name is called; None for what is not called, and for exceptions, which take what every exception takes."""
    if not callable(item.found) or (isinstance(item.found, type) and issubclass(item.found, BaseException)):
        return None
    return inspect.signature(item.found)


def test_every_public_name_has_a_description_its_parameters_a_result_and_an_example(site, reference):
    """In the docstring, which `?` shows, and on the page of its topic; the example there only if it does not run alone."""
    missing = []
    for topic, items in site.reference.topics.items():
        for item in items:
            doc, page = parts(inspect.getdoc(item.found) or ""), reference[f"reference/{topic}"]
            entry = page[re.search(rf"^`+{{py:\w+}} {re.escape(item.name)}(?=[(\n])", page, re.M).start() :].partition("`````\n")[0]
            example = site.reference.example(item)
            if not doc[""].strip():
                missing.append(f"{item.name}: description")
            if not example or f"```python\n{example}\n```" not in entry:
                missing.append(f"{item.name}: example on the page")
            if call := signature(item):
                missing += [f"{item.name}: {name} in `?`" for name in unexplained(call, doc.get("Args", ""))]
                returned = call.return_annotation
                if not isinstance(item.found, type) and returned not in (None, "None", inspect.Signature.empty, "NoReturn"):
                    missing += [f"{item.name}: result in `?`"] * ("Returns" not in doc)
                    missing += [f"{item.name}: result on the page"] * ("| **Returns** |" not in entry)
    assert not missing, "\n".join(missing)


def unexplained(call: inspect.Signature, args: str) -> list[str]:
    """The parameters about which a docstring says nothing. Every callback takes functions for `events`, as the docstring of `Callback` says."""
    return [
        name
        for name in call.parameters
        if name not in ("self", "cls", "events") and not re.search(rf"^    \*{{0,2}}{name}: \S", args, re.M)
    ]


def test_errors_of_a_method_are_in_its_docstring_and_on_its_page(site, reference):
    fit = next(item for item in site.reference.topics["learner"] if item.name == "Learner.fit")
    assert "ValueError: start_epoch={start_epoch} " in parts(inspect.getdoc(fit.found))["Raises"]
    page = reference["reference/learner"]
    assert "start_epoch={start_epoch} " in page[page.index("} Learner.fit(") :].partition("`````\n")[0]


def test_all_methods_of_the_learner_are_in_one_place(reference):
    page = reference["reference/learner"]
    methods = [
        name
        for name, found in inspect.getmembers(cbnb.all.Learner, inspect.isfunction)
        if not name.startswith("_") and found.__doc__ and "." in found.__qualname__
    ]
    assert not [name for name in methods if f"}} Learner.{name}(" not in page]
    assert page.index("### Train") < page.index("{py:class} Learner(")  # what there is comes first, and then each in detail
    fit = page[page.index("{py:method} Learner.fit(") :].partition("`````")[0]
    assert all(word in fit for word in ("| `n_epoch` |", "**Raises**", "**Example**", "```python", ".fit("))


def test_a_name_means_the_modules_own_then_the_learners_then_the_public_one(site):
    assert site.target("fit_one_cycle") == "cbnb.learner.Learner.fit_one_cycle"
    assert site.target("lr_find", "cbnb.schedule") == "cbnb.learner.Learner.lr_find"
    assert site.target("fit_one_cycle", V1) == f"{V1}.fit_one_cycle"
    assert site.target("EarlyStopping") == "cbnb.callbacks.trackers.EarlyStopping"
    assert site.target("learn.fit") == site.target("Learner.fit") == site.target("fit") == "cbnb.learner.Learner.fit"
    assert site.target("figure") is None and site.target("nothing_of_this_name") is None


def test_examples_are_a_few_whole_statements():
    source = "import os\nx = 1\nlearn.fit(2)\nassert learn.done\nfor i in range(3):\n    print(i)\n    print(i)\n    print(i)"
    assert examples.using(source, "fit", is_method=True) == "learn.fit(2)\nassert learn.done"
    assert examples.using(source, "fit", is_method=False) == ""
    assert examples.using("%magic", "fit", is_method=False) == ""


def test_how_to_pages_answer_with_code_of_your_own():
    """Toys, `raises` and asserts stand in hidden cells, or below "What goes wrong". On the page of errors, `raises` is the point."""
    found = []
    for path in sorted((notebooks.NBS / "how_to").glob("*.ipynb")):
        below, shown = False, []
        for cell in notebooks.read(path).cells:
            if cell.cell_type == "markdown":
                below = below or bool(re.search("^## (What goes wrong|Errors)$", cell.source, re.MULTILINE))
            elif not below and not notebooks.is_hidden(cell) and "hide_input" not in notebooks.directives(cell):
                shown.append(cell.source)
        if not re.search(r"from cbnb\.all import|^ *%%writefile", shown[0], re.MULTILINE):
            found.append(f"{path.stem} begins with {shown[0]!r}")
        if path.stem != "errors":
            lines = "\n".join(shown).splitlines()
            found += [f"{path.stem}: {line}" for line in lines if re.search(r"cbnb\.toy|^ *assert |\braises\(", line)]
    assert not found


def test_sections_take_what_is_there():
    def page(text: str):
        return new_notebook(cells=[new_markdown_cell(text)])

    found = docs_nav.sections(
        {
            notebooks.NBS / "how_to" / "stop_early.ipynb": page("# Stop early\n\n> End a fit"),
            notebooks.NBS / "how_to" / "own_page.ipynb": page("# Something else"),
            notebooks.NBS / "moving" / "keras.ipynb": page("# Keras"),
            notebooks.NBS / "04_learner.ipynb": page("# Learner"),
            notebooks.NBS / "dialects" / "mindspore.ipynb": page("# MindSpore"),
        }
    )
    assert [section.title for section in found] == ["How-to", "How it works", "Moving from ..."]
    assert list(found[0].groups) == ["Stop, keep, resume", "More"]
    assert [below.name for below in found[1].below] == ["how_it_works/core", "how_it_works/dialects"]
    text = docs_nav.listing(found[0])
    assert "- {doc}`Stop early </how_to/stop_early>`: End a fit" in text and "\n/how_to/own_page\n" in text


def test_pages_say_what_they_are_also_called():
    nb = new_notebook(cells=[new_markdown_cell("# A\n\n> B\n\nAlso called: amp, `fp16`, [half](x.ipynb) precision.")])
    assert docs.synonyms(nb) == ["amp", "fp16", "half precision"]
    assert docs.synonyms(new_notebook(cells=[new_markdown_cell("# A")])) == []
    assert docs_pages.without_synonyms("# A\n\nAlso called: b\n\nC") == "# A\n\n:::{container} also-called\nAlso called: b\n:::\n\nC"


def test_the_search_knows_the_words_and_the_names_of_each_part_of_a_page():
    cells = [
        "# A\n\nAlso called: b\n\nTwo words, `x`, two.",
        "*Bad loss, nan.* Why.\n\n## Types of `y`\n\n| has | do |\n|---|---|",
        "| `a b`, `c` | d |\n| e f | g |",
    ]
    nb = new_notebook(cells=[new_markdown_cell(text) for text in [*cells, "## See also\n\n- C", "#| hide\nno"]])
    assert docs.parts(nb) == {
        "": ["two words x bad loss nan why", "Bad loss", "nan"],
        "Types of y": ["has do a b c d e f g", "has", "a b", "c", "e f"],
    }


# a white picture of one pixel
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg=="


def test_images_have_the_words_of_their_figure_or_of_the_sentence_before():
    def figure(text: str):
        return new_code_cell(outputs=[new_output("display_data", data={"image/png": PNG, "text/plain": text})])

    cells = [new_markdown_cell("# A\n\nThe loss of {py:obj}`fit <a.b>`:"), figure("<Figure size 1x1>"), figure("loss from 2 to 1")]
    docs_pages.describe_images(nb := new_notebook(cells=cells))
    assert [cell.metadata["mystnb"]["image"]["alt"] for cell in nb.cells[1:]] == ["Figure: The loss of fit:", "loss from 2 to 1"]


def test_pages_show_the_picture_that_fits_their_theme():
    source = '<picture><source media="(prefers-color-scheme: dark)" srcset="b.gif">![A fit](a.gif)</picture>'
    assert docs_pages.to_pages(source) == "![A fit](a.gif){.only-light}![A fit](b.gif){.only-dark}"
    assert docs_pages.to_pages("![A fit](x/a_light.png)") == "![A fit](x/a_light.png){.only-light}![A fit](x/a_dark.png){.only-dark}"
    assert docs_pages.to_pages("![A fit](a_dark.png)") == "![A fit](a_dark.png)"


def test_two_files_at_the_root_of_the_repository_are_pages():
    assert [(page.name, page.title) for page in docs_nav.project().below] == [
        ("project/contributing", "Contributing"),
        ("project/changelog", "Changelog"),
    ]
    text = docs_pages.to_pages("[a](../CONTRIBUTING.md), [b](../LICENSE)")
    assert text == f"[a](project/contributing.md), [b]({notebooks.SETTINGS['git_url']}/blob/main/LICENSE)"


def test_a_version_is_replaced_beside_the_other_one(tmp_path):
    made, out = tmp_path / "made", tmp_path / "out"

    def version(dev: bool, *pages: str) -> list[str]:
        shutil.rmtree(made, ignore_errors=True)
        (made / "how_to").mkdir(parents=True)
        for page in pages:
            (made / page).touch()
        docs.publish(made, out, dev)
        found = json.loads((out / "versions.json").read_text())
        assert all((out / entry["place"] / "index.html").exists() for entry in found)
        return [entry["name"] for entry in found]

    assert version(False, "index.html", "old.html") == ["stable"]
    assert version(True, "index.html", "how_to/new.html") == ["stable", "dev"]
    assert version(False, "index.html") == ["stable", "dev"]
    files = {path.relative_to(out).as_posix() for path in out.rglob("*.html")}
    assert files == {"index.html", "dev/index.html", "dev/how_to/new.html"}


def test_the_side_bar_marks_the_way_to_a_page():
    tree = [["index", "Start", []], ["a/index", "`A`", [["a/b", "B", []], ["a/c", "C", []]]]]
    assert site_pages.way_to("a/b", tree) == ["a/index", "a/b"] and site_pages.way_to("404", tree) == []
    template = Template((docs.CONF / "templates" / "sidebar" / "navigation.html").read_text(encoding="utf-8"))
    address = lambda name: "#" if name == "a/b" else f"{name}.html"
    found = template.render(tree=tree, way=["a/index", "a/b"], pagename="a/b", pathto=address)
    assert '<li class="toctree-l2 current current-page"><a class="reference internal current" href="#">B</a></li>' in found
    assert '<li class="toctree-l1 current has-children"><a class="reference internal" href="a/index.html">`A`</a>' in found
    assert found.count("current") == 6 and '<li class="toctree-l2"><a class="reference internal" href="a/c.html">' in found
