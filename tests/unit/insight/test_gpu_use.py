"""Whether a program is meant for a GPU, and whether it found none."""

import pytest

from gpuyard.insight.gpu_use import no_gpu_sign, says_gpu

FLAG = "p.add_argument('--cuda', action='store_true')"
DEVICE = "p.add_argument('-d', '--device', default='cpu')"
NO_FLAG = "p.add_argument('--no-cuda', action='store_true')"


@pytest.mark.parametrize(
    ("source", "command", "sign"),
    [
        ("import torch\nok = torch.cuda.is_available()", (), "torch.cuda"),
        ("model.cuda()", (), ".cuda()"),
        ("x = x.to('cuda:0')", (), "device=cuda:0"),
        ("d = torch.device('cuda')", (), "device=cuda"),
        ("device = 'cuda'", (), "device=cuda"),
        ("Trainer(accelerator='gpu')", (), "device=gpu"),
        ("with tf.device('/GPU:0'): pass", (), "device=/GPU:0"),
        ("import cupy as cp", (), "import cupy"),
        ("", ("python3", "-m", "train", "--device", "cuda"), "cuda"),
        ("", ("train", "--device=cuda:1"), "cuda:1"),
        ("import torch\ntorch.cuda.empty_cache()", ("t.py", "--device=cpu"), None),
        ("# runs on cuda, too\nprint('cuda is nice')", (), None),
        ("import torch\nmodel.to('cpu')", (), None),
        ("log.to('gpu.log')", (), None),
        ("this is no Python: torch.cuda", (), None),
        ("(" * 100_000 + "cuda", (), None),
        ("", (), None),
        (f"{FLAG}; x.cuda()", ("train.py",), None),
        (f"{FLAG}; x.cuda()", ("train.py", "--cuda"), ".cuda()"),
        (f"{DEVICE}; torch.cuda.synchronize()", ("train.py",), None),
        (f"{NO_FLAG}; x.cuda()", ("train.py",), ".cuda()"),
    ],
)
def test_the_sign(source: str, command: tuple[str, ...], sign: str | None) -> None:
    assert says_gpu(source, command) == sign


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("CUDA not available, training on the CPU", "CUDA not available"),
        ("GPU available: False, used: False", "GPU available: False"),
        ("Using cpu device", "Using cpu device"),
        (
            "WARNING:absl:No GPU/TPU found, falling back to CPU.",
            "No GPU/TPU found, falling back to CPU",
        ),
        ("RuntimeError: No CUDA GPUs are available", "No CUDA GPUs are available"),
    ],
)
def test_a_program_without_a_gpu(line: str, words: str) -> None:
    assert no_gpu_sign(line) == words


@pytest.mark.parametrize(
    "line",
    ["GPU available: True (cuda), used: True", "Using cuda device", "8 cpus", "", "x"],
)
def test_other_lines(line: str) -> None:
    assert no_gpu_sign(line) is None
