"""Jobs on rented machines: what all clouds have in common.

A cloud is a module that implements `InstanceApi` (`api.py`); everything else about an
instance is here.
"""
