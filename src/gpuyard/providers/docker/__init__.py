"""Docker: jobs that name an image run in containers on this host."""

from gpuyard.providers.extras import require

require("docker", "docker")
