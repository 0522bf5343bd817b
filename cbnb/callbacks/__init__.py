"""Callbacks that do something: gradients, stopping, files, predictions"""
