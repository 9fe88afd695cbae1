"""Providers: the hands. Each places attempts somewhere; all speak the interface in `base`."""
