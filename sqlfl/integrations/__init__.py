"""Federations within other libraries: scikit-learn, MLflow and NVFlare."""
