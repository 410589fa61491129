"""Closed form, listing and event simulation (SimPy) of one program; memory over the order; the Prediction made from them."""
