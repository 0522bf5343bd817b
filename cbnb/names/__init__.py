"""Names of other libraries for what cbnb has"""
