"""What pyproject.toml cannot say: the long description with absolute links, and a wheel without nbdev's index."""

import re
from configparser import ConfigParser
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent

config = ConfigParser()
config.read(ROOT / "settings.ini", encoding="utf-8")
settings = config["DEFAULT"]
repository, branch, documentation = settings["git_url"], settings["branch"], settings["doc_host"] + settings["doc_baseurl"]


def absolute(text: str) -> str:
    """The Markdown with links into the repository as addresses, which an index of packages can follow; images as their files."""
    text = re.sub(r"(!\[[^]]*\]\()(?![a-z]+:|#)", rf"\1{repository}/raw/{branch}/", text)
    text = re.sub(r'(srcset=")(?![a-z]+:)', rf"\1{repository}/raw/{branch}/", text)
    return re.sub(r"((?<!!)\[[^]]*\]\()(?![a-z]+:|#)", rf"\1{repository}/blob/{branch}/", text)


class WithoutIndex(build_py):
    """Leaves out `_modidx.py`: an index of the notebooks for nbdev, a quarter of the wheel."""

    def find_package_modules(self, package, package_dir):
        return [found for found in super().find_package_modules(package, package_dir) if found[1] != "_modidx"]


urls = {
    "Documentation": documentation,  # errors refer to it
    "Source": repository,
    "Changelog": f"{repository}/blob/{branch}/CHANGELOG.md",
    "Issues": f"{repository}/issues",
}
readme = ROOT / "README.md"

setup(
    cmdclass={"build_py": WithoutIndex},
    long_description=absolute(readme.read_text(encoding="utf-8")) if readme.exists() else "",
    long_description_content_type="text/markdown",
    project_urls={} if "//example." in documentation else urls,
)
