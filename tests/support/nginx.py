"""nginx before a port of this machine, with the settings that a guide shows."""

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tests.support.components import require
from tests.support.ports import free_port
from tests.support.tls import make_certificates
from tests.support.wait import wait_until

AROUND = """
user root;
daemon off;
pid {folder}/pid;
error_log stderr;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    {block}
}}
"""


@contextmanager
def nginx_of(guide: Path, door: int, folder: Path) -> Iterator[int]:
    """The port with TLS of an nginx that leads to `door` as the guide says."""
    program = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    require("nginx", program is not None)
    assert program is not None
    (block,) = re.findall(r"```nginx\n(.*?)```", guide.read_text(), re.DOTALL)
    make_certificates(folder)
    port = free_port()
    here = {
        "listen 443": f"listen 127.0.0.1:{port}",
        "/etc/ssl/tools.pem": str(folder / "server.pem"),
        "/etc/ssl/tools.key": str(folder / "server.key"),
        "127.0.0.1:8401": f"127.0.0.1:{door}",
    }
    for shown, real in here.items():
        assert shown in block
        block = block.replace(shown, real)
    config = folder / "nginx.conf"
    config.write_text(AROUND.format(folder=folder, block=block))
    process = subprocess.Popen([program, "-p", folder, "-e", "stderr", "-c", config])
    try:
        wait_until(
            lambda: process.poll() is not None or _listens(port), what="nginx to listen"
        )
        assert process.poll() is None
        yield port
    finally:
        process.terminate()
        process.wait(timeout=60)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
