"""The rules of the gate, one file each: declarations, the rows behind numbers, what has left."""
