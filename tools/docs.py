"""The documentation site in _docs/, from the notebooks, with Sphinx; nothing is fetched.

    python tools/docs.py            with the outputs stored in the notebooks; a warning is an error
    python tools/docs.py --dev      into _docs/dev/, beside the stable version; a select in the side bar leads from one to the other

The outputs in the notebooks are those of a run: `make test` compares them, and `make outputs` stores new ones.
"""

import argparse
import html
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import nbformat
from nbformat import NotebookNode

from docs_api import first_sentence
from docs_nav import ALSO, AT_ROOT, BY_PART, Page, listing, page_name, plain, rank
from docs_pages import Site
from notebooks import NBS, ROOT, SETTINGS, is_hidden, notebook_paths, read, show, write_files, write_if_changed

WORK = ROOT / "_proc"
HTML = WORK / "site" / "html"  # copied to OUT when it is right; a folder deep, because myst-nb writes beside it
OUT = ROOT / SETTINGS["doc_path"]
DEV = "dev"  # the folder of the version that is being written, and its name
ADDRESS = SETTINGS["doc_host"] + SETTINGS["doc_baseurl"]  # of the site, when it is published
CONF = Path(__file__).parent / "sphinx_conf"
IMAGES = {".png", ".svg", ".jpg", ".jpeg", ".gif", ".webp"}
_FENCE = re.compile(r"^```.*?^```", re.M | re.S)


def write_sources(site: Site, folder: Path) -> None:
    """What Sphinx reads, in `folder`: the pages and the images; files of pages that are gone are removed."""
    files = {}
    for path in site.notebooks:
        target = page_name(path.relative_to(NBS)).with_suffix(".ipynb")
        if target in files:
            sys.exit(f"two notebooks would become the page {target.with_suffix('')}: rename {show(path)}")
        files[target] = nbformat.writes(site.page(path)).encode()
    for page in (page for section in site.sections for page in section.walk() if page.below):
        files[Path(f"{page.name}.md")] = listing(page).encode()
    for name, text in site.reference.files(site.link):
        files[Path(f"{name}.md")] = text.encode()
    files |= {Path(f"{name}.md"): path.read_bytes() for name, path in AT_ROOT.items()}
    for path in NBS.rglob("*"):
        if path.suffix in IMAGES:
            files[path.relative_to(NBS)] = path.read_bytes()
    write_files(folder, files)


def write_about(site: Site) -> None:
    """What the theme and the search know of the pages, and the notebooks to download."""
    pages = about_pages(site)
    names = {item.target: first_sentence(item.found) for item in site.reference.by_code.values()}
    data = "".join(f"const {name} = {json.dumps(table)};\n" for name, table in (("PAGES", pages), ("ABOUT", names)))
    start = ["index", f"{SETTINGS['title']} at a glance", []]
    tree = [start, *map(nested, site.sections)]
    places = "".join(f"<url><loc>{ADDRESS}/{name}.html</loc></url>\n" for name in sorted(pages))
    sitemap = f'<?xml version="1.0" encoding="UTF-8"?>\n<urlset xmlns="http://www.sitemaps.org/schemas/sitemap/0.9">\n{places}</urlset>\n'
    copies = {Path("notebooks") / path.relative_to(NBS): path.read_bytes() for path in site.notebooks}
    write_files(WORK / "extra", {Path("sitemap.xml"): sitemap.encode(), **copies})
    write_if_changed(WORK / "pages.json", json.dumps({"pages": pages, "tree": tree}, indent=1).encode())
    write_if_changed(WORK / "search.js", (data + (CONF / "search_rank.js").read_text(encoding="utf-8")).encode())


def nested(page: Page) -> list:
    """A page and those below it, for the side bar; titles are HTML."""
    return [page.name, re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(page.title)), [nested(below) for below in page.below]]


def about_pages(site: Site) -> dict[str, dict]:
    """Title, description, section, synonyms, rank in the search, and words of the parts of each page."""
    found = {"index": {"title": SETTINGS["title"], "about": SETTINGS["description"], "section": "Start", "rank": 2.0}}
    for section in site.sections:
        for page in section.walk():
            found[page.name] = {"title": plain(page.title), "about": plain(page.about), "section": section.title, "rank": rank(page)}
    for path, nb in site.notebooks.items():
        page = found[name := page_name(path.relative_to(NBS)).as_posix()]
        page |= {"notebook": path.relative_to(NBS).as_posix(), "also": synonyms(nb)}
        if name.startswith(BY_PART):
            page["parts"] = parts(nb)
    for name, also in ALSO.items():
        if name in found:
            found[name].setdefault("also", []).extend(also)
    return found


def synonyms(nb: NotebookNode) -> list[str]:
    """What a page says it is also called."""
    for cell in nb.cells[:3]:
        for line in cell.source.splitlines() if cell.cell_type == "markdown" else ():
            if line.startswith("Also called:"):
                return listed(line.removeprefix("Also called:"))
    return []


def parts(nb: NotebookNode) -> dict[str, list[str]]:
    """Of each part of a page, by its heading: its words, and then the names it is searched by. The part above the first heading is ''."""
    words, names, last = {"": {}}, {"": []}, ""
    for cell in nb.cells:
        if cell.cell_type == "markdown" and not is_hidden(cell):
            for line in _FENCE.sub("", cell.source).splitlines():
                if heading := re.match(r"##+ (.+)", line):
                    last = plain(heading[1]).strip()
                    words[last], names[last] = {}, []
                elif not line.startswith(("# ", "Also called:")):
                    words[last] |= dict.fromkeys(re.findall(r"\w+", plain(line).lower()))
                    names[last] += part_names(line)
    return {title: [" ".join(found), *names[title]] for title, found in words.items() if found and title != "See also"}


def part_names(line: str) -> list[str]:
    """What a line says that its part may be searched by: the first column of a table, or words in italics at its beginning."""
    if italics := re.match(r"\*([^*]+)\*", line):
        return listed(italics[1])
    first = line.split("|")[1].strip() if line.startswith("|") else ""
    return re.findall(r"`([^`]+)`", first) or listed(first)


def listed(text: str) -> list[str]:
    """The words that stand between commas."""
    return [word for part in plain(text).rstrip(".").split(",") if (word := part.strip("-: "))]


def build(source: Path, dev: bool = False) -> int:
    """Run Sphinx; replace the version in _docs/ if it has no complaints."""
    options = ["-q", "-W", "--keep-going", "-n", "-b", "html", "-d", WORK / "doctrees", "-c", CONF]
    if dev:
        options += ["-A", f"site_version={DEV}", "-D", f"html_title={SETTINGS['title']} {DEV}"]
    code = subprocess.call([sys.executable, "-m", "sphinx", *options, source, HTML])
    if code == 0:
        publish(HTML, OUT, dev)
    return code


def publish(made: Path, out: Path, dev: bool) -> None:
    """Replace one version in `out`: the stable one is at the root, the other one in a folder; versions.json lists what is there."""
    target = out / DEV if dev else out
    for path in target.glob("*"):
        if path != out / DEV:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    shutil.copytree(made, target, ignore=shutil.ignore_patterns(".buildinfo*", ".doctrees"), dirs_exist_ok=True)
    places = {"stable": "", DEV: f"{DEV}/"}
    versions = [{"name": name, "place": place} for name, place in places.items() if (out / place / "index.html").exists()]
    (out / "versions.json").write_text(json.dumps(versions), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dev", action="store_true", help="build the version that is being written, in a folder of its own")
    args = parser.parse_args()

    sys.path.insert(0, str(ROOT))  # entries come from this checkout's package
    paths = notebook_paths()
    site = Site({path: read(path) for path in paths})
    write_sources(site, WORK / "pages")
    write_about(site)
    code = build(WORK / "pages", args.dev)
    if code == 0:
        print(f"{show(OUT / (DEV if args.dev else '') / 'index.html')}: {len(paths)} pages, {len(set(site.entries.values()))} entries")
    else:
        print(f"Not published because of the warnings above; as far as it got: {show(HTML / 'index.html')}", file=sys.stderr)
    return code


if __name__ == "__main__":
    sys.exit(main())
