"""The paper, reproduced: `python -m reproduction` measures its tables and figures, `render` writes README.md."""
