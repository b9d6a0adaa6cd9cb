"""FedHEONN: one-layer networks in closed form, incremental, as ensembles, encrypted."""
