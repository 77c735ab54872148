"""Kin of LLaVA: images cut into tiles as LLaVA-OneVision's are."""
