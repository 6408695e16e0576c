"""The tables of the paper, one module each, with an ``ITEM``."""
