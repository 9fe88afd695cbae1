"""What may go wrong with a request to a replica."""


class ReplicaFailedError(Exception):
    """A replica cannot be reached, or its answer broke off."""


class ReplicaSilentError(ReplicaFailedError):
    """A replica has said nothing for too long."""
