"""The tests with the oldest and the newest torch that settings.ini names, each in an environment of its own in .venv/matrix/.

python tools/matrix.py            both
python tools/matrix.py 2.9.1      another one
"""

import argparse
import os
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / ".venv" / "matrix"


def versions() -> list[str]:
    """What settings.ini says was tested."""
    config = ConfigParser()
    config.read(ROOT / "settings.ini", encoding="utf-8")
    return config["DEFAULT"]["tested_torch"].split()


def environment(version: str) -> Path:
    """The Python of an environment with this torch; whatever else is in constraints.txt is as there, unless it belongs to torch."""
    folder = PLACE / version
    python = folder / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    constraints = folder / "constraints.txt"
    constraints.write_text("\n".join(line for line in lines if not line.startswith(("torch==", "triton", "nvidia", "cuda"))))
    command = [
        python,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--constraint",
        constraints,
        f"torch=={version}",
        "--editable",
        ".[notebook,docs,dev]",
    ]
    subprocess.run(command, cwd=ROOT, check=True)
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("versions", nargs="*", help="versions of torch (those of settings.ini if none is named)")
    failed = []
    for version in parser.parse_args().versions or versions():
        python = environment(version)
        print(f"torch {version}", flush=True)
        environ = {**os.environ, "JUPYTER_PLATFORM_DIRS": "1", "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}"}
        command = [python, "-m", "pytest", "-q", "--numprocesses", "2", "--dist", "worksteal", "tests", "--ignore", "tests/browser"]
        done = subprocess.run(command, cwd=ROOT, env={**environ, "OMP_NUM_THREADS": "1"})
        failed += [version] if done.returncode else []
    print(f"failed with torch {', '.join(failed)}" if failed else "all passed")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
