"""The solver with each engine: answers follow from the seed and the prompt, whatever
else is asked along with it.
"""

import base64
import json
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpuyard.config.verification import ExecutorSettings
from gpuyard.domain.gpus import GPUClass
from gpuyard.verification.answers import IncomingFile, read_series
from gpuyard.verification.executors import Executor
from gpuyard.verification.fingerprints import (
    Fingerprint,
    FingerprintError,
    PrintDifference,
    Sampling,
    difference,
    read_fingerprints,
    total,
)
from gpuyard.verification.protocol import (
    Failed,
    FingerprintsPiece,
    Hash,
    Ready,
    SeriesPiece,
    SolverTask,
)
from gpuyard.verification.solver.engines.fingerprints import UNKNOWN, pack_tokens
from gpuyard.verification.tolerance import all_are_right, one_is_right
from gpuyard.verification.tolerance_limits import limits_from
from tests.integration.studies.endpoint import (
    CUT,
    KEY,
    MODEL,
    Endpoint,
    Reply,
    fails,
    says,
    serve,
)
from tests.integration.verification.solvers import (
    PROMPTS,
    SOLVER,
    answers_in,
    messages_in,
    order,
    run,
    solved,
)
from tests.support import huggingface
from tests.support.programs import run_program

fast_trainer_python = huggingface.fast_trainer_python
PROGRAMS = Path(__file__).parent / "solver_programs"
FAKE_VLLM = PROGRAMS / "fake_vllm"
TINY_LLAMA = Path(__file__).parents[2] / "support/tiny_llama.py"

# --- an endpoint ---


@pytest.fixture
def endpoint() -> Iterator[Endpoint]:
    with serve() as one:
        yield one


def asks(endpoint: Endpoint, **engine: Any) -> dict[str, Any]:
    return order(
        engine={
            "kind": "openai",
            "url": endpoint.url,
            "model": MODEL,
            "wait_s": 0,
            **engine,
        }
    )


ENVIRONMENT = {"OPENAI_API_KEY": KEY, "no_proxy": "127.0.0.1"}


def test_an_endpoint_is_asked_all_prompts_at_once_each_with_a_seed_of_its_own(
    endpoint: Endpoint,
) -> None:
    endpoint.answer = lambda prompt, _: says(f"Answer to {prompt}")
    assert solved(asks(endpoint), environment=ENVIRONMENT) == {
        prompt: f"Answer to {prompt}" for prompt in PROMPTS
    }
    first = {one["messages"][0]["content"]: one for one in endpoint.requests}
    assert set(first) == set(PROMPTS)
    for one in first.values():
        assert one["model"] == MODEL
        assert (one["temperature"], one["top_p"], one["max_tokens"], one["n"]) == (
            0.5,
            0.8,
            16,
            1,
        )
        assert 0 <= one["seed"] < 2**31
    assert len({one["seed"] for one in first.values()}) == len(PROMPTS)
    endpoint.requests.clear()
    fewer = {**asks(endpoint), "prompts": PROMPTS[:2]}
    assert len(solved(fewer, environment=ENVIRONMENT)) == 2
    assert {one["messages"][0]["content"]: one for one in endpoint.requests} == {
        prompt: first[prompt] for prompt in PROMPTS[:2]
    }
    endpoint.requests.clear()
    solved({**asks(endpoint), "seed": 8}, environment=ENVIRONMENT)
    assert not {one["seed"] for one in endpoint.requests} & {
        one["seed"] for one in first.values()
    }


def test_all_requests_are_under_way_together(endpoint: Endpoint) -> None:
    """No answer comes before all have asked."""
    together = threading.Barrier(len(PROMPTS), timeout=30)

    def answer(prompt: str, _: int) -> Reply:
        together.wait()
        return says(prompt)

    endpoint.answer = answer
    assert len(solved(asks(endpoint), environment=ENVIRONMENT)) == len(PROMPTS)
    assert endpoint.most_at_once == len(PROMPTS)


def test_what_passes_is_tried_again_and_what_does_not_is_told(
    endpoint: Endpoint,
) -> None:
    passing = {1: fails(429), 2: CUT, 3: fails(503)}
    endpoint.answer = lambda prompt, number: (
        passing.get(number) or says(f"{prompt} {number}")
    )
    assert solved(asks(endpoint), environment=ENVIRONMENT) == {
        prompt: f"{prompt} 4" for prompt in PROMPTS
    }
    for reply, told in (
        (fails(400, "max_tokens is too large"), "the endpoint answers 400"),
        (fails(500, "on fire"), "the endpoint answers 500"),
        (Reply(200, b"hello"), "the endpoint gives no answer"),
        (
            Reply(200, b'{"choices": []}'),
            "does not answer as OpenAI's chat completions do",
        ),
    ):
        endpoint.answer = lambda prompt, number, reply=reply: reply
        code, output, _ = run(asks(endpoint), environment=ENVIRONMENT)
        assert code == 1
        message = messages_in(output)[-1]
        assert isinstance(message, Failed)
        assert told in message.reason
        assert KEY not in output


def test_no_content_is_an_empty_answer_and_half_a_surrogate_pair_a_question_mark(
    endpoint: Endpoint,
) -> None:
    endpoint.answer = lambda prompt, _: says(
        None if prompt == "Why?" else "half \ud83d"
    )
    found = solved(asks(endpoint), environment=ENVIRONMENT)
    assert found == {prompt: "" if prompt == "Why?" else "half ?" for prompt in PROMPTS}


def test_the_key_is_the_one_of_the_variable_that_the_order_names(
    endpoint: Endpoint,
) -> None:
    wanted = asks(endpoint, key_variable="MY_KEY")
    assert len(solved(wanted, environment={"MY_KEY": KEY, "no_proxy": "*"})) == len(
        PROMPTS
    )
    code, output, _ = run(wanted, environment={"MY_KEY": "wrong", "no_proxy": "*"})
    assert code == 1
    assert "401" in output


# --- vllm ---


def with_vllm(told: Path, **more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(FAKE_VLLM), "FAKE_VLLM": str(told), **more}


def test_vllm_gets_one_batch_with_a_seed_for_each_prompt(tmp_path: Path) -> None:
    options = {
        "dtype": "bfloat16",
        "gpu_memory_utilization": 0.8,
        "max_model_len": 2048,
    }
    settings = ExecutorSettings.model_validate(
        {
            "class": "a6000",
            "engine": {"kind": "vllm", "model": "/models/a", "options": options},
        }
    )
    engine = Executor("rented", GPUClass.A6000, settings).engine
    environment = with_vllm(tmp_path / "told")
    one = solved(order(engine=engine), environment=environment)
    told = json.loads((tmp_path / "told").read_text())
    assert told["model"] == "/models/a"
    assert {name: told[name] for name in options} == options
    assert told["max_num_seqs"] == len(PROMPTS)
    assert told["enable_prefix_caching"] is False
    assert told["environment"] == {
        "VLLM_BATCH_INVARIANT": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    }
    assert told["prompts"] == [[0, *prompt.encode()] for prompt in PROMPTS]
    sampling = [
        {name: value for name, value in one.items() if name != "seed"}
        for one in told["sampling"]
    ]
    assert sampling == [{"temperature": 0.5, "top_p": 0.8, "max_tokens": 16}] * len(
        PROMPTS
    )
    assert len({one["seed"] for one in told["sampling"]}) == len(PROMPTS)
    assert solved(order(engine=engine), environment=environment) == one
    assert solved(
        order(engine=engine, prompts=PROMPTS[3:]), environment=environment
    ) == {prompt: one[prompt] for prompt in PROMPTS[3:]}
    assert not set(
        solved(order(engine=engine, seed=8), environment=environment).values()
    ) & set(one.values())


def test_an_option_of_vllm_that_would_change_answers_is_refused(
    tmp_path: Path,
) -> None:
    engine = {"kind": "vllm", "model": "/models/a", "max_num_seqs": 8}
    code, output, _ = run(order(engine=engine), environment=with_vllm(tmp_path))
    assert code == 1
    assert "engine.options.max_num_seqs: is set by gpuyard" in output


def test_vllm_gets_prompts_in_the_models_form_for_chats(tmp_path: Path) -> None:
    engine = {"kind": "vllm", "model": "/models/a", "batch_invariant": False}
    environment = with_vllm(tmp_path / "told", FAKE_VLLM_CHAT="a form")
    claims = {"nonce": "00", "inventory": True}
    solved(order(engine=engine, claims=claims), environment=environment)
    told = json.loads((tmp_path / "told").read_text())
    assert told["prompts"] == [list(f"<user>{prompt}".encode()) for prompt in PROMPTS]
    assert told["environment"]["VLLM_BATCH_INVARIANT"] is None
    assert told["dtype"] == "auto"


def test_vllm_reads_given_tokens_and_says_what_was_likeliest(tmp_path: Path) -> None:
    """The fake's likeliest tokens follow from those before, so both sides agree."""
    engine = {"kind": "vllm", "model": "/models/a"}
    environment = with_vllm(tmp_path / "told")
    wanted = order(engine=engine, fingerprints=True)
    checked, prints = printed(wanted, environment)
    assert len(set(checked.values())) == len(PROMPTS)
    tokens = pack_tokens(one.tokens for one in prints)
    asked = sorted(PROMPTS)
    follow = {**wanted, "prompts": asked, "tokens": tokens}
    texts, followed = printed(follow, environment)
    assert texts == checked
    told = json.loads((tmp_path / "told").read_text())
    assert told["prompts"][0] == [0, *asked[0].encode(), *prints[0].tokens[:-1]]
    for one, other in zip(prints, followed, strict=True):
        assert (one.ids, one.logprobs) == (other.ids, other.logprobs)
        assert set(other.tokens) == {UNKNOWN}
        assert other.whole
    broken = pack_tokens([[999]] + [one.tokens[:3] for one in prints[1:]])
    _, cut = printed({**follow, "tokens": broken}, environment, most=0)
    assert cut == []


def test_an_endpoint_has_no_fingerprints(endpoint: Endpoint) -> None:
    wanted = {**asks(endpoint), "fingerprints": True}
    code, output, _ = run(wanted, environment=ENVIRONMENT)
    assert code == 1
    assert "the engine openai has no fingerprints" in output


def printed(
    order: dict[str, Any], environment: dict[str, str], most: int = 16
) -> tuple[dict[str, str], list[Fingerprint]]:
    """The answers of a solver and their fingerprints; none of these if `most` is 0."""
    code, output, errors = run(order, environment=environment)
    assert code == 0, errors
    said = messages_in(output)
    (ready,) = [one for one in said if isinstance(one, Ready)]
    assert ready.runtime == {"engine": "vllm 0.0.fake", "dtype": "bfloat16"}
    parcel = IncomingFile()
    for message in said:
        if isinstance(message, FingerprintsPiece):
            parcel.add(message)
    (announced,) = [one for one in said if isinstance(one, Hash)]
    assert parcel.sha256 == announced.fingerprints
    answers = answers_in(output, order["prompts"])
    if not most:
        with pytest.raises(FingerprintError, match="answer 1 has 0 tokens"):
            read_fingerprints(parcel.read(), len(answers), 16)
        return answers, []
    return answers, read_fingerprints(parcel.read(), len(answers), most)


def test_series_come_from_vllm_in_batches_of_one_size(tmp_path: Path) -> None:
    """Its answers, of hexadecimal digits, are the prompts."""
    wanted = order(
        task="generate",
        engine={"kind": "vllm", "model": "m"},
        settings={"max_tokens": 30},
        generate={"series": 2, "prompts": 8, "seed": 1},
    )
    code, output, errors = run(wanted, environment=with_vllm(tmp_path / "told"))
    assert code == 0, errors
    parcel = IncomingFile()
    for message in messages_in(output, SolverTask.GENERATE):
        if isinstance(message, SeriesPiece):
            parcel.add(message)
    series = read_series(parcel, 2, 8)
    assert all(
        len(prompt) == 30 and set(prompt) <= set("0123456789abcdef")
        for one in series
        for prompt in one
    )
    told = json.loads((tmp_path / "told").read_text())
    assert len(told["sampling"]) == told["max_num_seqs"] == 18


# --- transformers ---


@pytest.fixture(scope="module")
def model(fast_trainer_python: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random Llama."""
    folder = tmp_path_factory.mktemp("model")
    (folder / "prompts.json").write_text(json.dumps({"one": "Why?"}))
    command = [fast_trainer_python, TINY_LLAMA, folder, folder / "prompts.json", "16"]
    run_program(command, timeout=100)
    return folder


def solve_many(python: Path, *orders: dict[str, Any]) -> list[dict[str, str]]:
    """The answers to each, from one process."""
    done = run_program(
        [python, PROGRAMS / "solve_many.py", SOLVER],
        input=json.dumps(orders),
        timeout=110,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    return json.loads(done.stdout)


@pytest.mark.slow
def test_a_model_in_process_answers_by_seed_and_prompt_whatever_else_is_in_its_batch(
    model: Path, fast_trainer_python: Path
) -> None:
    engine = {
        "kind": "transformers",
        "model": str(model),
        "device": "cpu",
        "dtype": "float32",
    }
    many = [f"Prompt {number}: {'why ' * (number % 7)}?" for number in range(12)]
    # As in a workload: one of its prompts among others; and one so long that all rows
    # are of another width.
    among = [*(f"Another prompt {number}" for number in range(11)), many[4]]
    beside_long = ["why " * 50, *many[:11]]
    limit = {"max_tokens": 16}
    wanted = order(engine=engine, prompts=many)
    alone = solved(wanted, python=fast_trainer_python)
    one, back, among_others, beside, in_fives, other, narrow, cold = solve_many(
        fast_trainer_python,
        wanted,
        {**wanted, "prompts": many[::-1]},
        {**wanted, "prompts": among},
        {**wanted, "prompts": beside_long},
        {**wanted, "engine": {**engine, "batch_size": 5}},
        {**wanted, "seed": 8},
        {**wanted, "settings": {**limit, "temperature": 0.7, "top_p": 1e-9}},
        {**wanted, "settings": {**limit, "temperature": 0, "top_p": 1}, "seed": 9},
    )
    assert set(one) == set(many)
    assert len(set(one.values())) == len(many)
    assert alone == one == back == in_fives
    assert among_others[many[4]] == one[many[4]]
    assert {prompt: beside[prompt] for prompt in many[:11]} == {
        prompt: one[prompt] for prompt in many[:11]
    }
    assert sum(other[prompt] != one[prompt] for prompt in many) >= 11
    # A nucleus of next to nothing holds the likeliest token only, and so does no
    # temperature.
    assert narrow == cold
    assert narrow != one


@pytest.mark.slow
def test_without_chance_a_model_in_process_says_what_transformers_generate_says(
    model: Path, fast_trainer_python: Path
) -> None:
    expected = json.loads((model / "expected.json").read_text())["one"]
    engine = {"kind": "transformers", "model": str(model), "device": "cpu"}
    settings = {"temperature": 0, "top_p": 0.8, "max_tokens": 16}
    wanted = order(
        engine=engine, prompts=["Why?", "A longer prompt than that"], settings=settings
    )
    (found,) = solve_many(fast_trainer_python, wanted)
    ends = expected.index(257) if 257 in expected else len(expected)
    assert ends > 3
    assert found["Why?"] == decoded(model, fast_trainer_python, expected[:ends])


def decoded(model: Path, python: Path, ids: list[int]) -> str:
    code = (
        "import json, sys; from transformers import PreTrainedTokenizerFast as"
        " T;print(json.dumps(T.from_pretrained(sys.argv[1]).decode(json.loads(sys.argv[2]),"
        " skip_special_tokens=True)))"
    )
    done = run_program([python, "-c", code, model, json.dumps(ids)], timeout=100)
    return json.loads(done.stdout)


@pytest.mark.slow
def test_another_number_format_passes_by_fingerprints_and_coarse_weights_fail(
    model: Path, fast_trainer_python: Path
) -> None:
    """The trusted engine has bfloat16; the limits follow from honest runs in float32."""
    engine = {"kind": "transformers", "model": str(model), "device": "cpu"}
    settings = {"temperature": 0.5, "top_p": 0.8, "max_tokens": 24}
    work = {
        "prompts": [f"Prompt {number}: {'why ' * number}?" for number in range(6)],
        "settings": settings,
        "engines": {
            "full": {**engine, "dtype": "float32"},
            "half": {**engine, "dtype": "bfloat16"},
            "coarse": {**engine, "dtype": "float32", "bits": 4},
        },
        "runs": [
            *(["full", "half", seed] for seed in range(7)),
            ["coarse", "half", 7],
            ["full", "full", 8],
        ],
    }
    done = run_program(
        [fast_trainer_python, PROGRAMS / "print_answers.py", SOLVER],
        input=json.dumps(work),
        timeout=110,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    runs, runtimes = json.loads(done.stdout)
    assert runtimes["full"]["engine"] == runtimes["half"]["engine"]
    assert (runtimes["full"]["dtype"], runtimes["half"]["dtype"]) == (
        "float32",
        "bfloat16",
    )
    assert all(same for _, _, same in runs)
    found = [differences_in(files) for files in runs]
    limits = limits_from(found[:5])
    for honest in (*found[5:7], found[8]):
        assert all(one_is_right(one, limits) for one in honest), (honest, limits)
        assert all_are_right(total(honest), limits), (total(honest), limits)
    # Reading at once and writing step by step differ by nearly nothing.
    assert total(found[8]).logprob_error < limits.logprobs_all / 10
    assert not all_are_right(total(found[7]), limits), (total(found[7]), limits)


def differences_in(files: list[str]) -> list[PrintDifference]:
    """How much each answer of a run differs: its file, and the one that followed."""
    checked, followed = (
        read_fingerprints(base64.b64decode(one), 6, 24) for one in files[:2]
    )
    assert all(one.whole for one in followed)
    pairs = zip(checked, followed, strict=True)
    return [difference(one, right, Sampling(0.5, 0.8, 24)) for one, right in pairs]


@pytest.mark.slow
def test_a_model_that_cannot_be_loaded_is_told(
    fast_trainer_python: Path, tmp_path: Path
) -> None:
    wanted = order(engine={"kind": "transformers", "model": str(tmp_path)})
    code, output, _ = run(
        wanted,
        python=fast_trainer_python,
        environment={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert code == 1
    (message,) = messages_in(output)
    assert isinstance(message, Failed)
    assert f"engine.model: {tmp_path} cannot be loaded" in message.reason
