"""The zoo: small data sets of many kinds, on which a default is tried before it becomes one."""
