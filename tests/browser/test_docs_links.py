"""Each link within the site leads to a file that is there and to a place on its page, and each link to a source to a file of the repository."""

import html
import re
from functools import cache
from pathlib import Path
from urllib.parse import unquote, urljoin

from docs_site import OUT, build
from notebooks import ROOT, SETTINGS

ADDRESS = f"{SETTINGS['doc_host']}{SETTINGS['doc_baseurl']}/"
SOURCE = re.compile(rf"{SETTINGS['git_url']}/(?:blob|edit)/{SETTINGS['branch']}/")  # before a file of the repository
TAG = re.compile(r"<[a-zA-Z][^<>]*>")
SCRIPT = re.compile(r"(<script\b[^>]*>).*?</script>", re.DOTALL)  # its text may have tags


class Page:
    """The places on a page that have a name, and where its links and files are."""

    def __init__(self, text: str, address: str):
        tags = "\n".join(TAG.findall(SCRIPT.sub(r"\1", text)))
        base = urljoin(address, next(iter(values(tags, "href", "<base[^>]*")), ""))
        self.names = {name for attribute in ("id", "name") for name in values(tags, attribute)}
        self.links = {urljoin(base, link) for attribute in ("href", "src") for link in values(tags, attribute)}


def values(tags: str, attribute: str, before: str = "") -> set[str]:
    return {html.unescape(value) for value in re.findall(rf'{before}\s{attribute}="([^"]*)"', tags)}


def broken(folder: Path) -> list[str]:
    """The links that lead nowhere, each with its page."""
    files = {f"{ADDRESS}{path.relative_to(folder).as_posix()}": path for path in folder.rglob("*") if path.is_file()}
    pages = {address: Page(path.read_text(encoding="utf-8"), address) for address, path in files.items() if path.suffix == ".html"}

    @cache
    def leads_somewhere(link: str) -> bool:
        if SOURCE.match(link):
            return (ROOT / SOURCE.sub("", link)).is_file()
        if not link.startswith(ADDRESS):
            return True
        place, _, name = unquote(link).partition("#")
        place = place.partition("?")[0]
        place += "index.html" if place.endswith("/") else ""
        return place in files and (not name or place not in pages or name in pages[place].names)

    return sorted(
        f"{address.removeprefix(ADDRESS)}: {link.removeprefix(ADDRESS)}"
        for address, page in pages.items()
        for link in page.links
        if not leads_somewhere(link)
    )


def test_no_link_of_the_site_is_broken():
    build()
    assert broken(OUT) == []


def test_a_broken_link_is_found(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "index.html").write_text(
        '<p id="here"><a href="a/b.html#there">b</a><a href="#here">h</a><a href="https://else.where/x">e</a>'
    )
    (tmp_path / "a" / "b.html").write_text(
        '<p id="there"><a href="../">up</a><a href="../index.html#gone">g</a><img src="no.png"><script>"<a href="x">"</script>'
    )
    assert broken(tmp_path) == ["a/b.html: a/no.png", "a/b.html: index.html#gone"]
