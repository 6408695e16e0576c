"""Measurements that no run gives, taken by probes."""
