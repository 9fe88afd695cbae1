"""Deterministic simulation: the real controller, ledger and agent provider in a world
of virtual time.

The world around them (hosts, links, disks, people) is simulated and unkind: at every
await a commit may fail, a link break, a reply get lost, a server or agent be killed.
All of it follows from one seed, so a broken promise is seen again with `python -m
tests.simulation --seed N --trace`.
"""
