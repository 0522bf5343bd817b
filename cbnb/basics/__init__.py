"""What every room needs: checks of arguments, wording, warnings"""
