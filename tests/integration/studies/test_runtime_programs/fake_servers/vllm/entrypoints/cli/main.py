"""`vllm serve`."""

import sys

from stand_in import serve

serve(
    sys.argv[1:],
    [
        "--dtype",
        "--seed",
        "--tensor-parallel-size",
        "--pipeline-parallel-size",
        "--data-parallel-size",
        "--max-num-seqs",
        "--nnodes",
        "--node-rank",
        "--master-addr",
        "--master-port",
        "--host",
        "--port",
        "--quantization",
        "--max-model-len",
    ],
    [
        "--no-enable-prefix-caching",
        "--headless",
        "--enable-expert-parallel",
        "--no-async-scheduling",
    ],
    version_path="/version",
    tells_ids=True,
)
