"""Signing in through an OpenID provider: browsers, and commands through browsers."""
