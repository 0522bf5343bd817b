"""Callbacks written for other libraries"""
