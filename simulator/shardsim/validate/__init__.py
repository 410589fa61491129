"""Measured runs against predictions; returns tables, draws nothing."""
