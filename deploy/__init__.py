"""The image, its deployment on Kubernetes or by podman, and what is checked before anything is applied."""
