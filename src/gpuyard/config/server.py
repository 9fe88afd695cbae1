"""The settings of the server: where it listens, and what clients may ask of it."""

from pathlib import Path

from pydantic import Field

from gpuyard.config.addresses import (
    HostAndPort,
    HostName,
    LoopbackAndPort,
    Network,
    UrlOfTools,
)
from gpuyard.config.sections import Megabytes, Period, Seconds, SettingsSection


class ServerSettings(SettingsSection):
    """Where the server listens (port 0: a free port). It exits after `idle_exit_s`
    without work (0: never). With `restart`, the keeper of its node starts it again when
    it was killed.

    `url` is the address for other servers and agents, if that is not the one where it
    listens (behind a proxy with TLS). `hosts` are further names under which clients may
    ask it (see the guide on the server's edge). A proxy in `trusted_proxies` says who
    is behind it. `ca_file` holds the certificates by which the servers at HTTPS
    addresses prove themselves to each other and to agents (unset, those of the system),
    and `tls_name` the name in these, if it is not the host.

    At `agents_listen` (HOST:PORT) it listens for machines that join (see the guide).
    They reach it by the name or address `agents_host`, if that is not the one where it
    listens. At `tools_listen` it listens for browsers that open what jobs serve; each
    port of a job is at a host name of its own below that of `tools_url` (unset, below
    `localhost`).

    `max_body_mb` limits a submission, a batch and a prompt; all other bodies may have
    1 MB. Bodies that are being worked on may have `max_bodies_mb` together. A client
    may have `max_requests` at a time, and `max_new_connections` that have not shown the
    token yet; there are at most `max_connections`. A request's head must arrive within
    `slow_s`, and a body with 16 KB/s after as long. A user may send
    `max_requests_per_s`, and those of twenty seconds at once (0: any number).

    `logs/audit.log` is rotated at `audit_mb`; `audit_files` older ones are kept.
    """

    host: str = "127.0.0.1"
    port: int = Field(default=0, ge=0, le=65535)
    url: str | None = None
    ca_file: Path | None = None
    tls_name: str | None = None
    hosts: tuple[str, ...] = ()
    trusted_proxies: tuple[Network, ...] = ()
    agents_listen: HostAndPort | None = None
    agents_host: HostName | None = None
    tools_listen: LoopbackAndPort | None = None
    tools_url: UrlOfTools | None = None
    idle_exit_s: Seconds = 1800.0
    restart: bool = True
    max_body_mb: Megabytes = 64.0
    max_bodies_mb: Megabytes = 512.0
    max_requests: int = Field(default=16_384, ge=1)
    max_requests_per_s: int = Field(default=500, ge=0)
    max_connections: int = Field(default=20_000, ge=1)
    max_new_connections: int = Field(default=256, ge=1)
    slow_s: Period = 10.0
    audit_mb: Megabytes = 10.0
    audit_files: int = Field(default=5, ge=1)
