"""Model cards are what Hugging Face's own library reads, whatever names hold."""

from typing import Any

from huggingface_hub import ModelCard

from gpuyard.domain.artifacts import Artifact
from gpuyard.domain.jobs import Job
from gpuyard.domain.model_card import CardFacts, model_card

LEFT = Artifact(
    id="art_1",
    job_id="job_1",
    attempt_id="attempt_1",
    path="out/a|b.pt",
    size=12,
    sha256="ab" * 32,
    created_at=1.0,
)


def job(**fields: Any) -> Job:
    given = {
        "id": "job_1",
        "name": "tune: a\nb",
        "kind": "command",
        "state": "completed",
        "priority": 3,
        "created_at": 1.0,
        "ended_at": 86400.0,
        **fields,
    }
    return Job.model_validate(given)


def test_it_has_what_the_run_says_of_itself() -> None:
    made = job(
        progress={
            "step": 40,
            "metrics": {"loss": 0.25, "accuracy": 0.9},
            "links": [{"tracker": "wandb", "run": "a1", "url": "https://wandb.ai/a"}],
        },
        spec={"command": ["python3", "x y.py"], "datasets": ["lab/plays@2"]},
        code={"digest": "d", "commit": "c0ffee", "dirty": True},
    )
    facts = CardFacts(base_model="gpt2-large", data=["imdb"], tags=["text: #1"])
    card = ModelCard(model_card(made, [LEFT], facts))
    assert card.data.to_dict() == {
        "license": "unknown",
        "tags": ["gpuyard", "text: #1"],
        "datasets": ["lab/plays", "imdb"],
        "metrics": ["accuracy", "loss"],
        "base_model": "gpt2-large",
    }
    assert card.text.lstrip().startswith("# tune: a b\n")
    for words in (
        "| loss | 0.25 |",
        "| command | `python3 'x y.py'` |",
        "| commit | `c0ffee with changes` |",
        "| wandb | <https://wandb.ai/a> |",
        "It read `lab/plays@2`.",
        "| `out/a\\|b.pt` | 12 |",
        "The licence is not known",
    ):
        assert words in card.text


def test_what_is_not_known_is_left_out() -> None:
    card = ModelCard(model_card(job(), [], CardFacts(license="apache-2.0")))
    assert card.data.to_dict() == {"license": "apache-2.0", "tags": ["gpuyard"]}
    assert "licence" not in card.text
    assert "## Files" not in card.text


def test_what_a_job_names_is_text_in_the_card_of_who_publishes_it() -> None:
    image = "![](https://evil.example/p)"
    path = f"out/`{image}``<b>.pt"
    url = "https://a.example/b><img>?#/experiments/1/runs/" + "0" * 32
    made = job(
        name="<script> [a](https://evil.example) `",
        progress={
            "metrics": {image: 1.0},
            "links": [{"tracker": "mlflow", "run": "a1", "url": url}],
        },
        spec={"command": ["echo", f"`{image}"]},
    )
    text = model_card(made, [LEFT.model_copy(update={"path": path})], CardFacts())
    for words in (
        "# \\<script> \\[a\\](https://evil.example) \\`\n",
        "| !\\[\\](https://evil.example/p) | 1 |",
        f"| command | `` echo '`{image}' `` |",
        f"| ``` {path} ``` |",
        "| mlflow | <https://a.example/b%3E%3Cimg%3E?#/",
    ):
        assert words in text
