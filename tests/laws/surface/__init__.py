"""What a person reads of every learner, on every kind of target and of rows, is right or refused."""
