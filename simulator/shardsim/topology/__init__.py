"""Fabrics as graphs, placement of ranks, and the GroupShape of each axis."""
