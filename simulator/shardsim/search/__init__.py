"""Sweeps over many layouts and GPU counts."""
