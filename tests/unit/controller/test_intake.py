"""Intake: jobs that are submitted together, their parents, their tiers."""

from pathlib import Path

import msgspec
import pytest

from gpuyard.controller.intake import (
    VARYING,
    Intake,
    PreparedJob,
    refuse_shared_keys,
)
from gpuyard.controller.parents import find_parents
from gpuyard.domain.errors import InvalidInputError
from gpuyard.domain.jobspec import JobSpec
from gpuyard.domain.shape import Shape
from gpuyard.domain.tiers import Tier, Tiers
from gpuyard.domain.validation import parse_spec

MANY = [f"job_{n}" for n in range(100_001)]
KNOWN = {"job_old": ["job_old"], "old": ["job_old"], "many": MANY}


def take(*bodies, tiers=None) -> list[PreparedJob]:
    intake = Intake(tiers or Tiers())
    jobs = [intake.read(msgspec.Raw(msgspec.json.encode(body)))[0] for body in bodies]
    refuse_shared_keys(jobs)
    find_parents(jobs, KNOWN.get)
    return jobs


def spec_of(item: PreparedJob) -> JobSpec:
    return parse_spec(item.spec())


def refused(*bodies, tiers=None) -> InvalidInputError:
    with pytest.raises(InvalidInputError) as caught:
        take(*bodies, tiers=tiers)
    return caught.value


def job(name="job", **fields):
    return {"name": name, "command": ["true"], **fields}


def test_jobs_get_ids_in_the_order_they_came():
    prepared = take(*(job(str(n)) for n in range(50)))
    ids = [item.id for item in prepared]
    assert ids == sorted(set(ids))
    assert [item.name for item in prepared] == [str(n) for n in range(50)]


def test_few_jobs_may_wait_for_many_and_many_for_few():
    (few,) = take(job(depends_on=["many"]))
    assert len(few.parents) == len(MANY)
    (fault,) = refused(*(job(str(n), depends_on=["many"]) for n in range(10))).faults
    assert fault.field == "depends_on"
    assert fault.fault.startswith("makes 1,000,010 pairs of jobs")


def test_parents_are_siblings_first_then_known_jobs():
    first, second, third = take(
        job("a"), job("b", depends_on=["a", "old"]), job("c", depends_on=["job_old"])
    )
    assert first.parents == ()
    assert second.parents == (first.id, "job_old")
    assert third.parents == ("job_old",)


def test_a_child_may_come_before_its_parent():
    child, parent = take(job("b", depends_on=["a"]), job("a"))
    assert child.parents == (parent.id,)


def test_a_circle_is_named():
    error = refused(
        job("a", depends_on=["c"]),
        job("b", depends_on=["a"]),
        job("c", depends_on=["b"]),
    )
    (fault,) = error.faults
    assert fault.field == "depends_on"
    assert fault.fault.startswith("goes in a circle: ")
    assert {"a", "b", "c"} <= set(fault.fault.split())


def test_a_job_cannot_wait_for_itself():
    assert "goes in a circle: a → a" in str(refused(job("a", depends_on=["a"])))


def test_an_unknown_parent_is_named():
    assert "depends_on: there is no job 'nobody'" in str(
        refused(job(depends_on=["nobody"]))
    )


def test_a_name_that_two_siblings_share_is_no_parent():
    error = refused(job("a"), job("a"), job("b", depends_on=["a"]))
    assert (
        "depends_on: 'a' is the name of 2 jobs of this submission (give each a name of"
        " its own)" in str(error)
    )


def test_one_key_for_two_jobs_is_refused():
    error = refused(
        job("a", idempotency_key="k"), job("b"), job("c", idempotency_key="k")
    )
    assert "2.idempotency_key: 'k' is also that of job 0" in str(error)


@pytest.mark.parametrize(
    ("body", "field", "said"),
    [
        (job(image="pytorch:latest"), "image", "nothing here runs containers"),
        (job(volumes={"/data": "/host"}), "volumes", "the job names no image"),
    ],
)
def test_what_cannot_be_done_here_is_refused_and_not_misread(body, field, said):
    (fault,) = refused(body).faults
    assert fault.field == field
    assert said in fault.fault


def test_an_s2_config_is_taken_with_warnings():
    (item,) = take(
        {
            "name": "a",
            "image": "pytorch:latest",
            "command": ["x"],
            "gpu_spec": {"gpu_type": "A100"},
            "environment": {"CUDA_VISIBLE_DEVICES": "0"},
            "volumes": {"/data": "/host/data"},
        }
    )
    assert spec_of(item).resources.gpus.count == 1
    assert [warning.split()[0] for warning in item.template.warnings] == [
        "environment.CUDA_VISIBLE_DEVICES",
        "image",
        "volumes",
    ]


def test_pinned_devices_are_flagged():
    (item,) = take(job(resources={"gpus": {"count": 1, "uuid": ["GPU-1"]}}))
    assert "pins devices" in item.template.warnings[0]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"tier": "gpu_small"}, (4, 16, 1, 16, 7200)),
        ({"tier": "CPU_LARGE"}, (2, 4, 0, None, 600)),
        ({"tier": "GPU_SMALL", "timeout_s": 60}, (4, 16, 1, 16, 60)),
        (
            {"tier": "GPU_SMALL", "resources": {"cpus": 1, "memory_gb": 2}},
            (1, 2, 1, 16, 7200),
        ),
        (
            {"tier": "GPU_LARGE", "resources": {"gpus": {"count": 2}}},
            (8, 32, 2, 24, 86400),
        ),
        (
            {"tier": "GPU_LARGE", "resources": {"gpus": {"memory_gb": 10}}},
            (8, 32, 1, 10, 86400),
        ),
        (
            {"tier": "GPU_LARGE", "resources": {"gpus": {"gpu_class": "t4"}}},
            (8, 32, 1, None, 86400),
        ),
    ],
)
def test_a_tier_fills_in_what_is_left_open(fields, expected):
    (item,) = take(job(**fields))
    spec = spec_of(item)
    need = spec.resources
    assert (
        need.cpus,
        need.memory_gb,
        need.gpus.count,
        need.gpus.memory_gb,
        spec.timeout_s,
    ) == expected
    assert (spec.tier, item.template.timeout_s) == (
        fields["tier"].upper(),
        spec.timeout_s,
    )
    assert item.template.shape == Shape.of(spec)


def test_a_tier_whose_gpus_have_no_size_asks_for_none():
    bare = Tier(
        id="BARE",
        name="",
        description="",
        cpu=1,
        memory_gb=1,
        gpu_count=1,
        max_runtime_s=60,
        cost_per_hour=1,
    )
    (item,) = take(job(tier="BARE"), tiers=Tiers([bare]))
    assert (
        spec_of(item).resources.gpus.count,
        spec_of(item).resources.gpus.memory_gb,
    ) == (1, None)


def test_an_unknown_tier_is_named_with_the_nearest():
    assert "tier: there is no tier 'GPU_HUGE' (nearest: GPU_" in str(
        refused(job(tier="GPU_HUGE"))
    )


# --- templates: the second job of a kind is read on another way than the first, and
# must come out the same ---

FIRST = {
    "name": "first",
    "command": ["a", "b"],
    "priority": 4,
    "timeout_s": "2h",
    "labels": {"x": "y"},
    "resources": {"memory_gb": "16GB", "gpus": 1},
    "environment": {"PATH": "/bin"},
}


@pytest.mark.parametrize(
    "own",
    [
        {},
        {"name": "second"},
        {"name": "x" * 200, "command": ["c"], "labels": {"ä": "ö", "k": "v"}},
        {
            "command": ["a", "", "\n\u20ac"],
            "labels": {},
            "idempotency_key": "k",
            "depends_on": ["old"],
        },
        {"idempotency_key": None, "depends_on": []},
        {"stdin": "read \u20ac me\0"},
        {"stdin": ""},
    ],
)
def test_a_job_of_a_known_template_is_what_the_model_makes_of_it(own):
    body = (
        {name: value for name, value in FIRST.items() if name not in VARYING}
        | {"command": ["a"]}
        | own
    )
    _, item = take(FIRST, body)
    assert item.spec() == parse_spec(body).model_dump(
        mode="json", exclude_defaults=True
    )
    (alone,) = take(body)
    assert item.template is not alone.template
    for field in ("name", "labels", "key", "references", "parents", "body"):
        assert getattr(item, field) == getattr(alone, field), field


def test_jobs_that_differ_only_in_what_may_vary_share_a_template():
    jobs = take(
        *(
            {
                **FIRST,
                "name": f"n{n}",
                "command": ["c", str(n)],
                "stdin": f"{n}",
                "labels": {"n": str(n)},
            }
            for n in range(3)
        )
    )
    assert len({job.template for job in jobs}) == 1
    other, s2 = take(
        {**FIRST, "priority": 5}, {"name": "a", "command": ["x"], "gpu_spec": {}}
    )
    assert len({job.template for job in (*jobs, other, s2)}) == 3


@pytest.mark.parametrize(
    ("own", "field"),
    [
        ({"name": ""}, "name"),
        ({"name": "x" * 201}, "name"),
        ({"name": "a\tb"}, "name"),
        ({"name": None}, "name"),
        ({"command": []}, "command"),
        ({"command": [""]}, "command"),
        ({"command": ["a", "b\0"]}, "command.1"),
        ({"command": "a b"}, "command"),
        ({"command": ["a", 1]}, "command.1"),
        ({"stdin": ["a"]}, "stdin"),
        ({"labels": {"k": ""}}, "labels.k"),
        ({"labels": {"k": "a\nb"}}, "labels.k"),
        ({"labels": {"": "v"}}, "labels."),
        ({"labels": None}, "labels"),
        ({"depends_on": "old"}, "depends_on"),
        ({"depends_on": ["a\0"]}, "depends_on.0"),
        ({"idempotency_key": ""}, "idempotency_key"),
        ({"idempotency_key": "\u202e"}, "idempotency_key"),
        ({"nmae": "x"}, "nmae"),
    ],
)
def test_a_known_template_lets_nothing_through_and_words_it_the_same(own, field):
    error = refused(FIRST, {**FIRST, **own})
    assert [fault.field for fault in error.faults] == [field]
    assert str(error) == str(refused({**FIRST, **own}))


def test_templates_do_not_pile_up():
    intake = Intake(Tiers())
    for n in range(1000):
        intake.read(msgspec.Raw(msgspec.json.encode(job(timeout_s=n + 1))))
    assert len(intake._templates) <= 256


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"[" * 5000, "is nested too deeply"),
        (b"nul", "is not JSON"),
        (b'{"command":["\xff"]}', "is not JSON"),
        (b"7", "is int, not an object"),
        (b"null", "is NoneType"),
    ],
)
def test_what_is_no_job_at_all_is_named(text, fault):
    with pytest.raises(InvalidInputError) as caught:
        Intake(Tiers()).read(msgspec.Raw(text))
    assert caught.value.faults[0].fault.startswith(fault)


def test_how_a_program_is_told_to_resume_is_said_of_that_program_only(
    tmp_path: Path,
) -> None:
    (tmp_path / "told.py").write_text("parser.add_argument('--resume')")
    (tmp_path / "other.py").write_text("print()")
    fields = {"workdir": str(tmp_path), "checkpoint": {"path": "*.pt"}}
    commands = (["python", "told.py"], ["python", "other.py"], ["python", "told.py"])
    taken = take(*(job(command=command, **fields) for command in commands))
    told = [
        "--resume-args '--resume {path}'" in " ".join(one.template.warnings)
        for one in taken
    ]
    assert told == [True, False, True]
    fields["checkpoint"] = {"path": "*.pt", "resume_args": ["--resume", "{path}"]}
    (silent,) = take(job(command=commands[0], **fields))
    assert not silent.template.warnings


def test_the_server_says_who_submits():
    intake = Intake(Tiers())
    body = msgspec.Raw(msgspec.json.encode(job()))
    users = [intake.read(body, user)[0].spec().get("user") for user in ("ann", "bob")]
    assert users == ["ann", "bob"]
    assert "user" not in intake.read(body)[0].spec()


@pytest.mark.parametrize("user", ["ann", ""])
def test_nobody_says_who_submits(user):
    assert "filled in by the server" in str(refused(job(user=user)))
