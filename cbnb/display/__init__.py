"""Figures, charts, progress, steering and the dashboard"""
