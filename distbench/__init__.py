"""distbench: how fast do the machines in front of you multiply matrices together?"""

__version__ = "0.1.0"
