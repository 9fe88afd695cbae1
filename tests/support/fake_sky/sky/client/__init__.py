"""As SkyPilot has it."""
