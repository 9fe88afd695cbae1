"""`hold.py SHARE SECONDS`: takes this share of the GPU's memory and keeps it so long.

It prints first which share was free when it began.
"""

import sys
import time

import torch

free, total = torch.cuda.mem_get_info()
print(f"free {free / total:.3f}", flush=True)
held = torch.empty(int(total * float(sys.argv[1])), dtype=torch.uint8, device="cuda")
held.fill_(1)
torch.cuda.synchronize()
print("holding", flush=True)
time.sleep(float(sys.argv[2]))
