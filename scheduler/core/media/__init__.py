"""Items such as images in prompts: what may enter, what a plan encodes, and the rules for both."""
