"""JSON Schemas as clients write them, made into those that the grammar library keeps to the letter."""
