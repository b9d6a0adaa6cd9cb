"""How good a model is: figures that carry the rows they rest on, and the metrics they measure."""
