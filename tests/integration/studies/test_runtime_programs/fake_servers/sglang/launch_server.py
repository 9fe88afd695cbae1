"""SGLang's `python -m sglang.launch_server`."""

import sys

from stand_in import serve

serve(
    sys.argv[1:],
    [
        "--model-path",
        "--dtype",
        "--random-seed",
        "--tp-size",
        "--pp-size",
        "--dp-size",
        "--max-running-requests",
        "--nnodes",
        "--node-rank",
        "--dist-init-addr",
        "--host",
        "--port",
        "--quantization",
        "--mem-fraction-static",
    ],
    ["--disable-radix-cache", "--enable-dp-attention"],
    version_path="/get_server_info",
)
