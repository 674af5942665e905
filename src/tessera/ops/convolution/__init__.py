"""Convolutions of images: `conv2d`, its calls and its gradient."""
