"""What people see: text, JSON, tables, plots, traces, pages. The only place that draws and that writes results.

A report reads the values of the rooms below and changes nothing. ``save`` is the only way to a file.
"""
