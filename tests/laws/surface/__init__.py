"""What a person reads of every learner, on every target and all rows, is right or refused."""
