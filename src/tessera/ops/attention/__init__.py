"""Attention: `flash_attention`, its calls and its gradient."""
