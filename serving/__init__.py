"""What runs beside TorchServe in the pod, and speaks to it. Light: no torch."""
