"""From a trained run to recommendations."""
