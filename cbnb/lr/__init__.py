"""Which learning rate? Rules, trials, the finder, the picker"""
