"""What people see: text, JSON, CSV, plots, traces. The only place that draws."""
