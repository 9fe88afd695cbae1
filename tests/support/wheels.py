"""Packages that a test builds itself, for installations without a network."""

import io
import tarfile
import zipfile
from pathlib import Path

_BACKEND = """
import pathlib, time, zipfile

def build_wheel(folder, config_settings=None, metadata_directory=None):
    {before}
    name = "{name}-1.0-py3-none-any.whl"
    info = "{name}-1.0.dist-info"
    with zipfile.ZipFile(pathlib.Path(folder, name), "w") as wheel:
        wheel.writestr("{name}.py", "")
        wheel.writestr(info + "/METADATA", "Metadata-Version: 2.1\\nName: {name}\\nVersion: 1.0\\n")
        wheel.writestr(info + "/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
        wheel.writestr(info + "/RECORD", "")
    return name
"""


def make_wheel(folder: Path, name: str, content: str, version: str = "1.0") -> Path:
    """A wheel with one module of this content."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n"
    tags = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr(f"{name}.py", content)
        wheel.writestr(f"{info}/METADATA", metadata)
        wheel.writestr(f"{info}/WHEEL", tags)
        wheel.writestr(f"{info}/RECORD", "")
    return path


def make_source(folder: Path, name: str, before: str) -> Path:
    """A package that must be built; its build first runs the statement `before`."""
    folder.mkdir(parents=True, exist_ok=True)
    project = f'[project]\nname = "{name}"\nversion = "1.0"\n[build-system]\n'
    project += 'requires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    files = {
        "pyproject.toml": project,
        "backend.py": _BACKEND.format(name=name, before=before),
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
    }
    path = folder / f"{name}-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        for file, text in files.items():
            content = text.encode()
            entry = tarfile.TarInfo(f"{name}-1.0/{file}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))
    return path


def requirements(wheels: Path, *names: str) -> str:
    """A file of requirements whose packages come from a folder alone."""
    return "".join(f"{line}\n" for line in ("--no-index", f"-f {wheels}", *names))
