"""The runtime of studies on a real GPU: its tokens are those of transformers."""

from pathlib import Path

import pytest

from tests.integration.studies.test_runtime_programs import running

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(180)]

MODELS = (
    "llama",
    "llama-biased",
    "qwen",
    "qwen-sliding",
    "mistral",
    "qwen3",
    "gemma",
    "mixtral",
    "deepseek",
    "deepseek-long",
)


def test_tokens_on_the_gpu_are_those_of_transformers_on_the_processor(
    gpu_python: str, tmp_path: Path
) -> None:
    program = running.PROGRAMS / "reference.py"
    words = [gpu_python, program, tmp_path, "1", "0"]
    codes, text = running.run(words, 1)
    assert codes == [0], text
    folders = {name: tmp_path / f"on-gpu-{name}" for name in MODELS}
    configs = [
        running.write_config(folder, tmp_path / name, device="cuda", engine="torch")
        for name, folder in folders.items()
    ]
    running.run_many(Path(gpu_python), configs, 1)
    for name, folder in folders.items():
        assert running.ids_of(folder) == running.expected(tmp_path / name), name
        (metrics,) = running.metrics_of(folder)
        assert metrics["gpu_name"].startswith("NVIDIA"), metrics
