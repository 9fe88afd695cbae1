"""The pages of trackers that a job names, and a tracker that never answers."""

import socket
import textwrap

from tests.support.instance import TestInstance

RUN = "0123456789abcdef0123456789abcdef"
# It takes a connection, and says nothing: as a tracker does that hangs.
PROGRAM = """
import socket
with socket.create_connection(("127.0.0.1", PORT)):
    print("View run at http://127.0.0.1:PORT/#/experiments/1/runs/RUN", flush=True)
    print("step 1 loss 0.5")
"""


def test_a_tracker_that_hangs_concerns_nobody_and_its_page_is_shown(
    instance: TestInstance,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as tracker:
        port = tracker.getsockname()[1]
        url = f"http://127.0.0.1:{port}/#/experiments/1/runs/{RUN}"
        program = instance.work / "train.py"
        text = PROGRAM.replace("PORT", str(port)).replace("RUN", RUN)
        program.write_text(textwrap.dedent(text))
        tracked = {"MLFLOW_TRACKING_URI": f"http://127.0.0.1:{port}"}
        instance.ok("run", "--name", "tracked", "train.py", env=tracked)
        page = {"tracker": "mlflow", "run": RUN, "url": url}
        job = instance.json("show", "tracked")
        assert job["progress"]["links"] == [page]
        assert job["progress"]["metrics"] == {"loss": 0.5}
        assert instance.json("record", "tracked")["links"] == [page]
        lines = instance.ok("show", "tracked").splitlines()
        assert ["trackers", url] in [line.split() for line in lines]
        assert instance.json("trackers", "tracked")["links"] == [page]
        instance.ok("trackers", "tracked", "--sync")  # it is one's own
        # Only the program itself has asked the tracker.
        tracker.accept()[0].close()
        tracker.settimeout(0)
        try:
            tracker.accept()
        except BlockingIOError:
            return
        raise AssertionError("gpuyard has asked the tracker")
