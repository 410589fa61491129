"""The immutable types that cross the walls between rooms. Frozen, SI units, no behaviour beyond what follows from them.

Import each from its own module: ``from shardsim.values.training import Layout``.
"""
