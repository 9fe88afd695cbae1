"""Which numbers beside a training's losses are metrics: a rate is one; a time, a size
or a counter is not.
"""

import re
from functools import lru_cache

# A name is judged by its last word.
_COUNTER = re.compile(
    r"(?:^|[\s_/.-])(?:epochs?|steps?|iters?|iterations?|batch|batches|updates"
    r"|episodes?|rounds?|trials?|generations?"
    r"|timesteps)$",
    re.IGNORECASE,
)
_NO_METRIC = re.compile(
    r"(?:^|[\s_/.-])(?:times?|took|eta|elapsed|seconds|secs|wall|cost|duration|data"
    r"|mem|memory|memory_mb|mem_mb|mem_gb|allocated|reserved|size|bsz|wpb|samples?"
    r"|tokens|words|instances|images|labels|targets|params|parameters|weights"
    r"|gpu_mem|img_size|skipped|retries|version|port|pid|rank|seed|gpus?|cuda|node"
    r"|worker|progress|device|line|id|v_num|py)$",
    re.IGNORECASE,
)
# Composer groups its names: `time/train`, `memory/active_mem`
_NO_GROUP = re.compile(r"(?:^|[\s_/])(?:time|memory)/", re.IGNORECASE)
_MEASURE = re.compile(
    r"(?:^|[\s_/.-])(?:loss|nll|acc|accuracy|top\d|ppl|perplexity|reward|bleu|f1|auc|mse"
    r"|rmse|mae|iou|miou|f-score|fscore|map|psnr|wer|cer"
    r"|episodic_return|(?:mean|avg|average)_return|elbo)(?:$|[\s_/@\d-])"
)
_SETTING = re.compile(r"weight|coef|scale|threshold|target")
_SCHEDULED = re.compile(r"(?:^|[_/ ])(?:lr|learning[_ ]rate|grad[_ ]?norm|gnorm)$")

# A log shows the same few names on every line.
_REMEMBERED = 1024


@lru_cache(_REMEMBERED)
def is_metric(name: str) -> bool:
    """False for the name of a time, a size, a counter or a label."""
    if _COUNTER.search(name):
        return False
    if is_measure(name.lower()):
        return True
    return _NO_METRIC.search(name) is None and _NO_GROUP.search(name) is None


@lru_cache(_REMEMBERED)
def is_measure(name: str) -> bool:
    """True for the lower-case name of something that measures a training: a loss, an
    accuracy, …
    """
    return _MEASURE.search(name) is not None and not _SETTING.search(name)


@lru_cache(_REMEMBERED)
def is_scheduled(name: str) -> bool:
    """True for a learning rate or the norm of the gradient, in lower case."""
    return _SCHEDULED.search(name) is not None
