"""Completion in a real bash, which a person has set up as the guide says."""

import sys
from pathlib import Path

from tests.support.instance import TestInstance
from tests.support.terminal import terminal


def test_bash_completes_and_quotes_the_name_of_a_job(
    shared_instance: TestInstance, tmp_path: Path
) -> None:
    shared_instance.ok("run", "-d", "--name", "completed job", "true")
    environment = shared_instance.environment | {
        "HOME": str(tmp_path),
        "PATH": f"{Path(sys.executable).parent}:{shared_instance.environment['PATH']}",
        "TERM": "dumb",
    }
    (tmp_path / ".bashrc").write_text("PS1='READY '\n")
    shared_instance.ok("completion", "bash", "--install", env={"HOME": str(tmp_path)})
    words = ["bash", "--noprofile", "-i"]
    with terminal(words, cwd=shared_instance.work, env=environment) as shell:
        shell.expect("READY ")
        # What Tab has made of the words is shown by another command in front of them.
        shell.type("gpuyard show comp\t")
        shell.expect(r"completed\\ job ")
        shell.type("\x01printf '<%s>' \n")
        shell.expect("<gpuyard><show><completed job>")
