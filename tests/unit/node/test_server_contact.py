"""When the server last said something, as it is kept in files."""

import time

from gpuyard.config.boot_clock import boot_clock_s
from gpuyard.node.link import Heartbeat
from gpuyard.node.server_contact import ServerContact


class Heard(Heartbeat):
    """The heartbeats of a link on which something was received at `at`."""

    def __init__(self, at):
        self.at = at

    @property
    def last_received_at(self):
        return self.at


def test_what_ends_a_rented_machine_reads_the_boot_clock(tmp_path):
    file = tmp_path / "heartbeat"
    contact = ServerContact(tmp_path / "heard", file)
    contact.note()
    assert not file.exists()  # no server has answered yet

    before = boot_clock_s()
    heard = Heard(time.monotonic() - 7)
    contact.welcomed(heard)
    after = boot_clock_s()
    text = file.read_text()
    assert before - 7.1 < float(text) < after - 6.9
    assert text.endswith("\n")

    heard.at += 3
    contact.link_ended()
    last = float(file.read_text())
    assert last > float(text)
    contact.note()
    assert float(file.read_text()) == last
    assert contact.silent_s() >= 4


def test_a_count_goes_on_after_the_agent_was_killed(tmp_path):
    contact = ServerContact(tmp_path / "heard")
    contact.welcomed(Heard(time.monotonic() - 50))
    assert ServerContact(tmp_path / "heard").silent_s() >= 50


def test_a_file_that_cannot_be_written_ends_no_agent(tmp_path):
    contact = ServerContact(tmp_path / "no" / "heard", tmp_path / "no" / "heartbeat")
    contact.welcomed(Heard(time.monotonic()))
    contact.note()
