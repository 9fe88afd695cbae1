"""Settings: the file, the environment that wins over it, and what either may get
wrong.
"""

from decimal import Decimal
from pathlib import Path

import pytest

from gpuyard.config.paths import Home
from gpuyard.config.settings import load_settings
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.tiers import Tiers


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.delenv("GPUYARD_CONFIG", raising=False)
    return Home(tmp_path)


def refused(home: Home) -> str:
    with pytest.raises(InvalidInputError) as caught:
        load_settings(home)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_with_no_file_the_defaults_hold(home):
    settings = load_settings(home)
    assert (
        settings.server.host,
        settings.server.port,
        settings.server.idle_exit_s,
    ) == ("127.0.0.1", 0, 1800)
    assert settings.billing.local_price_per_hour is None
    workspaces = settings.workspaces
    assert workspaces.quota_gb == 100
    assert (workspaces.remove_after_days, workspaces.notice_days) == (30, 7)


def test_the_file_is_read_with_units(home):
    home.settings.write_text(
        '[server]\nport = 8400\nidle_exit_s = "2h"\n[node]\nmax_log_gb = "512MB"\n'
    )
    settings = load_settings(home)
    assert (
        settings.server.port,
        settings.server.idle_exit_s,
        settings.node.max_log_gb,
    ) == (8400, 7200, 0.5)


def test_the_environment_wins_over_the_file(home, monkeypatch):
    home.settings.write_text('[server]\nport = 8400\nidle_exit_s = "2h"\n')
    monkeypatch.setenv("GPUYARD_SERVER__PORT", "9000")
    monkeypatch.setenv("GPUYARD_BILLING__LOCAL_PRICE_PER_HOUR", "0")
    settings = load_settings(home)
    assert (settings.server.port, settings.server.idle_exit_s) == (9000, 7200)
    assert settings.billing.local_price_per_hour == Decimal(0)


def test_a_project_names_an_organisation_that_there_is(home):
    projects = '[fair_share.projects.vision]\norganisation = "fysics"\n'
    home.settings.write_text(projects)
    assert "projects.vision.organisation: there is no organisation 'fysics'" in refused(
        home
    )
    home.settings.write_text(
        f"{projects}[fair_share.organisations.physics]\nshares = 2\n"
    )
    assert "(known: physics) (add [fair_share.organisations.fysics])" in refused(home)
    home.settings.write_text(
        f"{projects}[fair_share.organisations.fysics]\nshares = 2\n"
    )
    assert load_settings(home).fair_share.organisations["fysics"].shares == 2.0


def test_a_job_may_use_gpuyard_although_its_node_has_a_name(home, monkeypatch):
    monkeypatch.setenv("GPUYARD_NODE", "host-1")
    with pytest.raises(InvalidInputError, match="GPUYARD_NODE"):
        load_settings(home)
    monkeypatch.setenv("GPUYARD_ATTEMPT_ID", "att_1")
    monkeypatch.setenv("GPUYARD_NODE__USAGE_S", "3")
    assert load_settings(home).node.usage_s == 3


def test_another_file_may_be_named(home, tmp_path, monkeypatch):
    other = tmp_path / "other.toml"
    other.write_text("[server]\nport = 1234\n")
    monkeypatch.setenv("GPUYARD_CONFIG", str(other))
    assert load_settings(home).server.port == 1234


def test_a_tier_may_be_overridden(home):
    home.settings.write_text(
        '[[tiers]]\nid = "GPU_LARGE"\nname = "n"\ndescription = "d"\ncpu = 8\nmemory_gb'
        " = 32\ngpu_count = 1\ngpu_memory_gb = 24\nmax_runtime_s = 60\ncost_per_hour ="
        ' "1.212"\n'
    )
    assert Tiers(load_settings(home).tiers).get("GPU_LARGE").cost_per_hour == Decimal(
        "1.212"
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[server]\nprot = 1\n", "server.prot: is not a field (did you mean port"),
        ("[sever]\nport = 1\n", "sever: is not a field (did you mean server"),
        ("[server]\nport = 70000\n", "server.port: is 70000 (must be at most 65535)"),
        (
            "[server]\nport = 'high'\n",
            "server.port: is 'high' (must be a valid integer",
        ),
        (
            "[server]\nidle_exit_s = '5 bananas'\n",
            "server.idle_exit_s: '5 bananas' is not a duration",
        ),
        ("[scheduler]\nageing_s = 0\n", "scheduler.ageing_s: is 0"),
        (
            "[node]\nkeep_checkpoints = 0\n",
            "node.keep_checkpoints: is 0 (must be at least 1)",
        ),
        (
            "[[tiers]]\nid = 'X'\nmemory = 1\n",
            "tiers.0.memory: is not a field (did you mean memory_gb",
        ),
        (
            "[workspaces]\nurl = '/data'\n",
            "workspaces.url: is no bucket (name one as s3://bucket/prefix",
        ),
        (
            "[workspaces]\nurl = 's3://b'\n[node]\nrun_as = 'ann'\n",
            "workspaces.url: is not possible where jobs have accounts of their own",
        ),
        (
            "[server]\nmax_body_mb = inf\n",
            "server.max_body_mb: is inf (must be a finite number)",
        ),
        (
            "[server]\nmax_bodies_mb = nan\n",
            "server.max_bodies_mb: is nan (must be a finite number)",
        ),
        (
            "[server]\nmax_bodies_mb = 1e305\n",
            "server.max_bodies_mb: is 1e+305 (must be at most 1000000000.0)",
        ),
        (
            "[server]\nslow_s = 1e300\n",
            "server.slow_s: is 1e+300 (must be at most 8640000000.0)",
        ),
        (
            "[retention]\njobs_days = inf\n",
            "retention.jobs_days: is inf (must be a finite number)",
        ),
        (
            "[retention]\njobs_days = 100001\n",
            "retention.jobs_days: is 100001 (must be at most 100000.0)",
        ),
        (
            "[billing]\nrates = {EUR = inf}\n",
            "billing.rates.EUR: is inf (must be a finite number)",
        ),
        (
            "[scripts.x]\npace = inf\n",
            "scripts.x.pace: is inf (must be a finite number)",
        ),
        ("[server\n", "is not valid TOML"),
        ("port = 1\nport = 2\n", "is not valid TOML"),
        ("\udcff", "is not valid TOML"),
    ],
)
def test_a_mistake_in_the_file_is_named(home, text, said):
    home.settings.write_text(text, errors="surrogateescape")
    message = refused(home)
    assert said in message
    assert str(home.settings) in message


def test_a_named_file_that_is_not_there_is_no_empty_file(home, tmp_path, monkeypatch):
    monkeypatch.setenv("GPUYARD_CONFIG", str(tmp_path / "missing.toml"))
    assert "GPUYARD_CONFIG" in refused(home)
    assert "missing.toml" in refused(home)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        (
            "GPUYARD_SERVER__PORT",
            "-1",
            "GPUYARD_SERVER__PORT: is '-1' (must be at least 0)",
        ),
        (
            "GPUYARD_SERVER__PROT",
            "1",
            "GPUYARD_SERVER__PROT: is not a field (did you mean port",
        ),
        ("GPUYARD_SERVER", "8400", "GPUYARD_SERVER: is 8400 (must be an object)"),
        ("GPUYARD_TIERS", "[", "GPUYARD_TIERS: is not JSON"),
    ],
)
def test_a_mistake_in_the_environment_is_named(home, monkeypatch, name, value, said):
    monkeypatch.setenv(name, value)
    assert said in refused(home)


def test_one_home_leaves_no_trace_in_the_next(home, tmp_path):
    home.settings.write_text("[server]\nport = 8400\n")
    assert load_settings(home).server.port == 8400
    assert load_settings(Home(tmp_path / "other")).server.port == 0


def test_the_port_for_tools_is_of_this_machine_alone(home):
    home.settings.write_text('[server]\ntools_listen = "0.0.0.0:8401"\n')
    assert "server.tools_listen: '0.0.0.0:8401' is reached" in refused(home)
    home.settings.write_text('[server]\ntools_listen = "127.0.0.1:8401"\n')
    assert load_settings(home).server.tools_listen == "127.0.0.1:8401"


@pytest.mark.parametrize(
    "url",
    [
        *("", "tools", "ftp://a", "https://a/b", "https://a@b", "https://a?b"),
        *("https://10.0.0.1", "https://*.a.example", "https://a:x", "https://["),
    ],
)
def test_what_jobs_serve_is_below_a_name(home, url):
    home.settings.write_text(f'[server]\ntools_url = "{url}"\n')
    assert "write one such as https://tools.example.org" in refused(home)


def test_what_jobs_serve_is_reached_with_tls(home):
    home.settings.write_text('[server]\ntools_url = "http://a.example"\n')
    assert "server.tools_url: 'http://a.example' has no TLS" in refused(home)
    for url in ("http://localhost:8401", "https://Tools.example.org:443/"):
        home.settings.write_text(f'[server]\ntools_url = "{url}"\n')
        assert load_settings(home).server.tools_url == url


@pytest.mark.parametrize("host", ["gpuyard.example.org", "10.0.0.5", "fd00::5"])
def test_machines_reach_the_server_by_a_name_or_an_address(home, host):
    home.settings.write_text(f'[server]\nagents_host = "{host}"\n')
    assert load_settings(home).server.agents_host == host


@pytest.mark.parametrize("host", ["", "10.0.0.5:7433", "https://a", "-a", "a b", "::g"])
def test_what_is_no_host_is_refused(home, host):
    home.settings.write_text(f'[server]\nagents_host = "{host}"\n')
    refusal = refused(home)
    assert ": server.agents_host" in refusal
    assert "is neither the name of a host nor an address" in refusal


_POOL = '[providers.slurm]\n[pools.warm]\nprovider = "slurm"\n'
_DOOR = '[server]\nagents_listen = "0.0.0.0:7433"\n'


def test_a_pool_is_read(home):
    home.settings.write_text(f'{_DOOR}{_POOL}idle = "5m"\nmax = 4\nmax_price = 1.5\n')
    pool = load_settings(home).pools["warm"]
    assert (pool.min, pool.max, pool.idle) == (0, 4, 300.0)
    assert pool.max_price == Decimal("1.5")


@pytest.mark.parametrize(
    ("text", "field", "said"),
    [
        (_POOL, "server.agents_listen", "is missing, and the nodes of the pool warm"),
        (f"{_DOOR}{_POOL}min = 3\nmax = 2", "pools.warm.min", "is 3, and max is 2"),
        (f"{_DOOR}{_POOL}mx = 2", "pools.warm.mx", "max"),
        (
            f'{_DOOR}[pools.warm]\nprovider = "aws"',
            "pools.warm.provider",
            "there is no section [providers.aws]",
        ),
        (
            f'{_DOOR}[pools.Warm]\nprovider = "a"',
            "pools.Warm",
            "not the name of a pool",
        ),
    ],
)
def test_a_pool_that_cannot_be_is_refused_with_its_setting(home, text, field, said):
    home.settings.write_text(text)
    refusal = refused(home)
    assert f": {field}" in refusal
    assert said in refusal
