"""The pages of W&B and MLflow that an output names."""

from gpuyard.insight.tracker_links import TrackerLink, links_of

RUN = "0123456789abcdef0123456789abcdef"


def test_the_pages_are_found_once_and_in_order() -> None:
    page = "https://wandb.ai/lab/gpt/runs/a1b2c3d4"
    mlflow = f"http://127.0.0.1:5000/#/experiments/3/runs/{RUN}"
    lines = [
        "wandb: Tracking run with wandb version 0.22.0",
        "wandb: ⭐️ View project at https://wandb.ai/lab/gpt",
        f"wandb: 🚀 View run at \x1b[34m\x1b[4m{page}\x1b[0m",
        f"🏃 View run swift-owl-7 at: {mlflow}",
        f"wandb: 🚀 View run train at: {page}",
    ]
    assert links_of(lines) == [
        TrackerLink("wandb", "a1b2c3d4", page),
        TrackerLink("mlflow", RUN, mlflow),
    ]


def test_what_is_no_page_is_none() -> None:
    lines = [
        "saved out/runs/3",
        "https://me:key@wandb.ai/lab/gpt/runs/a1b2c3d4",
        "javascript://wandb.ai/lab/gpt/runs/a",
        "https://wandb.ai/runs/a",
    ]
    assert links_of(lines) == []


def test_a_hostile_output_names_few() -> None:
    lines = (f"https://h.org/a/b/runs/{n} " + "x" * 100_000 for n in range(1000))
    assert len(links_of(lines)) == 20
