"""The paper's experiments, rebuilt by command."""
