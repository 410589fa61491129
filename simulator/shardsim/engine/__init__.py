"""Closed form, listing and discrete-event simulation (SimPy) of one program, memory over the order, and the Prediction made from them."""
