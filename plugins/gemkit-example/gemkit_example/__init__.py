"""The plugins of gemkit's tutorial."""
