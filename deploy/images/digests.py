"""The digests of the images that are not ours, in `digests.toml`: who knows them, and
where they are written.

A tag may be moved to another image; a digest cannot.
"""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
ROOT = FOLDER.parents[1]
FILE = FOLDER / "digests.toml"
# These name images, too.
CHART = ROOT / "deploy/helm/gpuyard/values.yaml"
CATALOGUE = ROOT / "src/gpuyard/domain/images.py"
DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
# Each prints the digest of what a tag names, without pulling it.
RESOLVERS = {
    "crane": "crane digest",
    "skopeo": "skopeo inspect --format {{.Digest}}",
    "docker": "docker buildx imagetools inspect --format {{.Manifest.Digest}}",
}
PROBES = {
    "crane": "crane version",
    "skopeo": "skopeo --version",
    "docker": "docker buildx version",
}


class DigestError(Exception):
    """A digest is not known, or cannot be found out."""


def known() -> dict[str, str]:
    """The digest of each image by name and tag; "" if nobody has looked it up."""
    images: dict[str, str] = tomllib.loads(FILE.read_text())["images"]
    for image, digest in images.items():
        if digest and not DIGEST.fullmatch(digest):
            raise DigestError(
                f"{FILE.name}: {digest!r} of {image} is no digest; run"
                " `deploy/images/build --pin`"
            )
    return images


def pinned(image: str, *, unpinned: bool) -> str:
    """`image` with its digest. Without one it is refused, unless `unpinned`."""
    digest = known().get(image, "")
    if digest:
        return f"{image}@{digest}"
    if unpinned:
        return image
    raise DigestError(
        f"no digest is known of {image}; run `deploy/images/build --pin` where its"
        " registry can be reached, or build with --unpinned"
    )


def pin() -> dict[str, str]:
    """Ask the registries for every digest, and write them into `digests.toml`, the
    chart and the catalogue. Nothing is written unless all are known.
    """
    tool = _resolver()
    found = {image: _resolve(tool, image) for image in known()}
    head = FILE.read_text().partition("[images]\n")[0]
    lines = [f'"{image}" = "{found[image]}"\n' for image in sorted(found)]
    FILE.write_text(f"{head}[images]\n{''.join(lines)}")
    for image, digest in found.items():
        tag = image.partition(":")[2]
        _write_after(f"image: {image}", digest, CHART)
        _write_after(f'tag="{tag}', digest, CATALOGUE)
    return found


def _resolver() -> str:
    """The first program here that can ask a registry."""
    for tool, probe in PROBES.items():
        if not shutil.which(tool):
            continue
        if subprocess.run(probe.split(), capture_output=True).returncode == 0:
            return tool
    raise DigestError(
        "nothing here can ask a registry; install crane, skopeo or Docker with buildx"
    )


def _resolve(tool: str, image: str) -> str:
    """The digest of what `image` names now, for all its platforms together."""
    reference = f"docker://{image}" if tool == "skopeo" else image
    done = subprocess.run(
        [*RESOLVERS[tool].split(), reference], capture_output=True, text=True
    )
    digest = done.stdout.strip()
    if done.returncode or not DIGEST.fullmatch(digest):
        said = done.stderr.strip().splitlines() or [f"it said {digest!r}"]
        raise DigestError(f"{tool} tells no digest of {image}: {said[-1]}")
    return digest


def _write_after(name: str, digest: str, file: Path) -> None:
    """Write `digest` after each `name` in `file`, in place of one that is there."""
    whole = f'({re.escape(name)})(@{DIGEST.pattern})?(?=["\\s])'
    file.write_text(re.sub(whole, rf"\1@{digest}", file.read_text()))
