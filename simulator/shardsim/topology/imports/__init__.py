"""Nodes read from what tools print about them: ``nvidia-smi topo -m`` text and NCCL topology XML.

Every reader gives a :class:`shardsim.topology.imports.node.Node` or an :class:`shardsim.errors.InputError`.
"""
