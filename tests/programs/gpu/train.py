"""`train.py STEPS`: a small network learns on the GPU, and goes on from its checkpoint.

It prints its device, one line of progress for every tenth step, and where it began.
The checkpoint is `model.pt` in the working folder; it is saved less and less often.
"""

import sys
from pathlib import Path

import torch

STEPS = int(sys.argv[1])
EVERY = 10
WIDTH = 4096
CHECKPOINT = Path("model.pt")
SAVED_AT = [50 * 2**doubling for doubling in range(20)]


def main() -> None:
    """Learn a random linear map."""
    print(
        "devices", torch.cuda.device_count(), torch.cuda.get_device_name(), flush=True
    )
    torch.manual_seed(1)
    target = torch.randn(WIDTH, WIDTH, device="cuda") / WIDTH**0.5
    model = torch.nn.Linear(WIDTH, WIDTH, bias=False, device="cuda")
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    first = 0
    if CHECKPOINT.exists():
        saved = torch.load(CHECKPOINT, map_location="cuda")
        model.load_state_dict(saved["model"])
        first = saved["step"]
    print("begins at step", first, flush=True)
    for step in range(first + 1, STEPS + 1):
        inputs = torch.randn(WIDTH, WIDTH, device="cuda")
        loss = torch.nn.functional.mse_loss(model(inputs), inputs @ target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % EVERY == 0:
            print(f"step {step}/{STEPS} loss {loss.item():.5f}", flush=True)
        if step in SAVED_AT:
            _save({"model": model.state_dict(), "step": step})


def _save(state: dict[str, object]) -> None:
    """Replace the checkpoint at once, so that it is whole at any time."""
    draft = CHECKPOINT.with_suffix(".new")
    torch.save(state, draft)
    draft.replace(CHECKPOINT)


main()
