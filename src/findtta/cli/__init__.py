"""The ``findtta`` command."""
