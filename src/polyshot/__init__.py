"""Polyshot: few-shot image classification in any visual domain."""
