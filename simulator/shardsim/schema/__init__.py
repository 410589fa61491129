"""Pydantic models of every YAML file, the loader, the catalog and provenance. The only place that reads YAML."""
