"""Three engines over one program: closed form, listing (longest path), events (SimPy); memory over the order.

`plan` checks and lays out a program, `walk` is the recurrence, `accounts` says where time went; `predict` sums it up.
Import each from its own module. Nothing here reads files or knows devices; what an engine takes is a `Program`.
"""
