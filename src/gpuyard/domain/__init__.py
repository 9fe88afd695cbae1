"""The nouns of gpuyard: states, specs, the GPU catalogue, tiers, events, wire messages
and errors.
"""
