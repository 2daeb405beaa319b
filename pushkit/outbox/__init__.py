"""Deliveries: the ones still to be posted, and the results of the others."""
