"""What runs inside a TorchServe worker. Packed whole into every archive, and imports nothing else of ours."""
