"""What `dist` offers beyond tensors and layouts: pipelines, checkpoints, torch's tensors on meshes, experts."""
