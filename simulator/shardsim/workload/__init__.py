"""Counts: operators of a pass, FLOP, parameters, schedules, allocations, validity. No hardware, no times."""
