"""A whole Kubernetes cluster in this process for tests: a server, controllers, and
containers that are processes.
"""

from tests.support.kubernetes.cluster import Cluster
from tests.support.kubernetes.faults import Faults
from tests.support.kubernetes.nodes import Node
from tests.support.kubernetes.options import Options

__all__ = ["Cluster", "Faults", "Node", "Options"]
