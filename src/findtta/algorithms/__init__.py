"""The methods, one per file, all of one shape: options, layer, method."""
