"""A server without webhooks loads no HTTP client."""

import subprocess
import sys


def test_the_server_imports_no_http_client():
    looked = "import sys, gpuyard.server.__main__; sys.exit('httpx' in sys.modules)"
    assert (
        subprocess.run(
            [sys.executable, "-c", looked], timeout=60, check=False
        ).returncode
        == 0
    )
