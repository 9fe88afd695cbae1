"""The names of a published model and of data in a program."""

from gpuyard.insight.needs.named import Named, named_in
from gpuyard.insight.needs.sources import Sources

PROGRAM = """
import argparse
from datasets import load_dataset
from transformers import AutoModelForSequenceClassification

parser = argparse.ArgumentParser()
parser.add_argument("--model", default="bert-base-uncased")
args = parser.parse_args()
data = load_dataset("imdb")
model = AutoModelForSequenceClassification.from_pretrained(args.model)
"""


def test_a_model_and_data_are_named_as_the_arguments_say() -> None:
    sources = Sources({"train.py": PROGRAM}, "train.py")
    assert named_in(sources, []) == Named("bert-base-uncased", "imdb")
    assert named_in(sources, ["--model", "roberta-base"]).base_model == "roberta-base"


def test_a_program_that_names_none_has_none() -> None:
    assert named_in(Sources({"x.py": "print(1)"}, "x.py"), []) == Named()
