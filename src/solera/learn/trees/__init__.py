"""Trees: many clients' trees as one that can be read, and the forests and boosters users expect."""
