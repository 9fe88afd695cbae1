"""How far a line says that a training is: its epoch, step or episode, in the many ways
in which scripts print them.
"""

import re
from dataclasses import dataclass

from gpuyard.insight.reading import COUNT

_EPOCH = re.compile(
    rf"\bepoch\b([\s:=#(\[]{{0,4}})({COUNT})(?:\s?(?:/|of)\s?({COUNT}))?(?![\w.])",
    re.IGNORECASE,
)
_STEP = re.compile(
    r"\b(?:global[_ ]?step|train[_"
    rf" ]?step|step|iter|iteration|batch)\b([\s:=#(\[]{{0,9}})({COUNT})"
    rf"(?:\s{{0,9}}(?:/|of)\s{{0,9}}({COUNT}))?(?![\w.])",
    re.IGNORECASE,
)
# Reinforcement learning: `Episode 10	Average reward: 16.00`
_EPISODE = re.compile(
    rf"\W{{0,9}}episode\b([\s:=#\[]{{0,9}})({COUNT})"
    rf"(?:\s?(?:/|of)\s?({COUNT}))?(?![\w.])",
    re.IGNORECASE,
)
# Not a date, `[05/18 10:12:51]`.
_BRACKET = re.compile(rf"(\[)\s{{0,9}}({COUNT})/({COUNT})\s{{0,9}}[\](]")
# PyTorch's super-resolution: `Epoch[1](20/50): Loss: 0.28`
_AFTER_BRACKET = re.compile(rf"\](\()({COUNT})/({COUNT})\)")
# PyTorch's language model: `| epoch   1 |   200/ 2983 batches | loss  7.63`
_BATCHES = re.compile(rf"()\b({COUNT})/\s{{0,9}}({COUNT}) batches\b")
# fairseq: `epoch 001:    450 / 1891 loss=11.5`, and `num_updates 445` in other lines
_AFTER_EPOCH = re.compile(
    rf"\bepoch {COUNT}(:?\s{{1,9}})({COUNT}) / ({COUNT})(?= )", re.IGNORECASE
)
_UPDATES = re.compile(rf"\bnum_updates([ =])({COUNT})()(?![\w.])")
# clu, of JAX programs: `logging_writer.py:48] [400] train_loss=3.2`
_LONE = re.compile(rf"\] (\[)({COUNT})()\] (?=[\w/]+=)")
# llama2.c: `490 | loss 5.75 | lr 4.9e-05`
_LEADING = re.compile(rf"()({COUNT})() \| (?=loss )")
# timm: `Train: 0 [  50/62 ( 82%)]`
_TRAIN_EPOCH = re.compile(rf"\bTrain(: )({COUNT})() (?=\[)")
# The classifier of PyTorch's tutorial: `[1,  2000] loss: 2.182`
_EPOCH_AND_STEP = re.compile(rf"\[({COUNT}), {{1,9}}({COUNT})\](?= loss)")
# Swin Transformer: `Train: [14/300][250/1251]`
_TWO_BRACKETS = re.compile(
    rf"\[ *({COUNT})/({COUNT})\]\[ *({COUNT})/({COUNT})\](?=\s|$)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """The counters of a line; None for what it does not have.

    `is_said` tells that one of them is written as a pair (`step=3`), not in prose
    (`Step 3`), or that the line begins with an episode. `from_zero` tells that the form
    counts epochs from 0.
    """

    step: int | None = None
    total: int | None = None
    epoch: int | None = None
    epochs: int | None = None
    episode: int | None = None
    episodes: int | None = None
    is_said: bool = False
    from_zero: bool = False


def position(line: str) -> Position:
    """The counters of `line`."""
    if "][" in line and (both := _TWO_BRACKETS.search(line)):
        epoch, epochs, step, total = map(int, both.groups())
        return Position(
            step=step, total=total, epoch=epoch, epochs=epochs, from_zero=True
        )
    if line.startswith("[") and (both := _EPOCH_AND_STEP.match(line)):
        return Position(epoch=int(both[1]), step=int(both[2]))
    epoch = _EPOCH.search(line)
    if epoch is None and "Train: " in line:
        epoch = _TRAIN_EPOCH.search(line)
    counted = _step(line, has_epoch=epoch is not None)
    is_said = _is_set(epoch) or _is_set(counted)
    step = counted or _bracket(line)
    if epoch is None and step is None and (episode := _EPISODE.match(line)):
        return Position(
            episode=int(episode[2]), episodes=_number(episode[3]), is_said=True
        )
    return Position(
        step=int(step[2]) if step else None,
        total=_number(step[3]) if step else None,
        epoch=int(epoch[2]) if epoch else None,
        epochs=_number(epoch[3]) if epoch else None,
        is_said=is_said,
    )


def _step(line: str, *, has_epoch: bool) -> re.Match[str] | None:
    """The match of a step: what stands before the number, it, and the total or ''."""
    step = None
    if has_epoch and " / " in line:
        step = _AFTER_EPOCH.search(line)
    step = step or _STEP.search(line)
    if step is None and "num_updates" in line:
        step = _UPDATES.search(line)
    if step is None and "] [" in line:
        step = _LONE.search(line)
    if step is None and " | loss " in line:
        step = _LEADING.match(line)
    return step


def _bracket(line: str) -> re.Match[str] | None:
    """The match of a step that only its place tells, with a total."""
    if " batches" in line and (found := _BATCHES.search(line)):
        return found
    if "](" in line and (found := _AFTER_BRACKET.search(line)):
        return found
    return _BRACKET.search(line)


def _is_set(counter: re.Match[str] | None) -> bool:
    return counter is not None and counter[1].strip() in (":", "=")


def _number(text: str | None) -> int | None:
    return int(text) if text else None
