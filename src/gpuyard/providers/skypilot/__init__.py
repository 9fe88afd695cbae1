"""Machines of any cloud that an installed SkyPilot can rent."""
