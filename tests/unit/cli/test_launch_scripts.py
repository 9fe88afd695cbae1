"""The command in a shell script, read without running it."""

from pathlib import Path

import pytest

from gpuyard.cli.launch_scripts import commands_in
from gpuyard.cli.program_files import read_program
from gpuyard.cli.recommend import recommendation_for
from gpuyard.domain.errors import InvalidInputError

TORCH = "import torch\nfrom torch import nn\n"
PROGRAM = TORCH + "nn.Linear(9, 10).cuda()\n"


def _commands(folder: Path, text: str, words: str = "bash run.sh") -> list[list[str]]:
    (folder / "run.sh").write_text(text)
    return list(commands_in(folder / "run.sh", words.split()))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("python train.py --lr 1 # slow\n", "python train.py --lr 1"),
        ("python train.py \\\n  --lr 1 &> log.txt\n", "python train.py --lr 1"),
        ("A=5 B=6 python train.py | tee log\n", "python train.py"),
        ("LR=1\npython train.py --lr $LR\n", "python train.py --lr 1"),
        ("N=${N:-8}\npython train.py ${N}\n", "python train.py 8"),
        (
            "W=(\n --a 1 # x\n --b 2\n)\npython t.py ${W[@]}\n",
            "python t.py --a 1 --b 2",
        ),
        ("python train.py $1 $@\n", "python train.py one one two"),
        ("python train.py --n $(nproc) x\n", "python train.py --n x"),
        ("python train.py --say \"a b\" 'c d'\n", "python train.py --say a b c d"),
        (
            "read -r -d '' words <<EOF\npkg.train \\\n --a 1\nEOF\n"
            "deepspeed --module $words\n",
            "deepspeed --module pkg.train --a 1",
        ),
        ("cd code && python train.py; exit\n", "python train.py"),
    ],
)
def test_the_words_of_a_command_are_found(
    tmp_path: Path, text: str, expected: str
) -> None:
    found = _commands(tmp_path, text, "bash run.sh one two")
    assert expected in [" ".join(words) for words in found]


def test_a_script_that_grows_without_end_is_cut(tmp_path: Path) -> None:
    text = "A=aaaaaaaa\n" + "A=$A$A$A$A\n" * 200 + "python train.py $A\n"
    found = _commands(tmp_path, text)
    assert sum(map(len, found[-1])) < 100_000
    assert _commands(tmp_path, "X=(\n" * 3000) == []
    assert _commands(tmp_path, "#" * 200_000) == []


def test_a_script_is_read_as_the_program_that_it_launches(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    (tmp_path / "prepare.py").write_text("print()\n")
    (tmp_path / "scripts").mkdir()
    text = "set -e\npython prepare.py\ntorchrun --nproc_per_node=4 train.py --lr 1\n"
    (tmp_path / "scripts" / "run.sh").write_text(text)
    files = read_program(["bash", "scripts/run.sh"], tmp_path)
    assert (files.entry, files.arguments) == ("train.py", ("--lr", "1"))
    assert recommendation_for(["scripts/run.sh"], tmp_path)["needs"]["gpus"] == 4


def test_a_script_without_a_program_says_so(tmp_path: Path) -> None:
    (tmp_path / "run.sh").write_text("bash run.sh\necho hello\n")
    with pytest.raises(InvalidInputError, match=r"run\.sh starts no Python program"):
        read_program(["bash", "run.sh"], tmp_path)


@pytest.mark.parametrize(
    ("words", "millions"),
    [
        ("yolo detect train model=yolov8n.pt epochs=3 batch=4", 3.2),
        ("vllm serve gpt2", 124.4),
        ("llamafactory-cli train sft.yaml", 124.4),
        ("lm_eval --model hf --model_args pretrained=gpt2", 124.4),
        ("trl sft --model_name_or_path gpt2 --per_device_train_batch_size 2", 124.4),
    ],
)
def test_commands_of_libraries_need_no_program(
    tmp_path: Path, words: str, millions: float
) -> None:
    (tmp_path / "sft.yaml").write_text(
        "model_name_or_path: gpt2\nfinetuning_type: lora\n"
    )
    found = recommendation_for(words.split(), tmp_path)
    assert found["parameters"] == pytest.approx(millions * 1e6, rel=0.03)
    assert found["needs"]["gpus"] == 1


@pytest.mark.parametrize("words", ["yolo", "yolo predict model=runs/best.pt", "vllm"])
def test_other_commands_of_libraries_are_no_program(tmp_path: Path, words: str) -> None:
    with pytest.raises(InvalidInputError):
        read_program(words.split(), tmp_path)


def test_files_are_meant_where_the_command_is_given(tmp_path: Path) -> None:
    for name, outputs in (("code/net.yaml", 5), ("net.yaml", 10)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"outputs: {outputs}\n")
    source = TORCH + (
        "import argparse, yaml\n"
        "parser = argparse.ArgumentParser()\nparser.add_argument('--config')\n"
        "config = yaml.safe_load(open(parser.parse_args().config))\n"
        "nn.Linear(9, config['outputs']).cuda()\n"
    )
    (tmp_path / "code" / "train.py").write_text(source)
    words = ["code/train.py", "--config", "./net.yaml"]
    assert recommendation_for(words, tmp_path)["parameters"] == 100


def test_configurations_of_hydra_may_lie_above_the_program(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "configs" / "net").mkdir(parents=True)
    (tmp_path / "configs" / "train.yaml").write_text("defaults:\n  - net: wide\n")
    (tmp_path / "configs" / "net" / "wide.yaml").write_text("width: 9\n")
    source = TORCH + (
        "import hydra\n"
        '@hydra.main(config_path="../configs", config_name="train.yaml")\n'
        "def main(config):\n    nn.Linear(config.net.width, 10).cuda()\n"
        "main()\n"
    )
    (tmp_path / "src" / "train.py").write_text(source)
    assert recommendation_for(["src/train.py"], tmp_path)["parameters"] == 100


@pytest.mark.parametrize("words", ["python -m pkg.fit", "deepspeed --module pkg.fit"])
def test_a_module_may_lie_under_src(tmp_path: Path, words: str) -> None:
    (tmp_path / "src" / "pkg").mkdir(parents=True)
    (tmp_path / "src" / "pkg" / "fit.py").write_text(PROGRAM)
    files = read_program(words.split(), tmp_path)
    assert files.entry == "src/pkg/fit.py"
