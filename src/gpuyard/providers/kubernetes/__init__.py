"""Kubernetes: a Job for each attempt."""

from gpuyard.providers.extras import require

require("kubernetes", "kubernetes_asyncio")
