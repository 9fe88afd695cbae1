"""`[notify]`: what may be configured, and the one error for what may not, which shows
nothing that may be secret.
"""

from pathlib import Path

import pytest

from gpuyard.config.paths import Home
from gpuyard.config.settings import load_settings
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.events import EventKind
from gpuyard.domain.webhooks import WebhookFormat
from gpuyard.notify.mailbox import read_mail_server, read_mailboxes
from gpuyard.notify.webhook import read_webhooks

HOOK = "[[notify.webhooks]]\n"
URL = 'url = "https://hooks.example.org/x"\n'


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.delenv("GPUYARD_CONFIG", raising=False)
    return Home(tmp_path)


def test_an_address_is_enough(home):
    home.settings.write_text(HOOK + URL)
    (hook,) = load_settings(home).notify.webhooks
    assert (hook.format, hook.project, hook.secret_env) == (WebhookFormat.JSON, "", "")
    jobs = {EventKind.JOB_FAILED, EventKind.JOB_TIMED_OUT}
    places = {
        EventKind.DISK_FILLING,
        EventKind.WORKSPACE_EXPIRES,
        EventKind.PROVIDER_DOWN,
        EventKind.PROVIDER_UP,
    }
    assert hook.kinds == jobs | places
    assert "example.org" not in repr(hook)


def test_patterns_mean_kinds_of_the_journal(home):
    home.settings.write_text(HOOK + URL + 'events = ["job.c*", "*.started"]\n')
    (hook,) = load_settings(home).notify.webhooks
    assert hook.kinds == {
        "job.completed",
        "job.cancelled",
        "job.cancel_requested",
        "attempt.started",
        "item.started",
        "schedule.started",
    }
    home.settings.write_text(HOOK + URL + 'events = ["*"]\n')
    assert load_settings(home).notify.webhooks[0].kinds == set(EventKind) - {
        EventKind.JOB_PROGRESS
    }


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            HOOK + 'url = "ftp://u:hunter2@h/x"\n',
            "notify.webhooks.0.url: is no address of http or https (write http://",
        ),
        (
            HOOK + 'url = "hunter2"\n',
            "notify.webhooks.0.url: is no address of http or https",
        ),
        (
            HOOK + 'url = "https://h:99999/hunter2"\n',
            "notify.webhooks.0.url: is no address of http or https",
        ),
        (
            HOOK + 'url = "https:///hunter2"\n',
            "notify.webhooks.0.url: is no address of http or https",
        ),
        (
            HOOK + 'url = "https://h/ hunter2"\n',
            "notify.webhooks.0.url: is no address of http or https",
        ),
        (
            HOOK + 'url = ["https://h/hunter2"]\n',
            "notify.webhooks.0.url: is no text (write http://",
        ),
        (HOOK + "project = 'p'\n", "notify.webhooks.0.url: is missing"),
        (
            '[notify]\nwebhooks = ["https://h/hunter2"]\n',
            "notify.webhooks.0: is no table (write [[notify.webhooks]]",
        ),
        (
            '[notify]\nwebhooks = "https://h/hunter2"\n',
            "notify.webhooks: is no list (write [[notify.webhooks]]",
        ),
        (
            "[notify.webhooks]\n" + URL,
            "notify.webhooks: is no list (write [[notify.webhooks]]",
        ),
        (
            HOOK + URL + 'events = ["job.fail"]\n',
            "notify.webhooks.0.events.0: 'job.fail' matches no event",
        ),
        (HOOK + URL + 'events = ["job.fail"]\n', "such as job.failed"),
        (
            HOOK + URL + 'events = ["job.progress"]\n',
            "notify.webhooks.0.events.0: 'job.progress' matches no event",
        ),
        (
            HOOK + URL + 'events = "job.*"\n',
            "notify.webhooks.0.events: is 'job.*' (must be a list",
        ),
        (
            HOOK + URL + "events = []\n",
            "notify.webhooks.0.events: is empty (name at least one",
        ),
        (
            HOOK + URL + 'secret_env = "hunter2"\n',
            "notify.webhooks.0.secret_env: names no variable of gpuyard's own",
        ),
        (
            HOOK + URL + 'secret = "x"\n',
            "notify.webhooks.0.secret: is not a field (did you mean secret_env",
        ),
        (
            HOOK + URL + 'format = "xml"\n',
            "notify.webhooks.0.format: is 'xml' (must be one of 'json' or 'slack')",
        ),
        (HOOK + URL + HOOK + 'url = ""\n', "notify.webhooks.1.url: is no address"),
    ],
)
def test_a_mistake_is_named_and_no_secret_shown(home, text, said):
    home.settings.write_text(text)
    with pytest.raises(InvalidInputError) as caught:
        load_settings(home)
    message = str(caught.value)
    assert said in message
    assert len(caught.value.faults) == 1
    assert "hunter2" not in message


def test_webhooks_may_come_from_the_environment(home, monkeypatch):
    monkeypatch.setenv(
        "GPUYARD_NOTIFY__WEBHOOKS",
        '[{"url": "https://hooks.example.org/from-a-secret"}]',
    )
    assert load_settings(home).notify.webhooks[0].url.endswith("from-a-secret")
    monkeypatch.setenv("GPUYARD_NOTIFY__WEBHOOKS", '[{"url": "hunter2"}]')
    with pytest.raises(InvalidInputError, match="GPUYARD_NOTIFY__WEBHOOKS"):
        load_settings(home)


def test_a_key_that_is_not_there_is_an_error(home):
    home.settings.write_text(HOOK + URL + 'secret_env = "GPUYARD_HOOK_KEY"\n')
    specs = load_settings(home).notify.webhooks
    with pytest.raises(
        InvalidInputError,
        match=r"notify\.webhooks\.0\.secret_env: GPUYARD_HOOK_KEY is not set",
    ):
        read_webhooks(specs, {})
    (hook,) = read_webhooks(specs, {"GPUYARD_HOOK_KEY": "hunter2"})
    assert hook.secret == b"hunter2"
    assert "hunter2" not in repr(hook)


def test_webhooks_of_one_address_are_told_apart_and_known_again(home):
    home.settings.write_text(
        (HOOK + URL) * 2 + HOOK + 'url = "https://user:hunter2@h.example/p?q=hunter2"\n'
    )
    hooks = read_webhooks(load_settings(home).notify.webhooks, {})
    assert len({hook.id for hook in hooks}) == 3
    assert hooks == read_webhooks(load_settings(home).notify.webhooks, {})
    assert hooks[2].label == "notify.webhooks.2 at h.example"
    assert "hunter2" not in repr(hooks)


EMAIL = '[notify.email]\nhost = "smtp.example.org"\nfrom = "g@example.org"\n'


def test_an_email_needs_a_host_a_sender_and_who_gets_it(home):
    home.settings.write_text(EMAIL + 'to = ["a@example.org", "b@example.org"]\n')
    spec = load_settings(home).notify.email
    one, other = read_mailboxes(spec, {})
    assert (one.address, other.address) == ("a@example.org", "b@example.org")
    assert one.id != other.id
    assert (one.server.port, one.server.security) == (587, "starttls")


def test_without_an_address_only_those_whom_jobs_name_get_emails(home):
    home.settings.write_text(EMAIL)
    spec = load_settings(home).notify.email
    assert read_mailboxes(spec, {}) == ()
    assert read_mail_server(spec, {}).host == spec.host


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("to = []\n", "notify.email.to: is empty"),
        ('to = "Ana <a@example.org>"\n', "is no plain address"),
        ('to = "a@example.org\\r\\nRCPT"\n', "is no plain address"),
        ('to = "a@h"\ntls = "ssl"\n', "notify.email.tls"),
        ('to = "a@h"\nuser = "u"\n', "notify.email.password_env: is missing"),
        (
            'to = "a@h"\nuser = "u"\npassword_env = "GPUYARD_P"\ntls = "none"\n',
            "notify.email.tls: is none, so that all between could read the password",
        ),
        ('to = "a@h"\npassword_env = "HOME"\n', "notify.email.password_env"),
        ('to = "a@h"\nevents = ["job.exploded"]\n', "matches no event"),
    ],
)
def test_what_an_email_may_not_say(home, text, said):
    home.settings.write_text(EMAIL + text)
    with pytest.raises(InvalidInputError) as refused:
        load_settings(home)
    assert said in str(refused.value)


def test_a_password_comes_from_the_environment_and_is_shown_nowhere(home):
    more = 'to = "a@example.org"\nuser = "u"\npassword_env = "GPUYARD_P"\n'
    home.settings.write_text(EMAIL + more)
    spec = load_settings(home).notify.email
    (mailbox,) = read_mailboxes(spec, {"GPUYARD_P": "hunter2"})
    assert mailbox.server.password == "hunter2"
    assert "hunter2" not in repr(mailbox)
    with pytest.raises(InvalidInputError, match="GPUYARD_P is not set"):
        read_mailboxes(spec, {})
