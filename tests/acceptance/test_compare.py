"""The curves of several jobs side by side."""

from tests.support.instance import TestInstance

PROGRAM = "for i in 1 2 3; do echo step $i loss $((9 - i)).{i} acc 0.$i; done"


def test_i_compare_the_curves_of_jobs(shared_instance: TestInstance) -> None:
    instance = shared_instance
    for name in ("first", "second"):
        program = PROGRAM.replace("{i}", "5" if name == "first" else "0")
        instance.ok("run", "--name", name, "--", "sh", "-c", program)
    instance.ok("run", "--name", "silent", "--", "true")
    told = instance.ok("compare", "first", "second", "silent").splitlines()
    assert told[0] == "acc"
    assert "A first  B second" in "\n".join(told)
    row = next(line for line in told if line.startswith("loss") and "second" in line)
    assert row.split() == ["loss", "B", "second", "3", "6", "6", "8"]

    document = instance.json("compare", "first", "second", "--metric", "loss")
    (item,) = document["items"]
    assert [curve["values"] for curve in item["curves"]] == [
        [8.5, 7.5, 6.5],
        [8.0, 7.0, 6.0],
    ]
    assert item["curves"][0]["steps"] == [1, 2, 3]

    wrote = instance.ok("compare", "first", "second", "--html", "curves.html")
    assert wrote == "wrote curves.html\n"
    page = (instance.work / "curves.html").read_text()
    assert page.count("<polyline") == 4

    assert "None of them shows a metric." in instance.ok("compare", "silent")
    missing = instance.run("compare", "first", "--metric", "los")
    assert (missing.returncode, missing.stdout) == (3, "")
    assert "None of these jobs shows los." in missing.stderr
    assert instance.run("compare", "nobody").returncode == 3
    refused = instance.run("compare", *map(str, range(27)))
    assert "at most 26" in refused.stderr
