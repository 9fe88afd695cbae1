"""The container images of deploy/images: pinned, in step with the catalogue, and built
as the program says.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from gpuyard import __version__
from gpuyard.domain.images import IMAGES, OURS, Image
from tests.support.components import require

ROOT = Path(__file__).parents[3]
IMAGES_FOLDER = ROOT / "deploy/images"
MADE_HERE = [image for image in IMAGES if image.name.startswith(OURS)]
DOCKERFILES = sorted(IMAGES_FOLDER.glob("*.Dockerfile"))
ENGINES = ("transformers", "vllm")
DIGESTS = "deploy/images/digests.toml"
CHART_VALUES = "deploy/helm/gpuyard/values.yaml"
CATALOGUE = "src/gpuyard/domain/images.py"
DIGEST = f"sha256:{'0123456789abcdef' * 4}"
ECR = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"


def dockerfile_of(image: Image) -> str:
    return (IMAGES_FOLDER / f"{image.name.removeprefix(OURS)}.Dockerfile").read_text()


def base_of(file: Path) -> str:
    """The image that a Dockerfile begins with."""
    (label,) = re.findall(r'base\.name="docker\.io/(\S+)"', file.read_text())
    return label.removeprefix("library/")


def requirements_of(image: Image) -> dict[str, str]:
    """The versions that an image pins, by package."""
    (file,) = re.findall(r"COPY (requirements-\S+\.txt)", dockerfile_of(image))
    return pinned_in(file)


def pinned_in(file: str) -> dict[str, str]:
    """The versions that a file pins, by package; each with its hashes."""
    text = re.sub(r"^#.*\n", "", (IMAGES_FOLDER / file).read_text(), flags=re.MULTILINE)
    requirements = text.replace("\\\n", "").splitlines()
    exact = re.compile(r"([a-z0-9.-]+)==([\w.]+)(?: +--hash=sha256:[0-9a-f]{64})+")
    found = [exact.fullmatch(requirement) for requirement in requirements]
    assert all(found), "a line is no exact version with hashes"
    return {match[1]: match[2] for match in found if match}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What `build` reads and writes, in a folder of the test's own; no digest is
    known there.
    """
    copied = tmp_path / "checkout"
    compiled = shutil.ignore_patterns("__pycache__")
    for folder in ("src", "deploy"):
        shutil.copytree(ROOT / folder, copied / folder, ignore=compiled)
    for file in (DIGESTS, CHART_VALUES, CATALOGUE):
        text = (copied / file).read_text()
        (copied / file).write_text(re.sub("@?sha256:[0-9a-f]{64}", "", text))
    return copied


def digests_in(checkout: Path) -> dict[str, str]:
    """The digests that a checkout knows, by image."""
    return tomllib.loads((checkout / DIGESTS).read_text())["images"]


def build(
    *arguments: str, path: Path | None = None, checkout: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": str(path)} if path else None
    return subprocess.run(
        [sys.executable, checkout / "deploy/images/build", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=environment,
    )


@pytest.mark.parametrize("image", MADE_HERE, ids=lambda image: image.framework)
def test_an_image_of_ours_has_the_versions_that_the_catalogue_tells(
    image: Image,
) -> None:
    pinned = requirements_of(image)
    text = dockerfile_of(image)
    assert pinned[image.framework] == image.version
    cuda = (
        pinned.get("nvidia-cuda-runtime-cu12")
        or re.findall(r"^ARG BASE=\S+-cuda([\d.]+)", text, re.MULTILINE)[0]
    )
    assert image.cuda and cuda.startswith(image.cuda)
    assert image.source.split(" on ")[-1] in text
    assert f"{image.version}-cuda{image.cuda}" in image.tag


@pytest.mark.parametrize("image", MADE_HERE, ids=lambda image: image.framework)
def test_it_has_what_the_document_lists(image: Image) -> None:
    assert {
        "datasets",
        "wandb",
        "ipykernel",
        "safetensors",
        "huggingface-hub",
    } <= requirements_of(image).keys()
    if image.framework == "torch":
        assert {"transformers", "accelerate"} <= requirements_of(image).keys()
    assert 'ARG MODELS=""' in dockerfile_of(image)


def test_the_servers_image_has_what_its_extras_need() -> None:
    (words,) = re.findall(
        r'^ARG EXTRAS="\[(.*)\]"',
        (IMAGES_FOLDER / "gpuyard.Dockerfile").read_text(),
        re.MULTILINE,
    )
    extras = words.split(",")
    assert set(extras) == {"kubernetes", "docker", "postgresql", "s3", "verification"}
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"][
        "optional-dependencies"
    ]
    needed = {
        re.split(r"[<>=\[]", package)[0] for extra in extras for package in known[extra]
    }
    lock = (ROOT / "requirements-server.lock").read_text()
    assert needed <= set(re.findall(r"^([a-z0-9-]+)(?:\[.*\])?==", lock, re.MULTILINE))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_solver_has_its_engine_in_one_version(engine: str) -> None:
    assert {engine, "torch", "transformers", "huggingface-hub"} <= pinned_in(
        f"requirements-solver-{engine}.txt"
    ).keys()


def test_the_solvers_image_has_its_files_where_the_guide_says() -> None:
    text = (IMAGES_FOLDER / "solver.Dockerfile").read_text()
    ((source, target),) = re.findall(r"^COPY (src/\S+) (/\S+)$", text, re.MULTILINE)
    assert (ROOT / source / "solve.py").is_file()
    assert f'"{target}/solve.py"]' in text.splitlines()[-1]
    assert (
        f'solver = "{target}/solve.py"'
        in (ROOT / "docs/guides/verification.md").read_text()
    )
    allowed = (
        (IMAGES_FOLDER / "solver.Dockerfile.dockerignore").read_text().splitlines()
    )
    assert {f"!{source}", "!deploy/images/requirements-solver-*.txt"} <= set(allowed)


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_a_dockerfile_is_pinned_and_runs_as_nobody_special(file: Path) -> None:
    text = file.read_text()
    assert re.findall(r"^FROM (\S+)", text, re.MULTILINE) == ["${BASE}"]
    assert re.search(rf"^ARG BASE={base_of(file)}$", text, re.MULTILINE)
    assert re.search(r":[^:@]*\d+\.\d+\.\d+", base_of(file))
    assert all(
        "--require-hashes --only-binary :all:" in line or "--no-index" in line
        for line in text.splitlines()
        if "pip install" in line
    )
    assert re.findall(r"^USER (.*)", text, re.MULTILINE)[-1] == "10001:10001"
    assert 'ENTRYPOINT ["tini", "--"]' in text
    assert all(
        f"image.{label}=" in text
        for label in ("title", "description", "version", "licenses", "base.name")
    )
    assert not re.search(r"\blatest\b", text)


def test_nothing_under_deploy_says_latest_or_names_an_index() -> None:
    for file in (ROOT / "deploy").rglob("*"):
        if file.is_file():
            assert not re.search(
                r":latest\b|tag: *latest|--(extra-)?index-url", file.read_text()
            ), file


@pytest.mark.parametrize("file", DOCKERFILES, ids=lambda file: file.stem)
def test_the_linter_finds_nothing(file: Path) -> None:
    linter = shutil.which(
        "hadolint", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    )
    require("hadolint", linter is not None)
    assert linter is not None
    done = subprocess.run(
        [linter, "--no-color", file],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "")


def test_a_dry_run_shows_every_command_with_the_tags_of_the_catalogue(
    checkout: Path,
) -> None:
    registry = ("--registry", f"{ECR}/team", "--push")
    options = ("--dry-run", "--unpinned", "--models", "org/a b")
    done = build(*options, *registry, checkout=checkout)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    python = "--build-arg BASE=python:3.11.15-slim-bookworm"
    for image in MADE_HERE:
        name = image.name.removeprefix(OURS)
        base = base_of(IMAGES_FOLDER / f"{name}.Dockerfile")
        assert (
            f"docker build --file deploy/images/{name}.Dockerfile --tag"
            f" {ECR}/team/{image.reference} --build-arg VERSION={image.tag} --build-arg"
            f" BASE={base} --build-arg 'MODELS=org/a b' deploy/images" in lines
        )
        assert f"docker push {ECR}/team/{image.reference}" in lines
    assert (
        f"--tag {ECR}/team/gpuyard/gpuyard:{__version__} --build-arg"
        f" VERSION={__version__} {python} ." in done.stdout
    )
    for engine in ENGINES:
        tag = f"{__version__}-{engine}"
        assert (
            "docker build --file deploy/images/solver.Dockerfile --tag"
            f" {ECR}/team/gpuyard/solver:{tag} --build-arg VERSION={tag} {python} --build-arg"
            f" ENGINE={engine} --build-arg 'MODELS=org/a b' ." in lines
        )
    plain = f"gpuyard/solver:{__version__} --build-arg VERSION={__version__} {python} ."
    assert any(line.endswith(plain) for line in lines), (
        "what needs only Python has no models"
    )
    password = "aws ecr get-login-password --region eu-west-1"
    assert f"{password} | docker login --username AWS --password-stdin {ECR}" in lines


def test_only_what_is_named_is_built_and_only_amazon_is_logged_in_to() -> None:
    registry = ("--registry", "registry.example.org:5000", "--push")
    done = build("--dry-run", "--unpinned", *registry, "pytorch-gpu")
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [
        ["docker", "build"],
        ["docker", "push"],
    ]


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["--registry", "example.org;id"], "is no registry"),
        (["--registry", "$(id)"], "is no registry"),
        (["--registry", "a b"], "is no registry"),
        (["--registry", "--push"], "expected one argument"),
        (["--registry=-x"], "is no registry"),
        (["--models", "org/a; id"], "are no models"),
        (["--push"], "needs --registry"),
        (["gpu"], "known: pytorch-gpu, tensorflow-gpu, gpuyard"),
    ],
)
def test_what_cannot_be_meant_is_refused(arguments: list[str], fault: str) -> None:
    done = build("--dry-run", *arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert fault in done.stderr


def tool(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


def test_the_password_goes_from_amazon_to_docker_and_nowhere_else(
    tmp_path: Path,
) -> None:
    tool(tmp_path, "aws", "echo secret")
    reads = f"if [ $1 = login ]; then read -r word; echo $word > {tmp_path}/got; fi"
    tool(tmp_path, "docker", f"echo $@ >> {tmp_path}/calls; {reads}")
    options = ("--unpinned", "--registry", ECR, "--push")
    done = build(*options, "tensorflow-gpu", path=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "got").read_text().strip() == "secret"
    assert [
        line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()
    ] == ["build", "login", "push"]
    assert "secret" not in done.stdout + done.stderr + (tmp_path / "calls").read_text()


def test_a_command_that_fails_ends_it(tmp_path: Path) -> None:
    tool(tmp_path, "docker", "exit 7")
    done = build("--unpinned", "pytorch-gpu", "tensorflow-gpu", path=tmp_path)
    assert done.returncode == 1
    assert done.stdout.count("docker build") == 1
    assert "failed with 7" in done.stderr


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    done = build("--unpinned", "pytorch-gpu", path=tmp_path)
    assert (done.returncode, done.stderr) == (1, "build: docker is not installed\n")


def test_every_image_of_others_has_a_row_and_its_digest_is_the_same_everywhere() -> (
    None
):
    known = digests_in(ROOT)
    values = yaml.safe_load((ROOT / CHART_VALUES).read_text())
    python = next(image for image in IMAGES if image.name == "python")
    used = {
        values["proxy"]["image"],
        values["postgresql"]["image"],
        python.reference,
    }
    for reference in used:
        image, _, digest = reference.partition("@")
        assert known[image] == digest
    named = {reference.partition("@")[0] for reference in used}
    assert set(known) == named | {base_of(file) for file in DOCKERFILES}


def test_a_base_without_a_digest_is_refused(checkout: Path, tmp_path: Path) -> None:
    tool(tmp_path, "docker", f"touch {tmp_path}/called")
    done = build("solver", path=tmp_path, checkout=checkout)
    assert done.returncode == 1
    assert "no digest is known of python:3.11.15-slim-bookworm" in done.stderr
    assert "--pin" in done.stderr and "--unpinned" in done.stderr
    assert not (tmp_path / "called").exists()


@pytest.mark.parametrize(
    ("program", "asked"),
    [
        ("crane", "digest postgres:17.11"),
        ("skopeo", "inspect --format {{.Digest}} docker://postgres:17.11"),
        (
            "docker",
            "buildx imagetools inspect --format {{.Manifest.Digest}} postgres:17.11",
        ),
    ],
)
def test_digests_come_from_the_registry_into_every_file_and_into_the_build(
    checkout: Path, tmp_path: Path, program: str, asked: str
) -> None:
    tool(tmp_path, program, f"echo $@ >> {tmp_path}/calls; echo {DIGEST}")
    done = build("--pin", path=tmp_path, checkout=checkout)
    assert done.returncode == 0, done.stderr
    assert asked in (tmp_path / "calls").read_text().splitlines()
    assert set(digests_in(checkout).values()) == {DIGEST}
    assert f"image: postgres:17.11@{DIGEST}\n" in (checkout / CHART_VALUES).read_text()
    catalogue = (checkout / CATALOGUE).read_text()
    assert catalogue.count(DIGEST) == 1
    assert f'tag="3.11.15-slim-bookworm@{DIGEST}"' in catalogue
    built = build("--dry-run", "solver", checkout=checkout)
    assert (
        f" --build-arg BASE=python:3.11.15-slim-bookworm@{DIGEST} --label"
        f" org.opencontainers.image.base.digest={DIGEST} ." in built.stdout
    )


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("echo no such host >&2; [ $1 = version ]", "no such host"),
        ("echo latest", "it said 'latest'"),
        ("exit 1", "nothing here can ask a registry"),
    ],
    ids=["away", "nonsense", "no program"],
)
def test_a_digest_that_cannot_be_found_out_changes_nothing(
    checkout: Path, tmp_path: Path, script: str, fault: str
) -> None:
    tool(tmp_path, "crane", script)
    before = digests_in(checkout)
    done = build("--pin", path=tmp_path, checkout=checkout)
    assert done.returncode == 1
    assert fault in done.stderr
    assert digests_in(checkout) == before
    assert "@sha256" not in (checkout / CHART_VALUES).read_text()
