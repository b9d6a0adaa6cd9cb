"""Neural networks by federated averaging, trained for many clients at once (extra ``torch``)."""
