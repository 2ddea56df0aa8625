"""What is learned: losses, and the heads that they train."""
