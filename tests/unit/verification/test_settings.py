"""The section `[verification]`: its defaults, and the one clear error of each
mistake.
"""

import sys
import types
from pathlib import Path

import pytest

from gpuyard.config.paths import Home
from gpuyard.config.settings import Settings, load_settings
from gpuyard.domain.errors import InvalidInputError
from gpuyard.verification.executors import judging_executors
from gpuyard.verification.generators import TrustedGenerator, load_generator


def load(tmp_path: Path, text: str) -> Settings:
    (tmp_path / "gpuyard.toml").write_text(text)
    return load_settings(Home(tmp_path))


def test_the_numbers_are_the_seeds():
    policy = Settings().verification
    assert (
        policy.max_series,
        policy.series_per_run,
        policy.surplus,
        policy.target,
    ) == (3500, 25, 10, 1536)
    assert (
        policy.prompts_per_series,
        policy.answer_budget_s,
        policy.answer_limit_s,
    ) == (1, 260, 300)
    assert (policy.generate_every_s, policy.answer_every_s, policy.sample_every_s) == (
        300,
        300,
        1800,
    )
    assert policy.keep_s == 2 * 86400
    assert policy.executors == {} and policy.database is None


def test_executors_are_read_as_people_write_them(tmp_path: Path):
    found = load(
        tmp_path,
        """
[verification]
target = 12
keep_s = "3d"
database = "postgresql://u:p@host/db"
[verification.executors.rented]
class = "a6000"
provider = "slurm"
provider_options = {partition = "gpu"}
gpu = "GPU-1"
cpus = 4
solver = "/opt/gpuyard/solver/solve.py"
stream = false
[verification.executors.rented.engine]
kind = "vllm"
model = "some/model"
options = {max_model_len = 2048}
[verification.executors.mine]
class = "a6000"
trusted = true
""",
    ).verification
    assert (found.target, found.keep_s) == (12, 3 * 86400)
    rented = found.executors["rented"]
    assert (rented.gpu_class, rented.provider, rented.gpu, rented.stream) == (
        "a6000",
        "slurm",
        "GPU-1",
        False,
    )
    assert (rented.cpus, found.executors["mine"].cpus) == (4, None)
    assert (rented.solver, found.executors["mine"].solver) == (
        "/opt/gpuyard/solver/solve.py",
        None,
    )
    assert rented.engine.kind == "vllm" and rented.engine.options == {
        "max_model_len": 2048
    }
    assert found.executors["mine"].trusted and not rented.trusted
    assert "p@host" not in repr(found)


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        (
            "[verification]\ntargets = 1",
            "targets",
            "is not a field (did you mean target",
        ),
        ("[verification]\ntarget = 0", "target", "must be at least 1"),
        ("[verification]\nprompts_per_series = 2", "prompts_per_series", "must be 1"),
        ("[verification]\nkeep_s = 'long'", "keep_s", "is not a duration"),
        (
            "[verification]\nkeep_events_s = 60",
            "keep_events_s",
            "must be at least 86400",
        ),
        (
            "[verification]\ndatabase = 'mysql://x/y'",
            "database",
            "is no PostgreSQL address (write postgresql://",
        ),
        (
            "[verification]\ngenerator = 'mine'",
            "generator",
            "'mine' is not module:Class (write one such as",
        ),
        ("[verification.executors.x]\n", "executors.x.class", "is missing"),
        (
            "[verification.executors.x]\nclass = 'a6000'\ngpus = 1",
            "executors.x.gpus",
            "did you mean gpu",
        ),
        (
            "[verification.executors.x]\nclass = 'a6000'\ncls = 1",
            "executors.x.cls",
            "did you mean class",
        ),
        (
            "[verification.executors.x]\nclass = 'a6000'\nsolver = 'solve.py'",
            "executors.x.solver",
            "'solve.py' is no absolute path (write one such as /opt/",
        ),
        (
            "[verification.executors.x]\nclass = 'a6000'\nengine = {kind = 'gpt'}",
            "executors.x.engine.kind",
            "'mock'",
        ),
        (
            "[verification.executors.x]\nclass = 'a6000'\nengine = {modle = 'm'}",
            "x.engine.modle",
            "did you mean model",
        ),
        (
            (
                "[verification.executors.x]\nclass = 'a6000'\nengine = {options ="
                " {api_key = 's'}}"
            ),
            "engine.options.api_key",
            "is a secret, which no file should hold",
        ),
    ],
)
def test_a_mistake_is_told_with_its_field(
    tmp_path: Path, text: str, field: str, words: str
):
    with pytest.raises(InvalidInputError) as caught:
        load(tmp_path, text)
    (fault,) = caught.value.faults
    assert fault.field.endswith(field) and words in str(fault), str(fault)


class Mine:
    generator_version = 7
    needs_trusted = False

    async def generate(
        self, cls: object, count: int, series: int, trusted: object
    ) -> list[list[str]]:
        return []


def test_a_generator_is_loaded_by_its_name(monkeypatch: pytest.MonkeyPatch):
    assert isinstance(load_generator(None), TrustedGenerator)
    monkeypatch.setitem(
        sys.modules, "mine_prompts", module := types.ModuleType("mine_prompts")
    )
    module.Generator = Mine  # type: ignore[attr-defined]
    assert load_generator("mine_prompts:Generator").generator_version == 7
    for name, words in (
        ("mine_prompts:Other", "has no attribute"),
        ("no_such:X", "No module named"),
        ("pathlib:Path", "has no `generator_version`"),
    ):
        with pytest.raises(InvalidInputError, match=words) as caught:
            load_generator(name)
        assert caught.value.faults[0].field == "verification.generator"


TOLERANT = """
[verification.executors.own]
class = "a6000"
trusted = true
engine = {{kind = "{engine}"}}
[verification.tolerances.a6000]
accept_unknown_draws = {accept}
"""


def test_only_of_vllm_it_can_be_accepted_that_it_does_not_know_the_draws(
    tmp_path: Path,
):
    for engine, accept in (("vllm", "true"), ("transformers", "false")):
        text = TOLERANT.format(engine=engine, accept=accept)
        judges = judging_executors(load(tmp_path, text).verification)
        assert [one.name for one in judges.values()] == ["own"]


@pytest.mark.parametrize(
    ("engine", "accept", "field", "words"),
    [
        (
            "transformers",
            "true",
            "verification.tolerances.a6000.accept_unknown_draws",
            "the engine transformers of own can tell which tokens a seed gives",
        ),
        (
            "openai",
            "false",
            "verification.tolerances.a6000",
            "the engine openai of own has none",
        ),
    ],
)
def test_a_tolerance_that_makes_no_sense_for_the_engine_is_refused(
    tmp_path: Path, engine: str, accept: str, field: str, words: str
):
    settings = load(tmp_path, TOLERANT.format(engine=engine, accept=accept))
    with pytest.raises(InvalidInputError) as caught:
        judging_executors(settings.verification)
    (fault,) = caught.value.faults
    assert fault.field == field and words in fault.fault
