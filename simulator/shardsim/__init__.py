"""shardsim predicts how a transformer trains on a GPU cluster."""
