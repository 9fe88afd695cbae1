"""The hyper-parameters; `--name=value` on the command line overrides one and says
so.
"""

import sys

out_dir = "out-mini"
max_iters = 60
eval_interval = 20
batch_size = 32
learning_rate = 2.0
pace_s = 0.05  # what an iteration takes at least, in seconds

for word in sys.argv[1:]:
    name, _, value = word.removeprefix("--").partition("=")
    globals()[name] = type(globals()[name])(value)
    print(f"Overriding: {name} = {globals()[name]}")
