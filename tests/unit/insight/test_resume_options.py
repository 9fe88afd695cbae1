"""How programs are told to resume, read off their source."""

import pytest

from gpuyard.insight.resume_options import resume_arguments

PARSER = "import argparse\nparser = argparse.ArgumentParser()\n"


@pytest.mark.parametrize(
    ("source", "arguments"),
    [
        ("init_from = 'scratch' # 'scratch' or 'resume'", ("--init_from=resume",)),
        (
            "parser = HfArgumentParser((ModelArguments, TrainingArguments))",
            ("--resume_from_checkpoint", "{path}"),
        ),
        ("cli = LightningCLI(Model)", ("--ckpt_path", "{path}")),
        (PARSER + "parser.add_argument('--resume')", ("--resume", "{path}")),
        (
            PARSER + "parser.add_argument('-r', '--resume', action='store_true')",
            ("--resume",),
        ),
        (
            PARSER + "parser.add_argument('--resume-from', type=str)",
            ("--resume-from", "{path}"),
        ),
        (
            "@click.option('--load', is_flag=False)\ndef main(load): ...",
            ("--load", "{path}"),
        ),
        (PARSER + "parser.add_argument('--epochs', type=int)", ()),
        ("import os\nos.environ['GPUYARD_RESUME_FROM']\n'--resume'", ()),
        ("# --resume is planned", ()),
        ("this is no Python: '--resume'", ()),
        ("(" * 100_000, ()),
        ("", ()),
    ],
)
def test_the_arguments(source: str, arguments: tuple[str, ...]) -> None:
    assert resume_arguments(source) == arguments
