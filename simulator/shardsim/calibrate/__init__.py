"""Measurements in, fitted constants out (as tables and profile YAML). Never runs inside a simulation."""
