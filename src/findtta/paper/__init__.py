"""The paper: what it printed, and what this package gets for the same.

``findtta.paper.numbers`` has what it printed, ``findtta.paper.items`` the items that can be run again.
"""
