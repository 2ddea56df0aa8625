"""Who watches a run and what is written about it: progress lines, TensorBoard, the model card."""
