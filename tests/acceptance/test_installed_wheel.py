"""The built wheel, installed beside a project that has a top-level package `workers` of its own."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path
from typing import Any, NamedTuple

import pytest

PROJECT = Path(__file__).parents[2]
SOURCES = ("effectsvc", "workers", "pyproject.toml", "README.md", "LICENSE")
INSTALLED_AS = {"workers": "effectsvc_workers"}

LOOK = """
import json, effectsvc, effectsvc_workers, workers
from effectsvc.store.scripts import all_scripts
files = {module.__name__: module.__file__ for module in (effectsvc, effectsvc_workers, workers)}
print(json.dumps({"files": files, "whose": workers.WHOSE, "scripts": sorted(all_scripts())}))
"""


class Installed(NamedTuple):
    """A virtual environment with the wheel, the sources that it was built from, and a user's project."""

    python: Path
    site: Path
    source: Path
    project: Path

    def run(self, *command: str | Path) -> str:
        """What a command prints that is run in the project's directory."""
        return _run(*command, cwd=self.project)


def _run(*command: str | Path, cwd: Path) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(command, cwd=cwd, env=clean, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    """Builds the wheel from a copy of the sources, and installs it without this environment's editable install."""
    tmp = tmp_path_factory.mktemp("wheel")
    source, project, python = tmp / "source", tmp / "project", tmp / "venv" / "bin" / "python"
    source.mkdir()
    for name in SOURCES:
        if (PROJECT / name).is_dir():
            shutil.copytree(PROJECT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(PROJECT / name, source / name)
    _run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp, source, cwd=tmp)
    [wheel] = tmp.glob("*.whl")
    _run(sys.executable, "-m", "venv", "--without-pip", tmp / "venv", cwd=tmp)
    _run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel, cwd=tmp)
    # The dependencies of this environment, by a path alone: the .pth files there, its editable install's, do not count.
    [site] = (tmp / "venv" / "lib").glob("python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
    (project / "workers").mkdir(parents=True)
    (project / "workers" / "__init__.py").write_text('WHOSE = "the user\'s"\n')
    return Installed(python, site, source, project)


def test_the_users_own_package_workers_stays_his(installed: Installed) -> None:
    """`import workers` is the project's; ours is `effectsvc_workers`, from the wheel, with every script."""
    lua = installed.source / "effectsvc" / "store" / "lua"
    seen: dict[str, Any] = json.loads(installed.run(installed.python, "-c", LOOK))
    assert seen["whose"] == "the user's"
    assert seen["files"]["workers"] == str(installed.project / "workers" / "__init__.py")
    assert seen["files"]["effectsvc"] == str(installed.site / "effectsvc" / "__init__.py")
    assert seen["files"]["effectsvc_workers"] == str(installed.site / "effectsvc_workers" / "__init__.py")
    assert seen["scripts"] == sorted(path.stem for path in lua.glob("*.lua"))


def test_the_wheel_has_every_file_of_the_packages(installed: Installed) -> None:
    """Code, scripts, fixtures and type markers: what stands in the source tree stands in the installed one."""
    for top in ("effectsvc", "workers"):
        assert _files(installed.site / INSTALLED_AS.get(top, top)) == _files(installed.source / top)


def test_the_command_is_installed(installed: Installed) -> None:
    """`effectsvc --help` runs from the environment's own scripts and names its commands."""
    shown = installed.run(installed.python.parent / "effectsvc", "--help")
    assert {"worker", "relay", "up"} <= set(shown.split())


def test_the_list_of_packages_is_the_packages_of_the_tree() -> None:
    """pyproject.toml names each package once; a folder that is added to the tree must be added there."""
    named = tomllib.loads((PROJECT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    found = [path.parent.relative_to(PROJECT).parts for top in ("effectsvc", "workers") for path in _inits(top)]
    assert sorted(named) == sorted(".".join((INSTALLED_AS.get(top, top), *below)) for top, *below in found)


def _inits(top: str) -> list[Path]:
    return list((PROJECT / top).rglob("__init__.py"))


def _files(package: Path) -> set[str]:
    files = (path for path in package.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {str(path.relative_to(package)) for path in files}
