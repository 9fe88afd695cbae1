"""Machines of AWS EC2 that are rented for attempts."""

from gpuyard.providers.extras import require

require("aws", "boto3")
