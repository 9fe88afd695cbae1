"""Workspaces: folders that outlive the jobs that use them."""

from pathlib import Path

from tests.support.yard import TestYard


def test_what_one_job_leaves_the_next_one_finds(yard: TestYard) -> None:
    assert yard.ok("workspace") == "No workspaces. `gpuyard run --workspace NAME` makes one.\n"
    yard.ok("run", "--workspace", "corpus", "--", "sh", "-c", "echo words > $GPUYARD_WORKSPACE/text")
    assert yard.ok("run", "--workspace", "corpus", "--", "sh", "-c", "cat $GPUYARD_WORKSPACE/text") == "words\n"
    other = ["--project", "other", "--workspace", "corpus"]
    assert yard.ok("run", *other, "--", "sh", "-c", "ls $GPUYARD_WORKSPACE") == ""
    assert yard.ok("run", "--", "sh", "-c", "echo ${GPUYARD_WORKSPACE-none}") == "none\n"
    first, second = yard.json("workspace")["items"]
    assert (first["project"], first["name"], first["files"], first["size"]) == ("default", "corpus", 1, 6)
    assert first["path"] == str(yard.home.workspaces / "default" / "corpus")
    assert (second["project"], second["files"]) == ("other", 0)


def test_its_name_never_leads_out_of_its_place(yard: TestYard) -> None:
    name = "../../../../outside"
    shown = yard.ok("run", "--workspace", name, "--", "sh", "-c", "echo $GPUYARD_WORKSPACE").strip()
    assert Path(shown).resolve().parent == yard.home.workspaces.resolve() / "default"
    assert yard.json("workspace")["items"][0]["name"] == name
