"""Where weights are trained and sampled: the surface both backends share, the hosted service, the embedded one."""
