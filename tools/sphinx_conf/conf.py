"""How Sphinx turns the pages that tools/docs.py writes into the site."""

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE), str(HERE.parent)]

from notebooks import SETTINGS

project = SETTINGS["title"]
author = SETTINGS["author"]
copyright = SETTINGS["copyright"]
version = SETTINGS["version"]
language = "en"

extensions = ["myst_nb", "sphinx_copybutton", "mathml", "site_pages"]
root_doc = "index"
smartquotes = False  # quotes are as in the code and in the messages that readers search for
nitpicky = True  # a reference that leads nowhere is a warning, and warnings are errors
nitpick_ignore_regex = [("py:class", ".*")]  # types in signatures are often of other libraries

nb_execution_mode = "off"  # tools/docs.py has run them
nb_merge_streams = True
nb_render_markdown_format = "myst"  # with tables
nb_ipywidgets_js = {}  # widgets are plain HTML by now
nb_code_prompt_show = "Source"
nb_code_prompt_hide = "Source"
myst_enable_extensions = ["amsmath", "attrs_inline", "colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 4

add_module_names = False
python_use_unqualified_type_names = True
toc_object_entries_show_parents = "hide"

WORK = ROOT / "_proc"  # where tools/docs.py leaves what it knows of the pages
site_pages = str(WORK / "pages.json")
html_search_scorer = str(WORK / "search.js")
html_extra_path = [str(WORK / "extra")]
templates_path = ["templates"]
html_baseurl = f"{SETTINGS['doc_host']}{SETTINGS['doc_baseurl']}/"  # of the canonical links, which lead to the stable version
html_additional_pages = {"404": "404.html"}
html_context = {
    "site_description": SETTINGS["description"],
    "site_version": "stable",  # tools/docs.py --dev changes it
    "site_place": f"{SETTINGS['doc_baseurl']}/",
    "edit_address": f"{SETTINGS['git_url']}/edit/{SETTINGS['branch']}/{SETTINGS['nbs_path']}",
}

html_theme = "furo"
html_sidebars = {"**": [f"sidebar/{name}.html" for name in "brand versions search scroll-start navigation scroll-end".split()]}
html_title = f"{project} {version}"
html_static_path = ["static"]
html_css_files = ["custom.css"]
html_js_files = ["reading.js"]
html_favicon = "static/icon.svg"
html_show_sphinx = False
html_copy_source = False
html_use_index = False
html_show_sourcelink = False
html_math_renderer = "mathml"
pygments_style = "github-light-high-contrast"  # each color at least 4.5:1 on its background
pygments_dark_style = "github-dark-high-contrast"

_accent_light, _accent_dark = "#b4540a", "#f0a35e"
html_theme_options = {
    "light_css_variables": {"color-brand-primary": _accent_light, "color-brand-content": _accent_light},
    "dark_css_variables": {"color-brand-primary": _accent_dark, "color-brand-content": _accent_dark},
    "navigation_with_keys": True,
    "top_of_page_buttons": ["view", "edit"],  # the first is to download: see templates
}
