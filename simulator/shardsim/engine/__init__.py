"""Three engines over one program: closed form, listing (longest path), events (SimPy); memory over the order.

`plan` checks and lays out a program, `walk` is the recurrence; `des`, `lane`, `meetings`, `network` and `whole` are the
events, `accounts` says where time went, `predict` makes a prediction. Import each from its own module. No file is read.
"""
