"""Adaptations: what is learned on a support set at test time, one file each."""
