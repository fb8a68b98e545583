"""Writers of models, sources and reference data."""
