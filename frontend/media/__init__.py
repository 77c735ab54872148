"""Images and videos of prompts: their bytes, their pixels as the model's family wants them, and the workers' files."""
