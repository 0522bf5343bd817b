"""Packaging. Everything that can change is read from settings.ini, so it is written down once."""

from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).parent
EXTRA = "_requirements"

config = ConfigParser()
config.read(ROOT / "settings.ini", encoding="utf-8")
settings = config["DEFAULT"]
readme = ROOT / "README.md"
documentation = settings["doc_host"] + settings["doc_baseurl"]


class WithoutIndex(build_py):
    """Leaves out `_modidx.py`: an index of the notebooks for nbdev, a quarter of the wheel."""

    def find_package_modules(self, package, package_dir):
        return [found for found in super().find_package_modules(package, package_dir) if found[1] != "_modidx"]


setup(
    cmdclass={"build_py": WithoutIndex},
    name=settings["lib_name"],
    version=settings["version"],
    description=settings["description"],
    long_description=readme.read_text(encoding="utf-8") if readme.exists() else "",
    long_description_content_type="text/markdown",
    project_urls={} if "//example." in documentation else {"Documentation": documentation},  # errors refer to it
    license_expression="Apache-2.0",
    license_files=["LICENSE"],
    keywords=settings["keywords"].split(),
    python_requires=f">={settings['min_python']}",
    packages=find_packages(include=["cbnb", "cbnb.*"]),
    package_data={"": ["*.js", "*.css"], "cbnb": ["py.typed"]},
    install_requires=settings["requirements"].split(),
    extras_require={key.removesuffix(EXTRA): names.split() for key, names in settings.items() if key.endswith(EXTRA)},
)
