"""Docker: jobs that name an image run in containers on this host."""
